//! The thread of a scheduler: rounds of all engines, and next to it the thread of the disk.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::Disk;
use super::engine::Engine;
use super::request::Status;
use super::{Shared, State};

/// Tells those who wait that the thread has ended, however it did.
struct AtEnd<'a>(&'a Shared);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        // Those who wait for an answer are also told.
        state.asked.clear();
        self.0.end.notify_all();
    }
}

/// Ends the thread that writes texts when the scheduler's ends, however it does.
struct Stops<'a>(Option<&'a Disk>);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|disk| disk.stop());
    }
}

/// The thread, with one more for the disk.
pub(super) fn work(shared: &Shared, mut engines: Vec<Engine>, aim: Duration, disk: Option<&Disk>) {
    let _end = AtEnd(shared);
    thread::scope(|scope| {
        let _stops = Stops(disk);
        if let Some(disk) = disk {
            let deliver = move |plan, job, packed| {
                shared.lock().read.push((plan, job, packed));
                shared.work.notify_all();
            };
            let thread = thread::Builder::new().name("prefixes".into());
            if let Err(e) = thread.spawn_scoped(scope, move || disk.run(deliver)) {
                disk.stop();
                disk.warn(format_args!("no thread: {e}"));
            }
        }
        serve(shared, &mut engines, aim);
        engines.iter_mut().for_each(Engine::save);
    });
}

/// Rounds of all engines that have requests, until the scheduler is stopped.
fn serve(shared: &Shared, engines: &mut [Engine], aim: Duration) {
    loop {
        let mut state = shared.lock();
        let waits = |state: &State, engines: &[Engine]| {
            let comes = state.deadline.is_none() || engines.iter().any(Engine::is_reading);
            let came = !state.new.is_empty() || !state.read.is_empty() || !state.asked.is_empty();
            comes && !came && !engines.iter().any(Engine::has_work)
        };
        while waits(&state, engines) {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for (plan, job) in state.new.drain(..) {
            engines[plan].push(job);
        }
        for (plan, job, packed) in state.read.drain(..) {
            engines[plan].read.push((job, packed));
        }
        let (deadline, asked) = (state.deadline, std::mem::take(&mut state.asked));
        drop(state);
        asked.into_iter().for_each(|ask| ask(engines));
        let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let busy = engines.iter().filter(|engine| engine.has_work()).count();
        let aim = aim / busy.max(1) as u32;
        for engine in engines.iter_mut().filter(|engine| engine.has_work()) {
            let round = catch_unwind(AssertUnwindSafe(|| {
                if deadline.is_some() {
                    engine.cancel(|job| over || !job.is_admitted())?;
                }
                engine.round(aim)
            }));
            match round {
                Ok(Ok(())) => {}
                Ok(Err(e)) => engine.fail(&e.to_string()),
                Err(_) => engine.fail("the step of this request panicked"),
            }
        }
        let mut status = Status::default();
        engines.iter().for_each(|engine| engine.report(&mut status));
        let mut state = shared.lock();
        let State { new, waiting, .. } = &mut *state;
        waiting.clear();
        let all = engines.iter().flat_map(Engine::queue).chain(new.iter().map(|(_, job)| job));
        all.for_each(|job| *waiting.entry(job.request.caller).or_default() += 1);
        state.status = status;
        let busy = engines.iter().any(|engine| engine.has_work() || engine.is_reading());
        if deadline.is_some() && state.new.is_empty() && !busy {
            return;
        }
    }
}
