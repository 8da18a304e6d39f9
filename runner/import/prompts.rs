//! AgentVerse's prompt templates as system texts: its placeholders are filled once and for all, or left out.

use super::Unknown;
use super::draft::{ImportNotes, TASK};
use super::text::{Fill, Syntax, TextPart, fill, template, tidy};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with a `name`")]
pub(super) struct ImportedMember {
    pub(super) agent_type: Option<String>,
    pub(super) name: String,
    pub(super) role_description: Option<PromptText>,
    pub(super) prepend_prompt_template: Option<PromptText>,
    pub(super) prefix_prompt: Option<PromptText>,
    pub(super) prompt_template: Option<PromptText>,
    pub(super) format_prompt: Option<PromptText>,
    pub(super) append_prompt_template: Option<PromptText>,
    pub(super) suffix_prompt: Option<PromptText>,
    pub(super) llm: Option<Value>,
    pub(super) memory: Option<Value>,
    pub(super) output_parser: Option<Value>,
    pub(super) tools: Option<Value>,
}

/// A prompt, or several that an agent uses one after the other.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(super) enum PromptText {
    One(String),
    Several(Vec<String>),
}

impl PromptText {
    fn parts(&self) -> &[String] {
        match self {
            // Python's word for nothing is a text in YAML.
            Self::One(text) if text == "None" => &[],
            Self::One(text) => std::slice::from_ref(text),
            Self::Several(texts) => texts,
        }
    }
}

pub(super) fn parts(text: &Option<PromptText>) -> &[String] {
    text.as_ref().map(PromptText::parts).unwrap_or_default()
}

/// Placeholders that AgentVerse refills at each turn: what an agent remembers or hears anyway.
const REMEMBERED: &[&str] =
    &["chat_history", "memory", "env_description", "receiver_name", "previous_sentence"];
/// Placeholders that tools fill.
const OF_TOOLS: &[&str] =
    &["tools", "tool_names", "tool_descriptions", "tool_observation", "agent_scratchpad"];
/// Placeholders that a step of a pipeline fills from the step before.
const OF_PIPELINES: &[&str] = &[
    "solution",
    "former_solution",
    "preliminary_solution",
    "advice",
    "critic_opinions",
    "cnt_critic_agents",
    "all_roles",
    "all_role_description",
    "result",
    "current_turn",
    "current_time",
];

/// Texts that the templates of all agents ask for.
pub(super) struct Prompts {
    /// Texts that agents have under names of their own, by path: their templates may use them as
    /// placeholders.
    fields: IndexMap<String, String>,
    /// Paths of those that were used.
    pub(super) used: Vec<String>,
    /// True if the task was requested.
    pub(super) task: bool,
}

/// The place of a text, and the syntax of its placeholders.
#[derive(Clone, Copy)]
struct Position<'a> {
    agent: &'a str,
    field: &'a str,
    syntax: Syntax,
}

impl Prompts {
    pub(super) fn new(unknown: &[Unknown]) -> Self {
        let text = |(path, value): &Unknown| Some((path.clone(), value.as_str()?.to_string()));
        let fields =
            unknown.iter().filter(|(path, _)| path.starts_with("agents[")).filter_map(text).collect();
        Self { fields, used: Vec::new(), task: false }
    }

