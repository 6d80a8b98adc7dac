//! Options that several commands share, and how they become the library's parameters.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, ensure, Context};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use files::Output;
use ropewalk::adapter::AdapterSpec;
use ropewalk::eval::{documents, Document, MAX_DOCUMENTS};
use ropewalk::math::Math;
use ropewalk::model::ModelParams;
use ropewalk::plot::{self, PlotError};
use ropewalk::rope::Spec;
use ropewalk::sampler::SamplerParams;
use ropewalk::session::{Attention, SessionParams};
use ropewalk::DType;
use ropewalk_core::settings::{self, Setting};
pub(crate) use ropewalk_core::settings::{tokens, tokens_or_zero};
use ropewalk_core::text::{decode, Invalid};

use super::models::{self, ModelChoice};
use super::usage;

/// Types that keys and values can be cached in.
pub(crate) const KV_TYPES: [&str; 4] = ["f32", "f16", "q8_0", "q4_0"];

pub(crate) fn kv_types() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(KV_TYPES).try_map(|name| DType::parse(&name).ok_or("unknown type"))
}

/// The model, the device it runs on, and its memory.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// GGUF file, or the name of a downloaded model
    #[arg(short, long, value_name = "MODEL")]
    model: String,
    /// KV cache type
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    kv: DType,
    /// LoRA adapter, FILE, FILE:SCALE, or FILE:force; can be repeated
    ///
    /// Without --rope, the method that the first adapter was trained under applies, unless the model declares one.
    /// FILE:force loads an adapter that was trained on another model or under another method
    #[arg(long, value_name = "FILE[:S]")]
    lora: Vec<AdapterSpec>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// The device, and how it is used.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Machine")]
pub(crate) struct MachineArgs {
    /// Device to compute on: auto, cpu, cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Number of threads; 0 uses one per core
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = threads)]
    threads: usize,
    /// Logical batch size, in tokens
    #[arg(short, long, value_name = "N", default_value = "2048", value_parser = tokens)]
    batch: usize,
    /// Physical batch (micro-batch) size, in tokens
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = tokens)]
    ubatch: usize,
    /// Attention implementation: auto, explicit, or landmark:top=K[,piece=N]
    ///
    /// auto uses the fused op if the device has one. explicit uses ops that every device has, one tile of keys at a time.
    /// landmark is for adapters trained with landmark tokens: a query attends to the K earlier blocks whose landmarks score
    /// highest, and to its own piece of N positions
    #[arg(long, value_name = "KIND", default_value = "auto")]
    attention: Attention,
    /// Rounding in matrix products: int8, auto, bf16, f32, or portable
    ///
    /// int8 rounds activations to 8 bits, as libllama does, and is the fastest. auto does the same in batches of up to 32
    /// tokens, and rounds to 15 bits in larger ones. bf16 rounds both factors to bfloat16. f32 rounds nothing. portable is auto
    /// with ops that every backend has; on the CPU it uses one thread. The default is int8 to generate text and to measure
    /// speed, and auto to measure a model
    #[arg(long, value_name = "KIND")]
    math: Option<MathChoice>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MathChoice {
    pub(crate) math: Math,
    /// Only operations that every backend has.
    pub(crate) portable: bool,
}

impl std::str::FromStr for MathChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<MathChoice, String> {
        let portable = text == "portable";
        let math = if portable { Ok(Math::Auto) } else { text.parse() };
        Ok(MathChoice { math: math.map_err(|e: String| format!("{e}, or portable"))?, portable })
    }
}

impl ModelArgs {
    /// Finds the file and reads the options, for a command that measures the model.
    pub(crate) fn resolve(&self) -> anyhow::Result<ModelChoice> {
        self.machine.choose(&self.model, self.kv, &self.lora)
    }

    /// The same for a command that writes text, or measures speed.
    pub(crate) fn resolve_to_write(&self) -> anyhow::Result<ModelChoice> {
        let mut choice = self.resolve()?;
        choice.session.math = self.machine.math.map_or(Math::Int8, |choice| choice.math);
        Ok(choice)
    }
}

impl MachineArgs {
    /// The device and the number of threads, as they were given.
    pub(crate) fn device_and_threads(&self) -> (&str, usize) {
        (&self.device, self.threads)
    }

    /// A model with its adapters and the type of its cache, to run as these options say.
    pub(crate) fn choose(
        &self,
        model: &str,
        kv_type: DType,
        adapters: &[AdapterSpec],
    ) -> anyhow::Result<ModelChoice> {
        if let Some(peft) = adapters.iter().find(|a| a.path.join("adapter_config.json").is_file()) {
            let (dir, import) =
                (peft.path.display(), "`ropewalk convert DIR -m MODEL -o FILE.gguf` converts it");
            bail!("{dir}: expected a LoRA adapter in GGUF, found a PEFT directory; {import}");
        }
        let params = ModelParams::auto().device(self.device.as_str().into()).adapters(adapters.to_vec());
        Ok(ModelChoice::new(models::find(model)?, params, self.session(kv_type)))
    }

