//! `--inspect-data`: what the texts hold, before anything is trained on them.

use ropewalk::data::Inspection;
use ropewalk::model::Model;
use ropewalk::train::TrainParams;

use super::super::engine::draw;
use super::super::interrupt::Interrupt;
use super::super::output::{self, Unit};
use super::args::Args;
use super::job::dataset;

/// Most samples whose distances are counted.
const SAMPLES: usize = 4096;

pub(super) fn show(
    args: &Args,
    model: &Model,
    settings: &TrainParams,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut settings = settings.clone();
    if settings.n_ctx == 0 {
        settings.n_ctx = model.hparams().n_ctx_train;
    }
    let data = dataset(args, model, &settings, interrupt)?;
    let draw = draw(args.out.progress(0, "counting", Unit::Steps));
    let found = Inspection::new(&data, SAMPLES, &interrupt.control().with_progress(&draw))?;
    drop(draw);
    if args.out.json {
        output::print_json(&found)
    } else {
        output::print(&found.text())
    }
}
