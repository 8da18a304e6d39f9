//! The command that plays a run again, as far as its recording shows, and the hashes that identify it.

use super::sources::ReportSources;
use super::text;
use crate::scenario::{Hints, parse};
use serde::Serialize;
use serde_json::Value;

/// The bundled model; any other is a file of which the recording has only the hash.
const BUNDLED: &str = "understudy";

/// Command lines and hashes.
#[derive(Debug, Serialize)]
pub(super) struct Making {
    /// The command that plays it again: words and flags with their values.
    command: Vec<String>,
    /// True if the user must insert the model's file.
    needs_model: bool,
    hashes: Vec<(&'static str, String)>,
}

pub(super) fn making(sources: &ReportSources) -> Making {
    let header = &sources.transcript.header;
    let hash = header.hash.clone();
    let header = &header.record;
    let needs_model = header.model.name != BUNDLED;
    let (sampling, dry) = (&header.sampling, header.sampling.dry);
    let mut words = match &header.forked {
        Some(forked) => {
            vec![format!("greenroom fork {}", quoted(&forked.path)), format!("--at {}", quoted(&forked.at))]
        }
        None => vec![format!("greenroom run {}", quoted(&header.scenario.path))],
    };
    // Settings of the scenario are not repeated, because the command line's would apply to all agents.
    let is_given = |name: &str| header.given.as_ref().is_none_or(|given| given.contains(name));
    let needs_model = needs_model && header.hints.model.is_none();
    let model = if needs_model { "MODEL.gguf" } else { BUNDLED };
    let machine =
        [("--model", model.to_string()), ("--kv", header.kv.clone()), ("--seed", header.seed.to_string())];
    let sampling = [
        ("--max-tokens", header.max_tokens.to_string()),
        ("--temperature", sampling.temperature.to_string()),
        ("--top-k", sampling.top_k.to_string()),
        ("--top-p", sampling.top_p.to_string()),
        ("--min-p", sampling.min_p.to_string()),
        ("--repetition-penalty", sampling.repetition_penalty.to_string()),
        ("--dry-multiplier", dry.map_or(0.0, |dry| dry.multiplier).to_string()),
    ];
    // The rest matters only with a penalty.
    let dry = dry.map(|dry| {
        [("--dry-base", dry.base.to_string()), ("--dry-allowed-length", dry.allowed_length.to_string())]
    });
    let sampling = sampling.into_iter().filter(|(flag, _)| {
        let name = flag.trim_start_matches("--").replace('-', "_");
        !Hints::overridable().any(|known| known == name) || is_given(&name)
    });
    let sampling = sampling.chain(dry.into_iter().flatten());
    // A fork takes its sampling from its original run.
    let sampling = sampling.filter(|_| header.forked.is_none());
    let machine = machine.into_iter().filter(|(flag, _)| *flag != "--model" || header.hints.model.is_none());
    for (flag, value) in machine.chain(sampling) {
        words.push(format!("{flag} {}", quoted(&value)));
    }
    // Lists and maps are JSON, which is YAML too.
    for (name, value) in &header.overrides {
        let value = match value {
            Value::String(text) if plain(text) => text.clone(),
            Value::Number(_) => text::value(value),
            other => other.to_string(),
        };
        words.push(format!("--set {}", quoted(&format!("{name}={value}"))));
    }
    if let Some(continues) = header.continues.as_ref().filter(|_| header.forked.is_none()) {
        words.push(format!("--continue {}", quoted(&continues.path)));
    }
    let last = sources.transcript.footer.as_ref().map(|footer| &footer.hash);
    let last = last.or(sources.transcript.turns.last().map(|turn| &turn.hash)).unwrap_or(&hash);
    let hashes = vec![
        ("transcript", last.clone()),
        ("scenario", header.scenario.blake3.clone()),
        ("plan", header.plan.clone()),
        ("model", header.model.identity.clone()),
    ];
    Making { command: words, needs_model, hashes }
}

/// Tells whether YAML reads an unquoted text as a text.
fn plain(text: &str) -> bool {
    parse(text).is_ok_and(|read| read.as_str() == Some(text))
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_bare) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_one_word() {
        assert_eq!(quoted("scenarios/gossip.yaml"), "scenarios/gossip.yaml");
        assert_eq!(quoted("topic=it's $(here); a b"), r"'topic=it'\''s $(here); a b'");
        assert_eq!([quoted(""), quoted("-x")], ["''", "'-x'"]);
    }

    #[test]
    fn texts_that_yaml_would_read_otherwise_are_json() {
        assert!(plain("music") && plain("two words"));
        assert!(!plain("12") && !plain("true") && !plain("a: b") && !plain(""));
    }
}