    pub(crate) fn session(&self, kv_type: DType) -> SessionParams {
        let mut session = SessionParams::new(0);
        session.n_batch = self.batch;
        session.n_ubatch = self.ubatch.min(self.batch);
        // Resolved here, so that reports and libllama get the same number.
        session.n_threads = if self.threads == 0 { ggml::backend::default_threads() } else { self.threads };
        session.kv_type = kv_type;
        session.attention = self.attention;
        let math = self.math.unwrap_or_default();
        session.math = math.math;
        session.portable = math.portable;
        session
    }
}

/// The rope method.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rope")]
pub(crate) struct RopeArgs {
    /// RoPE method, such as yarn:factor=4 or harpe [default: declared]
    ///
    /// A spec is `name[:key=value,...]`; `+` joins a frequency method and an attention method. `declared` is the method the
    /// file declares. An attention method alone keeps its frequencies. `ropewalk rope --list` prints all methods
    #[arg(long, value_name = "SPEC")]
    rope: Option<String>,
}
impl RopeArgs {
    /// The spec, if one was asked for; a mistake in it is wrong usage, and its error lists what exists.
    pub(crate) fn spec(&self) -> anyhow::Result<Option<Spec>> {
        self.rope.as_deref().map(parse_spec).transpose()
    }
}

/// Several rope methods, to be compared.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rope")]
pub(crate) struct RopesArgs {
    /// RoPE method, such as yarn:factor=4; repeat to compare several [default: declared]
    ///
    /// A spec is `name[:key=value,...]`; `+` joins a frequency method and an attention method. `declared` is the method the
    /// file declares. `ropewalk rope --list` prints all methods
    #[arg(long, value_name = "SPEC")]
    rope: Vec<String>,
}
impl RopesArgs {
    /// The specs in the order given; one `None`, what the file declares, when none was.
    pub(crate) fn specs(&self) -> anyhow::Result<Vec<Option<Spec>>> {
        if self.rope.is_empty() {
            return Ok(vec![None]);
        }
        self.rope.iter().map(|s| parse_spec(s).map(Some)).collect()
    }
}

pub(crate) fn parse_spec(text: &str) -> anyhow::Result<Spec> {
    text.parse::<Spec>().map_err(|e| usage(format!("rope '{text}': {e}")))
}

/// How tokens are chosen.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temp: f32,
    /// Top-k sampling; 0 is off
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: i32,
    /// Top-p sampling; 1 is off
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Min-p sampling; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Other samplers, by llama.cpp's names: repeat-penalty=1.1, dry-multiplier=0.8, ...
    ///
    /// The keys, with the values that turn them off or are the default: typical (1), repeat-penalty (1), repeat-last-n (64;
    /// -1 is the whole context), frequency-penalty (0), presence-penalty (0), dry-multiplier (0), dry-base (1.75),
    /// dry-allowed-length (2), dry-last-n (-1)
    #[arg(long, value_name = "KEY=VALUE,...")]
    sampler: Vec<String>,
    /// Random seed; -1 draws one
    #[arg(
        short,
        long,
        value_name = "S",
        default_value = "42",
        allow_negative_numbers = true,
        value_parser = seed_or_draw
    )]
    seed: u32,
}

/// A seed; -1 is one that differs in each run, as in llama.cpp.
fn seed_or_draw(text: &str) -> Result<u32, String> {
    match text {
        "-1" => Ok(RandomState::new().build_hasher().finish() as u32),
        _ => text.parse().map_err(|_| format!("expected -1 or 0 to {}", u32::MAX)),
    }
}

impl SamplingArgs {
    /// The sampler's parameters; a value out of its range is wrong usage.
    pub(crate) fn params(&self) -> anyhow::Result<SamplerParams> {
        let mut params = SamplerParams::greedy()
            .temp(self.temp)
            .top_k(self.top_k)
            .top_p(self.top_p)
            .min_p(self.min_p)
            .penalty_last_n(64)
            .seed(self.seed);
        let rare = (!self.sampler.is_empty()).then(|| self.sampler.join(","));
        // Named as llama.cpp's options.
        let known: &mut [(&'static str, &mut dyn Setting)] = &mut [
            ("typical", &mut params.typical_p),
            ("repeat-penalty", &mut params.penalty_repeat),
            ("repeat-last-n", &mut params.penalty_last_n),
            ("frequency-penalty", &mut params.penalty_freq),
            ("presence-penalty", &mut params.penalty_present),
            ("dry-multiplier", &mut params.dry_multiplier),
            ("dry-base", &mut params.dry_base),
            ("dry-allowed-length", &mut params.dry_allowed_length),
            ("dry-last-n", &mut params.dry_penalty_last_n),
        ];
        settings::read("--sampler", rare.as_deref(), known).map_err(usage)?;
        params.check().map_err(|e| usage(e.to_string()))?;
        Ok(params)
    }
}

/// Of every command that writes files.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ForceArgs {
    /// Replace any output file, and start records over [default: replace only earlier outputs]
    #[arg(long)]
    pub(crate) force: bool,
}
impl ForceArgs {
    pub(crate) fn output(self, path: &Path) -> Output {
        Output::new(path, self.force)
    }

