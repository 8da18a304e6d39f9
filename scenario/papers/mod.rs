//! Scenarios in the format of the papers' own system: converted to ours in the tree, so that later stages
//! know one format and each mistake is reported where its author made it.
//!
//! Recognized by what only that format has: `from_agent` or `channel` in an interaction, an `outcome` with a
//! `type`, a `payoff` with `labels`, `debate_format: free_form`; or by `format: papers` at its head.
//! Differences in meaning: a memory lasts for a phase unless its `lifecycle` says otherwise, the default is
//! three rounds, `max_turns: 0` is not a bound, a decision may name no options, and the outcome is read from
//! what was said in the last phase ([`Ending`]).

mod ending;
mod pattern;

pub use ending::{Display, Ending};

use greenroom_yaml::diagnostic::Diagnostic;
use greenroom_yaml::{Path, Piece, Tree};
use serde_json::{Value, json};

/// Rounds of a phase that names none.
const ROUNDS: u64 = 3;
/// Most rounds and turns that the format allows in a phase.
const MAX: [(&str, u64, u64); 2] = [("auto_rounds", 1, 50), ("max_turns", 0, 1000)];
/// Options of a decision that names none.
const OPTIONS: [&str; 2] = ["agree", "disagree"];

/// Adds an external cast to a scenario that has none. Errors: it has one.
pub(super) fn put_cast(tree: &mut Tree, cast: &Value, found: &mut Vec<Diagnostic>) {
    let top = Path::default();
    if !is_empty(&tree.json_at(&top.key("agents"))) {
        let message = "the scenario has its own cast, so it can't take another";
        let error = Diagnostic::error("contradiction", "agents", tree.key(&top.key("agents")), message);
        found.push(error.help("leave out `--agents`, or write `agents: {}` in the scenario"));
        return;
    }
    tree.put(&top, "agents", cast);
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Brings a file of the papers' format to ours. Returns how it ends, which is evaluated apart; `None`: it is
/// one of ours.
pub(super) fn translate(tree: &mut Tree, found: &mut Vec<Diagnostic>) -> Option<Ending> {
    let top = Path::default();
    if !is_of_papers(tree) {
        return None;
    }
    let ending = ending::read(tree, found);
    for field in ["format", "outcome", "payoff"] {
        tree.take(&top, field);
    }
    parts(tree, &ending, found);
    Some(ending)
}

/// Brings all but the ending of a file of the papers' format to ours: with `format: papers` at its head it is
/// still one of theirs.
pub(super) fn convert(tree: &mut Tree) {
    if is_of_papers(tree) {
        let mut found = Vec::new();
        let ending = ending::read(tree, &mut found);
        parts(tree, &ending, &mut found);
        let head = Piece::Value("papers".into(), None);
        tree.insert(&Path::default(), 0, "format", head);
    }
}

/// Agents and phases.
fn parts(tree: &mut Tree, ending: &Ending, found: &mut Vec<Diagnostic>) {
    let top = Path::default();
    if tree.json_at(&top.key("agents")).is_array() {
        tree.put(&top, "agents", &json!({}));
    }
    let cast = tree.keys_at(&top.key("agents"));
    for key in &cast {
        let agent = top.key("agents").key(key.clone());
        match tree.json_at(&agent) {
            Value::Null => tree.put(&top.key("agents"), key, &json!({ "lifecycle": "ephemeral" })),
            Value::Object(fields) if fields.get("lifecycle").is_none_or(Value::is_null) => {
                tree.put(&agent, "lifecycle", &"ephemeral".into());
            }
            _ => {}
        }
    }
    let phases = top.key("phases");
    for at in 0..tree.n_items(&phases) {
        phase(tree, &phases.index(at), &cast, ending, found);
    }
}

fn is_of_papers(tree: &Tree) -> bool {
    let top = tree.json_at(&Path::default());
    let has = |value: &Value, fields: &[&str]| fields.iter().any(|field| value.get(field).is_some());
    let phases = || top["phases"].as_array().into_iter().flatten();
    let of = |phase: &Value| {
        let interactions = phase["interactions"].as_array();
        phase["debate_format"] == "free_form"
            || interactions
                .into_iter()
                .flatten()
                .any(|edge| has(edge, &["from_agent", "to_agent", "channel"]))
    };
    top["format"] == "papers"
        || top["outcome"]["type"].as_str().is_some_and(|kind| ending::TYPES.contains(&kind))
        || has(&top["payoff"], &["labels"])
        || phases().any(of)
}

fn phase(tree: &mut Tree, path: &Path, cast: &[String], ending: &Ending, found: &mut Vec<Diagnostic>) {
    let written = tree.json_at(path);
    if !written.is_object() {
        return;
    }
    let mut wrong = |tree: &Tree, field: &str, message: String, help: &str| {
        let path = path.key(field);
        found.push(Diagnostic::error("bad-value", path.to_string(), tree.value(&path), message).help(help));
    };
    if let Some(name) = written["name"].as_str().filter(|name| !is_name(name)) {
        let message = format!("`{name}` is not a valid phase name in this format");
        wrong(
            tree,
            "name",
            message,
            "use 1 to 30 lowercase letters, digits and `_`, beginning with a letter; `label` may be any text",
        );
    }
    for (field, least, most) in MAX {
        let out = written[field].as_u64().filter(|n| !(least..=most).contains(n));
        if let Some(n) = out {
            let message = format!("`{field}` is {n}; this format allows {least} to {most}");
            wrong(
                tree,
                field,
                message,
                "choose a number in this range, or write the file in Greenroom's own format",
            );
            tree.take(path, field);
        }
    }
    if written["max_turns"] == 0 {
        tree.take(path, "max_turns");
    }
    if written["auto_rounds"].is_null() && written["rounds"].is_null() {
        tree.put(path, "rounds", &ROUNDS.into());
    }
    if written["debate_format"] == "free_form" {
        tree.take(path, "debate_format");
    }
    if is_empty(&written["agents"]) && !cast.is_empty() {
        tree.put(path, "agents", &json!(cast));
    }
    let present: Vec<String> = match written["agents"].as_array().filter(|keys| !keys.is_empty()) {
        Some(keys) => keys.iter().filter_map(Value::as_str).map(str::to_string).collect(),
        None => cast.to_vec(),
    };
    channels(tree, path, found);
    interactions(tree, path, &tree.json_at(path), &present);
    decision(tree, path, &written, &present, ending, found);
}

/// `[a-z][a-z0-9_]{0,29}`.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 30 && name.chars().all(is_plain)
}

