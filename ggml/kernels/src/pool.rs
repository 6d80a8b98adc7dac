//! A thread pool that divides our own ops among threads, which sleep while they have nothing to do.
//!
//! ggml's own threads spin: they wait for each other after every node of a graph. With a core for each that
//! costs nothing, but where another program uses one of the cores, the others spin until the scheduler gives
//! it back, milliseconds for each of thousands of nodes. With this pool ggml computes its graph on one
//! thread, which divides the most expensive ops, ours, among the pool's threads.

use std::cell::Cell;

thread_local! {
    /// On a thread of a pool that is running a graph, the number of threads of that pool. Elsewhere 1.
    static SIZE: Cell<usize> = const { Cell::new(1) };
}

/// Number of threads that can share an op which ggml gave to this thread alone: 1 outside
/// [`ThreadPool::run`].
pub fn size() -> usize {
    SIZE.get()
}

/// A private thread pool for the ops of a graph.
#[derive(Debug)]
pub struct ThreadPool(rayon::ThreadPool);

impl ThreadPool {
    /// Starts `n` threads.
    ///
    /// # Errors
    /// The operating system refuses to start them.
    pub fn new(n: usize) -> Result<ThreadPool, rayon::ThreadPoolBuildError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n);
        pool.thread_name(|i| format!("ops {i}")).build().map(ThreadPool)
    }

    /// Runs `f`, which computes a graph, on one of the threads; as the pool is private, nothing but parts of
    /// the graph's ops runs on its other threads.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.install(|| {
            SIZE.set(self.0.current_num_threads());
            let result = f();
            SIZE.set(1);
            result
        })
    }
}
