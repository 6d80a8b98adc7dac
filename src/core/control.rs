//! Progress and cancellation: how a caller watches work that takes long, and asks it to stop.
//!
//! Functions that take long take a `&Control`. They report how far they are, and look from time to time
//! whether they were asked to stop; what they return then is documented at each. A default `Control` watches
//! nothing:
//!
//! ```
//! use ropewalk_core::control::{Control, Progress, Stop};
//!
//! fn count(to: u64, control: &Control<'_>) -> u64 {
//!     for n in 0..to {
//!         if control.stopped() {
//!             return n;
//!         }
//!         control.report(format_args!("counting"), n + 1, to);
//!     }
//!     to
//! }
//!
//! assert_eq!(count(10, &Control::default()), 10);
//!
//! let stop = Stop::default(); // a clone of it goes to another thread, or to a handler of Ctrl-C
//! let show = |p: &Progress<'_>| {
//!     println!("{}: {} of {}", p.what, p.done, p.total);
//!     if p.done == 3 {
//!         stop.request();
//!     }
//! };
//! let control = Control::default().with_stop(&stop).with_progress(&show);
//! assert_eq!(count(10, &control), 3);
//! ```

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How far a piece of work is. The function that reports says what its unit is: bytes, tokens, steps.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// One line for people: what is being done, and figures so far.
    pub what: fmt::Arguments<'a>,
    /// Units done.
    pub done: u64,
    /// Units in all, as far as that is known.
    pub total: u64,
    /// Figures of the unit, by name, for programs: those of an optimizer step.
    pub figures: &'a [(&'static str, f64)],
}

/// How the caller of a long function watches it and stops it. Cheap to copy.
#[derive(Clone, Copy, Default)]
pub struct Control<'a> {
    stop: Option<&'a Stop>,
    progress: Option<&'a (dyn Fn(&Progress<'_>) + Sync)>,
    notes: Option<&'a (dyn Fn(fmt::Arguments<'_>) + Sync)>,
}

impl<'a> Control<'a> {
    /// Has the work stop when this is requested.
    pub fn with_stop(self, stop: &'a Stop) -> Self {
        Control { stop: Some(stop), ..self }
    }

