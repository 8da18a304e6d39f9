//! Greenroom as a Python module: the part that computes. `greenroom/` is what its users see.
//!
//! Whatever is a rule of the program stays there: scenarios are checked, played and inspected by its library and its
//! commands ([`call`]). Data cross as JSON, tables as Arrow.
#![forbid(unsafe_code)]

mod call;
mod engine;
mod errors;
mod logging;
mod runtime;
mod scenario;
mod tables;

/// The module `greenroom._greenroom`.
#[pyo3::pymodule(gil_used = true)]
mod _greenroom {
    #[pymodule_export]
    use crate::call::{Control, call, main};
    #[pymodule_export]
    use crate::engine::{Agent, Engine, Turn};
    #[pymodule_export]
    use crate::scenario::{Scenario, to_yaml};
    #[pymodule_export]
    use crate::tables::{Table, read_scores, read_tables, write_scores};

    /// The version of the program.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