/// Channels that there are; edges with another are left out.
const CHANNELS: [&str; 3] = ["public", "whisper", "observe"];

fn channels(tree: &mut Tree, path: &Path, found: &mut Vec<Diagnostic>) {
    let list = path.key("interactions");
    for at in (0..tree.n_items(&list)).rev() {
        let edge = list.index(at);
        for field in ["channel", "kind"] {
            let here = edge.key(field);
            let Some(word) = tree.json_at(&here).as_str().map(str::to_string) else { continue };
            if !CHANNELS.contains(&word.as_str()) {
                let message = format!("`{word}` is not a valid channel");
                let error = Diagnostic::error("unknown-value", here.to_string(), tree.value(&here), message);
                found.push(error.help("write `public`, `whisper` or `observe`"));
                tree.drop_item(&list, at);
                break;
            }
        }
    }
}

/// Edges by our names. Of those who whisper somewhere in the phase, what is public is left out: the whisper
/// is what was meant to be kept. A pair of a whisper phase is listed once, and without any all whisper to
/// all.
fn interactions(tree: &mut Tree, path: &Path, written: &Value, present: &[String]) {
    let is_whispered = written["topology"] == "whisper" || written["order"] == "whisper";
    let list = path.key("interactions");
    let edges = written["interactions"].as_array().cloned().unwrap_or_default();
    let of = |edge: &Value, one: &str, other: &str| match &edge[one] {
        Value::Null => edge[other].clone(),
        value => value.clone(),
    };
    let kind = |edge: &Value| match of(edge, "channel", "kind") {
        Value::Null => "public".into(),
        kind => kind,
    };
    let whisperers: Vec<Value> = edges
        .iter()
        .filter(|edge| kind(edge) == "whisper")
        .map(|edge| of(edge, "from_agent", "from"))
        .collect();
    let mut pairs: Vec<[Value; 2]> = Vec::new();
    let (mut kept, mut dropped) = (0, Vec::new());
    for (at, edge) in edges.iter().enumerate() {
        let here = list.index(at);
        let (from, to) = (of(edge, "from_agent", "from"), of(edge, "to_agent", "to"));
        let back = is_whispered && kind(edge) == "whisper" && pairs.contains(&[to.clone(), from.clone()]);
        if back || (kind(edge) == "public" && whisperers.contains(&from)) {
            dropped.push(at);
            continue;
        }
        pairs.push([from, to]);
        kept += 1;
        for (theirs, ours) in [("from_agent", "from"), ("to_agent", "to"), ("channel", "kind")] {
            tree.rename(&list, at, theirs, Some(ours));
        }
        if kind(edge) == "public" {
            tree.put(&here, "kind", &"public".into());
        }
    }
    dropped.into_iter().rev().for_each(|at| tree.drop_item(&list, at));
    if kept == 0 {
        tree.take(path, "interactions");
    }
    if is_whispered && whisperers.is_empty() {
        let pairs = present.iter().enumerate().flat_map(|(at, from)| {
            present[at + 1..].iter().map(move |to| json!({ "from": from, "to": to, "kind": "whisper" }))
        });
        let pairs: Vec<Value> = pairs.collect();
        if !pairs.is_empty() && kept == 0 {
            tree.put(path, "interactions", &Value::Array(pairs));
        }
    }
}

