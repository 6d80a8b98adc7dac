//! Benchmarks: prompts, scores, and draws equal to those of the published code, and what users can get wrong.

mod babilong;
mod draws;
mod infinitebench;
mod longbench;
mod lveval;
mod made;
mod metrics;
mod needle;
mod passkey;
mod punkt;
mod registry;
mod ruler;
mod short;
mod testing;
