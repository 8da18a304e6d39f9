//! `greenroom explain`: what an agent had read at a turn, where each part came from, and which part was in
//! its cache.

mod prompt;

use super::{Exit, Whereabouts, casting};
use crate::backend::MatchKind;
use crate::diagnostic::{printable, unknown};
use crate::prompt::{Conversation, by_score};
use crate::replay::{asked_at, brought_along, load_scenario, other_scenario, transcript_file};
use crate::scenario::{Agent, Scenario, copied};
use crate::terminal::{is_fancy, table};
use crate::timeline::{Event, StageKind, Timeline};
use crate::tools::{ToolOffer, Toolbox};
use crate::trace::{self, Trace, TurnTrace};
use crate::transcript::{ChoiceRecord, Odds, Transcript, TurnRecord};
use anyhow::{Context as _, bail, ensure};
use console::Style;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Show what an agent had read at a turn, where each part came from, and what was reused
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom explain runs/gossip-1 --agent alice --turn 4\n\
         greenroom explain runs/gossip-1 --agent alice --prompt")]
pub(super) struct Args {
    /// The run: its folder or transcript
    run: PathBuf,
    /// Key of the agent [default: lists the agents of the run]
    #[arg(long, value_name = "KEY")]
    agent: Option<String>,
    /// The turn: a number from 1, or its path, e.g. yard/1/marco [default: the last]
    #[arg(long, value_name = "N|PATH", requires = "agent")]
    turn: Option<String>,
    /// Print the whole prompt instead, exactly as the model's chat template renders it
    #[arg(long, requires = "agent")]
    prompt: bool,
    /// The model whose chat template is used, as in `run` [default: the run's, if it is found]
    #[arg(long = "model", value_name = "[NAME=]MODEL", value_parser = casting::parse)]
    models: Vec<casting::ModelArg>,
    #[command(flatten)]
    near: Whereabouts,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let file = transcript_file(&args.run);
    let transcript = Transcript::open(&file)?;
    let search = args.near.clone().into();
    let loaded = load_scenario(&file, &transcript.header.record, &search)?;
    if let Some(note) = other_scenario(&file, &transcript.header.record, &search) {
        eprintln!("note: {}", printable(&note));
    }
    let Some(scenario) = loaded.scenario else {
        eprint!("{}", loaded.report.render(is_fancy()));
        return Ok(Exit::Invalid);
    };
    let turns = transcript.turns.iter().map(|turn| &turn.record).filter(|turn| !turn.is_aside());
    let Some(key) = &args.agent else {
        list(&scenario, &turns.collect::<Vec<_>>());
        return Ok(Exit::Pass);
    };
    let turns: Vec<&TurnRecord> = turns.filter(|turn| turn.agent == *key).collect();
    let turn = select_turns(key, args.turn.as_deref(), &scenario, &turns)?;
    let brought = brought_along(&file, &transcript.header.record, args.near.bounds.root.as_deref())?;
    let (timeline, conversation) = asked_at(&scenario, &transcript, brought, &turn.path)?;
    let toolbox = Toolbox::recorded(&scenario, &transcript.header.record.tools);
    let agent = scenario.agent_by_key(key).map(|id| scenario.agent(id));
    let offer = agent.and_then(|agent| toolbox.offer(&scenario, agent));
    let read = Read { timeline, conversation, offer };
    if args.prompt {
        let is_model = agent.is_none_or(|agent| agent.strategy.is_none());
        ensure!(is_model, "`{key}` is played by a strategy, so no model has read a prompt");
        let prompter = prompt::prompter(&args.models, &scenario, &args.run, turn)?;
        let other = prompt::other_model(&prompter, &transcript.header.record, turn);
        if let Some(note) = &other {
            eprintln!("note: {}", printable(note));
        }
        let text = prompt::rendered(&prompter, read.conversation, read.offer.as_deref(), other.is_some())?;
        println!("{}", printable(&text));
        return Ok(Exit::Pass);
    }
    explain(&args, key, &file, &transcript, &scenario, turn, &read)?;
    Ok(Exit::Pass)
}

/// What an agent had read at a turn.
struct Read {
    timeline: Timeline,
    conversation: Conversation,
    offer: Option<Arc<ToolOffer>>,
}

