//! One conversion: a GGUF file in, a GGUF file out, a report.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::Scratch;
use gguf::{DType, File, Output, TensorInfo, Value, Writer};
use ropewalk_core::adapter::{AdapterReader, AdapterSpec};
use ropewalk_core::hparams::{keys, Hparams};
use ropewalk_core::remedy::Remedy;
use ropewalk_core::rope::{Axis, Plan, Spec};

use crate::llama_cpp::{self, Stock};
use crate::merge::{self, Merge, Merged};
use crate::requantize::{self, TensorError};
use crate::rope::{self, FactorTensors, Factors};
use ropewalk_core::control::Control;

use crate::report::{Report, RopeReport};
use crate::{avoidable, check_none_is, staged, types, Error, Mixture, Result};

ropewalk_core::setters! {
    /// The changes to make to a file. With none, it is rewritten as one file of GGUF version 3.
    #[derive(Debug, Clone, Default)]
    pub struct Options {
        /// The rope method to write; for [`Options::llama_cpp`] alone, the one the file declares.
        pub rope: Option<Spec>,
        /// The context to write it for, tokens; see [`rope::default_ctx`].
        pub n_ctx: Option<usize>,
        /// The type for tensors that are not vectors.
        pub dtype: Option<DType>,
        /// In its place: a mixture of types, by libllama's quantizer, after all else.
        pub mixture: Option<Mixture>,
        /// Only what stock llama.cpp understands, or an error that says why not.
        pub llama_cpp: bool,
        /// Adapters to merge into the weights. Without [`Options::rope`] the file declares what the first that
        /// says so was trained under.
        pub adapters: Vec<AdapterSpec>,
        /// The kind of tokenizer of an imported folder, `tokenizer.ggml.pre`.
        pub pre: Option<String>,
        /// Replaces any regular file that is at the output's path; otherwise, only a model with keys of ropewalk.
        pub force: bool,
        /// Who runs the tokenizer.json of an imported folder. Without it, a folder that needs that is an error.
        pub tokenizing: Option<Tokenizing>,
    }
}

/// Who runs a tokenizer.json, with the crate `tokenizers`. A hostile file can make that panic, or take all memory.
#[derive(Debug, Clone)]
pub enum Tokenizing {
    /// A process of the program at this path, under limits. The program calls
    /// [`serve_tokenizer`](crate::serve_tokenizer) first of all.
    Apart(PathBuf),
    /// This process, without limits, for the caller trusts the file.
    Trusted,
}

impl Options {
    pub(crate) fn output(&self, path: &Path) -> Output {
        Output::new(path, self.force)
    }
}

/// Converts `input`, a GGUF file or a model folder of Hugging Face, to `output`, which is replaced only when
/// everything has succeeded.
///
/// # Errors
/// [`Error::Usage`] and [`Error::Argument`] for options that make no sense; otherwise what is wrong with the file, the
/// spec for this model, the disk; [`Error::Interrupted`] when `control` asked for it.
pub fn convert(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    options: &Options,
    control: &Control<'_>,
) -> Result<Report> {
    let (input, output) = (input.as_ref(), output.as_ref());
    if input.is_dir() {
        return crate::import::import(input, output, options, control);
    }
    if options.pre.is_some() {
        return Err(Error::Argument(
            "pre applies only to directories: a GGUF file declares its tokenizer".into(),
        ));
    }
    if let Some(mixture) = &options.mixture {
        return staged::convert(input, output, options, mixture, control);
    }
    let (report, scratch) = rewrite(input, output, options, Pass::Only, control)?;
    scratch.place()?;
    Ok(report)
}

/// What comes before a rewrite, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Only,
    /// After an import, under which tensors in MXFP4 stay so.
    AfterImport,
    /// Before libllama's quantizer: tensors that adapters change are in F32, and there is no alignment, which libllama would
    /// get wrong.
    ToQuantize,
}

