//! Reads a scenario's YAML into [`Written`]: mistakes of type and unknown keys are collected, all of them,
//! with their places.

use super::older;
use super::schema::{Written, json_schema};
use greenroom_yaml::diagnostic::{Diagnostic, Suggestion, suggest, suggestion};
use greenroom_yaml::{ExpectedValue, FoundValue, NodeReader, Path, PathStep, Tree, Wrong};
use std::collections::BTreeSet;

/// Maximum number of mistakes of type that one file may have before reading stops.
const MAX_MISTAKES: usize = 200;

/// Reads a file: the data, and what is wrong with its shape. `None` where nothing could be read at all.
pub(super) fn read(tree: &Tree, found: &mut Vec<Diagnostic>) -> Option<Written> {
    if tree.keys().is_none() {
        let message = "a scenario must be a mapping with `id`, `agents` and `phases`";
        let found_here = Diagnostic::error("type", "", tree.value(&Path::default()), message);
        found.push(found_here.help("begin with `agents:`; `greenroom new` writes a starter scenario"));
        return None;
    }
    let mut aside = BTreeSet::new();
    for _ in 0..MAX_MISTAKES {
        let mut unknown = Vec::new();
        let (path, wrong) = match deserialize(NodeReader::new(tree, &aside)?, &mut unknown) {
            Ok(written) => {
                found.extend(unknown.into_iter().map(|path| unknown_key(tree, path)));
                return Some(written);
            }
            Err(error) => (path_of(error.path()), error.into_inner()),
        };
        found.push(diagnose(tree, &path, wrong));
        // Every field accepts null: what could not be read is set aside.
        let node = tree.find(&path).filter(|_| !path.0.is_empty())?;
        if !aside.insert(node) {
            return None;
        }
    }
    None
}

fn deserialize(
    reader: NodeReader<'_>,
    unknown: &mut Vec<Path>,
) -> Result<Written, serde_path_to_error::Error<Wrong>> {
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(ignored(&path));
    serde_path_to_error::deserialize(serde_ignored::Deserializer::new(reader, &mut note))
}

fn ignored(path: &serde_ignored::Path<'_>) -> Path {
    use serde_ignored::Path as P;
    match path {
        P::Root => Path::default(),
        P::Seq { parent, index } => ignored(parent).index(*index),
        P::Map { parent, key } => ignored(parent).key(key.clone()),
        P::Some { parent } | P::NewtypeStruct { parent } | P::NewtypeVariant { parent } => ignored(parent),
    }
}

fn path_of(path: &serde_path_to_error::Path) -> Path {
    use serde_path_to_error::Segment;
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(PathStep::Index(*index)),
        Segment::Map { key } => Some(PathStep::Key(key.clone())),
        // The form that a union has is not a part of what is written.
        Segment::Enum { variant } if variant.starts_with(char::is_uppercase) => None,
        Segment::Enum { variant } => Some(PathStep::Key(variant.clone())),
        Segment::Unknown => None,
    };
    Path(path.iter().filter_map(step).collect())
}

fn unknown_key(tree: &Tree, path: Path) -> Diagnostic {
    let (place, known) = fields_at(tree, &path.0[..path.0.len().saturating_sub(1)]);
    let key = match path.0.last() {
        Some(PathStep::Key(key)) => key.clone(),
        _ => String::new(),
    };
    let message = format!("{place} has no field `{key}`");
    let diagnostic = Diagnostic::error("unknown-key", path.to_string(), tree.key(&path), message);
    if let Some(today) = older::today(&key) {
        let found = format!("it is of an earlier edition and can't be converted here: write `{today}`");
        return diagnostic.help(found);
    }
    match suggestion(&key, known.iter().map(String::as_str)) {
        Some(suggestion) => {
            let meant = match &suggestion {
                Suggestion::Near(name) => vec![(*name).to_string()],
                Suggestion::Any(names) => names.iter().map(|name| (*name).to_string()).collect(),
            };
            Diagnostic { meant, ..diagnostic.help(suggestion.to_string()) }
        }
        None => diagnostic.help("`greenroom schema --format markdown` lists all fields"),
    }
}

