//! Tools that agents may call: as a checked scenario has them.

use super::Path;
use greenroom_grammar::MAX_BYTES;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Default number of calls that an agent may make in one turn.
pub const MAX_CALLS: usize = 4;

/// Index of a tool in [`Content::tools`](crate::Content::tools).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ToolId(pub usize);

/// A tool, or a server of tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name in the file: letters, digits and `_`.
    pub key: String,
    /// Its place in the file.
    pub path: Path,
    /// What does its work.
    pub kind: ToolKind,
}

impl Tool {
    /// True if a call of this name is one of it: its own, or `KEY_NAME` of one of a server's tools.
    pub fn is_called(&self, name: &str) -> bool {
        match self.kind {
            ToolKind::Server(_) => name.strip_prefix(&self.key).is_some_and(|rest| rest.starts_with('_')),
            ToolKind::BuiltIn(..) | ToolKind::Command(..) | ToolKind::Function(..) => self.key == name,
        }
    }
}

/// What does a tool's work.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolKind {
    /// Part of the program: the same arguments and the same seed give the same result, here and in a replay.
    BuiltIn(BuiltIn, ToolSpec),
    /// A program that reads its arguments as JSON and writes its result.
    Command(ToolProgram, ToolSpec),
    /// A function of the program that plays the scenario, by its name there.
    Function(String, ToolSpec),
    /// A server of the Model Context Protocol. It lists its own tools.
    Server(ToolServer),
}

/// A tool of the program's own.
#[derive(Clone, Debug, PartialEq)]
pub enum BuiltIn {
    /// Works out an expression.
    Calculator,
    /// Rolls dice, by the seed of the call.
    Dice,
    /// Finds rows of a file.
    Lookup(Arc<LookupTable>),
    /// Writes down what is to be remembered, in this epoch of the agent's memory and in all later ones.
    Notes,
}

/// Rows of a file, found by what is in one of their columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupTable {
    /// The column.
    pub key: String,
    /// Rows by it, each an object; more than one row may be there.
    pub rows: BTreeMap<String, Vec<Value>>,
}

/// A program, as it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolProgram {
    /// The program and its arguments.
    pub line: Vec<String>,
    /// Seconds that a call may take.
    pub timeout: u64,
}

/// A server of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolServer {
    /// Where it is.
    pub address: ServerAddress,
    /// Those of its tools that can be called; `None`: all.
    pub only: Option<Vec<String>>,
    /// Seconds that a request may take.
    pub timeout: u64,
}

/// Where a server of tools is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A program and its arguments; messages go through its standard input and output.
    Program(Vec<String>),
    /// A URL that messages are posted to.
    Http {
        /// The URL.
        url: String,
        /// Names of headers, each with the environment variable that holds its value.
        headers: Vec<(String, String)>,
    },
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(line) => f.write_str(&line.join(" ")),
            Self::Http { url, .. } => f.write_str(url),
        }
    }
}

/// The description of a tool for models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// The name that it is called by.
    pub name: String,
    /// What it does, as text.
    pub about: String,
    /// JSON Schema of its arguments, an object.
    pub arguments: Value,
}

impl ToolKind {
    /// True if what it does depends on more than the scenario and the call, so that it has to be allowed.
    pub fn is_outside(&self) -> bool {
        !matches!(self, Self::BuiltIn(..))
    }
}

/// Maximum bytes of a call's form without the tool's name and schema.
const FORM_BYTES: usize = 512;

/// The bytes of these tools' calls as one grammar, if they are more than one can have.
pub fn too_large<'a>(specs: impl Iterator<Item = &'a ToolSpec>) -> Option<usize> {
    let bytes = specs.map(|spec| spec.arguments.to_string().len() + spec.name.len() + FORM_BYTES).sum();
    (bytes > MAX_BYTES).then_some(bytes)
}
