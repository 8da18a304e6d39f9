//! Statistics of many runs: scenarios are played by agents that lean towards an option, more or less in each
//! run.

mod cases;
mod figures;
mod plots;
mod tables;
mod turns;

use crate::play::play;
use greenroom::backend::StopReason;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Scripted, Session, Sink};
use greenroom::run::RunOptions;
use greenroom::scenario::{Hints, load, parse_override};
use greenroom::stage::End;
use greenroom::statistics::{Cell, Figure, InCell, Run, Sample, Summary, plots, summarize, tables};
use greenroom::terminal::statistics;
use greenroom::transcript::Transcript;
use std::sync::Arc;

/// A figure by its name.
fn figure<'a>(summary: &'a Summary, name: &str) -> &'a Figure {
    let known: Vec<&String> = summary.figures.iter().map(|figure| &figure.name).collect();
    let found = summary.figures.iter().find(|figure| figure.name == name);
    found.unwrap_or_else(|| panic!("{name} is not in {known:#?}"))
}

/// A figure's value in the only cell that has it.
fn only<'a>(summary: &'a Summary, name: &str) -> &'a InCell {
    let [cell] = figure(summary, name).cells.as_slice() else { panic!("{name} is not in one cell") };
    cell
}

/// Three rounds of a dilemma, a vote, and outcomes of each type.
pub(crate) const GAME: &str = "
id: game
variables: { stakes: { temptation: 5 }, round: 1 }
agents: { zoe: {}, ann: {} }
phases:
  - { name: game, agents: [zoe, ann], order: broadcast, rounds: 3, answer: [share, take] }
  - { name: talk, agents: [ann] }
  - { name: vote, agents: [zoe, ann], rounds: 0, vote: { rule: majority, answer: [stay, 'leave, now'] } }
payoff:
  phase: game
  unit: coins
  matrix:
    share: { share: [3, 3], take: [0, stakes.temptation] }
    take: { share: [stakes.temptation, 0], take: [1, 1] }
outcome:
  kind: game.votes.share >= 3
  shares: game.votes.share
  mean: game.votes.share / 6
  last: game.choices.zoe
  odd: game.history
assertions: [game.votes.share > 0]
";

/// Chooses the first option with a probability of its own, and says how likely each was.
struct Leaning {
    script: Scripted,
    first: f64,
}

/// The n-th number in [0, 1) of a seed.
pub(crate) fn uniform(seed: u64, n: u64) -> f64 {
    let hash = blake3::hash(&[seed.to_le_bytes(), n.to_le_bytes()].concat());
    let word = hash.as_bytes()[..8].iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

impl Backend for Leaning {
    fn card(&self) -> ModelCard {
        self.script.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        let Some(options) = request.choice.clone() else { return self.script.reply(request, sink) };
        let (first, others) = (options.open[0], &options.open[1..]);
        let wanted = uniform(request.sampling.seed, 0);
        let other = ((wanted - self.first) / (1.0 - self.first) * others.len() as f64) as usize;
        let chosen = if wanted < self.first || others.is_empty() {
            first
        } else {
            others[other.min(others.len() - 1)]
        };
        let text = options.choice.options[chosen].text.clone();
        let rest = (1.0 - self.first) / others.len().max(1) as f64;
        let likely = |option: &usize| if *option == first { self.first } else { rest };
        let logprobs = options.open.iter().map(|option| (*option, likely(option).ln() as f32)).collect();
        Box::pin(async move {
            sink(Progress::Text(text.clone()));
            Ok(Reply { logprobs, ..Reply::of(vec![1], text, StopReason::EndOfTurn) })
        })
    }
    fn forget(&self, session: &Session) {
        self.script.forget(session);
    }
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.script.embed(texts)
    }
}

