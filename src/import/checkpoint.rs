//! A folder, opened; and the file it becomes.

use std::io::{self, Write};
use std::path::Path;

use gguf::{DType, Output, Value, Writer};
use ropewalk_core::control::Control;

use crate::arch::{self, Family, FAMILIES};
use crate::config::{self, Config};
use crate::error::shown;
use crate::keys::Keys;
use crate::safetensors::Tensors;
use crate::tensor::{floats, Tensor};
use crate::vocab::Tokenizing;
use crate::{general, vocab, Error, Result};

/// `general.file_type` of a mixture with experts in MXFP4.
const MOSTLY_MXFP4: u32 = 38;

/// Whole rows of a tensor as another type than that of the checkpoint; [`floats`] does it for types of floats.
pub type Encode<'a> = dyn Fn(&Tensor, DType, &[f32]) -> io::Result<Vec<u8>> + 'a;

/// A model's folder, read and checked.
#[derive(Debug)]
pub struct Checkpoint {
    files: Tensors,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
    notes: Vec<String>,
}

impl Checkpoint {
    /// Reads config, tokenizer and the headers of the weights. `pre` is the value of `tokenizer.ggml.pre` for
    /// a tokenizer that llama.cpp's list does not have. A tokenizer.json with byte-level BPE has to be run, as `tokenizing`
    /// says; without it such a folder is an error, [`Error::Argument`].
    ///
    /// # Errors
    /// Faults of the folder: one line with file, key, found and expected. A tokenizer that ended its process.
    pub fn open(folder: &Path, pre: Option<&str>, tokenizing: Option<&Tokenizing>) -> Result<Checkpoint> {
        let (object, class) = config::read(folder)?;
        let family = arch::of(&class).ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.classes).copied().collect();
            let what =
                format!("found \"{}\", which cannot be imported; known: {}", shown(&class), known.join(" "));
            object.error("architectures", what)
        })?;
        let config = Config::new(folder, object, &family.class)?;
        let files = Tensors::open(folder)?;
        let mut keys = Keys::new(family.arch);
        keys.notes.extend(unknown_keys(&config));
        keys.plain("general.architecture", family.arch);
        (family.keys)(&config, &mut keys)?;
        let tensors = family.tensors(&config, &files, &mut keys)?;
        check_embedding(&config, &tensors)?;
        check_flags(&config, family, &files)?;
        general::write(&config, &tensors, &mut keys)?;
        vocab::write(&config, family.vocab, pre, tokenizing, &mut keys)?;
        fit_vocabulary(&config, &tensors, &mut keys)?;
        Ok(Checkpoint { files, metadata: keys.list, tensors, notes: keys.notes })
    }

    /// Keys and values of the new file, but for `general.file_type`.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }
    /// Tensors of the checkpoint, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
    /// Facts and warnings for the user, whole sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
    /// The files of the weights.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.paths()
    }
    /// The type of the first matrix of floats in the checkpoint, which stands for all.
    pub fn stored(&self) -> DType {
        let matrix = self.tensors.iter().find(|t| !t.stays_f32() && t.packed().is_none());
        matrix.map_or(DType::F32, Tensor::stored)
    }

    /// Writes a temporary file for `output`, each tensor in the type that `dtype` gives for it; `encode` makes rows of types
    /// that are neither F32 nor the checkpoint's. What is [packed](Tensor::packed) stays so, and then the file's type is
    /// that of a mixture in MXFP4, as llama.cpp's converter has it. Returns the file and its size.
    ///
    /// # Errors
    /// The disk; values that a type cannot hold; [`Error::Interrupted`] when `control` asked for it.
    pub fn write(
        &self,
        file_type: u32,
        dtype: &dyn Fn(&Tensor) -> DType,
        encode: &Encode<'_>,
        control: &Control<'_>,
        output: impl Into<Output>,
    ) -> Result<(files::Scratch, u64)> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.set(key, value.clone());
        }
        let packed = self.tensors.iter().any(|t| t.packed().is_some());
        writer.set("general.file_type", if packed { MOSTLY_MXFP4 } else { file_type });
        let of = |t: &Tensor| t.packed().unwrap_or_else(|| if t.stays_f32() { DType::F32 } else { dtype(t) });
        writer.watch(|done, total| control.writing(done, total));
        for t in &self.tensors {
            let to = of(t);
            let data = move |out: &mut dyn Write| {
                if t.packed().is_some() {
                    return t.each_packed(&self.files, &mut |bytes| out.write_all(bytes));
                }
                if let Some(bytes) = t.unchanged(to, &self.files) {
                    return bytes.write_to(out);
                }
                t.each(&self.files, &mut |values| {
                    let own = to == DType::F32 || to == t.stored();
                    out.write_all(&if own { floats(to, values)? } else { encode(t, to, values)? })
                })
            };
            writer.tensor(t.name(), to, t.shape(), Box::new(data))?;
        }
        match writer.write_scratch(output) {
            Err(_) if control.stopped() => Err(Error::Interrupted),
            done => Ok(done?),
        }
    }
}

