//! `greenroom check`: all mistakes of a file at once, and a bound of what each agent will have to remember.

pub(super) mod bounds;
mod dry_run;
mod models;

use super::{Exit, PathBounds, casting};
use crate::backend::Kv;
use crate::backend::worded;
use crate::diagnostic::{Diagnostic, Report};
use crate::rehearsal::open_below;
use crate::scenario::template::Template;
use crate::scenario::template::rewrite;
use crate::scenario::{
    AgentId, Keep, Lifecycle, Overrides, Path, PhaseId, Plan, Scenario, TimelineId, parse_cast,
    parse_override,
};
use crate::terminal::{bytes, counted, is_fancy, table};
use bounds::{Bound, SLACK, bounds, certain};
use models::{AgentTokenizers, Opened};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Check scenarios: list every error with its place and a suggestion, and an upper bound on tokens
///
/// The bound counts all fixed text with the model's tokenizer. It assumes that each reply, and each line
/// heard or quoted from it, takes --max-tokens plus 4 tokens of slack. A remote engine that takes messages
/// counts tokens itself, so there is no bound for it.
///
/// Texts and conditions that use results are tried without a model: with every combination of choices if
/// there are few, else with representative ones. The effort is limited in steps, not in time, so a check
/// reports the same on every machine.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom check scenarios/*.yaml\n         greenroom check scenarios/gossip.yaml \
                  --dry-run"
)]
pub(super) struct Args {
    /// Scenarios
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// GGUF file, a name that `models` or `pull` lists, hf:ORG/REPO/FILE.gguf, ollama:NAME, or the bundled
    /// `understudy`, for its tokenizer and context; NAME=MODEL replaces a model that the scenario names
    /// (repeatable) [default: the scenario's, else understudy]
    #[arg(long = "model", value_name = "[NAME=]MODEL", value_parser = casting::parse)]
    models: Vec<casting::ModelArg>,
    /// Maximum tokens in a reply [default: the scenario's, else 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// KV cache formats used to estimate bytes: auto, f16, q8, q8/q4 (keys/values), q4-m, q4, or a file from
    /// `kv-config`
    #[arg(long, default_value = "auto", value_name = "KV")]
    kv: Kv,
    /// Also print the turns and each agent's first prompt
    #[arg(long)]
    dry_run: bool,
    /// Set a variable to another value (repeatable)
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_json::Value)>,
    /// File with the `agents` of a scenario that has none
    #[arg(long, value_name = "FILE", value_parser = parse_cast)]
    agents: Option<(String, serde_json::Value)>,
    #[command(flatten)]
    bounds: PathBounds,
}

pub(super) fn run(mut args: Args) -> anyhow::Result<Exit> {
    args.overrides.extend(args.agents.take());
    // Mistakes are reported even without a model to count with.
    let mut opened = Opened::default();
    let mut exit = Exit::Pass;
    for file in &args.files {
        if !one(file, &args, &mut opened)? {
            exit = Exit::Invalid;
        }
    }
    Ok(exit)
}

fn one(file: &std::path::Path, args: &Args, opened: &mut Opened) -> anyhow::Result<bool> {
    let loaded = open_below(file, args.bounds.root.as_deref(), &args.overrides)?;
    print!("{}", loaded.report.render(is_fancy()));
    let Some(scenario) = loaded.scenario else {
        println!("{}: {}", file.display(), counted(loaded.report.n_errors(), "error"));
        return Ok(false);
    };
    if !cases(file, args, &scenario)? {
        return Ok(false);
    }
    let counting = AgentTokenizers::new(&scenario, &args.models, opened)?;
    let max_tokens = models::longest(&scenario, args.max_tokens);
    let mut bounds_of = BTreeMap::new();
    for model in counting.models() {
        let all = bounds(&scenario, counting.prompter(model), max_tokens)?;
        bounds_of.extend(all.into_iter().filter(|(timeline, _)| counting.of(*timeline) == model));
    }
    let bounds = bounds_of;
    let too_long = too_long(&scenario, &bounds, &counting, max_tokens)?;
    print!("{}", too_long.render(is_fancy()));
    print!("{}", remembered(&scenario, max_tokens).render(is_fancy()));
    let has_models = !scenario.models.is_empty();
    let rows = scenario.agents.iter().enumerate().map(|(id, agent)| {
        let of: Vec<&Bound> =
            bounds.iter().filter(|(t, _)| t.agent.0 == id).map(|(_, bound)| bound).collect();
        let timeline = bounds.keys().find(|timeline| timeline.agent.0 == id);
        let model = timeline.map_or_else(|| counting.own(), |of| counting.of(*of));
        let cost = match counting.prompter(model) {
            Some(prompter) => Some(prompter.kv_cost(args.kv.choice()).map_err(worded)?),
            None => None,
        };
        let turns: usize = of.iter().map(|bound| bound.turns).sum();
        let tokens = of.iter().map(|bound| bound.tokens).max().unwrap_or(0);
        let is_model = agent.strategy.is_none();
        let of_model = |text: Option<String>| text.filter(|_| is_model).unwrap_or_else(|| "-".to_string());
        let cells = [
            if is_model { agent.lifecycle.word().to_string() } else { "strategy".to_string() },
            turns.to_string(),
            of_model(cost.as_ref().map(|_| tokens.to_string())),
            of_model(counting.context(model).map(|context| context.to_string())),
            of_model(cost.map(|cost| bytes(cost.most(tokens as u64)))),
        ];
        let models = has_models.then(|| counting.names(AgentId(id)));
        Ok(std::iter::once(agent.key.clone()).chain(models).chain(cells).collect())
    });
    let rows: Vec<Vec<String>> = rows.collect::<anyhow::Result<_>>()?;
    let mut head = vec!["agent", "lifecycle", "turns", "max tokens", "context", "max cache"];
    if has_models {
        head.insert(1, "model");
    }
    let verdict = if too_long.n_errors() == 0 { "OK" } else { "too long" };
    let n_turns = scenario.plan().n_turns();
    println!(
        "{}: {verdict}, {}, {}, {}{}",
        file.display(),
        counted(scenario.agents.len(), "agent"),
        counted(scenario.phases.len(), "phase"),
        counted(n_turns, "turn"),
        scenario
            .cases
            .as_ref()
            .map_or_else(String::new, |cases| format!(", {}", counted(cases.len(), "case")))
    );
    println!("{}", table(&head, rows, if has_models { 3 } else { 2 }));
    if args.dry_run {
        dry_run::dry_run(&scenario, &counting)?;
    }
    Ok(too_long.n_errors() == 0)
}

