//! Shared by commands that run a model: progress bars, sizes of contexts.

use std::sync::{Mutex, PoisonError};

use ropewalk::control::{Control, Progress};
use ropewalk::model::Model;

use super::interrupt::Interrupt;
use super::output::{self, OutputArgs, Unit};

/// Contexts of no given size are rounded up to a multiple of this many tokens.
const ROUND: usize = 256;

/// Draws what a call of the library reports onto a bar, for as long as the function lives.
pub(crate) fn draw(bar: output::Progress) -> impl Fn(&Progress<'_>) + Sync {
    let bar = Mutex::new(bar);
    move |p| bar.lock().unwrap_or_else(PoisonError::into_inner).show(p)
}

/// Does work that a signal stops, with a bar for as long as it takes.
pub(crate) fn with_bar<T>(
    bar: output::Progress,
    interrupt: &Interrupt,
    work: impl FnOnce(&Control<'_>) -> T,
) -> T {
    let draw = draw(bar);
    work(&interrupt.control().with_progress(&draw))
}

/// Draws a bar while a prompt is read. It is gone before the first token of the answer.
pub(crate) fn reading(out: OutputArgs) -> impl Fn(&Progress<'_>) + Sync {
    let bar = Mutex::new(None);
    move |p| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.get_or_insert_with(|| out.progress(p.total, "reading", Unit::Tokens)).set(p.done);
        if p.done >= p.total {
            *bar = None;
        }
    }
}

/// The context for a prompt when the user names none: the trained length up to `cap`, or as much as the
/// prompt needs.
pub(crate) fn default_ctx(model: &Model, cap: usize, needed: usize) -> usize {
    model.hparams().n_ctx_train.min(cap).max(needed.div_ceil(ROUND).saturating_mul(ROUND))
}
