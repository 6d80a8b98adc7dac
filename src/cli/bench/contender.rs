//! Who is measured: a session of ours, or libllama on the same file with the same settings.

use anyhow::anyhow;
use llama::oracle::{Oracle, OracleParams};
use ropewalk::model::Model;
use ropewalk::session::{Session, SessionParams};
use ropewalk::Token;

use super::super::models::ModelChoice;

/// An engine at one context.
pub(super) trait Contender {
    /// Its name in reports.
    fn engine(&self) -> &'static str;
    /// The rope spec in force.
    fn rope(&self) -> String;
    /// As it was asked for: short, for tables.
    fn label(&self) -> String;
    /// Makes the context hold exactly these tokens.
    fn hold(&mut self, tokens: &[Token]) -> anyhow::Result<()>;
    /// Appends tokens and computes the last one's logits.
    fn append(&mut self, tokens: &[Token]) -> anyhow::Result<()>;
}

/// A ropewalk session.
pub(super) struct Ours<'m> {
    session: Session<'m>,
    label: String,
}
impl<'m> Ours<'m> {
    pub(super) fn new(session: Session<'m>) -> Self {
        let label = match &session.params().rope {
            Some(asked) => asked.to_string(),
            None => session.plan().spec.to_string(),
        };
        Ours { session, label }
    }
}
impl Contender for Ours<'_> {
    fn engine(&self) -> &'static str {
        "ropewalk"
    }
    fn rope(&self) -> String {
        self.session.plan().spec.to_string()
    }
    fn label(&self) -> String {
        self.label.clone()
    }
    fn hold(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        let held = self.session.tokens(0).starts_with(tokens);
        // Where keys are evicted there may be no way back.
        if held && self.session.truncate(0, tokens.len()).is_ok() {
            return Ok(());
        }
        self.session.clear();
        self.append(tokens)
    }
    fn append(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        for batch in tokens.chunks(self.session.params().n_batch.max(1)) {
            self.session.append(batch)?;
        }
        Ok(())
    }
}

/// libllama, under the rope its file declares.
pub(super) struct Libllama {
    oracle: Oracle,
    n_batch: usize,
}
impl Libllama {
    /// With the adapters of `choice`, at the same strengths.
    pub(super) fn open(
        choice: &ModelChoice,
        model: &Model,
        settings: &SessionParams,
    ) -> anyhow::Result<Self> {
        let small = |n: usize, what: &str| {
            u32::try_from(n).map_err(|_| anyhow!("{what} {n}: too large for libllama"))
        };
        let mut oracle = Oracle::open(
            &choice.path,
            &OracleParams {
                n_batch: small(settings.n_batch, "--batch")?,
                n_ubatch: small(settings.n_ubatch, "--ubatch")?,
                n_threads: small(settings.n_threads, "--threads")?,
                kv: settings.kv_type,
                n_gpu_layers: if model.device() == "cpu" { 0 } else { i32::MAX },
                ..OracleParams::new(small(settings.n_ctx, "context")?)
            },
        )?;
        for adapter in &choice.params.adapters {
            oracle.lora(&adapter.path, adapter.strength)?;
        }
        Ok(Libllama { oracle, n_batch: settings.n_batch.max(1) })
    }
}
impl Contender for Libllama {
    fn engine(&self) -> &'static str {
        "libllama"
    }
    fn rope(&self) -> String {
        "the file's own".to_owned()
    }
    fn label(&self) -> String {
        self.rope()
    }
    fn hold(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        self.oracle.clear();
        self.append(tokens)
    }
    fn append(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        for batch in tokens.chunks(self.n_batch) {
            self.oracle.eval(batch, false)?;
        }
        Ok(())
    }
}