/// Most tokens of a vocabulary; the largest known have fewer than 2^19.
const MAX_VOCAB: u32 = 1 << 22;

/// Checks that config.json and tokenizer speak of this embedding: llama.cpp refuses others, and no array is
/// made that is longer.
fn check_embedding(c: &Config, tensors: &[Tensor]) -> Result<()> {
    let embedding = tensors.iter().find(|t| t.name() == "token_embd.weight");
    let missing = || Error::of(&c.folder, "found no tensor of the embedding, expected one");
    let shape = embedding.ok_or_else(missing)?.shape();
    let (n, width) = (c.u32("vocab_size")?, c.u32("hidden_size")?);
    if shape.len() != 2 || shape[0] != u64::from(width) {
        let what = format!("found {width}, but an embedding of shape {shape:?}");
        return Err(c.object.error("hidden_size", what));
    }
    if u64::from(n) > shape[1] {
        let what = format!("found {n}, expected at most the {} rows of the embedding", shape[1]);
        return Err(c.object.error("vocab_size", what));
    }
    if shape[1] > u64::from(MAX_VOCAB) {
        let what = format!("found an embedding of {} rows, expected at most {MAX_VOCAB}", shape[1]);
        return Err(c.object.error("vocab_size", what));
    }
    Ok(())
}

/// Gives every row of the embedding a token, the last ones unused, for a file has as many of either; more tokens than rows
/// are refused.
fn fit_vocabulary(c: &Config, tensors: &[Tensor], keys: &mut Keys) -> Result<()> {
    let rows = |name: &str| tensors.iter().find(|t| t.name() == name).and_then(|t| t.shape().get(1).copied());
    let Some(n) = rows("token_embd.weight") else { return Ok(()) };
    if let Some(other) = rows("output.weight").filter(|&other| other != n) {
        let what = format!("found {other} rows of the output and {n} of the embedding, expected as many");
        return Err(Error::of(&c.folder, what));
    }
    let found = vocab::fit(keys, n as usize);
    if found as u64 > n {
        let what = format!(
            "found {found} tokens in the tokenizer's files, expected at most the {n} rows of the embedding"
        );
        return Err(Error::of(&c.folder, what));
    }
    let arch_size = format!("{}.vocab_size", keys.arch);
    if keys.get(&arch_size).is_some() {
        keys.plain(&arch_size, n as u32);
    }
    Ok(())
}

/// The message about unknown keys, if there are any.
fn unknown_keys(c: &Config) -> Option<String> {
    const MOST: usize = 12;
    let (first, rest) = c.unknown.split_at(c.unknown.len().min(MOST));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let what =
        format!("config.json: left out keys that its class does not know: {}{more}.", first.join(", "));
    (!first.is_empty()).then_some(what)
}

/// Checks that flags of config.json agree with the tensors that are there.
fn check_flags(c: &Config, family: &Family, files: &Tensors) -> Result<()> {
    for (flag, ending) in family.biases {
        let said = c.object.bool(flag)?.unwrap_or(false);
        let bias = files.all.iter().find(|t| t.name.ends_with(ending));
        match (said, bias) {
            (false, Some(t)) => {
                let what = format!("found false, expected true: the checkpoint has {}", shown(&t.name));
                return Err(c.object.error(flag, what));
            }
            (true, None) => {
                let what = format!("found true, expected false: the checkpoint has no tensor *{ending}");
                return Err(c.object.error(flag, what));
            }
            _ => {}
        }
    }
    let named = |wanted: &str| {
        files.all.iter().find(|t| {
            family.mapped(&t.name.replace("language_model.", "")).is_some_and(|name| name == wanted)
        })
    };
    let (Some(embedding), output) = (named("token_embd.weight"), named("output.weight")) else {
        return Ok(());
    };
    let key = "tie_word_embeddings";
    match (c.tied, output) {
        (Some(false), None) => {
            let what = "found false, expected true: the checkpoint has no tensor of the output";
            Err(c.object.error(key, what))
        }
        (Some(true), Some(output)) if !files.same(embedding, output) => {
            let what = format!(
                "found true, expected false: {} is not the embedding, and versions of transformers differ in \
                 which of the two they take",
                shown(&output.name)
            );
            Err(c.object.error(key, what))
        }
        _ => Ok(()),
    }
}
