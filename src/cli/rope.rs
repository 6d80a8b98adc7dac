//! `ropewalk rope`: what a method does to a model, pair by pair.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args as _, FromArgMatches};
use ropewalk::gguf::File;
use ropewalk::hparams::{BaseFrom, Hparams};
use ropewalk::plot;
use ropewalk::rope::{
    Axis, Inspection, KindView, LayerPlan, Pair, PairKind, Param, Plan, ReachView, RopeError, Spec, Table,
    METHODS,
};
use serde_json::{json, Map, Value};

use super::options::{parse_spec, tokens};
use super::output::{self, check_plot_name, count, OutputArgs};
use super::{models, usage, Command};

/// Pairs of a table that are shown, unless `--all`.
const SHOWN: usize = 16;
/// Columns and rows of the plot in the terminal.
const PLOT_WIDTH: usize = 78;
const PLOT_HEIGHT: usize = 16;
/// Columns and rows of the distance map in the terminal.
const MAP_WIDTH: usize = 70;
const MAP_HEIGHT: usize = 24;

pub(crate) const COMMAND: Command = Command {
    name: "rope",
    about: "Show what rope methods do to a model: frequencies, wavelengths, distances, a plot",
    details: "For every pair of rotary dimensions: its frequency, its wavelength in tokens, how often it \
              turned within the original context and how often it will within the target, and what that makes \
              of it. A pair that did not complete a turn in training and goes further now meets angles the \
              model has never seen. For an attention method also: which keys a query sees, the \
              distance it is shown for them, and a map of that. --plot draws the wavelengths, --map the \
              distances; several methods stand in one picture. Needs only the model's metadata. --list shows the \
              methods and their parameters.",
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
        path.as_ref().map_or(Ok(()), |p| check_plot_name(option, p))?;
    }
    let Some(model) = &args.model else { return Err(usage("a model is needed: -m MODEL")) };
    let path = models::find(model)?;
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
        chart.write(path)?;
        args.out.note(format_args!("drawn to {}", path.display()));
    }
    if let Some(path) = &args.map {
        plot::Map::new(&plans.iter().collect::<Vec<_>>(), &hp)?.write(path)?;
        args.out.note(format_args!("map drawn to {}", path.display()));
    }
    let each = || plans.iter().zip(&inspections);
    if args.out.json {
        let declared = declared.ok().map(|s| s.to_string());
        let rows = each().map(|(plan, i)| report(&name, &declared, plan, i, &hp)).collect();
        return output::print_json(&results(rows));
    }
    let texts: Vec<String> = each().map(|(_, i)| text(&name, declared.as_ref(), i, &hp, args.all)).collect();
    let mut report = texts.join("\n");
    let _ = write!(report, "\n{}", chart.text(PLOT_WIDTH, PLOT_HEIGHT)?);
    for (plan, inspection) in each().filter(|(plan, _)| !plan.is_plain_reach()) {
        let map = plot::Map::new(&[plan], &hp)?.text(MAP_WIDTH, MAP_HEIGHT);
        if plans.len() > 1 {
            let _ = write!(report, "\n{}:", plan.spec);
        }
        for kind in &inspection.kinds {
            let _ = write!(report, "\n{}", distances(kind, inspection));
        }
        let _ = write!(report, "\n{map}");
    }
    output::print(&report)
}

/// One object: what is the same in all rows at its top, the rows in `results`.
fn results(rows: Vec<Map<String, Value>>) -> Value {
    let mut top = rows.first().cloned().unwrap_or_default();
    top.retain(|key, value| rows.iter().all(|row| row.get(key) == Some(value)));
    top.insert("results".into(), json!(rows));
    Value::Object(top)
}

/// A method as JSON. Values that can differ by layer are at the top if all layers are alike, and otherwise in a list
/// `layers`.
fn report(
    name: &str,
    declared: &Option<String>,
    plan: &Plan,
    inspection: &Inspection,
    hp: &Hparams,
) -> Map<String, Value> {
    let own = [
        ("model", json!(name)),
        ("rope", json!(plan.spec.to_string())),
        ("declared", json!(declared)),
        ("n_ctx", json!(inspection.n_ctx)),
        ("n_ctx_orig", json!(inspection.n_ctx_orig)),
    ];
    let mut report: Map<String, Value> =
        own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let of_kind = |(i, (view, plan)): (usize, (&KindView, &LayerPlan))| {
        let from = hp.base_from(i);
        json!({
            "base": hp.attention[i].rotation.map(|r| r.freq_base),
            "base_from": from.as_ref().map(|from| match from {
                BaseFrom::Key(key) => key.as_str(),
                BaseFrom::Architecture => "architecture",
                BaseFrom::Guess => "guess",
            }),
            "n_head_kv": view.n_head_kv,
            "n_rot": view.n_rot,
            "mscale": plan.mscale,
            "temperature": view.temperature,
            "bases": plan.bases,
            "freqs": plan.freqs.tables().collect::<Vec<_>>(),
            "tables": view.tables,
            "branches": view.reach.branches,
            "largest_distance": view.reach.largest_distance,
            "most_keys": view.reach.most_keys,
        })
    };
    let mut kinds: Vec<Value> = inspection.kinds.iter().zip(plan.kinds()).enumerate().map(of_kind).collect();
    let alike = inspection.recurrent.is_empty();
    if let (true, [Value::Object(kind)]) = (alike, &mut kinds[..]) {
        report.append(kind);
    } else {
        for (kind, view) in kinds.iter_mut().zip(&inspection.kinds) {
            kind["layers"] = json!(view.layers);
            kind["applies"] = json!(view.applies);
            kind["window"] = json!(view.window);
        }
        report.insert("layers".into(), Value::Array(kinds));
    }
    report.insert("recurrent_layers".into(), json!(inspection.recurrent));
    report.insert("n_held".into(), json!(inspection.n_held));
    report.insert("notes".into(), json!(inspection.notes));
    report.insert("unread".into(), json!(hp.unread));
    report
}

