//! A whole scenario, once with memories that last and once with every cache dropped before each turn.

use super::lab::Bench;
use super::report::{Figure, Figures, Row, median};
use super::speed::ordinal;
use anyhow::Context as _;
use greenroom::backend::{Backend, Embedded};
use greenroom::files::{self, FileKind};
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{Lifecycle, Scenario, load};
use greenroom::stage::Unwatched;
use greenroom::trace::{self, SummedTokens, TraceLine};
use greenroom::transcript;
use indexmap::IndexMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The default scenario.
const BUNDLED: &str = include_str!("../../scenarios/prisoners-dilemma.yaml");

/// A scenario played with persistent memories and cold: time to first token by phase, and wall time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench scenario --model understudy")]
pub(super) struct Args {
    #[command(flatten)]
    play: PlayArgs,
}

/// Arguments that select what is played.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlayArgs {
    /// The scenario [default: the prisoner's dilemma]
    #[arg(long, value_name = "FILE", visible_alias = "scenario")]
    file: Option<PathBuf>,
    /// Maximum number of tokens in a reply
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
}

/// Figures of one run.
#[derive(Default)]
pub(super) struct Performance {
    /// Times to the first token of permanent agents, by phase.
    phases: IndexMap<String, Vec<f64>>,
    /// Seconds.
    pub(super) wall_s: f64,
    /// Tokens of all turns.
    pub(super) tokens: SummedTokens,
    /// The transcript's bytes.
    pub(super) transcript: Vec<u8>,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let scenario = self.play.scenario()?;
        let folder = tempfile::tempdir()?;
        let (mut lasting, mut cold) = (Vec::new(), Vec::new());
        for n in bench.repeats() {
            // Identical runs would find each other's blocks by content, so each begins with an empty store.
            let root = folder.path().join(n.to_string());
            let backend = open(bench, &root.join("cache"))?;
            for (is_cold, played) in [(false, &mut lasting), (true, &mut cold)] {
                let how = if is_cold { "cold" } else { "persistent" };
                bench.show_activity(format!("{}, {how}, {} time", scenario.id, ordinal(n)));
                let options = RunOptions { cold: is_cold, ..self.play.options() };
                played.push(play(&scenario, &backend, &root.join(how), &options)?);
            }
        }
        Ok(figures(&lasting, &cold))
    }
}

impl PlayArgs {
    /// Options of the run.
    pub(super) fn options(&self) -> RunOptions {
        RunOptions { max_tokens: self.max_tokens as usize, ..RunOptions::default() }
    }

    /// Reads the scenario.
    pub(super) fn scenario(&self) -> anyhow::Result<Arc<Scenario>> {
        let (name, text) = match &self.file {
            Some(file) => {
                let text = files::read_text(file, FileKind::Scenario);
                let text = text.with_context(|| format!("can't read the scenario {}", file.display()))?;
                (file.display().to_string(), text)
            }
            None => ("prisoners-dilemma.yaml".to_owned(), BUNDLED.to_owned()),
        };
        let loaded = load(&name, &text, &[]);
        loaded.scenario.with_context(|| format!("{name} has errors; `greenroom check` shows them"))
    }
}

/// An engine for the runs, with its memories in a folder.
pub(super) fn open(bench: &Bench, cache_dir: &Path) -> anyhow::Result<Arc<dyn Backend>> {
    bench.show_activity("loading the model");
    Ok(Arc::new(Embedded::open(&bench.config(Some(cache_dir)), &mut |_| {})?))
}

/// One run; its record is written to `folder`.
pub(super) fn play(
    scenario: &Arc<Scenario>,
    backend: &Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
) -> anyhow::Result<Performance> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut watch, never) = (Unwatched, std::future::pending());
    let performed =
        runtime.block_on(perform(scenario, backend.clone(), folder, options, &mut watch, never))?;
    let lasts = |key: &str| {
        scenario.agents.iter().any(|agent| agent.key == key && agent.lifecycle == Lifecycle::Permanent)
    };
    let mut performance = Performance {
        wall_s: performed.summary.wall_ms / 1e3,
        transcript: files::read(&folder.join(transcript::FILE), FileKind::Transcript)?,
        ..Performance::default()
    };
    for agent in performed.summary.agents.values() {
        performance.tokens.reused += agent.tokens.reused;
        performance.tokens.prefilled += agent.tokens.prefilled;
        performance.tokens.recomputed += agent.tokens.recomputed;
        performance.tokens.generated += agent.tokens.generated;
    }
    for line in files::read_text(&folder.join(trace::FILE), FileKind::Trace)?.lines() {
        let TraceLine::Turn(turn) = serde_json::from_str(line)? else { continue };
        let phase = turn.path.split('/').next().unwrap_or_default().to_owned();
        let times = performance.phases.entry(phase).or_default();
        times.extend(turn.ttft_ms.filter(|_| lasts(&turn.agent)));
    }
    Ok(performance)
}

fn figures(lasting: &[Performance], cold: &[Performance]) -> Figures {
    let phases = lasting.first().map(|played| played.phases.keys()).into_iter().flatten();
    let mean = |times: &Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    let of = |played: &[Performance], phase: &str| {
        let times = played.iter().filter_map(|played| played.phases.get(phase)).filter(|t| !t.is_empty());
        times.map(mean).collect::<Vec<_>>()
    };
    let row = |what: &str, lasting: Vec<f64>, cold: Vec<f64>| -> Row {
        let ratio = median(&cold) / median(&lasting);
        vec![
            ("phase", Figure::Text(what.to_owned())),
            ("cold", Figure::Measured(cold)),
            ("persistent", Figure::Measured(lasting)),
            ("ratio", Figure::Ratio(ratio)),
        ]
    };
    let mut rows: Vec<Row> = phases
        .map(|phase| (phase, of(lasting, phase), of(cold, phase)))
        .filter(|(_, lasting, _)| !lasting.is_empty())
        .map(|(phase, lasting, cold)| row(&format!("{phase}, TTFT ms"), lasting, cold))
        .collect();
    let wall = |played: &[Performance]| played.iter().map(|played| played.wall_s).collect();
    rows.push(row("all turns, wall s", wall(lasting), wall(cold)));
    let all = lasting.iter().chain(cold);
    let is_equal = lasting.first().is_some_and(|first| all.clone().all(|p| p.transcript == first.transcript));
    let notes = vec![
        "TTFT: mean over the phase's turns of permanent agents; phases without such turns are left out."
            .to_owned(),
        format!("All {} transcripts are {}.", all.count(), if is_equal { "equal" } else { "NOT EQUAL" }),
    ];
    Figures { rows, notes }
}