/// Lists the agents of a run.
fn list(scenario: &Scenario, turns: &[&TurnRecord]) {
    let row = |agent: &Agent| {
        let own: Vec<&&TurnRecord> = turns.iter().filter(|turn| turn.agent == agent.key).collect();
        let last = own.last().map_or("-", |turn| turn.path.as_str());
        let n = if own.is_empty() { "-".to_string() } else { format!("1 to {}", own.len()) };
        vec![agent.key.clone(), agent.name.clone(), n, last.to_string()]
    };
    let rows = scenario.agents.iter().map(row).collect();
    println!("{}", table(&["agent", "name", "turns", "last turn"], rows, 4));
    println!("\n--agent KEY shows what an agent had read at its last turn, --turn N at another one");
}

/// Shows what an agent had read at a turn, and its reply.
fn explain(
    args: &Args,
    key: &str,
    file: &Path,
    transcript: &Transcript,
    scenario: &Scenario,
    turn: &TurnRecord,
    read: &Read,
) -> anyhow::Result<()> {
    let copy = file.parent().and_then(copied).map(|copy| copy.root);
    let trace = Trace::turns_of(&file.with_file_name(trace::FILE));
    let cost = trace.as_ref().and_then(|turns| turns.get(&turn.path));
    let events = read.timeline.events();
    let new = events.iter().rposition(Event::is_said).map_or(0, |at| at + 1);
    println!("What {} had read at {}\n", printable(scenario.name_of(key)), printable(&turn.path));
    let begin = usize::from(matches!(events.first(), Some(Event::System(_))));
    for (at, event) in events.iter().enumerate() {
        if at == begin {
            tools(args, scenario, transcript, turn, read)?;
        }
        if at == new {
            println!("{}\n", rule(&border(cost, new > 0)));
        }
        show(scenario, copy.as_deref(), key, event);
    }
    println!("{}\n", rule("the reply"));
    println!("  {}", printable(&turn.spoken).replace('\n', "\n  "));
    let phase = turn.path.split('/').next().unwrap_or_default();
    if let Some(route) = transcript.routes().find(|route| route.path == phase) {
        println!("    {}", printable(&route.told(|key| scenario.name_of(key))));
        for (key, score) in by_score(&route.scores) {
            println!("    score {score:.4} {}", printable(key));
        }
    }
    if !turn.hints.is_empty() {
        println!("    settings of this turn: {}", printable(&turn.hints.words()));
    }
    if turn.hints.model.is_some() {
        println!("    played by {}", printable(&transcript.header.record.model_of(turn).name));
    }
    if let Some(choice) = &turn.constraint {
        let at = transcript.turns.iter().position(|line| line.record.path == turn.path).unwrap_or_default();
        options(choice, transcript.header.record.sampling_of(turn, at).temperature);
    }
    Ok(())
}

/// Shows what an agent had read of its tools: as the template writes it, or without one what it is made of.
fn tools(
    args: &Args,
    scenario: &Scenario,
    transcript: &Transcript,
    turn: &TurnRecord,
    read: &Read,
) -> anyhow::Result<()> {
    let Some(offer) = read.offer.as_deref() else { return Ok(()) };
    let (what, text) = match prompt::prompter(&args.models, scenario, &args.run, turn) {
        Ok(prompter) => {
            let other = prompt::other_model(&prompter, &transcript.header.record, turn);
            let by = other.unwrap_or_else(|| "as the chat template writes them".to_string());
            (by, prompt::tools(&prompter, &read.conversation, offer)?)
        }
        Err(error) if !args.models.is_empty() => return Err(error),
        Err(_) => {
            let unknown = "the model is not found, so its chat template is unknown; --model says where it is";
            (unknown.to_string(), prompt::listed(offer))
        }
    };
    println!("  {}", head("tools", &printable(&what)));
    println!("    {}\n", printable(text.trim()).replace('\n', "\n    "));
    Ok(())
}

/// The options of a choice, with the probabilities of being drawn and of being said.
fn options(choice: &ChoiceRecord, temperature: f32) {
    let odds = choice.odds(temperature);
    for (at, option) in choice.options.iter().enumerate() {
        let share = odds.as_ref().map_or(String::new(), |odds| format!(" {:.0} %,", 100.0 * odds.shares[at]));
        let logprob =
            option.logprob.map_or(String::new(), |logprob| format!("{share} log-probability {logprob:.3}"));
        println!("    option \"{}\"{logprob}", printable(&option.text));
    }
    if let Some(odds) = odds {
        let hint =
            if odds.is_low() { ": the model would almost always have said something else" } else { "" };
        println!("    mass of all options {}{hint}", Odds::in_percent(odds.mass));
    }
}

