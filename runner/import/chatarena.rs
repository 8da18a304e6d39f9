//! ChatArena: players who speak in turn or all at once, and a moderator who speaks after them.
//!
//! Its moderator does not choose who speaks: it comments each round, and is asked whether the talk is over.
//! Where it must not be heard by all, or the players answer at once, each round becomes two phases, and texts
//! quote what is seen.

use super::draft::{DraftAgent, DraftPhase, ImportNotes, ScenarioDraft, TALK, cast};
use super::text::{TextPart, template, tidy};
use super::{Refused, limit, rounds, typed, value_text};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of rounds that are written out as phases of their own.
const MAX_WRITTEN_ROUNDS: u64 = 20;

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with `players` and `environment`")]
struct Arena {
    name: Option<String>,
    global_prompt: Option<String>,
    players: Vec<ChatArenaPlayer>,
    environment: ChatArenaEnvironment,
    max_turns: Option<u64>,
    max_steps: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with `name` and `role_desc`")]
struct ChatArenaPlayer {
    name: Option<String>,
    role_desc: String,
    global_prompt: Option<String>,
    backend: Option<Value>,
    terminal_condition: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a mapping with `env_type`")]
struct ChatArenaEnvironment {
    env_type: String,
    parallel: Option<bool>,
    moderator: Option<ChatArenaPlayer>,
    moderator_visibility: Option<Visibility>,
    moderator_period: Option<String>,
    player_names: Option<Vec<String>>,
    max_turns: Option<u64>,
    max_steps: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a name or a list of names")]
enum Visibility {
    One(String),
    Some(Vec<String>),
}

pub(super) fn draft(value: &Value) -> Result<ScenarioDraft, Refused> {
    let (arena, unknown): (Arena, _) = typed(value)?;
    if arena.players.is_empty() {
        return Err(Refused(
            "players: the list is empty; expected at least one player with `name` and `role_desc`".into(),
        ));
    }
    let mut notes = ImportNotes::default();
    let moderator = arena.environment.moderator.as_ref();
    let agents = agents(&arena, moderator, &mut notes)?;
    about_the_environment(&arena, &mut notes);
    let phases = phases(&arena, &agents, &mut notes);
    for (path, value) in unknown {
        notes.add(path, format!("{} has no counterpart", value_text(&value)));
    }
    let title = arena.name.unwrap_or_default();
    Ok(ScenarioDraft { title, agents, phases, notes, ..ScenarioDraft::default() })
}

/// The players, and the moderator as the last of them.
fn agents(
    arena: &Arena,
    moderator: Option<&ChatArenaPlayer>,
    notes: &mut ImportNotes,
) -> Result<Vec<DraftAgent>, Refused> {
    let mut names = Vec::new();
    for (at, player) in arena.players.iter().enumerate() {
        let path = format!("players[{at}].name");
        match &player.name {
            Some(name) => names.push((path, name.clone())),
            None => return Err(Refused(format!("players[{at}]: there is no `name`; expected a string"))),
        }
    }
    if let Some(moderator) = moderator {
        let name = moderator.name.clone().unwrap_or_else(|| "Moderator".into());
        names.push(("environment.moderator.name".into(), name));
    }
    let mut agents = cast(&names, notes)?;
    for (at, player) in arena.players.iter().enumerate() {
        let path = format!("players[{at}]");
        if let (Some(own), Some(all)) = (&player.global_prompt, &arena.global_prompt)
            && tidy(own) != tidy(all)
        {
            let path = format!("{path}.global_prompt");
            notes.add(
                path,
                format!("the arena's global prompt replaces it, as in ChatArena: {}", quoted(own)),
            );
        }
        let global = arena.global_prompt.as_ref().or(player.global_prompt.as_ref());
        agents[at].system_prompt = Some(system(global, &agents[at].display_name, &player.role_desc));
        about_a_player(player, &path, &mut agents[at], notes);
    }
    if let Some(moderator) = moderator {
        let agent = &mut agents[arena.players.len()];
        let name = agent.display_name.clone();
        agent.system_prompt = Some(system(moderator.global_prompt.as_ref(), &name, &moderator.role_desc));
        about_a_player(moderator, "environment.moderator", agent, notes);
    }
    Ok(agents)
}

/// The text that ChatArena prepends to every request: the rules, the name, the role.
fn system(global: Option<&String>, name: &str, role: &str) -> String {
    let (global, role) = (global.map(|text| tidy(text)).unwrap_or_default(), tidy(role));
    let name = if global.is_empty() { format!("You are {name}.") } else { format!("Your name: {name}") };
    let role = if role.is_empty() { role } else { format!("Your role: {role}") };
    let parts: Vec<String> = [global, name, role].into_iter().filter(|part| !part.is_empty()).collect();
    template(&[TextPart::Plain(parts.join("\n\n"))])
}

fn quoted(text: &str) -> String {
    value_text(&Value::String(text.to_string()))
}

fn about_a_player(player: &ChatArenaPlayer, path: &str, agent: &mut DraftAgent, notes: &mut ImportNotes) {
    if let Some(backend) = &player.backend {
        let is_human = backend.get("backend_type").and_then(Value::as_str) == Some("human");
        let who = if is_human {
            ": a human plays it in ChatArena, the model here"
        } else {
            ": choose the model with `greenroom run --model`, for all agents alike"
        };
        agent.sampled_by(backend, &format!("{path}.backend"), who, notes);
    }
    if let Some(condition) = &player.terminal_condition {
        let text = format!("{} is not evaluated: the number of rounds is fixed", quoted(condition));
        notes.add(format!("{path}.terminal_condition"), text);
    }
    for (field, text) in
        [("role_desc", Some(&player.role_desc)), ("global_prompt", player.global_prompt.as_ref())]
    {
        if text.is_some_and(|text| text.contains("<EOS>")) {
            notes.add(
                format!("{path}.{field}"),
                "asks for `<EOS>`, which is not removed from replies here: delete this request",
            );
        }
    }
}

fn about_the_environment(arena: &Arena, notes: &mut ImportNotes) {
    let environment = &arena.environment;
    let path = "environment.env_type";
    match (environment.env_type.as_str(), &environment.moderator) {
        ("conversation", None) | ("moderated_conversation" | "moderator_conversation", Some(_)) => {}
        ("moderated_conversation" | "moderator_conversation", None) => {
            notes.add(path, "the file has no moderator, so the players talk without one");
        }
        ("conversation", Some(_)) => {
            notes.add(path, "ChatArena ignores the moderator of a plain conversation; here it takes part")
        }
        (other, _) => {
            let text =
                format!("the rules of {} are code in ChatArena; here the players only talk", quoted(other));
            notes.add(path, text);
        }
    }
    if arena.global_prompt.as_ref().is_some_and(|text| text.contains("<EOS>")) {
        notes.add(
            "global_prompt",
            "asks for `<EOS>`, which is not removed from replies here: delete this request",
        );
    }
    let own = arena.players.iter().map(|player| player.name.as_ref());
    if let Some(names) = &environment.player_names
        && !own.eq(names.iter().map(Some))
    {
        let text = format!("ChatArena uses the names of `players` instead: `{}`", names.join(", "));
        notes.add("environment.player_names", text);
    }
}

/// One phase if a round is what a phase of ours can be; otherwise two for each round.
fn phases(arena: &Arena, agents: &[DraftAgent], notes: &mut ImportNotes) -> Vec<DraftPhase> {
    let environment = &arena.environment;
    let n_players = arena.players.len();
    let is_parallel = environment.parallel.unwrap_or(false);
    let order = if is_parallel { "broadcast" } else { "round_robin" };
    let keys: Vec<String> = agents.iter().map(|agent| agent.key.clone()).collect();
    let limits = [
        ("environment.max_turns", environment.max_turns),
        ("environment.max_steps", environment.max_steps),
        ("max_turns", arena.max_turns),
        ("max_steps", arena.max_steps),
    ];
    let (path, steps) = limit(&limits, notes);
    // A step is one player's turn.
    let n_rounds = steps.map(|steps| steps.div_ceil(n_players as u64));
    let mut n_rounds = rounds(n_rounds, agents.len(), path, notes);
    let Some(moderator) = agents.get(n_players) else {
        let label = None;
        let max_turns = steps.filter(|steps| !is_parallel && steps.div_ceil(n_players as u64) == n_rounds);
        let rounds_there = if max_turns.is_some() { None } else { Some(n_rounds) };
        let name = TALK.to_string();
        return vec![DraftPhase {
            name,
            label,
            agents: keys,
            order: Some(order),
            rounds: rounds_there,
            max_turns,
            ..DraftPhase::default()
        }];
    };
    if environment.moderator_period.as_deref() != Some("round") && n_players > 1 {
        let text =
            "in ChatArena the moderator speaks after every turn, here once per round, after the players";
        notes.add("environment.moderator_period", text);
    }
    let audience = audience(arena, agents, notes);
    if !is_parallel && audience.len() == n_players {
        let name = TALK.to_string();
        return vec![DraftPhase {
            name,
            agents: keys,
            order: Some(order),
            rounds: Some(n_rounds),
            ..DraftPhase::default()
        }];
    }
    if n_rounds > MAX_WRITTEN_ROUNDS {
        notes.add(
            path,
            format!(
                "{n_rounds} rounds would need {} phases; set to {MAX_WRITTEN_ROUNDS} rounds",
                2 * n_rounds
            ),
        );
        n_rounds = MAX_WRITTEN_ROUNDS;
    }
    let players = &keys[..n_players];
    (1..=n_rounds).flat_map(|round| written_out(round, players, order, moderator, &audience)).collect()
}

/// A round as two phases: the players, then the moderator, who reads what they said.
fn written_out(
    round: u64,
    players: &[String],
    order: &'static str,
    moderator: &DraftAgent,
    audience: &[String],
) -> [DraftPhase; 2] {
    let before = round.checked_sub(1).filter(|before| *before > 0);
    let verdict = before.map(|before| format!("{{{{ round_{before}_moderator.messages[me] }}}}"));
    let is_for_all = audience.len() == players.len();
    let each = verdict.iter().filter(|_| !is_for_all);
    let each: IndexMap<String, String> =
        each.flat_map(|verdict| audience.iter().map(|key| (key.clone(), verdict.clone()))).collect();
    let talk = DraftPhase {
        name: format!("round_{round}"),
        label: Some(format!("Round {round}")),
        agents: players.to_vec(),
        order: Some(order),
        prompt: verdict.filter(|_| is_for_all),
        say: each,
        ..DraftPhase::default()
    };
    let comment = DraftPhase {
        name: format!("round_{round}_moderator"),
        label: Some(format!("Round {round}: {}", moderator.display_name)),
        agents: vec![moderator.key.clone()],
        order: Some("round_robin"),
        prompt: Some(format!("{{{{ round_{round}.messages[me] }}}}")),
        ..DraftPhase::default()
    };
    [talk, comment]
}

/// Keys of the players who hear the moderator.
fn audience(arena: &Arena, agents: &[DraftAgent], notes: &mut ImportNotes) -> Vec<String> {
    let n_players = arena.players.len();
    let everybody = || agents[..n_players].iter().map(|agent| agent.key.clone()).collect();
    let named = match &arena.environment.moderator_visibility {
        None => return everybody(),
        Some(Visibility::One(name)) if name == "all" => return everybody(),
        Some(Visibility::One(name)) => std::slice::from_ref(name),
        Some(Visibility::Some(names)) => names,
    };
    let moderator =
        arena.environment.moderator.as_ref().and_then(|player| player.name.as_deref()).unwrap_or("Moderator");
    let mut keys = Vec::new();
    for name in named {
        match arena.players.iter().position(|player| player.name.as_ref() == Some(name)) {
            Some(at) => keys.push(agents[at].key.clone()),
            None if name == moderator => {}
            None => {
                notes.add("environment.moderator_visibility", format!("there is no player {}", quoted(name)))
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}