    /// Has progress reported to this function, from whichever thread the work runs on.
    pub fn with_progress(self, progress: &'a (dyn Fn(&Progress<'_>) + Sync)) -> Self {
        Control { progress: Some(progress), ..self }
    }

    /// The same without a watcher of progress, for a part of work that reports on its own.
    pub fn without_progress(self) -> Self {
        Control { progress: None, ..self }
    }

    /// Passes lines that are worth keeping to this function, such as the figures of a validation. Unlike progress,
    /// each is reported once.
    pub fn with_notes(self, notes: &'a (dyn Fn(fmt::Arguments<'_>) + Sync)) -> Self {
        Control { notes: Some(notes), ..self }
    }

    /// Returns true if the work is to stop.
    pub fn stopped(&self) -> bool {
        self.stop.is_some_and(Stop::requested)
    }

    /// Ends work with this error if it is to stop.
    ///
    /// # Errors
    /// The work is to stop.
    pub fn unless_stopped<E>(&self, error: E) -> Result<(), E> {
        match self.stopped() {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// [`Control::unless_stopped`] inside a callback that can only fail with an I/O error.
    ///
    /// # Errors
    /// The work is to stop.
    pub fn check(&self) -> std::io::Result<()> {
        self.unless_stopped(()).map_err(|()| std::io::Error::other("interrupted"))
    }

    /// [`Control::check`], and progress in bytes of a file.
    ///
    /// # Errors
    /// The work is to stop.
    pub fn writing(&self, done: u64, total: u64) -> std::io::Result<()> {
        self.check()?;
        self.report(format_args!("writing tensors"), done, total);
        Ok(())
    }

    /// Has a flag set when the work is to stop, now if that was requested already: see [`Stop::bind`].
    pub fn bind(&self, flag: &Arc<AtomicBool>) {
        if let Some(stop) = self.stop {
            stop.bind(flag);
        }
    }

    /// Tells the caller how far the work is.
    pub fn report(&self, what: fmt::Arguments<'_>, done: u64, total: u64) {
        self.report_figures(what, done, total, &[]);
    }

    /// [`Control::report`] with figures.
    pub fn report_figures(
        &self,
        what: fmt::Arguments<'_>,
        done: u64,
        total: u64,
        figures: &[(&'static str, f64)],
    ) {
        if let Some(progress) = self.progress {
            progress(&Progress { what, done, total, figures });
        }
    }

    /// Tells the caller something that is worth keeping.
    pub fn note(&self, text: fmt::Arguments<'_>) {
        if let Some(notes) = self.notes {
            notes(text);
        }
    }
}

impl fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// A request to stop, shared by whoever makes it and the work it ends. Clones share one request.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    requested: AtomicBool,
    flags: Mutex<Vec<Weak<AtomicBool>>>,
}

impl Stop {
    /// Asks for the stop.
    pub fn request(&self) {
        self.set(true);
    }

    /// Takes the request back: work that starts from now on runs.
    pub fn clear(&self) {
        self.set(false);
    }

    /// Returns true if the stop was asked for.
    pub fn requested(&self) -> bool {
        self.shared.requested.load(Ordering::SeqCst)
    }

    /// Has a flag follow the request from now on, and sets it if the stop was requested already. Sessions and
    /// trainers have such flags (`cancel_flag`), which stop them in the midst of a call. A flag may be bound
    /// more than once, and is forgotten when its owner is gone.
    pub fn bind(&self, flag: &Arc<AtomicBool>) {
        let mut flags = self.shared.flags.lock().unwrap_or_else(PoisonError::into_inner);
        flags.retain(|f| f.strong_count() > 0 && f.as_ptr() != Arc::as_ptr(flag));
        flags.push(Arc::downgrade(flag));
        // A flag that somebody else has set stays set.
        if self.requested() {
            flag.store(true, Ordering::SeqCst);
        }
    }

    fn set(&self, stop: bool) {
        self.shared.requested.store(stop, Ordering::SeqCst);
        let flags = self.shared.flags.lock().unwrap_or_else(PoisonError::into_inner);
        for flag in flags.iter().filter_map(Weak::upgrade) {
            flag.store(stop, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_flags_follow_the_request() {
        let stop = Stop::default();
        let flag = Arc::new(AtomicBool::new(false));
        stop.bind(&flag);
        stop.bind(&flag);
        assert_eq!(stop.shared.flags.lock().unwrap().len(), 1);
        stop.clone().request();
        assert!(stop.requested() && flag.load(Ordering::SeqCst));
        let late = Arc::default();
        stop.bind(&late);
        assert!(late.load(Ordering::SeqCst), "requested before it was bound");
        stop.clear();
        assert!(!stop.requested() && !flag.load(Ordering::SeqCst) && !late.load(Ordering::SeqCst));
        drop(late);
        stop.bind(&flag);
        assert_eq!(stop.shared.flags.lock().unwrap().len(), 1, "flags without an owner are forgotten");
    }

    #[test]
    fn a_flag_set_by_somebody_else_stays_set() {
        let (stop, flag) = (Stop::default(), Arc::new(AtomicBool::new(true)));
        stop.bind(&flag);
        assert!(flag.load(Ordering::SeqCst));
    }

    #[test]
    fn figures_reach_the_watcher() {
        let seen = Mutex::new(Vec::new());
        let watch = |p: &Progress<'_>| seen.lock().unwrap().push((p.done, p.figures.to_vec()));
        let control = Control::default().with_progress(&watch);
        control.report(format_args!("x"), 1, 2);
        control.report_figures(format_args!("x"), 2, 2, &[("loss", 0.5)]);
        assert_eq!(*seen.lock().unwrap(), [(1, vec![]), (2, vec![("loss", 0.5)])]);
    }
}
