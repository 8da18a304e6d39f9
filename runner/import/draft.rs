//! A scenario on its way out: the cast gets keys and names that we accept, the notes become a head of
//! comments.

use super::text::{TextPart, one_line, template};
use super::{MAX_AGENTS, Refused, value_text};
use crate::scenario::hints::expected;
use crate::scenario::template::{STAGE_NAMES, SYSTEM_NAMES};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Name of the one phase that most scenarios become.
pub(super) const TALK: &str = "conversation";
/// The variable that AgentVerse's `${task_description}` becomes.
pub(super) const TASK: &str = "task_description";
/// Width of the comments.
const WIDTH: usize = 110;

/// A scenario before it is written.
#[derive(Debug, Default)]
pub(super) struct ScenarioDraft {
    pub(super) title: String,
    pub(super) variables: IndexMap<String, String>,
    pub(super) agents: Vec<DraftAgent>,
    pub(super) phases: Vec<DraftPhase>,
    pub(super) notes: ImportNotes,
}

/// An agent as it will be written.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DraftAgent {
    #[serde(skip)]
    pub(super) key: String,
    pub(super) display_name: String,
    pub(super) lifecycle: &'static str,
    #[serde(skip_serializing_if = "DraftSampling::is_empty")]
    pub(super) sampling: DraftSampling,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) system_prompt: Option<String>,
}

/// Reply settings as they will be written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DraftSampling {
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
}

impl DraftSampling {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl DraftAgent {
    /// Takes over another engine's model settings for replies; the rest is noted, after `why`.
    pub(super) fn sampled_by(&mut self, settings: &Value, path: &str, why: &str, notes: &mut ImportNotes) {
        let Some(fields) = settings.as_object() else {
            return notes.add(path, format!("{}{why}", value_text(settings)));
        };
        let mut rest = fields.clone();
        let number = |field: &str| settings[field].as_f64().filter(|value| expected(field, *value).is_none());
        self.sampling = DraftSampling {
            temperature: number("temperature"),
            top_p: number("top_p"),
            max_tokens: number("max_tokens").and_then(|_| settings["max_tokens"].as_u64()),
        };
        for (field, is_taken) in [
            ("temperature", self.sampling.temperature.is_some()),
            ("top_p", self.sampling.top_p.is_some()),
            ("max_tokens", self.sampling.max_tokens.is_some()),
        ] {
            if is_taken {
                rest.shift_remove(field);
            }
        }
        if !rest.is_empty() {
            notes.add(path, format!("{}{why}", value_text(&Value::Object(rest))));
        }
    }
}

/// A phase as it will be written.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(default)]
pub(super) struct DraftPhase {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    pub(super) agents: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) moderator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rounds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_turns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<String>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) say: IndexMap<String, String>,
}

/// Remarks on what is left out or changed, each with its places; equal remarks on several places become one.
#[derive(Debug, Default)]
pub(super) struct ImportNotes(IndexMap<String, Vec<String>>);

impl ImportNotes {
    pub(super) fn add(&mut self, path: impl AsRef<str>, text: impl AsRef<str>) {
        let places = self.0.entry(one_line(text.as_ref(), 400)).or_default();
        let path = one_line(path.as_ref(), 120);
        if !places.contains(&path) {
            places.push(path);
        }
    }

    fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(text, places)| format!("{}: {text}", together(places))).collect()
    }
}

/// Places that differ by an index are named once: `agents[0, 1].llm`.
fn together(places: &[String]) -> String {
    let mut groups: IndexMap<(&str, &str), Vec<&str>> = IndexMap::new();
    for place in places {
        let (head, index, tail) =
            match place.split_once('[').and_then(|(head, rest)| Some((head, rest.split_once(']')?))) {
                Some((head, (index, tail))) => (head, index, tail),
                None => (place.as_str(), "", ""),
            };
        groups.entry((head, tail)).or_default().push(index);
    }
    let group = |((head, tail), indices): (&(&str, &str), &Vec<&str>)| match indices.as_slice() {
        [""] => head.to_string(),
        few if few.len() <= 12 => format!("{head}[{}]{tail}", few.join(", ")),
        many => format!("{head}[{}, … {} in all]{tail}", many[..10].join(", "), many.len()),
    };
    groups.iter().map(group).collect::<Vec<_>>().join(", ")
}

/// Keys and display names that we accept, for names as another engine has them.
pub(super) fn cast(names: &[(String, String)], notes: &mut ImportNotes) -> Result<Vec<DraftAgent>, Refused> {
    if names.len() > MAX_AGENTS {
        let message = format!("there are {} agents; at most {MAX_AGENTS} can be imported", names.len());
        return Err(Refused(message));
    }
    let (mut keys, mut shown) = (BTreeSet::new(), BTreeSet::new());
    let mut agents = Vec::new();
    for (at, (path, name)) in names.iter().enumerate() {
        let mut display_name = one_line(name, 80);
        if display_name.is_empty() {
            display_name = format!("Agent {}", at + 1);
        }
        let display_name = unique(&display_name, " ", &mut shown);
        if display_name != *name {
            notes.add(
                path,
                format!(
                    "renamed to \"{display_name}\": names must be unique, on one line, and have 1 to 80 \
                     characters"
                ),
            );
        }
        let key = unique(&key(&display_name, at), "_", &mut keys);
        let (sampling, system_prompt) = Default::default();
        let lifecycle = "permanent";
        agents.push(DraftAgent { key, display_name, lifecycle, sampling, system_prompt });
    }
    Ok(agents)
}

