//! The Python module `ropewalk._ropewalk`: thin classes and functions over the library. The package `ropewalk` exports them.
#![forbid(unsafe_code)]

mod args;
mod chat;
mod convert;
mod error;
mod figure;
mod finetune;
mod measure;
mod model;
mod plan;
mod session;
mod study;
mod work;

use pyo3::prelude::pymodule;

/// The compiled part of the package `ropewalk`.
#[pymodule]
mod _ropewalk {
    #[pymodule_export]
    use super::chat::Answer;
    #[pymodule_export]
    use super::chat::Chat;
    #[pymodule_export]
    use super::convert::convert;
    #[pymodule_export]
    use super::convert::from_peft;
    #[pymodule_export]
    use super::convert::random_model;
    #[pymodule_export]
    use super::convert::to_peft;
    #[pymodule_export]
    use super::figure::draw_attention;
    #[pymodule_export]
    use super::figure::draw_distances;
    #[pymodule_export]
    use super::figure::draw_grid;
    #[pymodule_export]
    use super::figure::draw_lines;
    #[pymodule_export]
    use super::figure::draw_wavelengths;
    #[pymodule_export]
    use super::figure::Figure;
    #[pymodule_export]
    use super::finetune::finetune;
    #[pymodule_export]
    use super::measure::evaluate;
    #[pymodule_export]
    use super::measure::perplexity;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::plan::inspect;
    #[pymodule_export]
    use super::plan::methods;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::session::Pieces;
    #[pymodule_export]
    use super::session::Score;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::study::study;

    /// Version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python packages have for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
