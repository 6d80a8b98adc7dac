//! Inference and training on a device that is not the CPU, against the same on the CPU, whose figures the other test programs
//! compare with references. `make test-device` runs it; the environment variable ROPEWALK_TEST_DEVICE names the device, as
//! `--device` does. Mesa's software Vulkan device does, where there is no GPU.
//!
//! Bounds are not chosen: see [`subject`].

#[path = "../runtime/reach/cases.rs"]
mod cases;
#[path = "../common/mod.rs"]
mod common;

mod buffers;
mod inference;
mod program;
mod subject;
mod training;
