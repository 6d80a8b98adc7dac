//! The options of `finetune`, and the settings of the library that they come to.

use std::path::{Path, PathBuf};

use ropewalk::adapter::AdapterSpec;
use ropewalk::data::Source;
use ropewalk::model::ModelParams;
use ropewalk::train::optim::OptimParams;
use ropewalk::train::recipe::{Recipe, RECIPES};
use ropewalk::train::set::OutputType;
use ropewalk::train::{LoraParams, SampleOrder, SavedType, Settings, TrainAttention, TrainParams, LOG};

use super::super::models::{self, ModelChoice};
use super::super::options::{parse_spec, threads, tokens, MathChoice, RopeArgs};
use super::super::output::{check_plot_name, OutputArgs};
use super::super::usage;
use super::help;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// GGUF file, or the name of a downloaded model
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: String,
    #[command(flatten)]
    pub(super) rope: RopeArgs,
    /// Sequence length, in tokens [default: the trained context]
    #[arg(short, long, value_name = "N", value_parser = tokens, help_heading = "Model")]
    pub(super) ctx: Option<usize>,
    /// Start from this adapter, with data from where its run stopped
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    lora: Option<AdapterSpec>,
    #[command(flatten)]
    pub(super) training: TrainingArgs,
    /// Device to compute on: auto, cpu, cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Machine")]
    device: String,
    /// Number of threads; 0 uses one per core
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = threads, help_heading = "Machine")]
    threads: usize,
    /// Physical batch (micro-batch) size, in tokens
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = tokens, help_heading = "Machine")]
    ubatch: usize,
    /// Attention in training: full, s2[:group=N], or landmark[:block=N] [default: full]
    ///
    /// s2 is LongLoRA's shifted attention, in groups of a quarter of the sequence. landmark puts a landmark token after every 63
    /// tokens; the adapter then runs with landmark attention as well
    #[arg(long, value_name = "KIND", value_parser = attention, help_heading = "Machine")]
    pub(super) attention: Option<TrainAttention>,
    /// Rounding in matrix products: auto, bf16, f32, or portable
    ///
    /// auto rounds to 16 bits if that is faster. bf16 rounds to bfloat16. f32 rounds nothing. portable is auto with ops that every
    /// backend has
    #[arg(long, value_name = "KIND", default_value = "auto", help_heading = "Machine")]
    math: MathChoice,
    /// The adapter to write; under --targets full, the model
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["plan_memory", "inspect_data"], help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
    /// Plot the loss to this file (.svg, .png, or .pdf) [default: NAME.loss.svg for -o NAME.gguf]
    ///
    /// With --inspect-data, the plots are NAME.lengths.svg and NAME.distances.svg
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) plot: Option<PathBuf>,
    /// Random seed of the adapter, the data order, and dropout
    #[arg(short, long, value_name = "S", default_value_t = 42, help_heading = "Output")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) out: OutputArgs,
    /// The settings that were given, by key.
    #[arg(skip)]
    pub(super) given: Settings,
    /// The adapter to go on from.
    #[arg(skip)]
    pub(super) init: Option<PathBuf>,
    /// The file whose types the matrices of a model get, where a stage begins with the model of another.
    #[arg(skip)]
    types_of: Option<PathBuf>,
}

/// Parameters, data, and settings of the training.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Training")]
pub(super) struct TrainingArgs {
    /// Training texts: files or directories; .txt, .gz, .jsonl, or .bin
    ///
    /// A .bin file holds token ids. NAME=PATH:SHARE gives the texts under NAME their share of the tokens
    #[arg(short, long, value_name = "PATH", num_args = 1.., required_unless_present = "plan_memory", value_parser = source)]
    pub(super) data: Vec<Source>,
    /// Settings of a paper, with its RoPE method, context, and data; explicit options override it
    #[arg(long, value_name = "NAME", value_parser = RECIPES.iter().map(|r| r.name).collect::<Vec<_>>())]
    pub(super) recipe: Option<String>,
    /// TOML file with training stages
    ///
    /// Each [[stage]] has rope, ctx, and steps or tokens; attention and the optimizer's settings are optional. Each stage writes
    /// an adapter
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plot", "steps"])]
    pub(super) stages: Option<PathBuf>,
    /// LoRA rank [default: 8]
    #[arg(short, long, value_name = "R")]
    rank: Option<usize>,
    /// LoRA alpha; the update is scaled by alpha / rank [default: 2 x rank]
    #[arg(short, long, value_name = "A")]
    alpha: Option<f64>,
    /// Target modules: q, k, v, qkv, o, gate, up, down, output, all, none, norms, embeddings, full [default: q,k,v,o]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', long_help = help::TARGETS)]
    targets: Option<Vec<String>>,
    /// Optimizer steps [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Peak learning rate [default: 2e-4]
    #[arg(long, value_name = "X")]
    lr: Option<f64>,
    /// Data method: utk-80, utk-30, utk:share=0.8,order=false, cip, pose:target=N, or none [default: none]
    #[arg(long, value_name = "SPEC", long_help = help::transforms())]
    pub(super) transform: Option<String>,
    /// Train on chats: each .jsonl line has `messages`, or a `prompt` and its `completion`
    ///
    /// The model's chat template renders `messages`. Each line is a sequence
    #[arg(long)]
    pub(super) chat: bool,
    /// Compute the loss on answers only
    ///
    /// Answers are assistant turns or completions (--chat), text that a chat template marks with {% generation %}, and the
    /// answers of synthetic records
    #[arg(long)]
    pub(super) answers_only: bool,
    /// Resume from the newest checkpoint
    #[arg(long)]
    pub(super) resume: bool,
    #[arg(long, value_name = "KEY=VALUE,...", help = help::keys(), long_help = help::settings())]
    set: Vec<String>,
    /// Print a memory estimate for this machine, or for a GPU of SIZE (12GiB), and do not train
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = size)]
    pub(super) plan_memory: Option<Option<usize>>,
    /// Print document lengths, token distances, and the first sequence, and do not train
    #[arg(long, conflicts_with = "plan_memory")]
    pub(super) inspect_data: bool,
}

