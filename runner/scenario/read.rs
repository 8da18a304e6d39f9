//! Reads a scenario's YAML into [`Written`]: mistakes of type and unknown keys are collected, all of them, with
//! their places.

use super::schema::{Written, json_schema};
use super::source::{Path, Spans, Step};
use crate::diagnostic::{Diagnostic, Source, Span, suggest};
use serde::Deserialize;
use serde_yaml::Value;

/// Most mistakes of type that one file may have before reading stops.
const MAX_MISTAKES: usize = 200;

/// Reads a file: the data, and what is wrong with its shape. `None` where nothing could be read at all.
pub(super) fn read(source: &Source, spans: &Spans, found: &mut Vec<Diagnostic>) -> Option<Written> {
    let mut value = match serde_yaml::from_str::<First>(&source.text) {
        Ok(First(value)) => value,
        Err(error) => {
            let at = error.location().map_or(0, |location| location.index().min(source.text.len()));
            let span = Span { file: spans.value(&Path::default()).file, start: at, end: at };
            let message = format!("this can't be read: {error}");
            found.push(
                Diagnostic::error("yaml", "", span, message).help("write plain YAML: no tags, no odd keys"),
            );
            return None;
        }
    };
    if let Err(error) = value.apply_merge() {
        let span = spans.value(&Path::default());
        let message = format!("`<<` can't be merged: {error}");
        found.push(
            Diagnostic::error("yaml", "", span, message).help("`<<: *name` repeats a mapping `&name { … }`"),
        );
        return None;
    }
    if !value.is_mapping() {
        let message = "a scenario is a mapping with `id`, `agents` and `phases`";
        let found_here = Diagnostic::error("type", "", spans.value(&Path::default()), message);
        found.push(found_here.help("begin with `agents:`; `greenroom new` writes a scenario to start from"));
        return None;
    }
    for _ in 0..MAX_MISTAKES {
        let mut unknown = Vec::new();
        let error = match deserialize(value.clone(), &mut unknown) {
            Ok(written) => {
                found.extend(unknown.into_iter().map(|path| unknown_key(spans, path)));
                return Some(written);
            }
            Err(error) => error,
        };
        let path = path_of(error.path());
        found.push(wrong_type(spans, &path, error.inner()));
        if !clear(&mut value, &path) {
            return None;
        }
    }
    None
}

fn deserialize(
    value: Value,
    unknown: &mut Vec<Path>,
) -> Result<Written, serde_path_to_error::Error<serde_yaml::Error>> {
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(ignored(&path));
    serde_path_to_error::deserialize(serde_ignored::Deserializer::new(value, &mut note))
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
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { variant } => Some(Step::Key(variant.clone())),
        Segment::Unknown => None,
    };
    Path(path.iter().filter_map(step).collect())
}

fn unknown_key(spans: &Spans, path: Path) -> Diagnostic {
    let (place, known) = fields_at(&path.0[..path.0.len().saturating_sub(1)]);
    let key = match path.0.last() {
        Some(Step::Key(key)) => key.clone(),
        _ => String::new(),
    };
    let message = format!("{place} has no field `{key}`");
    let diagnostic = Diagnostic::error("unknown-key", path.to_string(), spans.key(&path), message);
    let help = suggest(&key, known.iter().map(String::as_str));
    diagnostic.help(help.unwrap_or("`greenroom schema --format markdown` lists all fields".into()))
}

/// What stands at a path, in words, and its fields, from the schema.
fn fields_at(path: &[Step]) -> (&'static str, Vec<String>) {
    let root = json_schema().as_value();
    let resolve = |mut at: &'static serde_json::Value| {
        while let Some(next) = at.get("anyOf").and_then(|any| any.get(0)).or_else(|| {
            let name = at.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
            root.get("$defs")?.get(name)
        }) {
            at = next;
        }
        at
    };
    let mut at = resolve(root);
    let mut place = "a scenario";
    for step in path {
        let next = match step {
            Step::Key(key) => at.get("properties").and_then(|fields| fields.get(key)),
            Step::Index(_) => at.get("items"),
        };
        place = match step {
            Step::Key(key) if key == "payoff" => "a payoff",
            Step::Key(key) if key == "agents" => "an agent",
            Step::Key(key) if key == "phases" => "a phase",
            Step::Key(key) if key == "turns" => "a turn",
            Step::Key(key) if key == "interactions" => "an interaction",
            _ => place,
        };
        let Some(next) = next.or_else(|| at.get("additionalProperties")) else { break };
        at = resolve(next);
    }
    let fields = at.get("properties").and_then(|fields| fields.as_object());
    (place, fields.map(|fields| fields.keys().cloned().collect()).unwrap_or_default())
}

