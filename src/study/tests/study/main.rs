//! Studies from end to end, with a runner that knows no model.

mod fake;
mod pages;
mod plans;
mod runs;