/// The work of [`convert`] but for [`Options::mixture`], into a temporary file.
pub(crate) fn rewrite(
    input: &Path,
    output: &Path,
    options: &Options,
    pass: Pass,
    control: &Control<'_>,
) -> Result<(Report, Scratch)> {
    let to_quantize = pass == Pass::ToQuantize;
    let stays = |t: &TensorInfo| pass == Pass::AfterImport && t.dtype == DType::MXFP4;
    let file_type = check_options(options)?;
    let file = File::open(input)?;
    check_output(&file, output, options)?;
    let mut notes = Vec::new();
    let merge = Merge::open(&options.adapters, &file)?;
    let (options, trained_ctx) = &with_trained_rope(options, &merge, &file, &mut notes)?;
    if options.n_ctx.is_some() && options.rope.is_none() && !options.llama_cpp {
        return Err(avoidable(NO_METHOD, Remedy::Method));
    }
    let errors = Errors::default();
    if let Some(dtype) = options.dtype {
        types::note_fallbacks(file.tensors().iter().filter(|t| !stays(t)), dtype, &mut notes);
    }
    let mut writer = Writer::with_metadata_of(&file);
    if !options.adapters.is_empty() {
        writer.remove(keys::SOURCE);
    }
    if to_quantize {
        writer.remove("general.alignment");
    }
    let (factors, rope_report) =
        write_rope(&mut writer, &file, (options, trained_ctx.as_ref()), &merge, &mut notes)?;
    // A file for llama.cpp with factors baked in is longrope no more, and llama.cpp refuses tensors it does
    // not load.
    let written = rope_report.as_ref().and_then(|r| r.llama_cpp.as_ref());
    let is_longrope =
        written.is_some_and(|k| k.get("rope.scaling.type").is_some_and(|kind| kind == "longrope"));
    let orphaned = |name: &str| options.llama_cpp && name.starts_with("rope_factors_") && !is_longrope;

    writer.watch(|done, total| control.writing(done, total));
    let mut quantized = false;
    for (name, factors) in factors.iter().filter(|(name, _)| file.tensor(name).is_none()) {
        factors.add(&mut writer, name)?;
    }
    let mut has_output = false;
    for t in file.tensors() {
        if let Some((name, factors)) = factors.iter().find(|(name, f)| t.name == *name && *f != Factors::Same)
        {
            factors.add(&mut writer, name)?;
            continue;
        }
        if orphaned(&t.name) {
            notes.push(format!("Omitted {}: llama.cpp rejects it in a file that is not longrope.", t.name));
            continue;
        }
        let to = match options.dtype {
            Some(dtype) if !stays(t) => target(&file, t, dtype, &mut notes)?,
            _ => t.dtype,
        };
        let tied = t.name == TOKEN_EMBD && file.tensor(merge::OUTPUT).is_none();
        let mut outputs = vec![(t.name.as_str(), merge.of(&t.name)?)];
        if tied && merge.unties(TOKEN_EMBD) {
            notes.push(
                "The output is no longer tied to the embedding: output.weight is a separate tensor.".into(),
            );
            outputs.push((merge::OUTPUT, merge.of_tied_output(TOKEN_EMBD)?));
        }
        for (name, change) in outputs {
            has_output |= name == merge::OUTPUT;
            let to = if to_quantize && change.is_some() { DType::F32 } else { to };
            if change.is_some() && !to.can_quantize() {
                let what = format!("an adapter changes it, and {to} cannot be written: choose another type");
                return Err(avoidable(file.error(name, what).to_string(), Remedy::Type));
            }
            quantized |= to.is_quantized();
            let (file, errors) = (&file, &errors);
            let data = move |out: &mut dyn Write| -> std::io::Result<()> {
                if let Some(change) = &change {
                    let sums = merge::write(file, t, to, change, out)?;
                    errors.merged.borrow_mut().push(Merged { name: name.to_owned(), dtype: to, sums });
                    return Ok(());
                }
                if t.dtype == to {
                    return file.data(t).write_to(out);
                }
                let error = requantize::convert(file, t, to, out)?;
                errors.converted.borrow_mut().push(error);
                Ok(())
            };
            writer.tensor(name, to, &t.shape, Box::new(data))?;
        }
    }
    if let Some((_, number)) = file_type {
        if !file.tensors().iter().any(stays) {
            writer.set("general.file_type", Value::U32(number));
        }
        if quantized {
            writer.set("general.quantization_version", Value::U32(types::QUANTIZATION_VERSION));
        }
    }
    let n_tensors = writer.n_tensors();
    if options.llama_cpp {
        llama_cpp::check_output(&file, has_output)?;
    }
    let (llama_server, no_llama_server) = llama_cpp::serve(&file, rope_report.as_ref(), has_output, output);
    let (scratch, bytes) = match writer.write_scratch(options.output(output)) {
        Err(_) if control.stopped() => return Err(Error::Interrupted),
        done => done?,
    };
    let report = Report {
        bytes,
        n_tensors,
        rope: rope_report,
        dtype: options.dtype.map(DType::name),
        converted: errors.converted.into_inner(),
        llama_server,
        no_llama_server,
        notes,
        ..Report::default()
    };
    Ok((report.with_merges(errors.merged.into_inner()), scratch))
}

