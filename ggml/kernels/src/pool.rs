//! Threads that share the ops of our own and sleep while they have nothing to do.
//!
//! ggml's threads wait for each other after every node, spinning. With a core each that costs nothing; but where another program
//! has one of the cores, the others spin until the scheduler has taken turns, milliseconds for each of thousands of nodes.
//! With a thread pool, ggml runs on one thread, which divides the ops that cost most, ours, among the pool.

use std::cell::Cell;

thread_local! {
    /// On a thread of a pool that runs a graph: the threads of that pool. Elsewhere 1.
    static SIZE: Cell<usize> = const { Cell::new(1) };
}

/// How many threads can share an op that this thread was given alone: 1 outside [`ThreadPool::run`].
pub fn size() -> usize {
    SIZE.get()
}

/// A thread pool of its own for the ops of a graph.
#[derive(Debug)]
pub struct ThreadPool(rayon::ThreadPool);

impl ThreadPool {
    /// Starts `n` threads.
    ///
    /// # Errors
    /// The system does not start them.
    pub fn new(n: usize) -> Result<ThreadPool, rayon::ThreadPoolBuildError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n);
        pool.thread_name(|i| format!("ops {i}")).build().map(ThreadPool)
    }

    /// Runs `f`, which computes a graph, on one of the threads; the pool is private, so only parts of its ops run beside it.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.install(|| {
            SIZE.set(self.0.current_num_threads());
            let result = f();
            SIZE.set(1);
            result
        })
    }
}
