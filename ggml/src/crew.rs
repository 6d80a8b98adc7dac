//! Threads that share our own ops and sleep while they have nothing to do.
//!
//! ggml's threads wait for each other after every node, spinning. With a core each that costs nothing; but where another program
//! has one of the cores, the others spin until the scheduler has taken turns, milliseconds for each of thousands of nodes.
//! With a crew, ggml runs on one thread, which divides the ops that cost most, ours, among the crew.

use std::cell::Cell;

use crate::backend::thread_count;
use crate::{Error, Result};

thread_local! {
    /// On a thread that runs a graph for a crew: how many there are. Elsewhere 1.
    static SIZE: Cell<usize> = const { Cell::new(1) };
}

/// How many can share an op that this thread was given alone.
pub(crate) fn size() -> usize {
    SIZE.get()
}

#[derive(Debug)]
pub(crate) struct Crew(rayon::ThreadPool);

impl Crew {
    /// `n` threads, 0: as many as physical cores.
    pub(crate) fn new(n: usize) -> Result<Crew> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(thread_count(n)?);
        let pool = pool.thread_name(|i| format!("ops {i}")).build();
        pool.map(Crew).map_err(|e| Error::Backend(format!("threads: {e}")))
    }

    /// Runs `f`, which computes a graph, on one of the threads; the pool is private, so only parts of its ops run beside it.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.install(|| {
            SIZE.set(self.0.current_num_threads());
            let result = f();
            SIZE.set(1);
            result
        })
    }
}