fn wrong_type(spans: &Spans, path: &Path, error: &serde_yaml::Error) -> Diagnostic {
    let told = error.to_string();
    let parts = told.strip_prefix("invalid type: ").or_else(|| told.strip_prefix("invalid value: "));
    let parts = parts.and_then(|parts| parts.rsplit_once(", expected "));
    let error = |message: String| Diagnostic::error("type", path.to_string(), spans.value(path), message);
    let Some((found, expected)) = parts else {
        return error(told).help("`greenroom schema --format markdown` says what each field holds");
    };
    let (kind, content) = found.split_once(' ').unwrap_or((found, ""));
    let content: String = content.chars().take(60).collect();
    let found = match kind {
        "string" => format!("the text {content}"),
        "integer" | "floating" => format!("the number {}", content.trim_start_matches("point ")),
        "boolean" => content.to_string(),
        "sequence" => "a list".to_string(),
        "map" => "a mapping".to_string(),
        _ => "nothing".to_string(),
    };
    let text = content.trim_matches('"');
    let (expected, help) = match expected {
        "a string" => (
            "a text",
            match kind {
                "sequence" => "write one text; one of several lines stands below `|`, indented".to_string(),
                "map" => "put the text in quotes: it has a colon or braces in it".to_string(),
                _ => "put the value in quotes".to_string(),
            },
        ),
        "a sequence" => (
            "a list",
            match kind {
                "map" => "each item of a list begins with `- `".to_string(),
                _ => format!("write `[{text}]`"),
            },
        ),
        "u64" => ("a whole number", "e.g. `3`".to_string()),
        "struct WrittenAgent" => (
            "a mapping: an agent",
            "e.g. `ann: { display_name: Ann, system_prompt: You are Ann. }`".to_string(),
        ),
        "struct WrittenPhase" => {
            ("a mapping: a phase", "e.g. `- { name: talk, agents: [ann, ben] }`".to_string())
        }
        _ if path.to_string() == "agents" => {
            ("a mapping", "each agent stands below its key, e.g. `ann: { display_name: Ann }`".to_string())
        }
        _ => (
            "a mapping",
            "write `key: value`, one below the other or as `{ key: value, key: value }`".to_string(),
        ),
    };
    error(format!("expected {expected}, found {found}")).help(help)
}

/// Replaces the value at `path` with null, which every field accepts. False if that can't help.
fn clear(value: &mut Value, path: &Path) -> bool {
    let mut at = value;
    for step in &path.0 {
        let next = match step {
            Step::Key(key) => at.get_mut(key.as_str()),
            Step::Index(index) => at.get_mut(*index),
        };
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    if at.is_null() || path.0.is_empty() {
        return false;
    }
    *at = Value::Null;
    true
}

/// A YAML value in which the first of duplicate keys stands (they were reported with their places).
struct First(Value);

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FirstVisitor)
    }
}

struct FirstVisitor;

impl<'de> serde::de::Visitor<'de> for FirstVisitor {
    type Value = First;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value without tags")
    }

    fn visit_bool<E>(self, value: bool) -> Result<First, E> {
        Ok(First(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<First, E> {
        Ok(First(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<First, E> {
        Ok(First(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<First, E> {
        Ok(First(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<First, E> {
        Ok(First(value.into()))
    }

    fn visit_unit<E>(self) -> Result<First, E> {
        Ok(First(Value::Null))
    }

    fn visit_none<E>(self) -> Result<First, E> {
        Ok(First(Value::Null))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> Result<First, A::Error> {
        let mut items = Vec::new();
        while let Some(First(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(First(Value::Sequence(items)))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut access: A) -> Result<First, A::Error> {
        let mut entries = serde_yaml::Mapping::new();
        while let Some((First(key), First(value))) = access.next_entry()? {
            entries.entry(key).or_insert(value);
        }
        Ok(First(Value::Mapping(entries)))
    }
}
