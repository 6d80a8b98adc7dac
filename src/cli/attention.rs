//! `ropewalk attention`: where one head of a model looks in a text.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args as _, FromArgMatches};
use ropewalk::adapter::AdapterSpec;
use ropewalk::eval::attention::{self, Params, Report};
use ropewalk::eval::Document;
use ropewalk::model::{Model, ModelParams};
use ropewalk::plot::{Heat, HeatPanel};
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk::Token;
use serde_json::json;

use super::engine::draw;
use super::interrupt::Interrupt;
use super::models::{self, ModelChoice};
use super::options::{parse_spec, read_documents, tokens, tokens_or_zero, ModelArgs, RopeArgs};
use super::output::{self, check_plot_name, OutputArgs, Unit};
use super::Command;

pub(crate) const COMMAND: Command = Command {
    name: "attention",
    about: "Draw the attention map of one head over a text, as in Untie the Knots",
    details: "The head is the one whose probabilities at distances over 1000 tokens have the largest sum, or \
              the one asked for. Drawn is the largest probability in each square of 16 x 16 tokens, times 100, \
              clipped to 0..1; queries down, keys across. With --rope-b, --lora-b or --model-b the same head \
              is drawn under that setting, too, and the difference of the two.",
    example: "attention -m smollm2 -f essays.txt --ctx 4096 -o map.svg",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Texts, joined in this order: each file is a document; in .jsonl files each line's "text" is one; - is
    /// stdin; at most 256 MiB altogether
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<PathBuf>,
    /// Tokens to read, and the context the rope method is worked out for; default: the trained one
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Choose the head with the largest sum of far probabilities: what is done where no --head is given
    #[arg(long, conflicts_with = "head")]
    auto: bool,
    /// The layer, from 0; default: choose among all
    #[arg(long, value_name = "N")]
    layer: Option<usize>,
    /// The head, from 0; default: choose among those of the layer
    #[arg(long, value_name = "N", requires = "layer")]
    head: Option<usize>,
    /// Keys more than so many tokens back count as far
    #[arg(long, value_name = "N", default_value = "1000", value_parser = tokens)]
    distance: usize,
    /// Leave so many first tokens out of the far keys: many heads give them what they have no other use for
    #[arg(long, value_name = "N", default_value = "0", value_parser = tokens_or_zero)]
    sinks: usize,
    /// Tokens along the side of a square; a multiple of it where a side would have more than 512 squares
    #[arg(long, value_name = "N", default_value = "16", value_parser = tokens)]
    tiles: usize,
    /// Draw the map to this file (.svg or .png)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw the same head under this rope method, too, and the difference
    #[arg(long, value_name = "SPEC")]
    rope_b: Option<String>,
    /// Draw the same head with this adapter, too, FILE or FILE:SCALE; repeat it for several
    #[arg(long, value_name = "FILE[:S]")]
    lora_b: Vec<AdapterSpec>,
    /// Draw the same head of this model, too
    #[arg(long, value_name = "MODEL")]
    model_b: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    out: OutputArgs,
}

/// Inputs that all maps of one run share.
struct Run<'a> {
    args: &'a Args,
    documents: &'a [Document],
    interrupt: &'a Interrupt,
    ctx: usize,
}

impl Run<'_> {
    fn map(
        &self,
        model: &Model,
        choice: &ModelChoice,
        rope: Option<&Spec>,
        params: &Params,
    ) -> anyhow::Result<(Vec<Token>, Report, HeatPanel)> {
        let mut session = Session::new(model, &choice.session(self.ctx, rope))?;
        models::announce(&self.args.out, choice, &session, rope.is_some());
        let draw = draw(self.args.out.progress(0, "reading", Unit::Tokens));
        let control = self.interrupt.control().with_progress(&draw);
        let tokens = attention::tokens_of(&session, self.documents, params.tokens)?;
        let report = attention::measure(&mut session, &models::label(choice), &tokens, params, &control)?;
        let panel = HeatPanel {
            title: format!("{}, {}", report.model, report.rope),
            tokens: report.map.tokens,
            trained: session.plan().n_ctx_orig(model.hparams()),
            rows: report.map.shown(),
            difference: false,
        };
        Ok((tokens, report, panel))
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let rope = args.rope.spec()?;
    let rope_b = args.rope_b.as_deref().map(parse_spec).transpose()?;
    if let Some(path) = &args.output {
        check_plot_name("--output", path)?;
    }
    let documents = read_documents(&args.file)?;
    let choice = args.model.resolve()?;
    let path_b = args.model_b.as_deref().map(models::find).transpose()?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let ctx = args.ctx.unwrap_or(model.hparams().n_ctx_train);
    let run = Run { args, documents: &documents, interrupt: &interrupt, ctx };
    let params = Params {
        distance: args.distance,
        sinks: args.sinks,
        tile: args.tiles,
        layer: args.layer,
        head: args.head.filter(|_| !args.auto),
        ..Params::new(ctx)
    };
    let (read, a, panel) = run.map(&model, &choice, rope.as_ref(), &params)?;
    let mut panels = vec![panel];
    let mut b = None;
    if rope_b.is_some() || path_b.is_some() || !args.lora_b.is_empty() {
        // One copy of the weights where they are the same.
        let other = match path_b.is_some() || !args.lora_b.is_empty() {
            false => None,
            true => {
                let adapters = args.lora_b.clone();
                let params = ModelParams { adapters, ..choice.params.clone() };
                let path = path_b.unwrap_or_else(|| choice.path.clone());
                let choice = ModelChoice { path, params, ..choice.clone() };
                Some((models::load(&choice, &args.out)?, choice))
            }
        };
        let (model, choice) = other.as_ref().map_or((&model, &choice), |(model, choice)| (model, choice));
        let params = Params { layer: Some(a.shown.layer), head: Some(a.shown.head), ..params };
        let (same, report, panel) = run.map(model, choice, rope_b.as_ref().or(rope.as_ref()), &params)?;
        if same != read {
            bail!("{} and {} have different tokens for the text", a.model, report.model);
        }
        panels.push(panel);
        panels.push(HeatPanel::difference("the second less the first", &panels[1], &panels[0]));
        b = Some(report);
    }
    show(args, &a, b.as_ref(), panels)
}

fn show(args: &Args, a: &Report, b: Option<&Report>, panels: Vec<HeatPanel>) -> anyhow::Result<()> {
    let scale = format!("layer {}, head {}", a.shown.layer, a.shown.head);
    let heat = Heat { panels, scale };
    if let Some(path) = &args.output {
        heat.write(path)?;
        args.out.note(format_args!("drawn to {}", path.display()));
    }
    if args.out.json {
        return output::print_json(&match b {
            None => serde_json::to_value(a)?,
            Some(b) => json!({ "a": a, "b": b }),
        });
    }
    let second = b.map_or_else(String::new, |b| format!("\n{}", b.text()));
    output::print(&format!("{}{second}\n{}", a.text(), heat.text(72, 32)))
}