const NO_METHOD: &str = "a context needs a RoPE method";

/// The method that [`convert`] writes into a GGUF file, and its context, if the options or an adapter name one.
///
/// # Errors
/// Faults of the files, and adapters that were trained under several methods.
pub fn written_rope(input: &Path, options: &Options) -> Result<Option<(Spec, usize)>> {
    let file = File::open(input)?;
    let merge = Merge::open(&options.adapters, &file)?;
    let (options, trained_ctx) = with_trained_rope(options, &merge, &file, &mut Vec::new())?;
    let Some(spec) = options.rope.filter(|spec| !spec.is_declared()) else { return Ok(None) };
    let n_ctx = match (options.n_ctx, trained_ctx) {
        (Some(n_ctx), _) | (None, Some((n_ctx, _))) => n_ctx,
        (None, None) => rope::default_ctx(&spec, &Hparams::as_trained(&file)?).0,
    };
    Ok(Some((spec, n_ctx)))
}

/// Checks options that need no file. Returns the type asked for with its number for `general.file_type`.
pub(crate) fn check_options(options: &Options) -> Result<Option<(DType, u32)>> {
    let trained = !options.adapters.is_empty();
    if options.n_ctx.is_some() && options.rope.is_none() && !options.llama_cpp && !trained {
        return Err(avoidable(NO_METHOD, Remedy::Method));
    }
    let Some(dtype) = options.dtype else { return Ok(None) };
    let no_type = || Error::Usage(format!("{} is not a type to convert to", dtype.name()));
    Ok(Some((dtype, types::file_type(dtype).ok_or_else(no_type)?)))
}

/// Checks that the output is none of the files that are read.
pub(crate) fn check_output(file: &File, output: &Path, options: &Options) -> Result<()> {
    check_none_is(output, file.paths().iter(), "the input")?;
    check_adapters(output, options)
}

pub(crate) fn check_adapters(output: &Path, options: &Options) -> Result<()> {
    check_none_is(output, options.adapters.iter().map(|a| &a.path), "an adapter to merge")
}

/// A context to write a method for if none is given, and why.
type DefaultCtx = (usize, String);

/// Writes the rope method's metadata, if a method or a file for llama.cpp is asked for. Returns the factors
/// to write as a tensor, and the report.
fn write_rope(
    writer: &mut Writer<'_>,
    file: &File,
    (options, trained_ctx): (&Options, Option<&DefaultCtx>),
    merge: &Merge,
    notes: &mut Vec<String>,
) -> Result<(FactorTensors, Option<RopeReport>)> {
    if options.rope.is_none() && !options.llama_cpp {
        return Ok((Vec::new(), None));
    }
    let mut hp = Hparams::as_trained(file)?;
    if llama_cpp::is_not_rotated(&hp.arch) {
        let what = format!("expected a model with rotary positions, found {}", hp.arch);
        return Err(file.error("general.architecture", what).into());
    }
    let as_declared = options.rope.is_none() && options.n_ctx.is_none() && file.value(keys::SPEC).is_none();
    if as_declared && hp.attention.len() > 1 {
        // llama.cpp reads the keys as they are. `planned` can put a method into keys for one kind of layers only.
        if let Some((why, _)) = llama_cpp::not_read(file, &hp, hp.n_ctx_train)? {
            let path = file.path().display();
            return Err(Error::Invalid(format!("{path}: stock llama.cpp cannot run it: {why}")));
        }
        return Ok((Vec::new(), None));
    }
    hp.clex = merge.clex_net()?.map(Arc::new);
    let mut details = Vec::new();
    let (plan, stock, ctx_why) = planned(file, &hp, (options, trained_ctx), notes, &mut details)?;
    notes.extend(details.iter().cloned());
    let (stock, why) = stock.map_or_else(|why| (None, Some(why)), |stock| (Some(stock), None));
    rope::restore(writer, file, &hp.arch);
    rope::apply(writer, &hp, &plan, stock.as_ref(), options.llama_cpp)?;
    let factors = rope::factors(file, &hp, stock.as_ref());
    let report = RopeReport {
        rope: plan.spec.to_string(),
        n_ctx: plan.n_ctx,
        n_ctx_orig: plan.n_ctx_orig(&hp),
        mscale: plan.main().mscale,
        bases: plan.bases().map(<[f64]>::to_vec),
        llama_cpp: stock.as_ref().map(Stock::describe),
        why,
        asked: options.rope.as_ref().unwrap_or(&plan.spec).to_string(),
        ctx_why,
        details,
    };
    Ok((factors, Some(report)))
}

