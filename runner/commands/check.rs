//! `greenroom check`: all mistakes of a file at once, and a bound of what each agent will have to remember.

use super::Exit;
use crate::backend::{locate, source};
use crate::diagnostic::{Diagnostic, Report};
use crate::prompt::{Conversation, Memories};
use crate::scenario::{
    AgentId, Condition, Overflow, Path, Plan, Scenario, TimelineId, Turn, compile, open, parse_override,
};
use crate::terminal::{counted, is_fancy, table};
use greenroom_engine::Prompter;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Check scenarios: every mistake with its place and a remedy, and a bound of each agent's tokens
///
/// The bound counts all fixed text with the model's tokenizer and assumes that each reply, and each line
/// heard or quoted from it, takes --max-tokens and 4 tokens of slack.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom check scenarios/*.yaml")]
pub(super) struct Args {
    /// Scenarios
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// GGUF path, hf:ORG/REPO/FILE.gguf, or `understudy`: whose tokenizer and context count
    #[arg(long, default_value = "understudy", value_name = "PATH")]
    model: String,
    /// Most tokens of a reply
    #[arg(long, default_value_t = 80, value_name = "N")]
    max_tokens: u32,
    /// Give a variable another value (repeatable)
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_yaml::Value)>,
}

/// Stands for a reply whose words are not known: a character of the private use area.
const UNKNOWN: &str = "\u{F8FE}\u{F8FD}";
/// Tokens that re-reading a reply as somebody else's line may add.
const SLACK: usize = 4;

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    // Mistakes are told even where there is no model to count with.
    let mut prompter = None;
    let mut exit = Exit::Pass;
    for file in &args.files {
        if !one(file, &args, &mut prompter)? {
            exit = Exit::Invalid;
        }
    }
    Ok(exit)
}

fn one(file: &std::path::Path, args: &Args, opened: &mut Option<Prompter>) -> anyhow::Result<bool> {
    let loaded = open(file, &args.overrides)?;
    print!("{}", loaded.report.render(is_fancy()));
    let Some(scenario) = loaded.scenario else {
        println!("{}: {}", file.display(), counted(loaded.report.n_errors(), "error"));
        return Ok(false);
    };
    let prompter = match opened {
        Some(prompter) => prompter,
        None => opened.insert(Prompter::open(&source(&locate(&args.model)?))?),
    };
    let bounds = bounds(&scenario, prompter, args.max_tokens as usize)?;
    let context = prompter.model().context_length;
    let too_long = too_long(&scenario, &bounds, context, &prompter.model().name);
    print!("{}", too_long.render(is_fancy()));
    let rows = scenario.agents.iter().enumerate().map(|(id, agent)| {
        let of: Vec<&Bound> =
            bounds.iter().filter(|(t, _)| t.agent.0 == id).map(|(_, bound)| bound).collect();
        let turns: usize = of.iter().map(|bound| bound.turns).sum();
        let tokens = of.iter().map(|bound| bound.tokens).max().unwrap_or(0);
        let cells =
            [agent.lifecycle.word().to_string(), turns.to_string(), tokens.to_string(), context.to_string()];
        std::iter::once(agent.key.clone()).chain(cells).collect()
    });
    let verdict = if too_long.n_errors() == 0 { "OK" } else { "too long" };
    let n_turns: usize = bounds.values().map(|bound| bound.turns).sum();
    println!(
        "{}: {verdict}, {} agents, {} phases, {n_turns} turns",
        file.display(),
        scenario.agents.len(),
        scenario.phases.len()
    );
    println!("{}", table(&["agent", "lifecycle", "turns", "tokens at most", "context"], rows.collect(), 2));
    Ok(too_long.n_errors() == 0)
}

/// What one memory may come to hold.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    turns: usize,
    tokens: usize,
}

/// Plays the scenario with replies of unknown words and counts what each memory holds in the end, at worst.
fn bounds(
    scenario: &Arc<Scenario>,
    prompter: &Prompter,
    max_tokens: usize,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    let plan = Arc::new(compile(scenario));
    // Where one of several speaks, the worst for each is to be the one.
    let chosen = |turn: &Turn| turn.guard.iter().any(|condition| matches!(condition, Condition::Chose(..)));
    if !plan.order().any(|(_, turn)| chosen(turn)) {
        return bounds_if(scenario, &plan, prompter, max_tokens, |_| true);
    }
    let mut worst = BTreeMap::new();
    for agent in (0..scenario.agents.len()).map(AgentId) {
        let plays = |turn: &Turn| !chosen(turn) || turn.speaker == agent;
        let of = bounds_if(scenario, &plan, prompter, max_tokens, plays)?;
        worst.extend(of.into_iter().filter(|(timeline, _)| timeline.agent == agent));
    }
    Ok(worst)
}

fn bounds_if(
    scenario: &Arc<Scenario>,
    plan: &Arc<Plan>,
    prompter: &Prompter,
    max_tokens: usize,
    plays: impl Fn(&Turn) -> bool,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    let mut memories = Memories::new(scenario.clone(), plan.clone(), BTreeMap::new(), 0);
    memories.open_all();
    let mut bounds: BTreeMap<TimelineId, Bound> = BTreeMap::new();
    let mut last: BTreeMap<TimelineId, Conversation> = BTreeMap::new();
    for (id, turn) in plan.order() {
        if !plays(turn) {
            memories.skip(id);
            continue;
        }
        let prompt = memories.prompt(id)?;
        bounds.entry(turn.timeline).or_default().turns += 1;
        last.insert(turn.timeline, prompt.conversation.clone());
        memories.say(id, prompt.conversation, &[], UNKNOWN);
    }
    for (timeline, conversation) in last {
        let of_model = scenario.agent(timeline.agent).strategy.is_none();
        let tokens = if of_model { tokens(&conversation, prompter, max_tokens)? } else { 0 };
        bounds.entry(timeline).or_default().tokens = tokens;
    }
    Ok(bounds)
}

fn tokens(conversation: &Conversation, prompter: &Prompter, max_tokens: usize) -> anyhow::Result<usize> {
    let texts =
        conversation.exchanges.iter().map(|past| past.user.as_str()).chain([conversation.next.as_str()]);
    let heard: usize = texts.map(|text| text.matches(UNKNOWN).count()).sum();
    let own = conversation.exchanges.len() + 1;
    let mut fixed = conversation.clone();
    fixed.exchanges.iter_mut().for_each(|past| past.user = past.user.replace(UNKNOWN, ""));
    fixed.next = fixed.next.replace(UNKNOWN, "");
    Ok(prompter.prompt_tokens(&fixed.into())? + heard * (max_tokens + SLACK) + own * max_tokens)
}

fn too_long(
    scenario: &Scenario,
    bounds: &BTreeMap<TimelineId, Bound>,
    context: usize,
    model: &str,
) -> Report {
    let long = bounds.iter().filter(|(timeline, bound)| {
        bound.tokens > context && scenario.agent(timeline.agent).on_overflow == Overflow::Fail
    });
    let diagnostics = long.map(|(timeline, bound)| {
        let agent = scenario.agent(timeline.agent);
        let path = Path::default().key("agents").key(agent.key.clone());
        let message = format!(
            "`{}` may have to remember {} tokens, but {model} reads at most {context}",
            agent.key, bound.tokens
        );
        Diagnostic::error("too-long", path.to_string(), scenario.spans.key(&path), message)
            .help(
                "fewer rounds, shorter replies (--max-tokens), a model with a longer context, or `on_overflow: summarize`",
            )
    });
    Report { sources: scenario.sources.clone(), diagnostics: diagnostics.collect() }
}
