//! A thread pool that divides the ops of a graph among threads.
//!
//! One thread walks the graph. It hands the parts of each large op to the others, computes parts itself, and continues
//! when all are done. Waiting threads look for work for some microseconds and then sleep: a graph has hundreds of ops,
//! so waking a thread for each costs too much, and a thread that never sleeps takes a core away from others.
//!
//! If another program uses the cores, the scheduler stops threads for milliseconds. Parts that a stopped thread has not
//! begun are done by another one, but a part that it has begun must be waited for. When such waits appear, or this
//! thread is stopped itself, ops are divided among fewer threads until that is over.
//!
//! ggml's own threads spin: they wait for each other after every node, so a program that takes one core stops them all.
//! On the CPU, ggml therefore walks the graph on one thread, and this pool divides the large nodes. These are our own
//! ops, ggml's products (`ggml::parts`), and sums, elementwise products, norms, and SwiGLU (`ggml::rows`).

mod crowd;

use std::cell::{Cell, UnsafeCell};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crowd::Clock;
use crowd::Crowd;

/// How long a thread looks for work before it sleeps: longer than waking it takes (some 50 us), and than most of what one
/// thread does between two divided ops.
const SPIN: Duration = Duration::from_micros(200);
pub const MAX_PARTS: usize = u16::MAX as usize;

thread_local! {
    /// The pool that divides the ops of the graph this thread runs.
    static CURRENT: Cell<Option<NonNull<ThreadPool>>> = const { Cell::new(None) };
}

fn current<'a>() -> Option<&'a ThreadPool> {
    // SAFETY: set only while `ThreadPool::run` borrows the pool, on the thread that does.
    CURRENT.get().map(|pool| unsafe { pool.as_ref() })
}

/// Number of parts to divide an op into that reads and writes so many bytes: the threads of the pool that runs the graph,
/// fewer while others use the cores, 1 for small ops and outside [`ThreadPool::run`].
pub fn parts(bytes: impl FnOnce() -> usize) -> usize {
    match current() {
        Some(pool) => match pool.crowd.threads() {
            n if n > 1 && bytes() >= pool.divide_from => n,
            _ => 1,
        },
        None => 1,
    }
}

/// Calls `f` with each number below `n`, at most [`MAX_PARTS`], on the threads of the pool that runs the graph.
/// Returns when all calls have. Inside `f` there is no pool.
///
/// # Panics
/// If `f` does, or with more parts.
pub fn share(n: usize, f: impl Fn(usize) + Sync) {
    let pool = Restore(CURRENT.take());
    match pool.0 {
        // SAFETY: set only while `ThreadPool::run` borrows the pool, on the thread that does.
        Some(pool) if n > 1 => unsafe { pool.as_ref() }.share(n, &f),
        _ => (0..n).for_each(f),
    }
}

/// Puts back the pool of this thread when it is dropped.
struct Restore(Option<NonNull<ThreadPool>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Threads that share the ops of a graph.
#[derive(Debug)]
pub struct ThreadPool {
    board: Arc<Board>,
    workers: Vec<JoinHandle<()>>,
    crowd: Crowd,
    divide_from: usize,
}

impl ThreadPool {
    /// A pool of `n` threads, one of which is the caller of [`ThreadPool::run`]; they share ops that read and write at least
    /// `divide_from` bytes. `clock` is the processor time of the thread that calls it.
    ///
    /// # Errors
    /// The operating system refuses to start them.
    pub fn new(n: usize, divide_from: usize, clock: Clock) -> std::io::Result<ThreadPool> {
        let (board, crowd) = (Arc::default(), Crowd::new(n, clock));
        let mut pool = ThreadPool { board, workers: Vec::new(), crowd, divide_from };
        for i in 1..n {
            let board = Arc::clone(&pool.board);
            let thread = std::thread::Builder::new().name(format!("ops {i}"));
            pool.workers.push(thread.spawn(move || board.work())?);
        }
        Ok(pool)
    }

    /// Runs `f`, which computes a graph: on this thread, with the others for the ops that it divides.
    pub fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let _before = Restore(CURRENT.replace(Some(NonNull::from(&*self))));
        self.crowd.begin(Instant::now());
        let result = f();
        self.crowd.tick(Instant::now());
        result
    }

    fn share(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        let began = Instant::now();
        self.crowd.check(began);
        self.board.post(n, f, self.workers.len());
        // Whatever happens, nobody calls `f` after this function.
        let panic = catch_unwind(AssertUnwindSafe(|| self.board.take_all())).err();
        if panic.is_some() {
            self.board.withdraw();
        }
        if let Some((waited_from, slept)) = self.board.wait() {
            self.crowd.waited(waited_from - began, waited_from.elapsed(), slept);
        }
        let elsewhere = self.board.panicked.swap(false, Ordering::Relaxed);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
        assert!(!elsewhere, "a thread of the pool panicked");
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.board.door));
        self.board.work_is_there.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches panics of what it runs, so it ends as it should.
            let _ = worker.join();
        }
    }
}

