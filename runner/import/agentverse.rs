//! AgentVerse: agents with prompt templates, and an environment whose rules are names of Python classes.
//!
//! Order and visibility have counterparts where they are plain; a task-solving pipeline becomes a talk of its
//! agents.

use super::draft::{DraftAgent, DraftPhase, ImportNotes, ScenarioDraft, TALK, TASK, cast};
use super::prompts::{ImportedMember, Prompts, parts};
use super::text::tidy;
use super::{Refused, limit, rounds, typed, value_text};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with `agents` and `environment`")]
struct Task {
    name: Option<String>,
    task_description: Option<String>,
    prompts: Option<IndexMap<String, Value>>,
    environment: AgentVerseEnvironment,
    agents: Vec<ImportedMember>,
    tools: Option<Value>,
    max_turn: Option<u64>,
    max_rounds: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with, for example, `max_turns` and `rule`")]
struct AgentVerseEnvironment {
    env_type: Option<String>,
    max_turns: Option<u64>,
    max_turn: Option<u64>,
    max_rounds: Option<u64>,
    rule: Option<AgentVerseRule>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with, for example, `order` and `visibility`")]
struct AgentVerseRule {
    order: Option<Value>,
    visibility: Option<Value>,
    selector: Option<Value>,
    updater: Option<Value>,
    describer: Option<Value>,
}

pub(super) fn draft(value: &Value) -> Result<ScenarioDraft, Refused> {
    let (task, unknown): (Task, _) = typed(value)?;
    if task.agents.is_empty() {
        return Err(Refused("agents: the list is empty; expected at least one agent with a `name`".into()));
    }
    let mut notes = ImportNotes::default();
    let names = task.agents.iter().enumerate();
    let names: Vec<_> = names.map(|(at, agent)| (format!("agents[{at}].name"), agent.name.clone())).collect();
    let mut agents = cast(&names, &mut notes)?;
    let mut prompts = Prompts::new(&unknown);
    for (at, (member, agent)) in task.agents.iter().zip(&mut agents).enumerate() {
        agent.system_prompt = prompts.system(member, at, &agent.display_name, &mut notes);
        let path = format!("agents[{at}]");
        if let Some(settings) = member.llm.as_ref().filter(|settings| !is_nothing(settings)) {
            agent.sampled_by(settings, &format!("{path}.llm"), MODEL, &mut notes);
        }
        about_an_agent(member, &path, &mut notes);
    }
    let mut phases = vec![phase(&task, &agents, &mut notes)];
    about_the_rest(&task, &mut notes);
    for (path, value) in unknown.iter().filter(|(path, _)| !prompts.used.contains(path)) {
        notes.add(path, format!("{} has no counterpart", value_text(value)));
    }
    let mut variables = IndexMap::new();
    if prompts.task || task.task_description.is_some() {
        if task.task_description.is_none() {
            let text = format!("this variable has no value: set it with `greenroom run --set {TASK}=…`");
            notes.add("`${task_description}`", text);
        }
        let text = task.task_description.as_deref().map(tidy);
        variables.insert(TASK.to_string(), text.unwrap_or_else(|| "(the task)".into()));
        if !prompts.task {
            phases[0].prompt = Some(format!("{{{{ {TASK} }}}}"));
        }
    }
    Ok(ScenarioDraft { title: task.name.unwrap_or_default(), variables, agents, phases, notes })
}

/// What becomes of the rest of a model's settings.
const MODEL: &str = ": choose the model with `greenroom run --model`, for all agents alike";

fn about_an_agent(member: &ImportedMember, path: &str, notes: &mut ImportNotes) {
    let mut note = |field: &str, value: &Option<Value>, why: &str| {
        if let Some(value) = value.as_ref().filter(|value| !is_nothing(value)) {
            notes.add(format!("{path}.{field}"), format!("{}{why}", value_text(value)));
        }
    };
    note("memory", &member.memory, ": an agent remembers everything it read and said");
    note("output_parser", &member.output_parser, ": a reply is heard unchanged");
    note("tools", &member.tools, ": tools are not imported");
    if let Some(kind) = member.agent_type.as_deref().filter(|kind| !matches!(*kind, "conversation" | "chat"))
    {
        let text = format!(
            "{} is code in AgentVerse; here the agent speaks like any other",
            value_text(&kind.into())
        );
        notes.add(format!("{path}.agent_type"), text);
    }
}

/// Null, or an empty list.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn kind(value: Option<&Value>) -> Option<&str> {
    value.and_then(|value| value.get("type").unwrap_or(value).as_str())
}

fn phase(task: &Task, agents: &[DraftAgent], notes: &mut ImportNotes) -> DraftPhase {
    let environment = &task.environment;
    let limits = [
        ("environment.max_turns", environment.max_turns),
        ("environment.max_turn", environment.max_turn),
        ("environment.max_rounds", environment.max_rounds),
        ("max_turn", task.max_turn),
        ("max_rounds", task.max_rounds),
    ];
    let (path, limit) = limit(&limits, notes);
    let order = environment.rule.as_ref().and_then(|rule| kind(rule.order.as_ref()));
    let (order, is_one_by_one) = speakers(order, notes);
    // Where one agent speaks at a time AgentVerse counts its turns, otherwise rounds.
    let n_agents = agents.len() as u64;
    let wanted = limit.map(|limit| if is_one_by_one { limit.div_ceil(n_agents) } else { limit });
    let n_rounds = rounds(wanted, agents.len(), path, notes);
    let max_turns = limit.filter(|_| is_one_by_one && wanted == Some(n_rounds));
    DraftPhase {
        name: TALK.to_string(),
        agents: agents.iter().map(|agent| agent.key.clone()).collect(),
        order: Some(order).filter(|order| *order != "moderated"),
        // The professor comes first: AgentVerse's order refers to it by index.
        moderator: (order == "moderated").then(|| agents[0].key.clone()),
        rounds: if max_turns.is_some() { None } else { Some(n_rounds) },
        max_turns,
        ..DraftPhase::default()
    }
}

/// Our order for one of theirs, and whether one agent speaks at a time.
fn speakers(order: Option<&str>, notes: &mut ImportNotes) -> (&'static str, bool) {
    const IN_TURN: &str = "here the agents speak in the order of the file";
    let place = "environment.rule.order";
    match order {
        Some("sequential") => ("round_robin", true),
        Some("concurrent") => ("broadcast", false),
        Some("classroom") => {
            notes.add(
                place,
                "the professor picks the speaker, as here; raised hands and groups have no counterpart",
            );
            ("moderated", true)
        }
        Some("random") => {
            notes.add(place, format!("`random`: {IN_TURN}"));
            ("round_robin", true)
        }
        Some(other) => {
            notes.add(place, format!("{} is code in AgentVerse; {IN_TURN}", value_text(&other.into())));
            ("round_robin", true)
        }
        None => {
            notes.add("environment", format!("is a pipeline of steps without an order; {IN_TURN}"));
            ("round_robin", false)
        }
    }
}

fn about_the_rest(task: &Task, notes: &mut ImportNotes) {
    let environment = &task.environment;
    if let Some(kind) =
        environment.env_type.as_deref().filter(|kind| !matches!(*kind, "basic" | "base" | "sim-basic"))
    {
        let text = format!(
            "what {} does apart from letting agents speak is code in AgentVerse",
            value_text(&kind.into())
        );
        notes.add("environment.env_type", text);
    }
    if let Some(rule) = &environment.rule {
        let rules = [
            ("order", &rule.order, "sequential"),
            ("visibility", &rule.visibility, "all"),
            ("selector", &rule.selector, "basic"),
            ("updater", &rule.updater, "basic"),
            ("describer", &rule.describer, "basic"),
        ];
        for (field, value, plain) in rules {
            let Some(value) = value else { continue };
            let name = kind(Some(value)).unwrap_or_default();
            let is_plain = name == plain || (plain == "basic" && name == "base") || field == "order";
            let has_more = value.as_object().is_some_and(|map| map.len() > 1);
            let what =
                if field == "visibility" { "here everybody hears everybody" } else { "has no counterpart" };
            if !is_plain || has_more {
                notes.add(format!("environment.rule.{field}"), format!("{}: {what}", value_text(value)));
            }
        }
    }
    if let Some(tools) = task.tools.as_ref().filter(|tools| !is_nothing(tools)) {
        notes.add("tools", format!("{}: tools are not imported", value_text(tools)));
    }
    for (name, prompt) in task.prompts.iter().flatten() {
        if !is_used(prompt, task) {
            notes.add(format!("prompts.{name}"), format!("no agent uses it: {}", value_text(prompt)));
        }
    }
}

/// Returns whether an anchored prompt is in an agent (an alias is the same text).
fn is_used(prompt: &Value, task: &Task) -> bool {
    let Some(prompt) = prompt.as_str() else { return false };
    let of = |agent: &ImportedMember| {
        let texts = [
            &agent.role_description,
            &agent.prepend_prompt_template,
            &agent.prefix_prompt,
            &agent.prompt_template,
            &agent.format_prompt,
            &agent.append_prompt_template,
            &agent.suffix_prompt,
        ];
        texts.into_iter().flat_map(parts).any(|text| text == prompt)
    };
    prompt.is_empty() || task.agents.iter().any(of)
}
