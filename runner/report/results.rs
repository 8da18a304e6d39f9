//! The results of a run, and everything that it depended on.

use super::cast::CastIndex;
use super::sources::ReportSources;
use super::text;
use crate::backend::{Dry, Sampling};
use crate::scenario::results::PayoffRound;
use crate::transcript::{AssertionRecord, Header};
use serde::Serialize;
use std::collections::BTreeSet;

/// The results of a run.
#[derive(Debug, Serialize)]
pub(super) struct ResultsView {
    turns: usize,
    skipped: usize,
    choices: usize,
    invalid: usize,
    /// Name and value, or the reason why there is no value.
    outcomes: Vec<(String, String, bool)>,
    decisions: Vec<(String, String)>,
    payoffs: Option<PayoffsView>,
    assertions: Vec<Asserted>,
    n_held: usize,
    /// Assertions that must hold in every run.
    n_asserted: usize,
}

#[derive(Debug, Serialize)]
struct Asserted {
    #[serde(flatten)]
    record: AssertionRecord,
    /// The share of runs in which it must hold, as text.
    required: Option<String>,
}

#[derive(Debug, Serialize)]
struct PayoffsView {
    unit: String,
    players: Vec<PlayerView>,
    rounds: Vec<Round>,
    /// Rounds without a payoff.
    n_missing: usize,
}

#[derive(Debug, Serialize)]
struct PlayerView {
    place: usize,
    name: String,
    total: Option<String>,
}

/// Each player's choice and its payoff, in the order of the players.
#[derive(Debug, Serialize)]
struct Round {
    round: usize,
    players: Vec<(String, Option<String>)>,
}

fn asserted(record: &AssertionRecord) -> Asserted {
    Asserted { record: record.clone(), required: record.share.map(|share| share.to_string()) }
}

/// The results; `None` for a run without an end.
pub(super) fn results(sources: &ReportSources, cast: &CastIndex) -> Option<ResultsView> {
    let footer = &sources.transcript.footer.as_ref()?.record;
    let outcomes = footer.outcomes.iter().map(|outcome| match &outcome.error {
        Some(error) => (outcome.name.clone(), error.clone(), false),
        None => (outcome.name.clone(), text::value(&outcome.value), true),
    });
    let shown = sources.scenario.as_ref().and_then(|scenario| footer.shown(scenario));
    let outcomes = outcomes.chain(shown.map(|shown| ("as it is shown".to_string(), shown, true)));
    let decision = |(phase, value): (&String, &serde_json::Value)| {
        (super::dialogue::label(sources, phase), text::value(value))
    };
    let payoffs = footer.payoffs.as_ref().map(|payoffs| {
        let mut keys: Vec<&String> = payoffs.totals.keys().collect();
        keys.sort_by_key(|key| cast.place(key));
        let player = |key: &&String| PlayerView {
            place: cast.place(key),
            name: cast.name(key).to_string(),
            total: payoffs.totals.get(*key).copied().flatten().map(text::number),
        };
        let round = |round: &PayoffRound| {
            let of = |key: &&String| {
                let choice = round.choices.get(*key).map_or(String::new(), text::value);
                let worth = round.values.as_ref().and_then(|values| values.get(*key));
                (choice, worth.copied().map(text::number))
            };
            Round { round: round.round, players: keys.iter().map(of).collect() }
        };
        PayoffsView {
            unit: payoffs.unit.clone(),
            players: keys.iter().map(player).collect(),
            rounds: payoffs.rounds.iter().map(round).collect(),
            n_missing: payoffs.rounds.iter().filter(|round| round.values.is_none()).count(),
        }
    });
    Some(ResultsView {
        turns: footer.turns,
        skipped: footer.skipped,
        choices: footer.choices,
        invalid: footer.invalid,
        outcomes: outcomes.collect(),
        decisions: footer.decisions.iter().map(decision).collect(),
        payoffs,
        assertions: footer.assertions.iter().map(asserted).collect(),
        n_held: footer
            .assertions
            .iter()
            .filter(|assertion| assertion.holds && assertion.share.is_none())
            .count(),
        n_asserted: footer.assertions.iter().filter(|assertion| assertion.share.is_none()).count(),
    })
}

/// Everything that the run depended on, as pairs of a name and a value.
pub(super) fn particulars(sources: &ReportSources) -> Vec<(String, String)> {
    let header = &sources.transcript.header.record;
    let Header { model, kv, numerics, seed, max_tokens, engine, .. } = header;
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry, .. } =
        header.sampling;
    let mut penalty = if repetition_penalty == 1.0 {
        "no repetition penalty".to_string()
    } else {
        format!("repetition penalty {repetition_penalty} over {repetition_window} tokens")
    };
    if let Some(Dry { multiplier, base, allowed_length }) = dry {
        penalty += &format!(", DRY {multiplier} × {base}^(n − {allowed_length})");
    }
    let sampling = match temperature {
        0.0 => format!("greedy, {penalty}"),
        _ => {
            let top_k = if top_k == 0 { String::new() } else { format!(", top-k {top_k}") };
            format!("temperature {temperature}{top_k}, top-p {top_p}, min-p {min_p}, {penalty}")
        }
    };
    let mut pairs = vec![
        ("Model", format!("{} ({})", model.name, model.family)),
        ("Seed", seed.to_string()),
        ("Sampling", sampling),
        ("Reply limit", format!("{max_tokens} tokens")),
        ("Cache", format!("KV cache in {kv}")),
        ("Numerics", numerics.clone()),
        ("Written by", engine.clone()),
        ("Scenario", header.scenario.path.clone()),
    ];
    for (name, named) in &header.models {
        let (model, kv) = (&named.model, &named.kv);
        let text = format!("{name}: {} ({}), KV cache in {kv}", model.name, model.family);
        pairs.push(("Named model", text));
    }
    let own: BTreeSet<(&String, String)> = sources
        .transcript
        .turns
        .iter()
        .filter(|turn| !turn.record.hints.is_empty())
        .map(|turn| (&turn.record.agent, turn.record.hints.words()))
        .collect();
    for (agent, words) in own {
        pairs.push(("Own settings", format!("{agent}: {words}")));
    }
    if let Some(day) = sources.trace.as_ref().and_then(|trace| text::day(trace.started)) {
        pairs.push(("Played", format!("{day} (UTC)")));
    }
    if let Some(continues) = &header.continues {
        pairs.push(("Continues", continues.path.clone()));
    }
    if let Some(forked) = &header.forked {
        pairs.push(("Forked from", format!("{}, at {}", forked.path, forked.at)));
    }
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}
