//! `ropewalk rope`: what a method does to a model, pair by pair.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args as _, FromArgMatches};
use ropewalk::eval::check_apart;
use ropewalk::gguf::File;
use ropewalk::hparams::Hparams;
use ropewalk::plot;
use ropewalk::rope::{Axis, Inspection, Param, Plan, Spec, METHODS};
use serde_json::{json, Value};

use super::options::{parse_spec, tokens, ForceArgs};
use super::output::{self, OutputArgs};
use super::{models, usage, Command};

/// Columns and rows of the plot in the terminal.
const PLOT_WIDTH: usize = 78;
const PLOT_HEIGHT: usize = 16;
/// Columns and rows of the distance map in the terminal.
const MAP_WIDTH: usize = 70;
const MAP_HEIGHT: usize = 24;

pub(crate) const COMMAND: Command = Command {
    name: "rope",
    about: "Show what RoPE methods do to a model: frequencies, wavelengths, distances, a plot",
    details: "Prints a row per pair of rotary dimensions: its frequency, its wavelength in tokens, its turns within \
              the original and the target context, and what the method does to it. A pair that did not complete a \
              turn in training and goes further now meets angles the model has never seen. For an attention method, \
              also prints which keys a query sees, and at which distance. --plot draws the wavelengths of one or \
              more methods, --map the distances. Reads only the model's metadata. --list shows the methods and their \
              parameters.",
    example: "rope harpe -m smollm2 --ctx 32768\n\
              rope yarn:factor=4 harpe -m smollm2 --ctx 32768 --plot both.svg",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// Method specs, `name[:key=value,...]` [default: declared]
    #[arg(value_name = "SPEC")]
    specs: Vec<String>,
    /// GGUF file, or the name of a downloaded model
    #[arg(short, long, value_name = "MODEL", required_unless_present = "list")]
    model: Option<String>,
    /// Target context, in tokens [default: the trained context]
    #[arg(short, long, value_name = "N", value_parser = tokens)]
    ctx: Option<usize>,
    /// Print every dimension pair of every table
    #[arg(long)]
    all: bool,
    /// Plot the wavelengths to this file (.svg, .png, or .pdf)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Plot the distance of each query and key to this file (.svg, .png, or .pdf); one SPEC must be an attention method
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// List the methods and their parameters
    #[arg(long, conflicts_with_all = ["specs", "model"])]
    list: bool,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        return list_methods(&args.out);
    }
    let mut specs = args.specs.iter().map(|s| parse_spec(s)).collect::<anyhow::Result<Vec<_>>>()?;
    let most = plot::Map::MAX_PANELS;
    if args.map.is_some() && specs.len() > most {
        return Err(usage(format!("--map: expected at most {most} methods, found {}", specs.len())));
    }
    for (option, path) in [("--plot", &args.plot), ("--map", &args.map)] {
        args.force.check_plot(option, path.as_ref())?;
    }
    let Some(model) = &args.model else { return Err(usage("a model is needed: -m MODEL")) };
    let path = models::find(model)?;
    check_apart([&path], args.plot.iter().chain(&args.map))?;
    let hp = Hparams::from_gguf(&File::open(&path)?)?;
    // A declared scaling may be unusable where it is replaced.
    let declared = Spec::declared(&hp);
    let in_file = || declared.clone().with_context(|| path.display().to_string());
    if specs.is_empty() {
        specs.push(in_file()?);
    }
    let n_ctx = args.ctx.unwrap_or(hp.n_ctx_train);
    let mut plans = Vec::new();
    for spec in specs {
        let spec = if spec.is_declared() { in_file()? } else { spec };
        plans.push(Plan::new(&spec, &hp, n_ctx)?);
    }
    if args.map.is_some() && plans.iter().all(Plan::is_plain_reach) {
        let specs: Vec<String> = plans.iter().map(|p| p.spec.to_string()).collect();
        return Err(usage(format!(
            "--map: under {} every key before the query is seen at its own distance; --plot draws its \
             wavelengths",
            specs.join(" and ")
        )));
    }
    let inspections = plans.iter().map(|plan| plan.inspect(&hp)).collect::<Result<Vec<_>, _>>()?;
    let name = models::name(&path);
    let chart = plot::rope(&inspections.iter().collect::<Vec<_>>());
    if let Some(path) = &args.plot {
        chart.write(args.force.output(path))?;
        args.out.note(format_args!("drawn to {}", path.display()));
    }
    if let Some(path) = &args.map {
        plot::Map::new(&plans.iter().collect::<Vec<_>>(), &hp)?.write(args.force.output(path))?;
        args.out.note(format_args!("map drawn to {}", path.display()));
    }
    if args.out.json {
        let rows = inspections.iter().map(|i| report(&name, declared.as_ref().ok(), i, &hp));
        return output::print_json(&results(rows.collect::<Result<_, _>>()?));
    }
    let declared = declared.map_or_else(|e| format!("nothing usable: {e}"), |spec| spec.to_string());
    let cut = (!args.all).then_some("--all shows every one");
    let texts = inspections
        .iter()
        .map(|i| format!("{name}: rope {} (the file declares {declared})\n{}", i.rope, i.text(&hp, cut)));
    let mut report = texts.collect::<Vec<_>>().join("\n");
    if inspections.iter().flat_map(|i| &i.kinds).any(|kind| kind.base.is_some()) {
        report += &format!("\n{}", chart.text(PLOT_WIDTH, PLOT_HEIGHT)?);
    }
    for (plan, inspection) in plans.iter().zip(&inspections).filter(|(plan, _)| !plan.is_plain_reach()) {
        if plans.len() > 1 {
            report += &format!("\n{}:", plan.spec);
        }
        let map = plot::Map::new(&[plan], &hp)?.text(MAP_WIDTH, MAP_HEIGHT);
        report += &format!("{}\n{map}", inspection.reach_text());
    }
    output::print(&report)
}