/// `wanted`, or `wanted 2`, … if it is taken.
fn unique(wanted: &str, between: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name = wanted.to_string();
    let mut n = 2;
    while !taken.insert(name.clone()) {
        let tail = format!("{between}{n}");
        name = one_line(wanted, 80 - tail.len()) + &tail;
        n += 1;
    }
    name
}

/// An identifier that no template, phase or variable of ours means by something else.
fn key(name: &str, at: usize) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let key: String = name.chars().map(word).collect();
    let key = key.split('_').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_");
    let reserved = SYSTEM_NAMES.iter().chain(STAGE_NAMES).chain(&[TALK, TASK]).any(|name| **name == key);
    match key.chars().next() {
        None => format!("agent_{}", at + 1),
        Some(first) if first.is_ascii_digit() || reserved || key.starts_with("round_") => {
            format!("agent_{key}")
        }
        Some(_) => key,
    }
}

impl ScenarioDraft {
    /// The YAML, and the notes line by line.
    pub(super) fn compose(&self, file: &str, engine: &str) -> Result<(String, Vec<String>), Refused> {
        let path = std::path::Path::new(file);
        let part =
            |part: Option<&std::ffi::OsStr>| one_line(&part.unwrap_or_default().to_string_lossy(), 100);
        let folder = || part(path.parent().and_then(|folder| folder.file_name()));
        // A task of AgentVerse is a folder with a `config.yaml`.
        let stem = Some(part(path.file_stem())).filter(|stem| stem != "config").unwrap_or_else(folder);
        let file = part(path.file_name());
        let title = one_line(&self.title, 200);
        let title = [title, stem.clone(), "Imported".into()]
            .into_iter()
            .find(|title| !title.is_empty())
            .unwrap_or_default();
        let notes = self.notes.lines();
        let mut out =
            comment(&format!("Imported from {file}, a scenario of {engine}, by `greenroom import`."));
        if !notes.is_empty() {
            out.push_str("#\n");
            out.push_str(&comment("Left out or different here:"));
        }
        notes.iter().for_each(|note| out.push_str(&item(note)));
        let top = IndexMap::from([("id", id(&title, &stem)), ("title", literal(&title))]);
        out.push_str(&format!("\n{}", to_yaml(&top)?));
        if !self.variables.is_empty() {
            out.push_str("\nvariables:\n");
            out.push_str(&nested(&to_yaml(&self.variables)?));
        }
        out.push_str("\nagents:\n");
        let literal_name =
            |agent: &DraftAgent| DraftAgent { display_name: literal(&agent.display_name), ..agent.clone() };
        let agents = self
            .agents
            .iter()
            .map(|agent| Ok(nested(&to_yaml(&IndexMap::from([(&agent.key, literal_name(agent))]))?)));
        out.push_str(&agents.collect::<Result<Vec<_>, Refused>>()?.join("\n"));
        out.push_str("\nphases:\n");
        let literal_label =
            |phase: &DraftPhase| DraftPhase { label: phase.label.as_deref().map(literal), ..phase.clone() };
        let phases = self.phases.iter().map(|phase| Ok(nested(&to_yaml(&[literal_label(phase)])?)));
        out.push_str(&phases.collect::<Result<Vec<_>, Refused>>()?.join("\n"));
        Ok((out, notes))
    }
}

/// A template that renders to a text unchanged.
fn literal(text: &str) -> String {
    template(&[TextPart::Plain(text.to_string())])
}

fn to_yaml<T: Serialize>(value: &T) -> Result<String, Refused> {
    serde_saphyr::to_string(value).map_err(|error| Refused(format!("can't be written as YAML: {error}")))
}

/// YAML two columns to the right; a block's indentation is relative to its parent's, so it means the same
/// there.
fn nested(yaml: &str) -> String {
    yaml.lines().map(|line| if line.is_empty() { "\n".to_string() } else { format!("  {line}\n") }).collect()
}

/// A name for folders: letters, digits and `-`.
fn id(title: &str, stem: &str) -> String {
    let slug = |text: &str| {
        let text: String = text
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        let text = text.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
        text.chars().take(60).collect::<String>().trim_end_matches('-').to_string()
    };
    let candidates = [slug(title), slug(stem), "imported".to_string()];
    candidates.into_iter().find(|id| !id.is_empty()).unwrap_or_default()
}

fn comment(text: &str) -> String {
    wrapped(text, "# ", "# ")
}

fn item(text: &str) -> String {
    wrapped(text, "# - ", "#   ")
}

fn wrapped(text: &str, first: &str, later: &str) -> String {
    let options =
        textwrap::Options::new(WIDTH).initial_indent(first).subsequent_indent(later).break_words(false);
    let options = options.word_separator(textwrap::WordSeparator::AsciiSpace);
    let options = options.word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).iter().map(|line| format!("{}\n", line.trim_end())).collect()
}
