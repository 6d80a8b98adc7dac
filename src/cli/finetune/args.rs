//! The options of `finetune`, and the settings of the library that they come to.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ropewalk::data::Source;
use ropewalk::model::ModelParams;
use ropewalk::train::{Checkpointing, LoraParams, SampleOrder, SavedType, TrainAttention, TrainParams, LOG};

use super::super::models::{self, ModelChoice};
use super::super::options::{parse_spec, tokens, MathChoice, RopeArgs};
use super::super::output::{check_plot_name, OutputArgs};
use super::super::usage;
use super::data::{source, MethodArgs, TextArgs};
use super::recipe::RecipeArgs;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, or the name of a model that `ropewalk pull` fetched
    #[arg(short, long, value_name = "MODEL")]
    model: String,
    /// Texts to learn from: files, folders, .gz, .jsonl, token ids in .bin; NAME=PATH:SHARE gives those of a name
    /// their share of the tokens
    #[arg(short, long, value_name = "PATH", num_args = 1.., required_unless_present = "plan_memory", value_parser = source)]
    pub(super) data: Vec<Source>,
    /// The adapter to write; with --train all, the model
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["plan_memory", "inspect_data"])]
    pub(super) output: Option<PathBuf>,
    /// Tokens of a sequence; default: the recipe's, or the trained context
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    pub(super) ctx: Option<usize>,
    #[command(flatten)]
    pub(super) rope: RopeArgs,
    /// Attention of training: full, or s2, LongLoRA's shifted sparse attention in groups of a quarter of the
    /// sequence (s2:group=N: of N tokens), validated under full attention; or landmark, with a landmark token behind
    /// every 63 tokens (landmark:block=N: every N - 1), whose adapter runs so, too; default: full, or the recipe's
    #[arg(long, value_name = "HOW", value_parser = attention)]
    pub(super) attention: Option<TrainAttention>,
    /// Go on from an adapter: its tensors, under this run's rope, context and schedule, with data from where its run
    /// stopped
    #[arg(long, value_name = "ADAPTER")]
    pub(super) init: Option<PathBuf>,
    /// Several stages, one after another: a TOML file with a [[stage]] for each, of rope, ctx, steps or tokens, and any
    /// of attention and the options under Recipe; an adapter of each is written
    #[arg(long, value_name = "FILE", conflicts_with_all = ["checkpoints", "log", "plot", "steps"])]
    pub(super) stages: Option<PathBuf>,
    #[command(flatten)]
    pub(super) adapter: AdapterArgs,
    #[command(flatten)]
    pub(super) recipe: RecipeArgs,
    #[command(flatten)]
    pub(super) text: TextArgs,
    #[command(flatten)]
    pub(super) method: MethodArgs,
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Print what memory training needs, part by part, and the longest context that fits; train nothing
    #[arg(long)]
    pub(super) plan_memory: bool,
    /// With --plan-memory: for a GPU of so much memory (12GiB) instead of this device, everything else on the
    /// host
    #[arg(long, value_name = "SIZE", requires = "plan_memory", value_parser = size)]
    pub(super) memory: Option<usize>,
    /// Print how long the documents of the texts are, how far tokens of one document are apart in the sequences
    /// to train on, and the first of these; train nothing. With --plot NAME.svg both as charts
    #[arg(long, conflicts_with = "plan_memory")]
    pub(super) inspect_data: bool,
    #[command(flatten)]
    pub(super) out: OutputArgs,
}

