//! The tests of tensors, ops and graphs, one program.

mod activation;
mod attention;
mod attention_landmark;
mod attention_parts;
mod attention_placed;
mod attention_refuse;
mod attention_top;
mod attention_train;
mod common;
mod delta_net;
mod dtype;
mod experts;
#[path = "../../../tests/common/fetched.rs"]
mod fetched;
mod gemm;
mod gguf;
mod graph;
mod logging;
mod loss;
mod machine;
mod ops;
mod ops_back;
mod ops_refuse;
mod ops_rope;
mod ops_tiles;
mod parts;
mod pool;
#[path = "../../../tests/common/process.rs"]
#[allow(dead_code, unreachable_pub)]
mod process;
// The whole crate, with its tests.
#[path = "../../processor/src/lib.rs"]
#[allow(dead_code, unexpected_cfgs, unreachable_pub)]
mod processor;
mod products;
mod recurrent;
mod soft_max;