/// Checks the scenario with the values of each of its cases; reports the mistakes of the first that can't be
/// played.
fn cases(file: &std::path::Path, args: &Args, scenario: &Scenario) -> anyhow::Result<bool> {
    for case in scenario.cases.iter().flatten().filter(|_| scenario.case().is_none()) {
        let overrides: Overrides =
            case.overrides().into_iter().chain(args.overrides.iter().cloned()).collect();
        let loaded = open_below(file, args.bounds.root.as_deref(), &overrides)?;
        if loaded.scenario.is_none() {
            print!("{}", loaded.report.render(is_fancy()));
            let n = counted(loaded.report.n_errors(), "error");
            println!("{}: {n} in the case `{}`", file.display(), case.name);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Warns about transcripts that are quoted to agents who remember them anyway, with their cost.
fn remembered(scenario: &Scenario, max_tokens: usize) -> Report {
    let plan = scenario.plan();
    let mut diagnostics = Vec::new();
    for phase in &scenario.phases {
        for agent in &phase.agents {
            let who = scenario.agent(*agent);
            if who.lifecycle == Lifecycle::Ephemeral || who.strategy.is_some() {
                continue;
            }
            for (_, text) in phase.opening(*agent) {
                let quoted = rewrite(&text.text)
                    .1
                    .into_iter()
                    .filter(|quote| quote.agent.as_ref().is_none_or(|key| *key == who.key));
                let quoted =
                    quoted.filter_map(|quote| Some((scenario.phase_by_name(&quote.phase)?, quote.line)));
                for (quoted, line) in
                    quoted.filter(|(quoted, _)| scenario.phase(*quoted).agents.contains(agent))
                {
                    diagnostics.push(twice(scenario, plan, *agent, quoted, text, line, max_tokens));
                }
            }
        }
    }
    diagnostics.dedup();
    Report { sources: scenario.sources.clone(), diagnostics }
}

fn twice(
    scenario: &Scenario,
    plan: &Plan,
    agent: AgentId,
    quoted: PhaseId,
    text: &Template,
    line: usize,
    max_tokens: usize,
) -> Diagnostic {
    let known = plan.order().filter(|(_, turn)| turn.phase == quoted);
    let known = known.filter(|(_, turn)| turn.speaker == agent || turn.audience.hears(agent)).count();
    let (key, phase) = (&scenario.agent(agent).key, &scenario.phase(quoted).name);
    let message = format!(
        "`{key}` is given a quote of `{phase}`, which it already remembers: up to {} tokens are read twice",
        known * (max_tokens + SLACK)
    );
    let span = scenario.tree.text_line(&scenario.sources, &text.path, line);
    let found = Diagnostic::warning("remembered", text.path.to_string(), span, message);
    found.help(
        "a permanent agent keeps what it heard; remove the quote, or give it only to agents who were absent",
    )
}

/// Memories that may outgrow the context: an error if what no condition decides about is too much already,
/// else a warning.
fn too_long(
    scenario: &Arc<Scenario>,
    bounds: &BTreeMap<TimelineId, Bound>,
    counting: &AgentTokenizers<'_>,
    max_tokens: usize,
) -> anyhow::Result<Report> {
    let mut diagnostics = Vec::new();
    for (timeline, bound) in bounds {
        let Some(prompter) = counting.prompter(counting.of(*timeline)) else { continue };
        let model = prompter.model();
        let is_long = |bound: &Bound| {
            bound.tokens > model.context_length && scenario.agent(timeline.agent).memory.keep == Keep::All
        };
        if !is_long(bound) {
            continue;
        }
        let is_certain = certain(scenario, prompter, max_tokens)?.get(timeline).is_some_and(is_long);
        let agent = scenario.agent(timeline.agent);
        let key = Path::default().key("agents").key(agent.key.clone());
        let path = if agent.is_outside { agent.system_path.clone() } else { key };
        let message = format!(
            "`{}` may have to remember {} tokens, but the context of {} is {} tokens",
            agent.key, bound.tokens, model.name, model.context_length
        );
        let (span, path) = (scenario.tree.key(&path), path.to_string());
        let help = "use fewer rounds, shorter replies (--max-tokens), a model with a longer context, or \
                    `memory: { keep: summary }`";
        diagnostics.push(if is_certain {
            Diagnostic::error("too-long", path, span, message).help(help)
        } else {
            let message = format!("{message}; whether it gets so long depends on conditions");
            Diagnostic::warning("too-long", path, span, message).help(help)
        });
    }
    Ok(Report { sources: scenario.sources.clone(), diagnostics })
}
