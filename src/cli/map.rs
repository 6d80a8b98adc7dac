//! `ropewalk inspect --map`: where one head of a model looks in a text.

use std::path::PathBuf;

use anyhow::ensure;
use ropewalk::adapter::AdapterSpec;
use ropewalk::eval::attention::{self, Params, Report};
use ropewalk::eval::check_apart;
use ropewalk::model::Model;
use ropewalk::plot::{Heat, HeatPanel};
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk::DType;
use ropewalk_core::settings;
use serde_json::json;

use super::against::{self, Against};
use super::engine::with_bar;
use super::interrupt::Interrupt;
use super::models::{self, ModelChoice};
use super::options::{kv_types, read_documents, tokens, tokens_or_zero, ForceArgs, MachineArgs, RopeArgs};
use super::output::{OutputArgs, Unit};
use super::usage;

const SETTINGS: [&str; 5] = ["layer", "head", "distance", "sinks", "tiles"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Attention map")]
pub(super) struct MapArgs {
    /// Draw where one attention head looks in a text
    ///
    /// As in Untie the Knots, each square of tokens shows its largest probability in percent, up to 1. Queries run
    /// down, keys across. Settings: layer and head (from 0; default: the head with the largest sum of probabilities at
    /// far keys), distance (a key more than N tokens back is far: 1000), sinks (the first N tokens are never far,
    /// because many heads put unused attention there: 0), tiles (tokens per side of a square: 16; a multiple of it if a
    /// side would have more than 512 squares)
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, default_missing_value = "", requires = "file")]
    map: Option<String>,
    /// Texts to read, joined in this order; - reads stdin
    ///
    /// Each file is a document. In a .jsonl file, the "text" of each line is one. A directory stands for the text
    /// files in it and below it. The limit is 256 MiB for all files together
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    file: Vec<PathBuf>,
    /// Tokens to read, and the context of the RoPE method [default: the trained context]
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Also draw the same head under another setting, and the difference
    ///
    /// The setting is rope=SPEC, kv=TYPE, lora=FILE[:S], or another model. Repeat the option to change several
    /// settings at once
    #[arg(long, value_name = "WHAT")]
    against: Vec<Against>,
    /// Plot the map to this file (.svg, .png, or .pdf)
    #[arg(short = 'o', long, alias = "output", value_name = "FILE")]
    plot: Option<PathBuf>,
    /// KV cache type
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    kv: DType,
    /// LoRA adapter, FILE or FILE:SCALE; can be repeated
    #[arg(long, value_name = "FILE[:S]")]
    lora: Vec<AdapterSpec>,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    force: ForceArgs,
}

impl MapArgs {
    pub(super) fn asked(&self) -> bool {
        self.map.is_some()
    }

    /// The settings, for a text of so many tokens.
    fn params(&self, ctx: usize) -> anyhow::Result<Params> {
        let mut params = Params::new(ctx);
        let given = self.map.as_deref().filter(|text| !text.is_empty());
        for (key, value) in settings::pairs("--map", given, &SETTINGS).map_err(usage)? {
            let named = |e: String| usage(format!("--map: {key}: {e}"));
            match key {
                "layer" => params.layer = Some(settings::number("--map", key, value).map_err(usage)?),
                "head" => params.head = Some(settings::number("--map", key, value).map_err(usage)?),
                "distance" => params.distance = tokens(value).map_err(named)?,
                "sinks" => params.sinks = tokens_or_zero(value).map_err(named)?,
                _ => params.tile = tokens(value).map_err(named)?,
            }
        }
        if params.head.is_some() && params.layer.is_none() {
            return Err(usage("--map: expected layer=N with head=N, found head alone"));
        }
        Ok(params)
    }
}

pub(super) fn run(name: &str, args: &MapArgs, out: &OutputArgs) -> anyhow::Result<()> {
    let rope = args.rope.spec()?;
    // Mistakes are errors before the model is read.
    args.params(0)?;
    args.force.check_plot("--plot", args.plot.as_ref())?;
    let documents = read_documents(&args.file)?;
    let choice = args.machine.choose(name, args.kv, &args.lora)?;
    let (choice_b, rope_b) = against::other(&args.against, &choice, rope.as_ref())?;
    check_apart(args.file.iter().chain(choice.files()).chain(choice_b.files()), &args.plot)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, out)?;
    let ctx = args.ctx.unwrap_or(model.hparams().n_ctx_train);
    let map =
        |model: &Model, choice: &ModelChoice, rope: Option<&Spec>, params: &Params| -> anyhow::Result<_> {
            let mut session = Session::new(model, &choice.session(ctx, rope))?;
            models::announce(out, choice, &session);
            let tokens = attention::tokens_of(&session, &documents, params.tokens)?;
            let report = with_bar(out.progress(0, "reading", Unit::Tokens), &interrupt, |control| {
                attention::measure(&mut session, &models::label(choice), &tokens, params, control)
            })?;
            let panel = HeatPanel {
                title: format!("{}, {}", report.model, report.rope),
                tokens: report.map.tokens,
                trained: session.plan().n_ctx_orig(model.hparams()),
                rows: report.map.shown(),
                difference: false,
            };
            Ok((tokens, report, panel))
        };
    let params = args.params(ctx)?;
    let (read, a, panel) = map(&model, &choice, rope.as_ref(), &params)?;
    let (mut panels, mut reports) = (vec![panel], vec![a]);
    if !args.against.is_empty() {
        // One copy of the weights where they are the same.
        let own = args.against.iter().any(Against::has_weights);
        let model = if own { models::load(&choice_b, out)? } else { model };
        let shown = reports[0].shown;
        let params = params.layer(Some(shown.layer)).head(Some(shown.head));
        let (same, b, panel) = map(&model, &choice_b, rope_b.as_ref(), &params)?;
        ensure!(same == read, "{} and {} have different tokens for the text", reports[0].model, b.model);
        panels.push(panel);
        panels.push(HeatPanel::difference("the second minus the first", &panels[1], &panels[0]));
        reports.push(b);
    }
    let scale = format!("layer {}, head {}, probability, %", reports[0].shown.layer, reports[0].shown.head);
    let heat = Heat { panels, scale };
    if let Some(path) = &args.plot {
        heat.write(args.force.output(path))?;
        out.note(format_args!("drawn to {}", path.display()));
    }
    out.result(&json!({ "model": reports[0].model, "results": reports }), || {
        let texts: Vec<String> = reports.iter().map(Report::text).collect();
        format!("{}\n{}", texts.join("\n"), heat.text(72, 32))
    })
}