    /// An agent's templates, one after the other as AgentVerse joins them, as one text that stays the same.
    pub(super) fn system(
        &mut self,
        member: &ImportedMember,
        at: usize,
        name: &str,
        notes: &mut ImportNotes,
    ) -> Option<String> {
        let agent = format!("agents[{at}]");
        let role = tidy(&parts(&member.role_description).join("\n\n"));
        let place = Position { agent: &agent, field: "role_description", syntax: Syntax::Dollar };
        let role = self.filled(&role, place, name, None, notes);
        let templates = [
            ("prepend_prompt_template", &member.prepend_prompt_template, Syntax::Dollar),
            ("prefix_prompt", &member.prefix_prompt, Syntax::Braces),
            ("prompt_template", &member.prompt_template, Syntax::Dollar),
            ("format_prompt", &member.format_prompt, Syntax::Braces),
            ("append_prompt_template", &member.append_prompt_template, Syntax::Dollar),
            ("suffix_prompt", &member.suffix_prompt, Syntax::Braces),
        ];
        let names_role =
            |text: &String| text.contains("{role_description}") || text.contains("$role_description");
        let is_placed = templates.iter().any(|(_, text, _)| parts(text).iter().any(names_role));
        let mut found: Vec<Vec<TextPart>> = Vec::new();
        for (field, text, syntax) in templates {
            if parts(text).len() > 1 {
                notes.add(
                    format!("{agent}.{field}"),
                    "several prompts for several steps are joined into one text",
                );
            }
            let place = Position { agent: &agent, field, syntax };
            for text in parts(text) {
                found.push(self.filled(&tidy(text), place, name, Some(&role), notes));
            }
        }
        if !is_placed {
            // The older templates are around the role, the newer ones have a place for it.
            let at = usize::from(member.prefix_prompt.is_some());
            found.insert(at.min(found.len()), role);
        }
        let found: Vec<Vec<TextPart>> = found.into_iter().filter(|part| !is_empty(part)).collect();
        let text = template(&found.join(&[TextPart::Plain("\n\n".into())][..]));
        (!text.is_empty()).then_some(text)
    }

    /// A template without AgentVerse's placeholders.
    fn filled(
        &mut self,
        text: &str,
        place: Position<'_>,
        agent: &str,
        role: Option<&Vec<TextPart>>,
        notes: &mut ImportNotes,
    ) -> Vec<TextPart> {
        let path = format!("{}.{}", place.agent, place.field);
        let mut look_up = |name: &str| {
            let own = format!("{}.{name}", place.agent);
            match (name, role) {
                ("agent_name", _) => return Fill::With(vec![TextPart::Plain(agent.to_string())]),
                ("role_description", Some(role)) => return Fill::With(role.clone()),
                ("task_description", _) => {
                    self.task = true;
                    return Fill::With(vec![TextPart::Live(format!("{{{{ {TASK} }}}}"))]);
                }
                _ => {}
            }
            if let Some(text) = self.fields.get(&own) {
                self.used.push(own);
                return Fill::With(vec![TextPart::Plain(tidy(text))]);
            }
            left_out(name, place.syntax, &path, notes)
        };
        let (pieces, gone) = fill(text, place.syntax, &mut look_up);
        for line in gone {
            notes.add(&path, format!("the line \"{line}\" is removed with the text it introduced"));
        }
        if text.to_lowercase().contains("action input") {
            let asks = "asks for a format that AgentVerse parses; here a reply is heard unchanged: delete \
                        this request";
            notes.add(&path, asks);
        }
        pieces
    }
}

/// A placeholder that nothing of ours fills.
fn left_out(name: &str, syntax: Syntax, path: &str, notes: &mut ImportNotes) -> Fill {
    let why = match name {
        name if REMEMBERED.contains(&name) => "an agent remembers what it read and said",
        name if OF_TOOLS.contains(&name) => "tools are not imported",
        name if OF_PIPELINES.contains(&name) => "no pipeline fills it; agents hear what others say",
        _ if syntax == Syntax::Braces => return Fill::Stays,
        _ => {
            notes.add(path, format!("`${{{name}}}` is kept as it is: nothing fills it"));
            return Fill::Stays;
        }
    };
    let dollar = if syntax == Syntax::Dollar { "$" } else { "" };
    notes.add(path, format!("`{dollar}{{{name}}}` is left out: {why}"));
    Fill::Out
}

fn is_empty(pieces: &[TextPart]) -> bool {
    pieces.iter().all(|piece| matches!(piece, TextPart::Plain(text) if text.trim().is_empty()))
}