/// The adapter: which tensors are trained.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Adapter")]
pub(super) struct AdapterArgs {
    /// Rank of the low-rank pairs; default: 8
    #[arg(short, long, value_name = "R")]
    rank: Option<usize>,
    /// The pairs count alpha / rank times; default: twice the rank
    #[arg(short, long, value_name = "A")]
    alpha: Option<f64>,
    /// alpha / sqrt(rank) instead
    #[arg(long)]
    rslora: bool,
    /// Weights that get a pair: q, k, v (qkv where they are one), o, gate, up, down, output, in gated delta-nets
    /// attn_gate, ssm_alpha, ssm_beta and ssm_out (also o); all (but output), or none; default: q,k,v,o. With
    /// attention. before it (attention.q) a name means layers with attention alone, with delta-net. the others
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    targets: Option<Vec<String>>,
    /// Modules trained as a whole, too: norms, embeddings; default: none, or the recipe's. all: every parameter of a
    /// model whose weights are floats, in place of pairs; a model is written then
    #[arg(long, visible_alias = "modules-to-save", value_name = "PART,...", value_delimiter = ',')]
    train: Vec<Module>,
    /// Probability with which an input of a pair is 0 in training
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    dropout: f32,
    /// With --train all, the type of the model's matrices: f32, or file, that of the model given (f16 and bf16 are
    /// rounded to the nearest); default: f32
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "file"])]
    pub(super) output_type: Option<String>,
    /// The file whose types those are, where a stage begins with the model of another.
    #[arg(skip)]
    types_of: Option<PathBuf>,
    /// Seed of the pairs, the order of texts and dropout
    #[arg(short, long, value_name = "S", default_value_t = 42)]
    pub(super) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Module {
    Norms,
    Embeddings,
    All,
}

impl Module {
    fn name(self) -> &'static str {
        match self {
            Module::Norms => "norms",
            Module::Embeddings => "embeddings",
            Module::All => "all",
        }
    }
}

/// Files written during the run.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Files")]
pub(super) struct FileArgs {
    /// Go on from the newest checkpoint
    #[arg(long)]
    pub(super) resume: bool,
    /// Folder of the checkpoints; default: the adapter's name with .checkpoints
    #[arg(long, value_name = "FOLDER")]
    checkpoints: Option<PathBuf>,
    /// Steps between checkpoints; 0: none but the last
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(super) save_every: u64,
    /// Newest checkpoints that stay
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) keep_last: usize,
    /// Steps between validations; 0: at the start and the end only; default: a tenth of all
    #[arg(long, value_name = "N")]
    pub(super) eval_every: Option<u64>,
    /// A line of JSON for each step; default: the adapter's name with .log.jsonl
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The loss curve (.svg or .png); default: the adapter's name with .loss.svg. With --inspect-data the charts
    /// NAME.lengths.svg and NAME.distances.svg
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
}

/// Device and memory.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Computing")]
struct RunArgs {
    /// Device to compute on: auto, cpu, cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Threads; 0 is one for each core this process may use
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Tokens computed at once
    #[arg(long, value_name = "N", default_value = "512", value_parser = tokens)]
    block: usize,
    /// Activations of a layer that are saved until it is run backwards (activation checkpointing); the rest
    /// is computed again
    #[arg(
        long,
        visible_alias = "checkpointing",
        value_name = "WHAT",
        default_value = "auto",
        value_parser = ["auto", "inputs", "attention", "products"]
    )]
    keep: String,
    /// Type that saved activations are stored in
    #[arg(
        long,
        visible_alias = "saved-type",
        value_name = "TYPE",
        default_value = "f32",
        value_parser = ["f32", "f16", "bf16"]
    )]
    keep_type: String,
    /// Rounding allowed in products of weights: floats to 16 bits where that is faster (auto); both factors to bfloat16, which
    /// processors with AVX-512 BF16 or AMX do at about twice the speed (bf16); or nothing (f32). portable: auto, with operations
    /// that every backend has, and on the CPU with one thread
    #[arg(long, value_name = "KIND", default_value = "auto")]
    math: MathChoice,
}

impl Args {
    /// The model to open.
    pub(super) fn model(&self) -> anyhow::Result<ModelChoice> {
        let params = ModelParams { device: self.run.device.clone(), ..ModelParams::auto() };
        Ok(ModelChoice::plain(models::find(&self.model)?, params))
    }

