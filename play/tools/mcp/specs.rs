//! Tools as a server lists them, and what agents are offered of these: names, descriptions, schemas.

use anyhow::{bail, ensure};
use greenroom_grammar::{Grammar, Relaxed};
use greenroom_scenario::ToolSpec;
use greenroom_scenario::tools::ToolServer;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Maximum number of tools of a server that agents can be offered.
const MAX_TOOLS: usize = 128;
/// Maximum characters of a server's description of a tool.
const MAX_ABOUT: usize = 1_000;

/// A tool as a server lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedTool {
    name: String,
    description: Option<String>,
    input_schema: Map<String, Value>,
}

/// The specifications of a server's tools, those that its scenario selects.
///
/// # Errors
/// It lacks one that is selected, or has too many, or some that can't be called.
pub(super) fn specs(key: &str, server: &ToolServer, tools: Vec<ListedTool>) -> anyhow::Result<Vec<ToolSpec>> {
    let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    for name in server.only.iter().flatten() {
        ensure!(
            known.contains(&name.as_str()),
            "it has no tool `{name}`; expected one of {}",
            known.join(", ")
        );
    }
    let is_wanted = |name: &str| server.only.as_ref().is_none_or(|only| only.iter().any(|own| own == name));
    let wanted: Vec<_> = tools.into_iter().filter(|tool| is_wanted(&tool.name)).collect();
    ensure!(!wanted.is_empty(), "it has no tools");
    let n = wanted.len();
    ensure!(n <= MAX_TOOLS, "it has {n} tools; at most {MAX_TOOLS} are allowed: select some with `only`");
    let (mut specs, mut unusable): (Vec<ToolSpec>, Vec<String>) = Default::default();
    for tool in wanted {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if tool.name.is_empty() || tool.name.len() > 64 || !tool.name.chars().all(is_plain) {
            bail!("it has a tool named {:?}; exclude it with `only`", tool.name);
        }
        let mut arguments = tool.input_schema;
        // The protocol requires it; some servers do not comply.
        let kind = arguments.entry("type").or_insert_with(|| "object".into());
        let is_object = kind == "object";
        let arguments = Value::Object(arguments);
        match followed(&arguments, is_object) {
            Ok(relaxed) => note_left(key, &tool.name, &relaxed),
            Err(reason) => {
                let name = &tool.name;
                tracing::warn!(
                    "the tool server `{key}`: its tool `{name}` is left out: its arguments {reason}"
                );
                unusable.push(name.to_string());
                continue;
            }
        }
        let name = format!("{key}_{}", tool.name);
        ensure!(!specs.iter().any(|other| other.name == name), "it has two tools named `{}`", tool.name);
        let about = tool.description.as_deref().unwrap_or_default().trim().chars().take(MAX_ABOUT).collect();
        specs.push(ToolSpec { name, about, arguments });
    }
    ensure!(!specs.is_empty(), "the arguments of its tools ({}) can't be used", unusable.join(", "));
    Ok(specs)
}

/// The schema of a tool's arguments as masks can enforce it.
///
/// # Errors
/// The reason why it can't be used, after "its arguments".
fn followed(arguments: &Value, is_object: bool) -> Result<Relaxed, String> {
    if !is_object {
        return Err("are not an object".into());
    }
    let relaxed = Grammar::json_schema(arguments).relaxed();
    let relaxed = relaxed.and_then(|relaxed| relaxed.grammar.check().map(|()| relaxed));
    relaxed.map_err(|error| format!("can't be used: {error}"))
}

/// Notes what of a tool's schema can't be enforced while a call is written.
fn note_left(key: &str, tool: &str, relaxed: &Relaxed) {
    for left in &relaxed.left {
        let effect = if left.is_checked { "is checked when it is called" } else { "has no effect" };
        tracing::info!("the tool server `{key}`: in the arguments of its tool `{tool}`, {left} {effect}");
    }
}
