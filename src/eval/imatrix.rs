//! Importance matrices under a rope method and at its context: for each matrix of a model the sum of the squares of what
//! it reads, column by column, in the GGUF format of llama.cpp's `tools/imatrix`. Quantisers weigh columns by them.
//!
//! As there, windows of the context's length follow each other, the first token of each is BOS where the model's flags ask
//! for it, and all tokens of a window count. Unlike there the output matrix is always among the matrices, under the name of
//! the embedding where it is that.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::{Array, DType, Value, Writer};

use super::attention::tokens_of;
use super::{invalid, Document};
use crate::control::Control;
use crate::hparams::keys;
use crate::model::{Error, Result};
use crate::session::{InputMoments, Session};

/// The windows that are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Tokens of a window; each starts in an empty context.
    pub ctx: usize,
    /// At most this many windows, the first ones of the text.
    pub max_windows: Option<usize>,
}

/// The activations that one matrix reads, or that of each expert.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// Sums of squares, `[n_in]` for each matrix.
    pub sums: Vec<f64>,
    /// For each matrix the tokens summed over.
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
    /// By the name of the weight.
    pub entries: BTreeMap<String, Entry>,
    /// The rope spec in force.
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

/// Reads the windows of documents, which are joined one behind another. Progress is counted in tokens.
///
/// # Errors
/// A context that the session does not have; texts shorter than a window; values that are not finite, naming the matrix;
/// [`Error::Interrupted`]; whatever the session reports.
pub fn collect(
    session: &mut Session,
    documents: &[Document],
    params: &Params,
    control: &Control<'_>,
) -> Result<Imatrix> {
    let (ctx, most) = (params.ctx, session.n_max());
    if ctx == 0 || ctx > most {
        return Err(invalid(format!("ctx: expected 1 to {most} tokens, found {ctx}")));
    }
    if params.max_windows == Some(0) {
        return Err(invalid("max-windows: expected at least 1, found 0"));
    }
    let mut tokens = tokens_of(session, documents, usize::MAX)?;
    let windows_total = tokens.len() / ctx;
    if windows_total == 0 {
        let n = tokens.len();
        return Err(invalid(format!("the text: expected at least the {ctx} tokens of a window, found {n}")));
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
            if control.stopped() {
                return Err(Error::Interrupted);
            }
            for weight in moments.weights {
                match entries.get_mut(weight) {
                    Some(entry) => entry.add(moments),
                    None => entries.entry(weight.clone()).or_default().add(moments),
                }
            }
            Ok(())
        });
        read.map_err(|e| match e {
            Error::Invalid(what) => invalid(format!("window {i}: {what}")),
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
    /// Writes llama.cpp's format, beside `path` and then in its place, and returns the size in bytes.
    ///
    /// # Errors
    /// A sum that F32 does not hold; the file system.
    pub fn write(&self, path: &Path) -> Result<u64> {
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