/// Parsed value of `--targets`.
#[derive(Debug, Default)]
struct Targets {
    pairs: Vec<String>,
    norms: bool,
    embeddings: bool,
    full: bool,
}

impl Args {
    /// The options with their settings read; a mistake in these is wrong usage.
    pub(super) fn read(mut self) -> anyhow::Result<Args> {
        let mut given = Settings::default();
        for text in &self.training.set {
            given.read("--set", text).map_err(usage)?;
        }
        for (key, value) in [
            ("steps", self.training.steps.map(|n| n.to_string())),
            ("lr", self.training.lr.map(|x| x.to_string())),
        ] {
            value.map_or(Ok(()), |value| given.put("--set", key, &value)).map_err(usage)?;
        }
        self.given = given;
        if let Some(lora) = &self.lora {
            if lora.scale != 1.0 {
                let path = lora.path.display();
                return Err(usage(format!(
                    "--lora {path}: expected scale 1 to continue from, found {}",
                    lora.scale
                )));
            }
            self.init = Some(lora.path.clone());
        }
        Ok(self)
    }

    /// The model to open.
    pub(super) fn model(&self) -> anyhow::Result<ModelChoice> {
        let params = ModelParams { device: self.device.as_str().into(), ..ModelParams::auto() };
        Ok(ModelChoice::plain(models::find(&self.model)?, params))
    }

    /// The trainer's settings; the context is 0 where it was not given.
    pub(super) fn settings(&self) -> anyhow::Result<TrainParams> {
        let (options, set) = (&self.training, &self.given);
        let targets = self.targets()?;
        for (option, given) in [
            ("--rank", options.rank.is_some()),
            ("--alpha", options.alpha.is_some()),
            ("--lora", self.init.is_some()),
            ("--set rslora", set.rslora.is_some()),
            ("--set dropout", set.dropout.is_some()),
        ] {
            if targets.full && given {
                return Err(usage(format!(
                    "{option}: --targets full trains the model itself, without LoRA pairs"
                )));
            }
        }
        if !targets.full && set.output_type.is_some() {
            return Err(usage(
                "--set output-type: an adapter is always f32; expected --targets full as well",
            ));
        }
        let rank = options.rank.unwrap_or(8);
        Ok(TrainParams {
            rope: match (self.rope.spec()?, self.recipe()) {
                (None, Some(recipe)) => Some(parse_spec(recipe.rope)?),
                (given, _) => given,
            },
            attention: self.attention.or(self.recipe().map(|r| r.attention)).unwrap_or_default(),
            lora: LoraParams {
                targets: targets.pairs,
                rank,
                alpha: options.alpha.unwrap_or(2.0 * rank as f64),
                rslora: set.rslora.unwrap_or_default(),
                dropout: set.dropout.unwrap_or_default(),
                norms: targets.norms,
                embeddings: targets.embeddings,
                all: targets.full,
                seed: self.seed,
            },
            n_block: self.ubatch,
            n_threads: if self.threads == 0 { ggml::backend::default_threads() } else { self.threads },
            checkpointing: set.checkpointing,
            saved_type: set.saved_type.unwrap_or(SavedType::F32),
            math: self.math.math,
            portable: self.math.portable,
            ..TrainParams::new(self.ctx.or(self.recipe().map(|r| r.n_ctx)).unwrap_or(0))
        })
    }

