//! Other engines' declarative scenarios, turned into ours: ChatArena's arenas and AgentVerse's tasks.
//!
//! [`import`] reads a file, and returns a scenario in YAML with the list of everything that has no
//! counterpart here. `text` keeps texts from being read as templates, `prompts` replaces placeholders, and
//! `draft` composes the YAML.

mod agentverse;
mod chatarena;
mod draft;
mod prompts;
mod text;

use crate::scenario::{parse, repeated_key};
use draft::ImportNotes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use text::one_line;

/// Largest file that is read; the engines' own examples have some ten kilobytes.
pub const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of agents that are taken over: three rounds of them are still within what a scenario may
/// hold.
const MAX_AGENTS: usize = 500;
/// Rounds to play where the other engine asks for them at its start, or plays without end.
const DEFAULT_ROUNDS: u64 = 3;

/// The engine that a scenario was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ImportFormat {
    /// ChatArena: an arena in JSON, with `players` and `environment`.
    #[value(name = "chatarena")]
    ChatArena,
    /// AgentVerse: a task in YAML, with `agents` and `environment`.
    #[value(name = "agentverse")]
    AgentVerse,
}

/// A file that was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The scenario.
    pub yaml: String,
    /// Notes on what was left out or changed, one line each; the scenario's head lists the same.
    pub notes: Vec<String>,
}

/// Reason why a file was not imported: what was found, what was expected, where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Turns another engine's scenario into ours. `name` is the file's, for the title of what has none.
///
/// ```
/// let arena = r#"{"name": "Hello", "players": [{"name": "Ann", "role_desc": "You are kind."}],
///     "environment": {"env_type": "conversation"}}"#;
/// let imported = greenroom::import::import("hello.json", arena, None)?;
/// assert!(greenroom::scenario::load("hello.yaml", &imported.yaml, &[]).scenario.is_some());
/// # Ok::<(), greenroom::import::Refused>(())
/// ```
///
/// # Errors
/// If the text is not a scenario of either engine.
pub fn import(name: &str, text: &str, from: Option<ImportFormat>) -> Result<Imported, Refused> {
    if text.len() as u64 > MAX_BYTES {
        let message =
            format!("the file has {} bytes; a scenario file can have at most {MAX_BYTES}", text.len());
        return Err(Refused(message));
    }
    let value = read(text, from)?;
    let format = match from {
        Some(format) => format,
        None => detect(&value)?,
    };
    let draft = match format {
        ImportFormat::ChatArena => chatarena::draft(&value)?,
        ImportFormat::AgentVerse => agentverse::draft(&value)?,
    };
    let engine = match format {
        ImportFormat::ChatArena => "ChatArena",
        ImportFormat::AgentVerse => "AgentVerse",
    };
    let (yaml, notes) = draft.compose(name, engine)?;
    Ok(Imported { yaml, notes })
}

/// Both languages as one kind of value; a key that appears twice is an error in both.
fn read(text: &str, from: Option<ImportFormat>) -> Result<Value, Refused> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(Refused("the file is empty; expected a scenario in JSON or YAML".into()));
    }
    if from == Some(ImportFormat::ChatArena) || text.trim_start().starts_with('{') {
        let value = serde_json::from_str(text).map_err(|error| Refused(format!("invalid JSON: {error}")))?;
        return repeated_key(text).map_or(Ok(value), |found| Err(Refused(found)));
    }
    parse(text).map_err(|error| Refused(format!("invalid YAML: {error}")))
}

fn detect(value: &Value) -> Result<ImportFormat, Refused> {
    let has = |key: &str| value.get(key).is_some();
    if has("phases") && value.get("agents").is_some_and(Value::is_object) {
        return Err(Refused("this is already a Greenroom scenario: play it with `greenroom run`".into()));
    }
    if has("players") {
        return Ok(ImportFormat::ChatArena);
    }
    if has("agents") {
        return Ok(ImportFormat::AgentVerse);
    }
    let found = match value {
        Value::Object(map) if map.is_empty() => "nothing".to_string(),
        Value::Object(map) => map.keys().take(8).map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
        other => json(other),
    };
    let expected = "`players` and `environment` (ChatArena) or `agents` and `environment` (AgentVerse)";
    Err(Refused(format!("expected {expected} at the top; found {}", one_line(&found, 200))))
}

/// Path of a key that a type does not have, and its value.
type Unknown = (String, Value);

/// The file as a type of its engine, and every key that the type does not have.
fn typed<T: DeserializeOwned>(value: &Value) -> Result<(T, Vec<Unknown>), Refused> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| {
        let (path, found) = place(value, &path);
        unknown.push((path, found.clone()));
    };
    let seen = serde_ignored::Deserializer::new(value.clone(), &mut note);
    let read = serde_path_to_error::deserialize(seen).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { "at the top".to_string() } else { one_line(&path, 200) };
        let message = error.inner().to_string().replace("expected u64", "expected a whole number");
        Refused(format!("{place}: {}", one_line(&message, 300)))
    })?;
    Ok((read, unknown))
}

/// An ignored path as people write it, and what is there.
fn place<'a>(root: &'a Value, path: &serde_ignored::Path<'_>) -> (String, &'a Value) {
    use serde_ignored::Path as P;
    let inside = |value: Option<&'a Value>| value.unwrap_or(&Value::Null);
    match path {
        P::Root => (String::new(), root),
        P::Seq { parent, index } => {
            let (path, value) = place(root, parent);
            (format!("{path}[{index}]"), inside(value.get(*index)))
        }
        P::Map { parent, key } => {
            let (path, value) = place(root, parent);
            let dot = if path.is_empty() { "" } else { "." };
            (format!("{path}{dot}{key}"), inside(value.get(key.as_str())))
        }
        P::Some { parent } | P::NewtypeStruct { parent } | P::NewtypeVariant { parent } => {
            place(root, parent)
        }
    }
}

fn json(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string(other).unwrap_or_else(|_| "a value".into()),
    }
}

/// A value in a note: short, on one line.
fn value_text(value: &Value) -> String {
    format!("`{}`", one_line(&json(value), 120))
}

/// The first limit that is given, with its place; others that differ become notes.
fn limit<'a>(limits: &[(&'a str, Option<u64>)], notes: &mut ImportNotes) -> (&'a str, Option<u64>) {
    let mut given = limits.iter().filter_map(|(path, limit)| Some((*path, (*limit)?)));
    let Some((path, first)) = given.next() else { return ("environment", None) };
    for (other, limit) in given.filter(|(_, limit)| *limit != first) {
        notes.add(other, format!("`{limit}` is ignored because {path} is set"));
    }
    (path, Some(first))
}

/// Rounds for `n_agents`, as many as a scenario may hold: 10,000 turns and a million messages heard.
fn rounds(wanted: Option<u64>, n_agents: usize, path: &str, notes: &mut ImportNotes) -> u64 {
    let n = n_agents.max(1) as u64;
    let most = (10_000 / n).min(1_000_000 / (n * (n + 2))).max(1);
    match wanted {
        Some(wanted) if (1..=most).contains(&wanted) => wanted,
        Some(wanted) => {
            let rounds = DEFAULT_ROUNDS.min(most);
            notes.add(
                path,
                format!("{wanted} rounds can't be played (expected 1 to {most}); set to {rounds}"),
            );
            rounds
        }
        None => {
            let rounds = DEFAULT_ROUNDS.min(most);
            notes.add(path, format!("the file sets no length; set to {rounds} rounds"));
            rounds
        }
    }
}