/// What a decision is over: the choices of the outcome, else agreement. Who decides for all: the agent whose
/// role is coordinator, else moderator, else judge, else the first.
fn decision(
    tree: &mut Tree,
    path: &Path,
    written: &Value,
    present: &[String],
    ending: &Ending,
    found: &mut Vec<Diagnostic>,
) {
    let Some(mode) = written["decision_mode"].as_str().filter(|mode| *mode != "none") else { return };
    if written["choice"].is_null() && written["parse_choice"].is_null() {
        let options: Vec<&str> = match ending.choices.as_slice() {
            [] | [_] => OPTIONS.to_vec(),
            choices => choices.iter().map(String::as_str).collect(),
        };
        if ending.choices.len() < 2 {
            let field = path.key("decision_mode");
            let message = "this decision has no options, so the choice is between `agree` and `disagree`";
            let warning = Diagnostic::warning("no-options", field.to_string(), tree.value(&field), message);
            found.push(
                warning.help("write the options as `choices` of the `outcome`, or as the phase's `choice`"),
            );
        }
        tree.put(path, "choice", &json!(options));
    }
    if mode == "coordinator_decides" && written["coordinator"].is_null() {
        let role = |key: &String| {
            let role = tree.json_at(&Path::default().key("agents").key(key.clone()).key("role"));
            role.as_str().unwrap_or_default().to_lowercase()
        };
        let with = |wanted: &str| present.iter().find(|key| role(key) == wanted);
        let first = || present.iter().find(|key| role(key) != "observer");
        let chosen = ["coordinator", "moderator", "judge"].into_iter().find_map(with).or_else(first).cloned();
        if let Some(key) = chosen {
            tree.put(path, "coordinator", &key.into());
        }
    }
}