/// Shared state of the threads of a pool.
#[derive(Debug, Default)]
struct Board {
    job: Line<Job>,
    panicked: AtomicBool,
    stop: AtomicBool,
    door: Mutex<()>,
    asleep: AtomicUsize,
    work_is_there: Condvar,
    /// True if the thread that posted the job sleeps.
    waits: AtomicBool,
    all_is_done: Condvar,
}

/// A value that shares no cache line with others.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// Work that is shared out, in one cache line: a thread that takes a part has all of it.
#[derive(Debug)]
struct Job {
    /// The number of the job (32 bits), how many parts it has, and how many are taken (16 each): in one word, so that
    /// no thread takes a part of one job for that of another.
    ticket: AtomicU64,
    /// Parts that are not finished.
    left: AtomicUsize,
    call: UnsafeCell<*const (dyn Fn(usize) + Sync)>,
}

impl Default for Job {
    fn default() -> Self {
        Job { ticket: AtomicU64::new(0), left: AtomicUsize::new(0), call: UnsafeCell::new(&|_| ()) }
    }
}

// SAFETY: written by the thread that posts a job while no part of any is left, read by those that have taken a part
// of this one.
unsafe impl Sync for Job {}
// SAFETY: as above; the function is `Sync`.
unsafe impl Send for Job {}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Calls `seen` some times, until it is true.
fn look(seen: impl Fn() -> bool) -> bool {
    (0..32).any(|_| {
        let seen = seen();
        if !seen {
            std::hint::spin_loop();
        }
        seen
    })
}

/// Calls `seen` until it is true, for as long as [`SPIN`].
fn spin(seen: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < SPIN {
        if look(&seen) {
            return true;
        }
    }
    false
}