fn select_turns<'a>(
    key: &str,
    given: Option<&str>,
    scenario: &Scenario,
    turns: &[&'a TurnRecord],
) -> anyhow::Result<&'a TurnRecord> {
    let Some(last) = turns.last() else {
        let keys: Vec<&str> = scenario.agents.iter().map(|agent| agent.key.as_str()).collect();
        let message = format!("the recording has no turns of an agent `{key}`");
        bail!(unknown(&message, key, keys.iter().copied()));
    };
    let Some(given) = given else { return Ok(last) };
    let found = match given.parse::<usize>() {
        Ok(n) => n.checked_sub(1).and_then(|at| turns.get(at)),
        Err(_) => turns.iter().find(|turn| turn.path == given),
    };
    let n = turns.len();
    found.copied().with_context(|| {
        format!(
            "`{key}` has no turn {given} in the recording; its turns are 1 to {n}, the last is {}",
            last.path
        )
    })
}

/// Describes what the cache held.
fn border(cost: Option<&TurnTrace>, has_past: bool) -> String {
    let Some(TurnTrace { kind: Some(kind), tokens, adopted, .. }) = cost else {
        return if has_past { "new at this turn".into() } else { "its first turn".into() };
    };
    let computed = tokens.prefilled.saturating_add(tokens.recomputed);
    match kind {
        MatchKind::Cold => format!("new at this turn; all {computed} tokens were computed (cold)"),
        kind => format!(
            "new at this turn; {} tokens above were in the cache ({}{}), {computed} were computed",
            tokens.reused,
            kind.word(),
            adopted.as_ref().map_or(String::new(), |from| format!(", adopted from {}", printable(from)))
        ),
    }
}

fn rule(text: &str) -> String {
    if is_fancy() {
        Style::new().bold().apply_to(format!("── {text} ──")).to_string()
    } else {
        format!("-- {text} --")
    }
}

/// Shows an event; `copy`: the folder of the run's own copy of its scenario.
fn show(scenario: &Scenario, copy: Option<&Path>, agent: &str, event: &Event) {
    let (what, origin, text) = match event {
        Event::System(text) => {
            let agent = scenario.agent_by_key(agent).map(|agent| scenario.agent(agent));
            let place = agent.map_or_else(String::new, |agent| agent.system_path.to_string());
            ("system", place, text)
        }
        Event::Stage { kind: StageKind::Added, text, origin, .. } => {
            println!(
                "  {}",
                head(word(StageKind::Added), &format!("by the fork, before {}", printable(origin)))
            );
            return println!("    {}\n", printable(text).replace('\n', "\n    "));
        }
        Event::Stage { kind, text, origin, .. } => (word(*kind), origin.clone(), text),
        Event::Heard { from, text, origin, .. } => {
            println!("  {}", head("heard", origin));
            return println!("    {from}: {}\n", printable(text));
        }
        Event::Said { raw, origin, ids, .. } => {
            println!("  {}", head("said", &format!("{origin}, {} tokens", ids.len())));
            return println!("    {}\n", printable(raw).replace('\n', "\n    "));
        }
        Event::Called { raw, result, origin, ids, .. } => {
            println!("  {}", head("called", &format!("{origin}, {} tokens", ids.len())));
            println!("    {}\n", printable(raw).replace('\n', "\n    "));
            println!("  {}", head("result", origin));
            return println!("    {}\n", printable(result).replace('\n', "\n    "));
        }
    };
    println!("  {}", head(what, &place(scenario, copy, &origin)));
    println!("    {}\n", printable(text).replace('\n', "\n    "));
}

fn head(what: &str, origin: &str) -> String {
    if is_fancy() {
        format!("{} {}", Style::new().bold().apply_to(what), Style::new().dim().apply_to(origin))
    } else {
        format!("{what} ({origin})")
    }
}

fn word(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Opening => "opening",
        StageKind::Private => "private opening",
        StageKind::Format => "format",
        StageKind::Vote => "vote",
        StageKind::Announcement => "announcement",
        StageKind::Added => "added line",
        StageKind::Summary => "summary",
        StageKind::Note => "note",
        StageKind::Cue => "cue",
    }
}

/// A field with its file and line.
fn place(scenario: &Scenario, copy: Option<&Path>, field: &str) -> String {
    if field.is_empty() {
        return "the plan".to_string();
    }
    let path = crate::scenario::Path::parse(field);
    let (name, line, _) = scenario.sources.place(scenario.tree.key(&path));
    // In a run's own copy, by the path within it.
    let copied = copy.and_then(|root| Path::new(name).strip_prefix(root).ok());
    let name = copied.map_or_else(|| name.into(), Path::to_string_lossy);
    format!("{}, {name}:{line}", path)
}