fn text(name: &str, declared: Result<&Spec, &RopeError>, i: &Inspection, hp: &Hparams, all: bool) -> String {
    let mut s = String::new();
    let declared = declared.map_or_else(|e| format!("nothing usable: {e}"), Spec::to_string);
    let _ = writeln!(s, "{name}: rope {} (the file declares {declared})", i.rope);
    let (trained, target) = (count(i.n_ctx_orig as u64), count(i.n_ctx as u64));
    let _ = write!(s, "original context {trained}, target context {target}");
    let n_kinds = i.kinds.len() + usize::from(!i.recurrent.is_empty());
    match &i.kinds[..] {
        [kind] if n_kinds == 1 => {
            let _ = writeln!(s, ", {}", heads(kind));
        }
        _ => {
            let _ = writeln!(s, ", {n_kinds} kinds of layer");
        }
    }
    s += &bases(i, hp);
    for note in hp.unread_note().iter().chain(&i.notes) {
        let _ = writeln!(s, "note: {note}");
    }
    if !i.recurrent.is_empty() {
        let of = numbers(&i.recurrent);
        let _ = writeln!(s, "\nlayers {of}: gated delta-net, which has neither attention nor positions");
    }
    for kind in &i.kinds {
        if n_kinds > 1 {
            let window =
                kind.window.map_or_else(|| "every key".into(), |n| format!("{} tokens", count(n as u64)));
            let own = if kind.applies { "" } else { ", as in the file" };
            let _ = writeln!(s, "\nlayers {}: see {window}, {}{own}", numbers(&kind.layers), heads(kind));
        }
        tables(&mut s, kind, all);
    }
    s
}

/// The bases of the model's frequencies and where each is from, a line for each that differs.
fn bases(i: &Inspection, hp: &Hparams) -> String {
    let mut found: Vec<(f64, BaseFrom, Vec<usize>)> = Vec::new();
    for (kind, view) in i.kinds.iter().enumerate() {
        let (Some(rotation), Some(from)) = (hp.attention[kind].rotation, hp.base_from(kind)) else {
            continue;
        };
        match found.iter_mut().find(|(base, other, _)| *base == rotation.freq_base && *other == from) {
            Some((.., layers)) => layers.extend(&view.layers),
            None => found.push((rotation.freq_base, from, view.layers.clone())),
        }
    }
    let one = found.len() == 1;
    let mut s = String::new();
    for (base, from, mut layers) in found {
        layers.sort_unstable();
        let of = if one { String::new() } else { format!(" of layers {}", numbers(&layers)) };
        let from = match from {
            BaseFrom::Key(key) => format!("from {key}"),
            BaseFrom::Architecture => format!("the default of {} models; the file names none", hp.arch),
            BaseFrom::Guess => format!("a guess: the file has no {}.rope.freq_base", hp.arch),
        };
        let _ = writeln!(s, "base{of} {base}, {from}");
    }
    s
}

