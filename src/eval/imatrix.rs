//! Importance matrices under a RoPE method and at its context: for each weight matrix, the sum of squares of its
//! inputs, column by column, in the GGUF format of llama.cpp's `tools/imatrix`. Quantizers use them to weight
//! columns.
//!
//! Like in that tool, windows of the context's length follow each other, the first token of each is BOS if the model's
//! flags ask for it, and all tokens of a window count. Unlike that tool, this always includes the output matrix,
//! under the name of the embedding if the two are tied.

use std::collections::BTreeMap;

use gguf::{Array, DType, Output, Value, Writer};

use super::attention::tokens_of;
use super::{invalid, Document};
use crate::control::Control;
use crate::hparams::keys;
use crate::model::{Error, Result};
use crate::session::{InputMoments, Session};

ropewalk_core::setters! {
    /// Size and number of the windows to read.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Params {
        /// Tokens per window; each window starts with an empty context.
        pub ctx: usize,
        /// Maximum number of windows, from the start of the text.
        pub max_windows: Option<usize>,
    }
}

impl Params {
    /// All windows of this many tokens.
    pub fn new(ctx: usize) -> Params {
        Params { ctx, max_windows: None }
    }
}

/// Input statistics of one matrix, or of the matrix of each expert.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// Sums of squares, `[n_in]` for each matrix.
    pub sums: Vec<f64>,
    /// Number of tokens summed, for each matrix.
    pub counts: Vec<f64>,
}

impl Entry {
    fn add(&mut self, moments: &InputMoments<'_>) {
        self.sums.resize(moments.sums.len(), 0.0);
        self.counts.resize(moments.counts.len(), 0.0);
        self.sums.iter_mut().zip(moments.sums).for_each(|(sum, &x)| *sum += f64::from(x));
        self.counts.iter_mut().zip(moments.counts).for_each(|(sum, &n)| *sum += f64::from(n));
    }
}

/// An importance matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Imatrix {
    /// Entries by weight name.
    pub entries: BTreeMap<String, Entry>,
    /// The active method spec.
    pub rope: String,
    /// Tokens of a window.
    pub ctx: usize,
    /// Windows read.
    pub windows: usize,
    /// Windows that the texts have.
    pub windows_total: usize,
    /// Names of the texts.
    pub texts: Vec<String>,
}

/// Collects the importance matrix on the windows of the joined documents. Progress is counted in tokens.
///
/// # Errors
/// Returns an error if the session's context is too small, if the texts are shorter than a window, if values are not
/// finite (with the name of the matrix), or if the session fails; and [`Error::Interrupted`].
pub fn collect(
    session: &mut Session,
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Imatrix> {
    let (ctx, most) = (params.ctx, session.n_max());
    if ctx == 0 || ctx > most {
        return Err(Error::argument("ctx", format_args!("1 to {most} tokens"), ctx));
    }
    if params.max_windows == Some(0) {
        return Err(Error::argument("max-windows", "at least 1", 0));
    }
    let mut tokens = tokens_of(session, documents, usize::MAX)?;
    let windows_total = tokens.len() / ctx;
    if windows_total == 0 {
        let found = tokens.len();
        return Err(invalid(format!(
            "the text: expected at least the {ctx} tokens of a window, found {found}"
        )));
    }
    let windows = params.max_windows.map_or(windows_total, |most| most.min(windows_total));
    let vocab = session.model().vocab();
    let bos = vocab.bos().filter(|_| vocab.add_bos());
    let total = (windows * ctx) as u64;
    control.bind(&session.cancel_flag());
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for (i, window) in tokens.chunks_exact_mut(ctx).take(windows).enumerate() {
        if let Some(bos) = bos {
            window[0] = bos;
        }
        let read = session.moments(window, &mut |moments| {
            control.unless_stopped(Error::Interrupted)?;
            for weight in moments.weights {
                match entries.get_mut(weight) {
                    Some(entry) => entry.add(moments),
                    None => entries.entry(weight.clone()).or_default().add(moments),
                }
            }
            Ok(())
        });
        read.map_err(|e| match e {
            e @ (Error::Argument { .. } | Error::Unsupported(_) | Error::Invalid(_)) => {
                Error::during(format!("window {i}"), e)
            }
            e => e,
        })?;
        control.report(format_args!("window {}/{windows}", i + 1), ((i + 1) * ctx) as u64, total);
    }
    Ok(Imatrix {
        entries,
        rope: session.plan().spec.to_string(),
        ctx,
        windows,
        windows_total,
        texts: documents.iter().map(|d| d.name.clone()).collect(),
    })
}

impl Imatrix {
    /// Writes llama.cpp's format to `path`, atomically, and returns the size in bytes.
    ///
    /// # Errors
    /// Returns an error if a sum overflows F32, or if the file cannot be written.
    pub fn write(&self, path: impl Into<Output>) -> Result<u64> {
        let number = |n: usize| Value::U32(u32::try_from(n).unwrap_or(u32::MAX));
        let mut out = Writer::new();
        out.set("general.type", "imatrix");
        let texts = self.texts.iter().map(|name| name.clone().into_bytes());
        out.set("imatrix.datasets", Value::Array(Array::String(texts.collect())));
        out.set("imatrix.chunk_count", number(self.windows));
        out.set("imatrix.chunk_size", number(self.ctx));
        out.set(keys::IMATRIX_ROPE, self.rope.as_str());
        out.set(keys::VERSION, env!("CARGO_PKG_VERSION"));
        for (name, entry) in &self.entries {
            let n = entry.counts.len();
            let floats = |values: &[f64]| -> Result<Vec<u8>> {
                if let Some(sum) = values.iter().find(|&&x| !(x as f32).is_finite()) {
                    return Err(invalid(format!("{name}: expected sums that F32 holds, found {sum}")));
                }
                Ok(values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect())
            };
            let columns = (entry.sums.len() / n.max(1)) as u64;
            let (sums, counts) = (floats(&entry.sums)?, floats(&entry.counts)?);
            out.tensor_bytes(&format!("{name}.in_sum2"), DType::F32, &[columns, n as u64], sums)?;
            out.tensor_bytes(&format!("{name}.counts"), DType::F32, &[1, n as u64], counts)?;
        }
        Ok(out.write(path)?)
    }
}