pub(crate) const TOKEN_EMBD: &str = "token_embd.weight";

/// Errors of converted and merged tensors, filled in as they are written.
#[derive(Default)]
struct Errors {
    converted: RefCell<Vec<TensorError>>,
    merged: RefCell<Vec<Merged>>,
}

/// The options, with the rope method that an adapter was trained under where none is given and it is not the
/// file's own. If that method is written, also the default context.
fn with_trained_rope(
    options: &Options,
    merge: &Merge,
    file: &File,
    notes: &mut Vec<String>,
) -> Result<(Options, Option<DefaultCtx>)> {
    let mut options = options.clone();
    let mut all = merge.ropes();
    let Some((opened, trained)) = all.next() else { return Ok((options, None)) };
    let from = opened.file().path().display();
    let declared = Hparams::from_gguf(file)?;
    let n_ctx = options.n_ctx.unwrap_or(declared.n_ctx_train);
    let plan = |spec: &Spec| Plan::new(spec, &declared, n_ctx);
    let is_trained = |other: &Plan| plan(trained).is_ok_and(|trained| trained.same_positions(other));
    let ctx = || Ok::<_, Error>(Some(trained_ctx(opened, trained, &Hparams::as_trained(file)?)));
    if let Some(spec) = &options.rope {
        if spec == trained || plan(spec).is_ok_and(|plan| is_trained(&plan)) {
            return Ok((options, ctx()?));
        }
        notes.push(format!("{from} was trained under {trained}; writing {spec}, as requested."));
        return Ok((options, None));
    }
    let forced = options.adapters.iter().any(|adapter| adapter.force);
    if let Some((other, spec)) = all.find(|(_, spec)| *spec != trained).filter(|_| !forced) {
        let other = other.file().path().display();
        let what =
            format!("{other} was trained under {spec}, {from} under {trained}: choose one of the methods");
        return Err(avoidable(what, Remedy::OneMethod));
    }
    let own = Spec::declared(&declared).and_then(|own| plan(&own));
    if own.is_ok_and(|own| is_trained(&own)) {
        return Ok((options, None));
    }
    notes.push(format!("{from} was trained under {trained}: the file declares that."));
    options.rope = Some(trained.clone());
    Ok((options, ctx()?))
}

/// The context that the adapter was trained at, or a longer one that its method states. `hp` is the model as trained.
fn trained_ctx(adapter: &AdapterReader, spec: &Spec, hp: &Hparams) -> DefaultCtx {
    let path = adapter.file().path().display();
    let (n_ctx, why) = match adapter.meta().n_ctx.filter(|&n| n > 0) {
        Some(n) => (n, format!("the context that {path} was trained at")),
        None => (hp.n_ctx_train, "the model's trained context".into()),
    };
    // A factor of 1 states no context.
    let least = n_ctx.max(spec.n_ctx_orig(hp));
    rope::stated_ctx(spec, hp).filter(|(stated, _)| *stated > least).unwrap_or((n_ctx, why))
}

/// A spec of a reach alone keeps the frequencies that the file declares, as in a session: those of an earlier conversion,
/// which the numbers of the model as trained do not say.
fn with_kept_frequencies(spec: Spec, file: &File, n_ctx: usize, notes: &mut Vec<String>) -> Result<Spec> {
    let declared = Hparams::from_gguf(file)?;
    if spec.of_axis(Axis::Frequency).is_some() || declared.rope_scaling.spec.is_none() {
        return Ok(spec);
    }
    let plan = Plan::new(&spec, &declared, n_ctx)?;
    notes.extend(plan.notes);
    Ok(plan.spec)
}

