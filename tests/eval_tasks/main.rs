//! Evaluation tasks on fake models: what each must score is known beforehand.

mod document;
mod fakes;
mod passkey;
mod perplexity;
mod protocol;
