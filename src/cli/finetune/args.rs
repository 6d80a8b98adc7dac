//! The options of `finetune`, and the library's job that they come to.

use std::path::PathBuf;

use ropewalk::adapter::AdapterSpec;
use ropewalk::data::Source;
use ropewalk::finetune::Job;
use ropewalk::model::ModelParams;
use ropewalk::session::SessionParams;
use ropewalk::train::recipe::{Recipe, RECIPES};
use ropewalk::train::{Settings, TrainAttention};
use ropewalk_core::text::parse_bytes;

use super::super::models::{self, ModelChoice};
use super::super::options::{threads, tokens, ForceArgs, MathChoice, RopeArgs};
use super::super::output::OutputArgs;
use super::super::{template, usage};
use super::help;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// GGUF file, or the name of a downloaded model
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: String,
    #[command(flatten)]
    rope: RopeArgs,
    /// Training texts: files or directories; plain text, .gz, .jsonl, or .bin
    ///
    /// A directory stands for the text files in it and below it. A .bin file holds token ids. NAME=PATH:SHARE gives
    /// the texts under NAME their share of the tokens
    #[arg(short, long, value_name = "PATH", num_args = 1.., required_unless_present = "plan_memory", help_heading = "Training")]
    data: Vec<Source>,
    #[command(flatten)]
    training: TrainingArgs,
    /// Jinja file to use as the chat template [default: the model's]
    #[arg(long, value_name = "FILE", requires = "chat", help_heading = "Training")]
    template: Option<PathBuf>,
    /// Start from this adapter, with data from where its run stopped
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    lora: Option<AdapterSpec>,
    /// TOML file with training stages
    ///
    /// Each [[stage]] has rope, ctx, and steps or tokens; attention and the optimizer's settings are optional. Each stage writes
    /// an adapter
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plot", "steps"], help_heading = "Training")]
    pub(super) stages: Option<PathBuf>,
    /// Resume from the newest checkpoint
    #[arg(long, help_heading = "Training")]
    resume: bool,
    /// Print a memory estimate for this machine, or for a GPU of SIZE (12GiB), and do not train
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = parse_bytes, help_heading = "Training")]
    pub(super) plan_memory: Option<Option<usize>>,
    /// Print document lengths, token distances, and the first sequence, and do not train
    #[arg(long, conflicts_with = "plan_memory", help_heading = "Training")]
    pub(super) inspect_data: bool,
    /// The adapter to write; under --targets full, the model
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["plan_memory", "inspect_data"], help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
    /// Plot the loss to this file (.svg, .png, or .pdf) [default: NAME.loss.svg for -o NAME.gguf]
    ///
    /// With --inspect-data, the plots are NAME.lengths.svg and NAME.distances.svg
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) force: ForceArgs,
    #[command(flatten)]
    pub(super) out: OutputArgs,
}