impl Board {
    /// Offers `n` parts, each a call of `f`. The caller waits for all of them before `f` ends.
    fn post(&self, n: usize, f: &(dyn Fn(usize) + Sync), n_workers: usize) {
        assert!(n <= MAX_PARTS, "{n} parts of an op");
        // SAFETY: only the lifetime changes. `wait` returns when no part is left, and only who has one calls.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(f) };
        // SAFETY: no part of the job before is left, so nobody reads this.
        unsafe { *self.job.0.call.get() = job };
        self.job.0.left.store(n, Ordering::Relaxed);
        let number = (self.job.0.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.job.0.ticket.store(number << 32 | (n as u64) << 16, Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::SeqCst);
        let wanted = (n - 1).min(n_workers).saturating_sub(n_workers.saturating_sub(asleep));
        if wanted > 0 {
            // Who is about to sleep has looked at the ticket before, or does so once it has the door.
            drop(lock(&self.door));
            (0..wanted).for_each(|_| self.work_is_there.notify_one());
        }
    }

    fn has_work(&self) -> bool {
        let ticket = self.job.0.ticket.load(Ordering::SeqCst);
        ticket & 0xffff < ticket >> 16 & 0xffff
    }

    /// Takes parts and calls them until none is left to take.
    fn take_all(&self) {
        let mut ticket = self.job.0.ticket.load(Ordering::Acquire);
        while ticket & 0xffff < ticket >> 16 & 0xffff {
            let taken = self.job.0.ticket.compare_exchange_weak(
                ticket,
                ticket + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if taken.is_ok() {
                let _part = Part(self);
                // SAFETY: a part of this job is ours, so the thread that posted it waits and its function lives.
                unsafe { (**self.job.0.call.get())((ticket & 0xffff) as usize) };
            }
            ticket = taken.map_or_else(|now| now, |_| self.job.0.ticket.load(Ordering::Acquire));
        }
    }

    /// Leaves what nobody has taken undone.
    fn withdraw(&self) {
        let taken_all = |ticket: u64| Some(ticket & !0xffff | ticket >> 16 & 0xffff);
        if let Ok(ticket) = self.job.0.ticket.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken_all) {
            self.job
                .0
                .left
                .fetch_sub(((ticket >> 16 & 0xffff) - (ticket & 0xffff)) as usize, Ordering::SeqCst);
        }
    }

    /// Waits until no part is left. If that took longer than a few looks: since when, and how much of it this thread slept.
    fn wait(&self) -> Option<(Instant, Duration)> {
        let done = || self.job.0.left.load(Ordering::SeqCst) == 0;
        if look(done) {
            return None;
        }
        let (began, mut slept) = (Instant::now(), Duration::ZERO);
        if !spin(done) {
            let asleep = Instant::now();
            let mut door = lock(&self.door);
            self.waits.store(true, Ordering::SeqCst);
            while !done() {
                door = self.all_is_done.wait(door).unwrap_or_else(|e| e.into_inner());
            }
            self.waits.store(false, Ordering::Relaxed);
            slept = asleep.elapsed();
        }
        Some((began, slept))
    }

    fn work(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            // The part has told that it panicked.
            let _ = catch_unwind(AssertUnwindSafe(|| self.take_all()));
            let wanted = || self.has_work() || self.stop.load(Ordering::SeqCst);
            if !spin(wanted) {
                let mut door = lock(&self.door);
                self.asleep.fetch_add(1, Ordering::SeqCst);
                while !wanted() {
                    door = self.work_is_there.wait(door).unwrap_or_else(|e| e.into_inner());
                }
                self.asleep.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// A part of a job that was taken; finished when it is dropped.
struct Part<'a>(&'a Board);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let board = self.0;
        if std::thread::panicking() {
            board.panicked.store(true, Ordering::Relaxed);
        }
        if board.job.0.left.fetch_sub(1, Ordering::SeqCst) == 1 && board.waits.load(Ordering::SeqCst) {
            drop(lock(&board.door));
            board.all_is_done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_called_once() {
        for n_threads in [1, 2, 3, 8] {
            let mut pool = ThreadPool::new(n_threads, 0, || None).unwrap();
            pool.run(|| {
                for n in (1..40).chain([1000]) {
                    let calls: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                    share(n, |i| {
                        assert_eq!(parts(|| 1), 1, "no pool inside a part");
                        calls[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        calls.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                        "{n} parts, {n_threads} threads"
                    );
                }
            });
            assert_eq!(parts(|| 1), 1);
        }
    }

    #[test]
    fn small_ops_are_not_divided() {
        let mut pool = ThreadPool::new(3, 100, || None).unwrap();
        assert_eq!(pool.run(|| [0, 99, 100, usize::MAX].map(|bytes| parts(|| bytes))), [1, 1, 3, 3]);
    }

    /// Jobs that follow each other at once, after pauses in which threads fall asleep, and in between.
    #[test]
    fn no_job_is_lost() {
        let mut pool = ThreadPool::new(4, 0, || None).unwrap();
        let sum = AtomicUsize::new(0);
        pool.run(|| {
            for i in 0..3000 {
                share(5, |part| {
                    sum.fetch_add(part + i, Ordering::Relaxed);
                });
                if i % 100 == 0 {
                    std::thread::sleep(Duration::from_micros(i as u64 / 10));
                }
            }
        });
        assert_eq!(sum.into_inner(), (0..3000).map(|i| 10 + 5 * i).sum::<usize>());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = ThreadPool::new(3, 0, || None).unwrap();
        for bad in 0..6 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|| share(6, |i| assert_ne!(i, bad)));
            }));
            assert!(result.is_err());
            assert_eq!(parts(|| 1), 1);
        }
        let calls = AtomicUsize::new(0);
        for mut pool in [pool, ThreadPool::new(1, 0, || None).unwrap()] {
            pool.run(|| assert!(catch_unwind(|| share(6, |_| panic!("on purpose"))).is_err()));
            pool.run(|| {
                share(6, |_| {
                    calls.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        assert_eq!(calls.into_inner(), 12);
    }
}
