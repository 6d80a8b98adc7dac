//! The engine room, for this project's tests, benches and program. It can change in every version.

pub mod arch {
    //! Architectures.
    pub use crate::arch::*;
}
pub mod graph {
    //! Graphs of ops, and the choice of their kernels.
    pub use crate::graph::*;
}
pub mod kv {
    //! The KV cache.
    pub use crate::kv::*;
}
pub mod weights {
    //! Weights on a device.
    pub use crate::weights::*;
}