/// Options that change the training or how it is computed. A study's recipe accepts exactly these: they name no file and
/// write none. Unless an option concerns only the machine, its effect must show in
/// [`Training::settings`](ropewalk::studies::Training::settings).
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Training")]
pub(super) struct TrainingArgs {
    /// Sequence length, in tokens [default: the trained context]
    #[arg(short, long, value_name = "N", value_parser = tokens, help_heading = "Model")]
    ctx: Option<usize>,
    /// Settings of a paper, with its RoPE method, context, and data; explicit options override it
    #[arg(long, value_name = "NAME", value_parser = RECIPES.iter().map(|r| r.name).collect::<Vec<_>>())]
    recipe: Option<String>,
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
    /// Random seed of the adapter, the data order, and dropout
    #[arg(short, long, value_name = "S", default_value_t = 42)]
    seed: u64,
    /// Data method: utk-80, utk-30, utk:share=0.8,order=false, cip, pose:target=N, or none [default: none]
    #[arg(long, value_name = "SPEC", long_help = help::transforms())]
    transform: Option<String>,
    /// Train on chats: each .jsonl line has `messages`, or a `prompt` and its `completion`
    ///
    /// The model's chat template renders `messages`. Each line is a sequence
    #[arg(long)]
    chat: bool,
    /// Compute the loss on answers only
    ///
    /// Answers are assistant turns or completions (--chat), text that a chat template marks with {% generation %}, and the
    /// answers of synthetic records
    #[arg(long)]
    answers_only: bool,
    #[arg(long, value_name = "KEY=VALUE,...", help = help::keys(), long_help = help::settings())]
    set: Vec<String>,
    /// Device to compute on: auto, cpu, cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Machine")]
    pub(super) device: String,
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
    #[arg(long, value_name = "KIND", help_heading = "Machine")]
    attention: Option<TrainAttention>,
    /// Rounding in matrix products: auto, bf16, f32, or portable
    ///
    /// auto rounds to 16 bits if that is faster. bf16 rounds to bfloat16. f32 rounds nothing. portable is auto with ops that every
    /// backend has
    #[arg(long, value_name = "KIND", default_value = "auto", help_heading = "Machine")]
    math: MathChoice,
}

impl TrainingArgs {
    /// The job that the options describe, on these texts; a mistake in them is wrong usage.
    pub(super) fn job(&self, data: Vec<Source>, output: PathBuf) -> anyhow::Result<Job> {
        let mut given = Settings::default();
        for text in &self.set {
            given.read("--set", text).map_err(usage)?;
        }
        for (key, value) in
            [("steps", self.steps.map(|n| n.to_string())), ("lr", self.lr.map(|x| x.to_string()))]
        {
            value.map_or(Ok(()), |value| given.put("--set", key, &value)).map_err(usage)?;
        }
        let mut job = Job::new(data, output);
        job.n_ctx = self.ctx;
        job.attention = self.attention;
        job.recipe = self.recipe.as_deref().and_then(Recipe::find);
        job.targets = self.targets.clone();
        job.rank = self.rank;
        job.alpha = self.alpha;
        job.given = given;
        job.transform = self.transform.clone();
        job.chat = self.chat;
        job.answers_only = self.answers_only;
        job.template = self.chat.then(template::program).transpose()?;
        job.seed = self.seed;
        job.n_block = self.ubatch;
        job.n_threads = self.threads;
        job.math = self.math.math;
        job.portable = self.math.portable;
        Ok(job)
    }
}

impl Args {
    /// The job that the options describe; a mistake in them is wrong usage.
    pub(super) fn job(&self) -> anyhow::Result<Job> {
        if let Some(lora) = self.lora.as_ref().filter(|lora| lora.scale != 1.0) {
            let path = lora.path.display();
            return Err(usage(format!(
                "--lora {path}: expected scale 1 to continue from, found {}",
                lora.scale
            )));
        }
        if let Some(lora) = self.lora.as_ref().filter(|lora| lora.force) {
            let path = lora.path.display();
            return Err(usage(format!(
                "--lora {path}:force: training continues only on the adapter's own model"
            )));
        }
        // Required by clap where it is written.
        let output = self.output.clone().unwrap_or_else(|| "adapter.gguf".into());
        let mut job = self.training.job(self.data.clone(), output)?;
        job.rope = self.rope.spec()?;
        job.init = self.lora.as_ref().map(|lora| lora.path.clone());
        job.inputs = self.stages.iter().chain(&self.template).cloned().collect();
        job.resume = self.resume;
        job.plot = self.plot.clone();
        job.force = self.force.force;
        Ok(job)
    }

    pub(super) fn model(&self) -> anyhow::Result<ModelChoice> {
        let params = ModelParams::auto().device(self.training.device.as_str().into());
        ModelChoice::new(models::find(&self.model)?, params, SessionParams::new(0))
            .with_template(self.template.as_deref())
    }
}
