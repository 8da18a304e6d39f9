//! Tools that are functions of the program that plays the scenario.

use super::CallOutcome;
use crate::future::BoxFuture;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Functions of a program, by their names.
pub trait Functions: Send + Sync {
    /// True if there is one of this name.
    fn has(&self, name: &str) -> bool;

    /// What it gives for these arguments, an object that fits its tool's schema; called only if it is there.
    fn call(&self, name: &str, arguments: Value) -> BoxFuture<'_, CallOutcome>;
}

/// The functions of a program, if a program plays.
#[derive(Clone, Default)]
pub struct ToolFunctions(Option<Arc<dyn Functions>>);

impl ToolFunctions {
    /// Those of a program.
    pub fn new(functions: Arc<dyn Functions>) -> Self {
        Self(Some(functions))
    }

    /// True if there is one of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|functions| functions.has(name))
    }

    pub(super) async fn call(&self, name: &str, arguments: Value) -> CallOutcome {
        match self.0.as_ref().filter(|functions| functions.has(name)) {
            Some(functions) => functions.call(name, arguments).await,
            None => Err(format!("there is no function `{name}` here")),
        }
    }
}

impl fmt::Debug for ToolFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ToolFunctions(…)" } else { "ToolFunctions(none)" })
    }
}