/// Works the method out, and what llama.cpp can be told of it, or why not. `details` gets the notes on how.
fn planned(
    file: &File,
    hp: &Hparams,
    (options, trained_ctx): (&Options, Option<&DefaultCtx>),
    notes: &mut Vec<String>,
    details: &mut Vec<String>,
) -> Result<(Plan, std::result::Result<Stock, String>, Option<String>)> {
    let given = options.n_ctx;
    let mut ctx_why = None;
    let (spec, n_ctx) = match options.rope.as_ref().filter(|spec| !spec.is_declared()) {
        Some(spec) => {
            let (n_ctx, why) = trained_ctx.cloned().unwrap_or_else(|| rope::default_ctx(spec, hp));
            if given.is_none() {
                details.push(format!("No context given: converted for {n_ctx} tokens, {why}."));
                ctx_why = Some(why);
            }
            (spec.clone(), given.unwrap_or(n_ctx))
        }
        None => {
            let declared = Hparams::from_gguf(file)?;
            let n_ctx = given.unwrap_or(declared.n_ctx_train);
            if options.rope.is_none() {
                notes.push(format!(
                    "No RoPE method given: writing the method that the file declares, for {n_ctx} tokens."
                ));
            }
            (Spec::declared(&declared)?, n_ctx)
        }
    };
    let spec = with_kept_frequencies(spec, file, n_ctx, notes)?;
    let plan = Plan::new(&spec, hp, n_ctx)?;
    let new: Vec<String> = plan.notes.iter().filter(|note| !notes.contains(note)).cloned().collect();
    // What a method says of itself is how it was worked out; the rest is of this file.
    let of_method = |note: &String| spec.parts().iter().any(|p| note.starts_with(&format!("{}: ", p.name())));
    let (own, others) = new.into_iter().partition::<Vec<_>, _>(of_method);
    details.extend(own);
    notes.extend(others);
    let refusal =
        |why: &str| format!("{}: stock llama.cpp cannot run {}: {why}", file.path().display(), plan.spec);
    let refuse = |why: &str| Err(Error::Invalid(refusal(why)));
    if let (true, Some((why, remedy))) = (options.llama_cpp, llama_cpp::not_read(file, hp, n_ctx)?) {
        return remedy.map_or_else(|| refuse(&why), |remedy| Err(avoidable(refusal(&why), remedy)));
    }
    if let Some(clex) = spec.part("clex") {
        if options.llama_cpp && clex.get("factor").is_none() {
            return refuse("it has no frequencies that depend on the length; factor fixes them");
        }
        if hp.clex.is_some() && !options.llama_cpp {
            let what = format!(
                "{}: {spec}: a model file cannot hold the network of an adapter: run the model \
                 with the adapter, or write one length for stock llama.cpp under clex:factor=N",
                file.path().display()
            );
            return Err(avoidable(what, Remedy::LlamaCpp));
        }
    }
    if spec.parts().iter().any(|p| p.get("keep-short").is_some_and(|v| v.to_string() == "true")) {
        let why = "it scales a file at every length, and cannot leave short contexts as they are";
        if options.llama_cpp {
            return refuse(why);
        }
        notes.push(format!("For stock llama.cpp, the file declares the values for {n_ctx} tokens: {why}."));
    }
    match llama_cpp::say(&plan, hp, options.llama_cpp) {
        Ok(stock) => Ok((plan, Ok(stock), ctx_why)),
        Err(why) if options.llama_cpp => refuse(&why),
        Err(why) => Ok((plan, Err(why), ctx_why)),
    }
}

/// The type a tensor is to have, with a note where it keeps its own.
fn target(file: &File, t: &TensorInfo, wanted: DType, notes: &mut Vec<String>) -> Result<DType> {
    let to = types::target_of(wanted, &t.name, &t.shape);
    if t.dtype == to {
        return Ok(to);
    }
    if matches!(t.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64) {
        notes.push(format!("{:?} stays {}: integers are not weights.", t.name, t.dtype.name()));
        return Ok(t.dtype);
    }
    if !t.dtype.can_dequantize() {
        return Err(file.error(&t.name, format!("{} cannot be converted", t.dtype.name())).into());
    }
    Ok(to)
}