/// What the schema says of a path.
pub struct Typed {
    /// What is there, as text.
    place: &'static str,
    /// Its field, as the type around it declares it.
    pub declared: &'static serde_json::Value,
    /// The declarations of what is on the way to it, its own included.
    pub way: Vec<&'static serde_json::Value>,
    /// Its type; of a union the form that has fields.
    pub of: &'static serde_json::Value,
    /// The steps that the schema knows.
    pub known: usize,
}

/// The name of what is at a path, and its fields.
fn fields_at(tree: &Tree, path: &[PathStep]) -> (&'static str, Vec<String>) {
    let Typed { place, of, .. } = typed(tree, path);
    let fields = of.get("properties").and_then(|fields| fields.as_object());
    (place, fields.map(|fields| fields.keys().cloned().collect()).unwrap_or_default())
}

/// The type of what is at a path, as far as the schema goes.
pub fn typed(tree: &Tree, path: &[PathStep]) -> Typed {
    let root = json_schema().as_value();
    let (mut at, mut declared, mut way) = (root, root, Vec::new());
    let mut place = "a scenario";
    for (at_step, step) in path.iter().enumerate() {
        let forms = forms(root, at);
        let next = match step {
            PathStep::Key(key) => forms.iter().find_map(|form| form.get("properties")?.get(key)),
            PathStep::Index(_) => forms.iter().find_map(|form| form.get("items")),
        };
        // Only a field determines its content: a user-defined name does not, even if it is that of a field.
        place = match step {
            PathStep::Key(key) if next.is_some() => named(key, place).unwrap_or(place),
            _ => place,
        };
        let others = || forms.iter().filter_map(|form| form.get("additionalProperties"));
        let Some(next) = next.or_else(|| others().find(|of| **of != false)).or_else(|| others().next())
        else {
            break;
        };
        (at, declared) = (next, next);
        way.push(next);
        // Of the two parts a scenario has, a block is the one with phases.
        let here = Path(path[..=at_step].to_vec());
        if place == "a phase"
            && matches!(step, PathStep::Index(_))
            && tree.find(&here.key("phases")).is_some()
        {
            place = "a block of phases";
            at = &root["$defs"]["Block"];
        }
    }
    Typed { place, declared, of: resolved(root, at), known: way.len(), way }
}

/// What is in a field, as text; `None`: a part of what the field is in.
fn named(field: &str, around: &str) -> Option<&'static str> {
    Some(match field {
        "payoff" => "a payoff",
        "language" => "a language",
        "agents" => "an agent",
        "models" => "a remote engine",
        "phases" => "a phase",
        "turns" => "a turn",
        "say" => "an item of `say`",
        "answer" => "an answer",
        "vote" => "a vote",
        "sampling" => "a `sampling`",
        "memory" => "a memory",
        "route" => "a route",
        "assertions" => "an assertion",
        "judge" | "judges" => "a judge",
        "share" if around == "an assertion" => "a share of runs",
        _ => return None,
    })
}

/// The forms of a type, with references resolved: several of a union.
fn forms(
    root: &'static serde_json::Value,
    at: &'static serde_json::Value,
) -> Vec<&'static serde_json::Value> {
    if let Some(forms_of) = at.get("anyOf").and_then(|any| any.as_array()) {
        return forms_of.iter().flat_map(|form| forms(root, form)).collect();
    }
    let name = at.get("$ref").and_then(|of| of.as_str()?.strip_prefix("#/$defs/"));
    match name.and_then(|name| root.get("$defs")?.get(name)) {
        Some(next) => forms(root, next),
        None => vec![at],
    }
}

