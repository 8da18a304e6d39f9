//! Notes of the expressions that were evaluated: a rehearsal takes them, a run does not.

use greenroom_scenario::template::{Expression, TemplateError};
use greenroom_scenario::{PassId, Path, PhaseId};
use std::sync::{Arc, Mutex, PoisonError};

/// An expression that was evaluated.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// Its place in the file.
    pub path: Path,
    /// Its phase, of those that a block unrolls into.
    pub at: Option<PhaseId>,
    /// The pass that it is about, for a condition of a block.
    pub pass: Option<PassId>,
    /// Its length in bytes.
    pub n_bytes: usize,
    /// Why it failed, if it did.
    pub error: Option<TemplateError>,
}

impl Evaluated {
    /// True if it was this expression, in the same phase and pass.
    pub fn is(&self, expression: &Expression) -> bool {
        self.at == expression.scope.at && self.pass == expression.scope.pass && self.path == expression.path
    }
}

/// The notes of what was evaluated, if any are taken.
#[derive(Clone, Debug, Default)]
pub(super) struct EvaluationNotes(Option<Arc<Mutex<Vec<Evaluated>>>>);

impl EvaluationNotes {
    /// Notes that are taken from now on.
    pub(super) fn taken() -> Self {
        Self(Some(Arc::default()))
    }

    /// What was noted since the last call.
    pub(super) fn take(&self) -> Vec<Evaluated> {
        let Some(notes) = &self.0 else { return Vec::new() };
        std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, expression: &Expression, error: Option<&TemplateError>) {
        let Some(notes) = &self.0 else { return };
        let (path, at, pass) = (expression.path.clone(), expression.scope.at, expression.scope.pass);
        let (n_bytes, error) = (expression.text.len(), error.cloned());
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(Evaluated { path, at, pass, n_bytes, error });
    }
}