/// Plays a scenario with seeds 0, 1, … in each cell (`name=value`). `lean` gives the probability of the first
/// option, by cell and seed; what is no choice is answered with `speech`.
pub(crate) fn sample(
    text: &str,
    cells: &[&[&str]],
    seeds: u64,
    lean: impl Fn(usize, u64) -> f64,
    speech: &str,
) -> Sample {
    let folder = tempfile::tempdir().unwrap();
    let mut sample = Sample::default();
    for (cell, settings) in cells.iter().enumerate() {
        let overrides: Vec<_> = settings.iter().map(|setting| parse_override(setting).unwrap()).collect();
        let loaded = load("game.yaml", text, &overrides);
        let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
        let values =
            overrides.iter().map(|(name, value)| (name.clone(), serde_json::to_value(value).unwrap()));
        sample.cells.push(Cell { values: values.collect() });
        for seed in 0..seeds {
            let speech = speech.to_string();
            let script = Scripted::new(move |_| Some(speech.clone()));
            let backend = Leaning { script, first: lean(cell, seed) };
            let name = format!("cell-{cell}/seed-{seed}");
            // What agents lean to is what is drawn.
            let sampling = Hints { temperature: Some(1.0), ..Hints::default() };
            let options = RunOptions { seed, sampling, ..RunOptions::default() };
            let played = play(&scenario, Arc::new(backend), &folder.path().join(&name), &options).unwrap();
            assert!(matches!(played.end, End::Complete(_)));
            let transcript = Transcript::open(&played.transcript).unwrap();
            sample.runs.push(Run { cell, seed, folder: name, transcript, scenario: scenario.clone() });
        }
    }
    sample
}

/// As many cells as there are colours.
fn six() -> Sample {
    let cells = [1, 2, 3, 4, 5, 6].map(|n| format!("stakes.temptation={n}"));
    let cells = cells.each_ref().map(|cell| [cell.as_str()]);
    sample(GAME, &cells.each_ref().map(|cell| &cell[..]), 8, |cell, _| 0.9 - 0.15 * cell as f64, "Yes.")
}

/// The game with names that no line can hold.
fn named() -> String {
    let long = |name: &str| format!("{name}_the_chairwoman_of_the_board_of_the_fisheries_of_the_north");
    let names = ["zoe", "ann", "share", "take"];
    let named = names.iter().fold(GAME.to_string(), |text, name| text.replace(name, &long(name)));
    named.replace(&format!("s{}s", long("take")), "stakes")
}

/// Writes everything into the folder that `GREENROOM_STATISTICS` names.
#[test]
#[ignore = "for looking at: GREENROOM_STATISTICS=/tmp/statistics cargo test --test runner files_to_look_at \
            -- --ignored"]
fn files_to_look_at() {
    let Some(folder) = std::env::var_os("GREENROOM_STATISTICS") else { return };
    let folder = std::path::Path::new(&folder);
    let cells: [&[&str]; 3] =
        [&["stakes.temptation=3"], &["stakes.temptation=5"], &["stakes.temptation=7.5"]];
    let lean = |cell: usize, seed: u64| (0.8 - 0.2 * cell as f64) * (0.4 + 0.6 * uniform(seed, 9));
    for (name, sample) in [
        ("one", sample(GAME, &[&[]], 50, lean, "Yes.")),
        ("few", sample(GAME, &cells[..2], 5, lean, "Yes.")),
        ("many", sample(GAME, &cells[1..], 300, lean, "Yes.")),
        ("six", six()),
        ("long", sample(&named(), &cells, 20, lean, "Yes.")),
        ("three", sample(GAME, &cells, 20, lean, "Yes, \"quoted\",\r\nand\n=1+1 🎭")),
    ] {
        let folder = folder.join(name);
        let summary = summarize(&sample);
        let mut files = tables(&sample).write(&folder).unwrap();
        files.push(summary.write(&folder).unwrap());
        files.extend(plots(&sample, &summary, &folder).unwrap());
        std::fs::write(folder.join("shown.txt"), statistics(&summary, &files, false)).unwrap();
    }
}