fn numbers(layers: &[usize]) -> String {
    layers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

fn heads(kind: &KindView) -> String {
    let queries = kind.temperature.as_ref().map_or(String::new(), |t| format!(", queries i times {t}"));
    format!(
        "{} rotary dimensions, {} KV heads, magnitude {}{queries}",
        kind.n_rot, kind.n_head_kv, kind.mscale
    )
}

fn tables(s: &mut String, kind: &KindView, all: bool) {
    if kind.tables.len() > 1 {
        let _ = writeln!(
            s,
            "\n{:>4}  {:>14}  {:>16}  {:>12}  {:>6}",
            "head", "base", "longest wave", "interpolated", "unseen"
        );
        for t in &kind.tables {
            let longest = t.pairs.iter().filter_map(|p| p.wavelength).fold(0.0, f64::max);
            let slower = t.pairs.iter().filter(|p| p.kind == PairKind::Interpolated).count();
            let unseen = t.pairs.iter().filter(|p| p.unseen).count();
            let base = t.base.map_or_else(|| "-".to_owned(), |b| format!("{b:.2}"));
            let head = t.head.map_or_else(String::new, |h| h.to_string());
            let _ = writeln!(s, "{head:>4}  {base:>14}  {longest:>16.1}  {slower:>12}  {unseen:>6}");
        }
    }
    // Heads differ in their base alone: the first one's pairs tell how to read the others'.
    for t in kind.tables.iter().take(if all { usize::MAX } else { 1 }) {
        table(s, t, all);
    }
}

fn distances(kind: &KindView, inspection: &Inspection) -> String {
    let reach = &kind.reach;
    let mut s = String::new();
    if inspection.kinds.len() > 1 || !inspection.recurrent.is_empty() {
        let _ = write!(s, "layers {}: ", numbers(&kind.layers));
    }
    s.push_str("a query i sees these keys j, and each at this distance\n");
    let wide = reach.branches.iter().map(|b| b.pairs.chars().count()).max().unwrap_or(0);
    for b in &reach.branches {
        let _ = writeln!(s, "    {:wide$}  {}", b.pairs, b.shown);
    }
    match (reach.largest_distance, reach.most_keys) {
        (Some(d), Some(n)) => {
            let (d, n) = (count(d.unsigned_abs().into()), count(n as u64));
            let _ = writeln!(s, "largest distance within the context {d}; a query sees {n} keys at most");
        }
        _ => {
            let _ =
                writeln!(s, "largest distance: counted up to {} tokens", count(ReachView::COUNTED as u64));
        }
    }
    let _ = match inspection.n_held {
        Some(n) => writeln!(s, "the cache holds {} keys at most, however long the text", count(n as u64)),
        None => writeln!(s, "the cache keeps every key"),
    };
    s
}

fn table(s: &mut String, t: &Table, all: bool) {
    let of = t.head.map_or_else(|| "all heads".to_owned(), |h| format!("KV head {h}"));
    let _ = writeln!(s, "\n{of}");
    let _ = writeln!(
        s,
        "{:>4}  {:>12}  {:>14}  {:>7}  {:>10}  {:>10}",
        "pair", "rad/token", "wave (tokens)", "slower", "turns then", "turns now"
    );
    let n = t.pairs.len();
    let mut skipped = false;
    for (i, p) in t.pairs.iter().enumerate() {
        // The ends, and evenly what is between: where the table bends is seen in the plot.
        if !all && n > SHOWN && !(i < 2 || i + 2 >= n || i % n.div_ceil(SHOWN - 4) == 0) {
            skipped = true;
            continue;
        }
        row(s, p);
    }
    if skipped {
        let _ = writeln!(s, "(some of {n} pairs; --all shows every one)");
    }
}

fn row(s: &mut String, p: &Pair) {
    let kind = match p.kind {
        PairKind::Unchanged => "unchanged",
        PairKind::Interpolated => "interpolated",
        PairKind::Extrapolated => "extrapolated",
    };
    let wave = p.wavelength.map_or_else(|| "not rotated".to_owned(), |w| format!("{w:.1}"));
    let slower = if p.theta > 0.0 { format!("{:.3}", p.theta_file / p.theta) } else { "-".to_owned() };
    let _ = writeln!(
        s,
        "{:>4}  {:>12.5e}  {wave:>14}  {slower:>7}  {:>10.3}  {:>10.3}  {kind}{}",
        p.index,
        p.theta,
        p.turns_trained,
        p.turns_target,
        if p.unseen { ", to unseen angles" } else { "" }
    );
}

fn list_methods(out: &OutputArgs) -> anyhow::Result<()> {
    if out.json {
        let rows: Vec<_> = METHODS
            .iter()
            .map(|m| {
                let params: Vec<_> = m.params.iter().chain(m.settings()).map(parameter).collect();
                json!({ "name": m.name, "about": m.about, "axis": m.axis.to_string(), "params": params })
            })
            .collect();
        return output::print_json(&json!({ "methods": rows }));
    }
    let mut s = String::new();
    for m in METHODS {
        let _ = writeln!(s, "{} ({}): {}", m.name, m.axis, m.about);
        for p in m.params {
            s += &described(p);
        }
    }
    for axis in [Axis::Frequency, Axis::Reach] {
        let Some(of) = METHODS.iter().find(|m| m.axis == axis) else { continue };
        let _ = writeln!(s, "settings of every {axis} method");
        of.settings().iter().for_each(|p| s += &described(p));
    }
    let _ = writeln!(
        s,
        "{} (alone): the model as its file declares it, which is the default; attention methods alone \
         keep its frequencies",
        Spec::DECLARED
    );
    output::print(&s)
}

fn described(p: &Param) -> String {
    let unit = if p.unit.is_empty() { String::new() } else { format!(", {}", p.unit) };
    format!("    {:12} {}{unit} (default: {})\n", p.key, p.about, p.default)
}

fn parameter(p: &Param) -> Value {
    json!({ "key": p.key, "default": p.default, "unit": p.unit, "about": p.about })
}
