//! Studies from end to end, with a runner that knows no model.

mod fake;
mod foreign;
mod pages;
mod plans;
mod possible;
mod runs;
mod stats;
mod units;
