//! A session in one line.

use ropewalk_core::text::bytes;

use super::{Attention, Session};

impl Session {
    /// The device, the math, the method and where it is from, the context, and the memory.
    pub fn summary(&self) -> String {
        let (model, params, plan) = (self.model(), self.params(), self.plan());
        let source = match params.rope {
            Some(_) => "",
            None if model.takes_trained_rope() => " (from the adapter)",
            None => " (from the file)",
        };
        let attention = match params.attention {
            Attention::Landmark(top) => format!("attention {top}, "),
            Attention::Auto | Attention::Explicit => String::new(),
        };
        let threads = match params.n_threads {
            _ if model.device() != "cpu" => String::new(),
            n if params.portable || n == 1 => ", 1 thread".to_owned(),
            n => format!(", {n} threads"),
        };
        let n_vocab = model.hparams().n_vocab;
        let logits = match params.n_logits {
            1 => String::new(),
            n => format!(
                ", of it {} for the logits of {n} tokens",
                bytes((n * n_vocab * size_of::<f32>()) as u64)
            ),
        };
        format!(
            "{}{threads}, {attention}math {}, rope {}{source}, {}, memory {}{logits}",
            model.device(),
            params.math,
            plan.spec,
            plan.context_text(params.n_ctx, model.hparams()),
            self.memory(),
        )
    }
}