    /// Trained parts: the parts named, or else pairs on the usual maps and the modules that the recipe trains in full.
    fn targets(&self) -> anyhow::Result<Targets> {
        let mut targets = Targets::default();
        let Some(names) = &self.training.targets else {
            let whole = |name| self.recipe().is_some_and(|r| r.train.contains(&name));
            let pairs = LoraParams::default().targets;
            return Ok(Targets {
                pairs,
                norms: whole("norms"),
                embeddings: whole("embeddings"),
                full: false,
            });
        };
        for name in names {
            match name.as_str() {
                "" | "none" => {}
                "norms" => targets.norms = true,
                "embeddings" => targets.embeddings = true,
                "full" => targets.full = true,
                _ if targets.pairs.contains(name) => {}
                _ => targets.pairs.push(name.clone()),
            }
        }
        if targets.full && names.len() > 1 {
            return Err(usage("--targets: full is every parameter; expected it alone"));
        }
        Ok(targets)
    }

    /// The recipe named, if one was.
    pub(super) fn recipe(&self) -> Option<&'static Recipe> {
        self.training.recipe.as_deref().and_then(Recipe::find)
    }

    /// The settings at a context of so many tokens: those given, else the recipe's, else the usual ones.
    pub(super) fn at(&self, n_ctx: usize) -> Settings {
        let given = self.given.clone();
        let of_recipe = self.recipe().map(|r| r.settings(n_ctx, &given)).unwrap_or_default();
        given.or(of_recipe).or(Settings::defaults())
    }

    /// Sequences of a step, and the optimizer, at a context of so many tokens.
    pub(super) fn optimiser(&self, n_ctx: usize) -> (usize, OptimParams) {
        self.at(n_ctx).optimiser()
    }

    /// Returns true if every parameter is trained, and a model is written.
    pub(super) fn trains_all(&self) -> bool {
        self.targets().is_ok_and(|targets| targets.full)
    }

    /// The order of samples.
    pub(super) fn order(&self) -> SampleOrder {
        self.given.order.unwrap_or_default()
    }

    /// These options with other ones: those of a stage that writes its adapter to `output`.
    pub(super) fn for_output(&self, output: PathBuf) -> Args {
        let mut args = Args { output: Some(output), ..self.clone() };
        args.training.stages = None;
        args
    }

    /// These options on a model that an earlier stage has made of the one at `first`.
    pub(super) fn on_model(self, model: String, first: &Path) -> Args {
        Args { model, types_of: Some(first.to_owned()), ..self }
    }

    /// These options on a device, with so many threads; `None` leaves what they say.
    pub(super) fn on_machine(self, device: Option<&str>, threads: Option<usize>) -> Args {
        let device = device.map_or_else(|| self.device.clone(), str::to_owned);
        Args { device, threads: threads.unwrap_or(self.threads), ..self }
    }

    /// The file whose types the matrices of a model get that is written; `None` for F32. `model` is trained.
    pub(super) fn types_of<'a>(&'a self, model: &'a Path) -> Option<&'a Path> {
        let of_file = self.given.output_type == Some(OutputType::File);
        of_file.then(|| self.types_of.as_deref().unwrap_or(model))
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
        self.beside(self.given.checkpoints.as_ref(), ".checkpoints")
    }

    /// The log's path.
    pub(super) fn log(&self) -> PathBuf {
        self.beside(self.given.log.as_ref(), ".log.jsonl")
    }

    /// The path of the loss curve.
    pub(super) fn plot(&self) -> PathBuf {
        self.beside(self.plot.as_ref(), ".loss.svg")
    }

    /// Checks the names of the outputs, before hours of work and not after.
    pub(super) fn check_outputs(&self, model: &Path) -> anyhow::Result<()> {
        let folder = self.output().parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(usage(format!("--output {}: no such folder", self.output().display())));
        }
        self.check_recipe()?;
        self.check_apart(model)?;
        let inspects = self.training.inspect_data;
        // Charts of the data have other names.
        let ends: &[&str] = if inspects { &["lengths", "distances"] } else { &[""] };
        for end in ends {
            check_plot_name("--plot", &chart(&self.plot(), end))?;
        }
        if !inspects {
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
            ("--set log", self.log()),
            ("--plot", self.plot()),
            ("--set checkpoints", self.checkpoints()),
        ];
        outputs.extend(self.given.cache.clone().map(|p| ("--set cache", p)));
        let texts = self.training.data.iter().map(|s| &s.path);
        let read: Vec<PathBuf> = texts.chain(&self.init).map(|p| real(p)).chain([real(model)]).collect();
        for (i, (option, path)) in outputs.iter().enumerate() {
            let at = real(path);
            if let Some(input) = read.iter().find(|r| at.starts_with(r)) {
                let (path, input) = (path.display(), input.display());
                return Err(usage(format!("{option} {path}: expected a path apart from the input {input}")));
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

/// `--data`: a path, or `NAME=PATH:SHARE`.
fn source(text: &str) -> Result<Source, String> {
    text.parse().map_err(|e: ropewalk::data::Error| e.to_string())
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
