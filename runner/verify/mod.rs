//! Judges recordings: does each still fit its scenario, its model, and what it asserts? What was found comes
//! as plain data, which [`forms`] writes for people and for machines.
//!
//! Without a model a recording is replayed; with one it can also be scored (`score`) or played again
//! (`rerun`). A recording that drifted leaves what it would be now in a file next to it (`pending`), to be
//! accepted or rejected.

mod compare;
mod find;
mod fitting;
pub mod forms;
mod judge;
mod pending;
mod rerun;
mod score;
mod verdict;

pub use compare::{Difference, What, differences};
pub use find::{plain, recordings};
pub use judge::{JudgeQuestion, JudgeSettings};
pub use pending::{accept, is_ci, pending_file, pendings, reject};
pub use rerun::Level;
pub use score::{Score, Surprise};
pub use verdict::{Problem, ProblemKind, Verdict};