/// A type with its references resolved; of a union, the form that has fields.
fn resolved(root: &'static serde_json::Value, at: &'static serde_json::Value) -> &'static serde_json::Value {
    if let Some(forms) = at.get("anyOf").and_then(|any| any.as_array()) {
        let mut forms = forms.iter().map(|form| resolved(root, form));
        return forms.find(|form| form.get("properties").is_some()).unwrap_or(at);
    }
    let name = at.get("$ref").and_then(|of| of.as_str()?.strip_prefix("#/$defs/"));
    match name.and_then(|name| root.get("$defs")?.get(name)) {
        Some(next) => resolved(root, next),
        None => at,
    }
}

/// The diagnostic for what does not fit, in an author's words.
fn diagnose(tree: &Tree, path: &Path, wrong: Wrong) -> Diagnostic {
    let error = |code, message: String| Diagnostic::error(code, path.to_string(), tree.value(path), message);
    match wrong {
        Wrong::Shape { found, expected } => {
            let (expected, help) = expectation(path, expected, &found);
            error("type", format!("expected {expected}, found {}", in_words(&found))).help(help)
        }
        Wrong::Word { found, of, known } => {
            let what = match of {
                "Lifecycle" => "lifecycle",
                "Keep" => "way to keep memories",
                "WhoSpeaks" => "speaking order",
                "DebateFormat" => "debate format",
                "VoteRule" => "rule of a vote",
                "Moment" => "moment",
                "Reasoning" => "reasoning level",
                "Stops" => "way to end replies",
                "Normalize" => "normalization of options",
                _ => "strategy",
            };
            let diagnostic = error("unknown-value", format!("`{found}` is not a valid {what}"));
            if let Some(today) = older::today(&found) {
                return diagnostic.help(format!("write `{today}` in place of it"));
            }
            Diagnostic { help: suggest(&found, known.iter().copied()), ..diagnostic }
        }
        Wrong::Other(diagnostic) => {
            error("type", diagnostic).help("`greenroom schema --format markdown` describes each field")
        }
    }
}

fn in_words(found: &FoundValue) -> String {
    match found {
        FoundValue::Nothing => "nothing".to_string(),
        FoundValue::Text(text) => {
            format!("the text \"{}\"", text.chars().take(60).collect::<String>().escape_debug())
        }
        FoundValue::Number(number) => format!("the number {number}"),
        FoundValue::Truth(truth) => format!("`{truth}`"),
        FoundValue::List => "a list".to_string(),
        FoundValue::Mapping => "a mapping".to_string(),
    }
}