    /// The trainer's settings; the context is 0 where it was not given.
    pub(super) fn settings(&self) -> anyhow::Result<TrainParams> {
        let adapter = &self.adapter;
        let all = adapter.train.contains(&Module::All);
        for (option, given) in [
            ("--rank", adapter.rank.is_some()),
            ("--alpha", adapter.alpha.is_some()),
            ("--targets", adapter.targets.is_some()),
            ("--rslora", adapter.rslora),
            ("--dropout", adapter.dropout != 0.0),
            ("--init", self.init.is_some()),
        ] {
            if all && given {
                return Err(usage(format!(
                    "{option}: --train all trains the model itself, without pairs beside it"
                )));
            }
        }
        if !all && adapter.output_type.is_some() {
            return Err(usage("--output-type: an adapter is f32; expected --train all beside it"));
        }
        let given = || adapter.targets.clone().unwrap_or_else(|| LoraParams::default().targets);
        let (rank, given) = (adapter.rank.unwrap_or(8), if all { Vec::new() } else { given() });
        let mut targets: Vec<String> = Vec::new();
        for name in given.iter().filter(|t| !t.is_empty() && *t != "none") {
            if !targets.contains(name) {
                targets.push(name.clone());
            }
        }
        if self.run.threads > ggml::backend::MAX_N_THREADS {
            return Err(usage(format!("--threads: expected 0 to {}", ggml::backend::MAX_N_THREADS)));
        }
        Ok(TrainParams {
            rope: match (self.rope.spec()?, self.recipe()) {
                (None, Some(recipe)) => Some(parse_spec(recipe.rope)?),
                (given, _) => given,
            },
            attention: self.attention.or(self.recipe().map(|r| r.attention)).unwrap_or_default(),
            lora: LoraParams {
                targets,
                rank,
                alpha: adapter.alpha.unwrap_or(2.0 * rank as f64),
                rslora: self.adapter.rslora,
                dropout: self.adapter.dropout,
                norms: self.trains(Module::Norms),
                embeddings: self.trains(Module::Embeddings),
                all,
                seed: self.adapter.seed,
            },
            n_block: self.run.block,
            n_threads: if self.run.threads == 0 {
                ggml::backend::default_threads()
            } else {
                self.run.threads
            },
            checkpointing: match self.run.keep.as_str() {
                "inputs" => Some(Checkpointing::Inputs),
                "attention" => Some(Checkpointing::Attention),
                "products" => Some(Checkpointing::Products),
                _ => None,
            },
            saved_type: match self.run.keep_type.as_str() {
                "f16" => SavedType::F16,
                "bf16" => SavedType::Bf16,
                _ => SavedType::F32,
            },
            math: self.run.math.math,
            portable: self.run.math.portable,
            ..TrainParams::new(self.ctx.or(self.recipe().map(|r| r.n_ctx)).unwrap_or(0))
        })
    }

    /// Whether a module is trained as a whole: those named, else those of the recipe.
    fn trains(&self, module: Module) -> bool {
        let of_recipe = || self.recipe().is_some_and(|r| r.train.contains(&module.name()));
        self.adapter.train.contains(&module) || self.adapter.train.is_empty() && of_recipe()
    }

    /// Whether every parameter is trained, and a model written.
    pub(super) fn trains_all(&self) -> bool {
        self.adapter.train.contains(&Module::All)
    }

    /// The order of samples.
    pub(super) fn order(&self) -> SampleOrder {
        match self.text.order.as_deref() {
            Some("text") => SampleOrder::Text,
            _ => SampleOrder::Shuffled,
        }
    }

    /// These options with other ones: those of a stage that writes its adapter to `output`.
    pub(super) fn for_output(&self, output: PathBuf) -> Args {
        Args { output: Some(output), stages: None, ..self.clone() }
    }

    /// These options on a model that an earlier stage has made of the one at `first`.
    pub(super) fn on_model(mut self, model: String, first: &Path) -> Args {
        self.adapter.types_of = Some(first.to_owned());
        Args { model, ..self }
    }

    /// These options on a device, with so many threads; `None` leaves what they say.
    pub(super) fn on_machine(mut self, device: Option<&str>, threads: Option<usize>) -> Args {
        self.run.device = device.map_or(self.run.device, str::to_owned);
        self.run.threads = threads.unwrap_or(self.run.threads);
        self
    }

    /// The file whose types the matrices of a model get that is written; `None` for F32. `model` is trained.
    pub(super) fn types_of<'a>(&'a self, model: &'a Path) -> Option<&'a Path> {
        let of_file = self.adapter.output_type.as_deref() == Some("file");
        of_file.then(|| self.adapter.types_of.as_deref().unwrap_or(model))
    }

    /// The adapter's path, which clap requires.
    pub(super) fn output(&self) -> &Path {
        self.output.as_deref().unwrap_or(Path::new("adapter.gguf"))
    }

