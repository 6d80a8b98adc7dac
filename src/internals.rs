//! The engine room, for this project's tests, benches and program. It can change in every version.

pub mod arch {
    //! Architectures.
    pub use crate::arch::*;
}
pub mod eval {
    //! Figures of a bench, and the choice of a method.
    use crate::eval::advise::Report;
    pub use crate::eval::bench::report::{mean, median, memory_bandwidth, stddev, Work};

    /// Fills in what to use and what to do, by the rows of a report. `scaled` is that of its settings.
    pub fn choose(report: &mut Report, scaled: bool) {
        report.choose(scaled);
    }
}
pub mod fetch {
    //! Redirects, and addresses of a hub.
    pub use crate::fetch::http::{follow, Answer, Failure, Known};
    pub use crate::fetch::transfer::{address, path_of};
}
pub mod graph {
    //! Graphs of ops, and the choice of their kernels.
    pub use crate::graph::*;
}
pub mod kv {
    //! The KV cache.
    pub use crate::kv::*;
}
pub mod origin {
    //! Texts of others.
    pub use crate::origin::error::said;
}
pub mod scheduler {
    //! Texts on disk.
    pub use crate::scheduler::disk::keep;
}
pub mod session {
    //! Memory, and texts under way.
    pub use crate::session::generate::{find, longest_start, whole_characters};
    pub use crate::session::memory::Cost;
    pub use crate::session::sequence::n_shared;
}
pub mod weights {
    //! Weights on a device.
    pub use crate::weights::*;
}
