//! `--inspect-data`: what the texts hold and what a sequence is made of, before anything is trained on them.

use std::ops::Range;

use ropewalk::data::{Dataset, Inspection, Sample, Span, SpanKind};
use ropewalk::finetune::{chart_path, Job};
use ropewalk::model::Model;
use ropewalk::plot;
use ropewalk::train::TrainParams;
use serde::Serialize;

use super::super::engine::with_bar;
use super::super::interrupt::Interrupt;
use super::super::output::{self, count, Colour, Unit};
use super::args::Args;
use super::job;

/// Most samples whose distances are counted.
const SAMPLES: usize = 4096;
/// Tokens shown at each end of a span.
const SHOWN: usize = 12;
/// Most spans shown; JSON has all of them.
const SPANS: usize = 60;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    found: &'a Inspection,
    sample: Vec<Piece>,
}

/// Tokens of one kind in a row.
#[derive(Serialize)]
struct Piece {
    kind: SpanKind,
    document: u32,
    start: usize,
    tokens: usize,
    /// Position of the first one, by which it is rotated.
    position: usize,
    /// Tokens that are not predicted: as targets they have weight 0.
    untrained: usize,
    text: String,
}

pub(super) fn show(
    args: &Args,
    job: &Job,
    model: &Model,
    settings: &TrainParams,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let settings = job.at_context(model, settings)?;
    // A look at the texts leaves nothing behind: no adapter was named to put tokens next to. The folder is there as
    // long as they are read.
    let folder = (args.output.is_none() && job.given.cache.is_none()).then(tempfile::tempdir).transpose()?;
    let folder = folder.as_ref().map(|folder| folder.path());
    let data = job::dataset(&args.out, job, model, &settings, folder, &interrupt.control())?;
    let bar = args.out.progress(0, "counting", Unit::Steps);
    let found = with_bar(bar, interrupt, |control| Inspection::new(&data, SAMPLES, control))?;
    if let Some(path) = job.plot.as_deref() {
        // NAME.lengths.svg and NAME.distances.svg for NAME.svg.
        for (what, chart) in plot::histograms(&found) {
            let path = chart_path(path, what);
            chart.write(args.force.output(&path))?;
            args.out.note(format_args!("{}", path.display()));
        }
    }
    let sample = data.train(0, 0)?;
    if args.out.json {
        let pieces = sample.ranges().map(|(span, range)| piece(model, &sample, span, range));
        let sample = pieces.collect::<anyhow::Result<_>>()?;
        return output::print_json(&Report { found: &found, sample });
    }
    output::print(&found.text())?;
    print_sample(model, &data, &sample)
}

fn text_of(model: &Model, tokens: &[ropewalk::Token]) -> anyhow::Result<String> {
    Ok(model.vocab().detokenize(tokens, true)?)
}

fn piece(model: &Model, sample: &Sample, span: Span, range: Range<usize>) -> anyhow::Result<Piece> {
    Ok(Piece {
        kind: span.kind,
        document: span.document,
        start: range.start,
        tokens: range.len(),
        position: sample.positions.get(range.start).map_or(range.start, |&p| p as usize),
        untrained: range.clone().filter(|&i| !sample.is_trained(i)).count(),
        text: text_of(model, &sample.tokens[range])?,
    })
}

/// The spans of a sample, a line each: text in a color for each document, what was put in in another, and tokens
/// that are not predicted faint.
fn print_sample(model: &Model, data: &Dataset, sample: &Sample) -> anyhow::Result<()> {
    let weighed = sample.weights.iter().filter(|w| **w > 0.0).count();
    output::print(&format!(
        "\nsequence 1 of {}: {} tokens, {} of them trained on; faint: the others\n\n{:>8} {:>7} {:>9} {:>9} {:>9}\n",
        count(data.n_train() as u64),
        count(sample.inputs().len() as u64),
        count(weighed as u64),
        "document",
        "kind",
        "position",
        "tokens",
        "weight 0",
    ))?;
    let spans: Vec<(Span, Range<usize>)> = sample.ranges().collect();
    for (span, range) in spans.iter().take(SPANS) {
        let p = piece(model, sample, *span, range.clone())?;
        output::print(&format!(
            "{:>8} {:>7} {:>9} {:>9} {:>9}  ",
            p.document + 1,
            p.kind,
            p.position,
            p.tokens,
            p.untrained
        ))?;
        let colour = match span.kind {
            SpanKind::Text => Colour::document(span.document),
            SpanKind::Knot | SpanKind::Mark | SpanKind::Label => Colour::INSERTED,
        };
        let ends = match range.len() > 2 * SHOWN {
            true => vec![range.start..range.start + SHOWN, range.end - SHOWN..range.end],
            false => vec![range.clone()],
        };
        for (i, end) in ends.into_iter().enumerate() {
            if i > 0 {
                output::print_in(Colour::FAINT, " ... ")?;
            }
            print_tokens(model, sample, end, colour)?;
        }
        output::print("\n")?;
    }
    if spans.len() > SPANS {
        output::print(&format!("and {} more\n", spans.len() - SPANS))?;
    }
    Ok(())
}

/// Tokens of a sample, those that are predicted in a color and the others faint.
fn print_tokens(model: &Model, sample: &Sample, range: Range<usize>, colour: Colour) -> anyhow::Result<()> {
    let mut start = range.start;
    while start < range.end {
        let trained = sample.is_trained(start);
        let end = (start..range.end).find(|&i| sample.is_trained(i) != trained).unwrap_or(range.end);
        let text = text_of(model, &sample.tokens[start..end])?;
        output::print_in(if trained { colour } else { Colour::FAINT }, &text)?;
        start = end;
    }
    Ok(())
}