/// The number of a percentage such as `90%`.
fn percentage(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// The value that was expected, and how it is written.
fn expectation(path: &Path, expected: ExpectedValue, found: &FoundValue) -> (&'static str, String) {
    let item = match found {
        FoundValue::Text(text) | FoundValue::Number(text) => text.chars().take(60).collect(),
        FoundValue::Truth(truth) => truth.to_string(),
        _ => String::new(),
    };
    let is_agents = path.to_string() == "agents";
    let (expected, help) = match (expected, found) {
        (ExpectedValue::Text, FoundValue::List) => {
            ("a string", "write one string; put one of several lines below `|`, indented")
        }
        (ExpectedValue::Text, FoundValue::Mapping) => {
            ("a string", "put it in quotes: it contains a colon or braces")
        }
        (ExpectedValue::Text, _) => ("a string", "put the value in quotes"),
        (ExpectedValue::List, FoundValue::Mapping) => ("a list", "begin each item of a list with `- `"),
        (ExpectedValue::List, _) => return ("a list", format!("write `[{item}]`")),
        (ExpectedValue::Whole, _) => ("a whole number", "e.g. `3`"),
        (ExpectedValue::Number, FoundValue::Text(text)) if percentage(text).is_some() => {
            let share = percentage(text).unwrap_or_default();
            return ("a number", format!("a share is from 0 to 1: write `{share}`"));
        }
        (ExpectedValue::Number, _) => ("a number", "e.g. `0.5`"),
        (ExpectedValue::Truth, _) => ("true or false", "write `true` or `false`, without quotes"),
        (ExpectedValue::Named("WrittenAgent"), _) => {
            ("a mapping: an agent", "e.g. `ann: { display_name: Ann, system_prompt: You are Ann. }`")
        }
        (ExpectedValue::Named("WrittenPart"), _) => {
            ("a mapping: a phase", "e.g. `- { name: talk, agents: [ann, ben] }`")
        }
        (ExpectedValue::Named("PhaseNames"), _) => {
            ("the name of a phase, or a list of names", "e.g. `phase: game` or `phase: [first, second]`")
        }
        (ExpectedValue::Named("Keys"), _) => {
            ("the key of an agent, or a list of keys", "e.g. `to: ben` or `to: [ben, cas]`")
        }
        (ExpectedValue::Named("WrittenCast"), _) => (
            "a list of agent keys, or an expression that returns one",
            "e.g. `[ann, ben]`, or `alive` if that is a list in the state",
        ),
        (ExpectedValue::Named("WrittenCount"), _) => {
            ("a whole number, or an expression over variables", "e.g. `3`, or `weeks` if that is a variable")
        }
        (ExpectedValue::Named("WrittenLanguage"), _) => (
            "a language: its name, or a table of strings",
            "e.g. `language: de`, or `language: { base: en, cue: \"It is {name}'s turn.\" }`",
        ),
        (ExpectedValue::Named("WrittenExpression"), _) => {
            ("an expression: a string", "e.g. `vote.decision == 'yes'`; join several with `and`")
        }
        (ExpectedValue::Named("WrittenAssertion"), _) => (
            "an expression that must be true",
            "e.g. `- game.invalid == 0` or `- { that: game.invalid == 0, why: … }`",
        ),
        (ExpectedValue::Named("Options"), _) => (
            "a list of options, or a mapping from results to the texts that are said",
            "e.g. `one_of: [talk, silent]`",
        ),
        (ExpectedValue::Named("WrittenAnswer"), _) => (
            "a list of options, or a mapping with `one_of`, `schema`, `regex` or `lark`",
            "e.g. `answer: [talk, silent]`",
        ),
        (ExpectedValue::Named("WrittenAudience"), _) => (
            "`all`, `nobody`, agents, or a mapping from agents to those who hear them",
            "e.g. `to: nobody`, or `to: { ben: ann }`",
        ),
        (ExpectedValue::Named("WrittenSays"), _) => (
            "texts by agent, or a list of texts",
            "e.g. `say: { ann: You are rich. }`, or `say: [{ at: round_end, text: Night falls. }]`",
        ),
        (ExpectedValue::Named("WrittenSets"), _) => (
            "a mapping from names to expressions, or a list of such mappings",
            "e.g. `set: { pot: pot + 1 }`",
        ),
        (ExpectedValue::Named("WrittenVote"), _) => {
            ("a mapping: a vote", "e.g. `vote: { rule: majority, answer: [stay, leave] }`")
        }
        (ExpectedValue::Named("Scalar"), _) => (
            "a string, a number, true or false",
            "write options with texts as a mapping: `one_of: { talk: I talk, silent: I stay silent }`",
        ),
        (ExpectedValue::Named("WrittenStrategy"), _) => (
            "a strategy: `tit_for_tat`, `grim`, `human`, `{always: X}`, `{random: p}`, `{list: [X, Y]}`, \
             `{script: {PATH: X}}`, or one for each phase",
            "e.g. `strategy: { always: talk }`",
        ),
        (
            ExpectedValue::Named(
                "Lifecycle" | "Keep" | "WhoSpeaks" | "DebateFormat" | "VoteRule" | "Moment" | "Normalize",
            ),
            _,
        ) => ("a word", "`greenroom schema --format markdown` lists the words"),
        (ExpectedValue::Mapping | ExpectedValue::Named(_), _) if is_agents => {
            ("a mapping", "put each agent below its key, e.g. `ann: { display_name: Ann }`")
        }
        (ExpectedValue::Mapping | ExpectedValue::Named(_), _) => {
            ("a mapping", "write `key: value`, one below the other or as `{ key: value, key: value }`")
        }
    };
    (expected, help.to_string())
}