/// One object: what is the same in all rows at its top, the rows in `results`.
fn results(rows: Vec<Value>) -> Value {
    let mut top = rows.first().cloned().unwrap_or_default();
    if let Some(top) = top.as_object_mut() {
        top.retain(|key, value| rows.iter().all(|row| row.get(key) == Some(value)));
    }
    top["results"] = rows.into();
    top
}

/// A method as JSON. Values that can differ by layer are at the top if all layers are alike, and otherwise in a list
/// `layers`.
fn report(name: &str, declared: Option<&Spec>, i: &Inspection, hp: &Hparams) -> anyhow::Result<Value> {
    let mut report = json!({
        "model": name, "rope": i.rope, "declared": declared, "n_ctx": i.n_ctx, "n_ctx_orig": i.n_ctx_orig,
    });
    let mut kinds = serde_json::to_value(&i.kinds)?;
    match (report.as_object_mut(), kinds.as_array_mut().map(Vec::as_mut_slice)) {
        (Some(report), Some([Value::Object(kind)])) if i.recurrent.is_empty() => {
            kind.retain(|key, _| !["layers", "applies", "window"].contains(&key.as_str()));
            report.append(kind);
        }
        _ => report["layers"] = kinds,
    }
    report["recurrent_layers"] = json!(i.recurrent);
    report["n_held"] = json!(i.n_held);
    report["notes"] = json!(i.notes);
    report["unread"] = json!(hp.unread);
    Ok(report)
}

fn list_methods(out: &OutputArgs) -> anyhow::Result<()> {
    if out.json {
        let rows: Vec<_> = METHODS
            .iter()
            .map(|m| {
                let params: Vec<_> = m.params.iter().chain(m.settings()).collect();
                json!({ "name": m.name, "about": m.about, "axis": m.axis.to_string(), "params": params })
            })
            .collect();
        return output::print_json(&json!({ "methods": rows }));
    }
    let mut s = String::new();
    for m in METHODS {
        s += &format!("{} ({}): {}\n", m.name, m.axis, m.about);
        m.params.iter().for_each(|p| s += &described(p));
    }
    for axis in [Axis::Frequency, Axis::Reach] {
        let Some(of) = METHODS.iter().find(|m| m.axis == axis) else { continue };
        s += &format!("settings of every {axis} method\n");
        of.settings().iter().for_each(|p| s += &described(p));
    }
    s += &format!(
        "{} (alone): the model as its file declares it, which is the default; attention methods alone \
         keep its frequencies\n",
        Spec::DECLARED
    );
    output::print(&s)
}

fn described(p: &Param) -> String {
    let unit = if p.unit.is_empty() { String::new() } else { format!(", {}", p.unit) };
    format!("    {:12} {}{unit} (default: {})\n", p.key, p.about, p.default)
}