    /// Checks the extension of a plot's file name, and what has that name already, before minutes of work rather than
    /// after.
    pub(crate) fn check_plot(self, option: &str, path: Option<&PathBuf>) -> anyhow::Result<()> {
        match path.map_or(Ok(()), |path| plot::check(self.output(path))) {
            Err(e @ PlotError::Extension(_)) => Err(usage(format!("{option} {e}"))),
            done => Ok(done?),
        }
    }
}

/// A number of threads, up to the most that ggml takes.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let most = ggml::backend::MAX_N_THREADS;
    text.parse().ok().filter(|n| *n <= most).ok_or_else(|| format!("expected 0 to {most}"))
}

/// The value of `-n`; -1 is no limit.
pub(crate) fn predicted(n: i64) -> anyhow::Result<usize> {
    match n {
        -1 => Ok(usize::MAX),
        n => usize::try_from(n).map_err(|_| usage(format!("-n {n}: expected -1, 0 or more"))),
    }
}

/// Most lengths in a range: each is a separate context.
const MAX_LENGTHS: usize = 1024;

/// One length, or the lengths of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lengths(Vec<usize>);

impl Lengths {
    pub(crate) fn all(lengths: &[Lengths]) -> Vec<usize> {
        lengths.iter().flat_map(|l| &l.0).copied().collect()
    }
}

/// A number of tokens, or `FIRST..LAST:STEP` for all from the first up to the last: `2k..128k:2k`.
pub(crate) fn lengths(text: &str) -> Result<Lengths, String> {
    let Some((first, rest)) = text.split_once("..") else { return Ok(Lengths(vec![tokens(text)?])) };
    let (last, step) = rest.split_once(':').ok_or_else(|| {
        "a range takes a step, as in 2k..128k:2k for 2k, 4k and so on up to 128k".to_owned()
    })?;
    let (first, last, step) = (tokens(first)?, tokens(last)?, tokens(step)?);
    if last < first {
        return Err(format!("the range ends at {last}, before its start {first}"));
    }
    let n = (last - first) / step + 1;
    if n > MAX_LENGTHS {
        return Err(format!("the range has {n} lengths, more than {MAX_LENGTHS}"));
    }
    Ok(Lengths((first..=last).step_by(step).collect()))
}

/// Most bytes of a prompt or a message.
pub(crate) const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The name and the bytes of a file, or of stdin for `-`: at most so many, so that no pipe fills the memory. The file is a
/// regular one or a stream that this process was started with.
pub(crate) fn read_file(path: &Path, most: u64) -> anyhow::Result<(String, Vec<u8>)> {
    if path == Path::new("-") {
        return Ok(("stdin".into(), read_at_most(std::io::stdin().lock(), "stdin", most)?));
    }
    let name = path.display().to_string();
    let bytes = read_at_most(files::foreign::open_input(path)?, &name, most)?;
    Ok((name, bytes))
}

fn read_at_most(source: impl Read, name: &str, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes).with_context(|| name.to_owned())?;
    ensure!(bytes.len() as u64 <= most, "{name}: expected a text of at most {most} bytes, found more");
    Ok(bytes)
}

/// The documents of files, of the texts in directories, or of stdin for `-`.
pub(crate) fn read_documents(paths: &[PathBuf]) -> anyhow::Result<Vec<Document>> {
    let mut found: Vec<Document> = Vec::new();
    let mut left = MAX_DOCUMENTS;
    for path in paths {
        for file in files::foreign::texts(path)? {
            let (name, bytes) = read_file(&file, left)?;
            left -= bytes.len() as u64;
            found.extend(documents(&name, bytes)?);
        }
    }
    Ok(found)
}

/// Reads a prompt or a message from a text file, or stdin for `-`. Bytes that are not UTF-8 are an error that
/// names the place of the first.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let (name, data) = read_file(path, MAX_TEXT_BYTES)?;
    text(&name, data)
}

/// A text as it was typed, or that of a file named after `@`.
pub(crate) fn text_or_file(typed: &str) -> anyhow::Result<String> {
    typed.strip_prefix('@').map_or_else(|| Ok(typed.to_owned()), |file| read_text(Path::new(file)))
}

pub(crate) fn text(name: &str, bytes: Vec<u8>) -> anyhow::Result<String> {
    Ok(decode(bytes, Invalid::Refuse).map_err(|e| anyhow!("{name}: {e}"))?.text)
}
