//! Rope methods as data: a `Spec`, as the user writes it, becomes a `Plan` (frequencies x reach). Pure: no
//! tensors, no files.
//!
//! A method is one file here and one line of [`METHODS`]; help, errors, benches and the property tests walk
//! that slice.

/// A [`Param`]: its key and values, its default and unit, and what it is about.
macro_rules! param {
    ($key:expr, $kind:ident $values:tt, $default:literal, $unit:literal, $about:literal) => {
        crate::rope::Param {
            key: $key,
            kind: crate::rope::Kind::$kind $values,
            default: $default,
            unit: $unit,
            about: $about,
        }
    };
}

mod abf;
mod clex;
mod dca;
mod declared;
mod dynamic_ntk;
mod harpe;
mod inspect;
mod layer_plan;
mod lm_infinite;
mod longrope;
mod method;
mod ntk;
mod own;
mod pi;
mod plain;
mod plan;
mod reach;
mod rerope;
mod sba;
mod self_extend;
mod settings;
mod spec;
mod streaming;
mod string;
mod value;
mod yarn;

use std::fmt::Display;

use crate::remedy::Remedy;

pub use clex::{Activation, Clex, ClexGradient};
pub use inspect::{BranchView, Inspection, KindView, Pair, PairKind, ReachView, Table};
pub use layer_plan::{Freqs, LayerPlan};
use method::{Args, Geometry};
pub use method::{Axis, Method, Param};
pub use plan::Plan;
pub use reach::{Branch, Chunks, PosMap, Reach, MAX_BRANCHES};
pub use spec::{Part, Spec};
pub use value::{Kind, Value};

/// Why a spec cannot be used. One line; names the method, the parameter, what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what}")]
pub struct RopeError {
    what: String,
    /// The way past it, if one is known.
    pub remedy: Option<Remedy>,
}

impl RopeError {
    fn new(what: String) -> RopeError {
        RopeError { what, remedy: None }
    }

    /// A parameter of a method that cannot have its value.
    fn of_value(method: &str, key: &str, expected: impl Display, found: impl Display) -> RopeError {
        RopeError::new(format!("rope method {method}: {key}: expected {expected}, found {found}"))
    }

    /// The error, after the place where it happened.
    pub fn at(self, place: impl Display) -> RopeError {
        RopeError { what: format!("{place}: {}", self.what), ..self }
    }
}

/// Every method of this build, in the order help shows them.
pub static METHODS: &[&Method] = &[
    &plain::METHOD,
    &pi::METHOD,
    &ntk::METHOD,
    &dynamic_ntk::METHOD,
    &yarn::METHOD,
    &abf::METHOD,
    &longrope::METHOD,
    &sba::METHOD,
    &harpe::METHOD,
    &clex::METHOD,
    &self_extend::METHOD,
    &lm_infinite::METHOD,
    &dca::METHOD,
    &streaming::METHOD,
    &string::METHOD,
    &rerope::METHOD,
];