    /// The given path, or else the adapter's with this ending in place of `.gguf` (dots inside the name
    /// stay).
    fn beside(&self, given: Option<&PathBuf>, ending: &str) -> PathBuf {
        let name = self.output().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        given.cloned().unwrap_or_else(|| self.output().with_file_name(format!("{stem}{ending}")))
    }

    /// The folder of the checkpoints.
    pub(super) fn checkpoints(&self) -> PathBuf {
        self.beside(self.files.checkpoints.as_ref(), ".checkpoints")
    }

    /// The log's path.
    pub(super) fn log(&self) -> PathBuf {
        self.beside(self.files.log.as_ref(), ".log.jsonl")
    }

    /// The path of the loss curve.
    pub(super) fn plot(&self) -> PathBuf {
        self.beside(self.files.plot.as_ref(), ".loss.svg")
    }

    /// Checks the names of the outputs, before hours of work and not after.
    pub(super) fn check_outputs(&self, model: &Path) -> anyhow::Result<()> {
        let folder = self.output().parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(usage(format!("--output {}: no such folder", self.output().display())));
        }
        self.check_recipe()?;
        self.check_apart(model)?;
        // Charts of the data have other names.
        let ends: &[&str] = if self.inspect_data { &["lengths", "distances"] } else { &[""] };
        for end in ends {
            check_plot_name("--plot", &chart(&self.plot(), end))?;
        }
        if !self.inspect_data {
            let written = if self.trains_all() { &gguf::kinds::MODEL } else { &gguf::kinds::ADAPTER };
            written.check(self.output())?;
            LOG.check(&self.log())?;
        }
        Ok(())
    }

    /// An error if an output would replace a file that is read, or lie among the texts of the next run.
    fn check_apart(&self, model: &Path) -> anyhow::Result<()> {
        // A path that does not exist yet is taken with its folder's real name.
        let real = |p: &Path| -> PathBuf {
            let folder = p.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let beside = || Some(folder.canonicalize().ok()?.join(p.file_name()?));
            p.canonicalize().ok().or_else(beside).unwrap_or_else(|| p.to_owned())
        };
        let mut outputs = vec![
            ("--output", self.output().to_owned()),
            ("--log", self.log()),
            ("--plot", self.plot()),
            ("--checkpoints", self.checkpoints()),
        ];
        outputs.extend(self.text.cache.clone().map(|p| ("--cache", p)));
        let read: Vec<PathBuf> = self
            .data
            .iter()
            .map(|s| &s.path)
            .chain(&self.init)
            .map(|p| real(p))
            .chain([real(model)])
            .collect();
        for (i, (option, path)) in outputs.iter().enumerate() {
            let at = real(path);
            if let Some(input) = read.iter().find(|r| at.starts_with(r)) {
                let (path, input) = (path.display(), input.display());
                return Err(usage(format!(
                    "{option} {path}: expected a place apart from what is read, {input}"
                )));
            }
            if let Some((other, _)) = outputs[..i].iter().find(|(_, p)| real(p) == at) {
                return Err(usage(format!("{option} {}: the same as {other}", path.display())));
            }
        }
        Ok(())
    }
}

/// The path of a chart next to `plot` (`NAME.lengths.svg`); `plot` itself without an end.
pub(super) fn chart(plot: &Path, end: &str) -> PathBuf {
    let extension = plot.extension().unwrap_or_default().to_string_lossy().into_owned();
    match end {
        "" => plot.to_owned(),
        end => plot.with_extension(format!("{end}.{extension}")),
    }
}

fn attention(text: &str) -> Result<TrainAttention, String> {
    text.parse().map_err(|e: ropewalk::model::Error| e.to_string())
}

/// `12GiB`, `512MiB`, `8GB`, or bytes.
fn size(text: &str) -> Result<usize, String> {
    let units = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("", 1),
    ];
    let (unit, factor) = units.into_iter().find(|(u, _)| text.ends_with(u)).unwrap_or(("", 1));
    let number = text[..text.len() - unit.len()].trim().parse::<f64>();
    match number {
        Ok(n) if n > 0.0 && n * f64::from(factor) < 1e18 => Ok((n * f64::from(factor)) as usize),
        _ => Err("expected a size such as 12GiB".to_owned()),
    }
}
