//! Shares are the probabilities with which options are drawn: the engine's own rule draws here, every share
//! that people and programs read is compared with that.

use crate::terminal::Kept;
use greenroom::backend::StopReason;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::rehearsal::load;
use greenroom::replay::Search;
use greenroom::report::{ReportSources, html};
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{Hints, Scenario};
use greenroom::statistics::{Cell, Run, Sample, Subject, Summary, Values, summarize, tables};
use greenroom::terminal::{DialogueOutput, Page, statistics};
use greenroom::transcript::{ChoiceRecord, Odds, OptionRecord, Transcript};
use greenroom_engine::draw;
use std::path::Path;
use std::sync::Arc;

const TEMPERATURES: [f32; 4] = [0.3, 0.7, 1.0, 1.5];

/// Chi-square's 99.9 % quantiles for 1, 2, 3 degrees of freedom.
const CHI_SQUARE: [f64; 3] = [10.83, 13.82, 16.27];

fn record(logprobs: &[Option<f32>]) -> ChoiceRecord {
    let option = |(at, logprob): (usize, &Option<f32>)| OptionRecord {
        value: at.into(),
        text: format!("option {at}"),
        logprob: *logprob,
    };
    let options = logprobs.iter().enumerate().map(option).collect();
    ChoiceRecord { method: "decode".into(), options, chosen: 0.into(), normalize: None }
}

fn odds(logprobs: &[f32], temperature: f32) -> Odds {
    record(&logprobs.iter().copied().map(Some).collect::<Vec<_>>()).odds(temperature).unwrap()
}

/// Settings of a draw; filters have no part in a choice, so they are set to what would show.
fn sampling(temperature: f32, seed: u64) -> greenroom_engine::Sampling {
    greenroom_engine::Sampling { temperature, seed, top_k: 1, top_p: 0.1, min_p: 0.9, ..Default::default() }
}

#[test]
fn draws_by_length_follow_the_shares_and_a_long_text_is_not_unlikely_for_its_length() {
    let (logprobs, texts) = ([-2.0f32, -14.0, -5.0], ["no", "certainly, with pleasure", "perhaps"]);
    let mut record = record(&logprobs.map(Some));
    record.options.iter_mut().zip(texts).for_each(|(option, text)| option.text = text.into());
    let plain = record.odds(1.0).unwrap();
    record.normalize = Some("length".into());
    let weighed = record.odds(1.0).unwrap();
    assert_eq!(plain.mass, weighed.mass, "the mass is that of the texts");
    assert!(plain.shares[0] > 0.9 && weighed.shares[0] < 0.1, "{plain:?} {weighed:?}");
    let by_length = greenroom_engine::by_length(&logprobs, texts);
    let mut counts = [0u32; 3];
    (0..10_000).for_each(|seed| counts[draw(&by_length, &sampling(1.0, seed))] += 1);
    let off =
        |(count, share): (&u32, &f64)| (f64::from(*count) - 1e4 * share).powi(2) / (1e4 * share).max(1.0);
    let off: f64 = counts.iter().zip(&weighed.shares).map(off).sum();
    assert!(off < CHI_SQUARE[1], "{counts:?} drawn, {:?} shown", weighed.shares);
    let alike = ["aa", "bb", "cc"];
    assert_eq!(greenroom_engine::by_length(&logprobs, alike), logprobs, "of one length all stays as it is");
}

#[test]
fn ten_thousand_draws_follow_the_shares_at_every_temperature() {
    for temperature in TEMPERATURES {
        for logprobs in [&[-14.273, -14.558][..], &[-0.5, -3.0, -2.9], &[-7.1, -6.4, -6.5, -8.0]] {
            let shares = odds(logprobs, temperature).shares;
            let mut counts = vec![0u32; logprobs.len()];
            (0..10_000).for_each(|seed| counts[draw(logprobs, &sampling(temperature, seed))] += 1);
            let off =
                |(count, share): (&u32, &f64)| (f64::from(*count) - 1e4 * share).powi(2) / (1e4 * share);
            let off: f64 = counts.iter().zip(&shares).map(off).sum();
            assert!(
                off < CHI_SQUARE[shares.len() - 2],
                "T = {temperature}: {counts:?} drawn, {shares:?} shown"
            );
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn a_greedy_choice_is_certain_and_of_equals_the_first() {
    for logprobs in [&[-3.0, -1.0, -1.0][..], &[-1.0, -1.0], &[f32::NEG_INFINITY, -90.0], &[-4.0]] {
        for temperature in [0.0, -1.0] {
            let shares = odds(logprobs, temperature).shares;
            let drawn = draw(logprobs, &sampling(temperature, 7));
            assert_eq!(shares.iter().position(|share| *share == 1.0), Some(drawn), "{logprobs:?}");
            assert_eq!(shares.iter().sum::<f64>(), 1.0);
        }
    }
}

#[test]
fn any_recording_gives_shares_of_one_whole() {
    let extremes = [None, Some(0.0), Some(-1e30), Some(f32::MAX), Some(f32::INFINITY), Some(-0.1)];
    for temperature in [-1.0, 0.0, 1e-45, 1e-3, 0.7, f32::MAX, f32::INFINITY] {
        for (a, b, c) in extremes
            .iter()
            .flat_map(|a| extremes.iter().map(move |b| (a, b)))
            .flat_map(|(a, b)| extremes.iter().map(move |c| (a, b, c)))
        {
            let Some(odds) = record(&[*a, *b, *c]).odds(temperature) else {
                assert_eq!((a, b, c), (&None, &None, &None));
                continue;
            };
            assert!((odds.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{a:?} {b:?} {c:?}: {odds:?}");
            assert!((0.0..=1.0).contains(&odds.mass), "{odds:?}");
            // JSON's null beside a log-probability is that of an impossible option.
            let impossible = [a, b, c].iter().position(|logprob| logprob.is_none());
            assert!(impossible.is_none_or(|at| odds.shares[at] == 0.0), "{odds:?}");
        }
    }
}

#[test]
fn the_mass_is_the_models_own_whatever_the_temperature() {
    for temperature in [0.0, 0.3, 1.5] {
        let odds = odds(&[-4.38, -7.86], temperature);
        assert!((odds.mass - 0.0129).abs() < 1e-4 && odds.is_low(), "{odds:?}");
    }
    assert!(!odds(&[-1.0, -2.0], 1.0).is_low());
    let shown = [0.000_01, 0.012_9, 0.4123, 1.0].map(Odds::in_percent);
    assert_eq!(shown, ["under 0.1 %", "1.3 %", "41 %", "100 %"]);
}

/// For example 57 % at temperature 1, 72 % at 0.3.
const LOGPROBS: [f32; 2] = [-14.273, -14.558];
const ROUNDS: usize = 50;

fn doors() -> Arc<Scenario> {
    let text = format!(
        "id: doors
agents: {{ann: {{}}}}
phases:
- {{ name: door, agents: [ann], rounds: {ROUNDS}, answer: {{ one_of: {{left: Left, right: Right}} }} }}
"
    );
    load("doors.yaml", &text, &[]).scenario.unwrap()
}

/// Draws as the engine does.
struct Drawing(Scripted);

impl Backend for Drawing {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, _sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            let options = request.choice.unwrap();
            let chosen = draw(&LOGPROBS, &sampling(request.sampling.temperature, request.sampling.seed));
            let text = options.choice.options[chosen].text.clone();
            let logprobs = LOGPROBS.iter().copied().enumerate().collect();
            Ok(Reply { logprobs, ..Reply::of(vec![1], text, StopReason::EndOfTurn) })
        })
    }
    fn forget(&self, _session: &Session) {}
}

/// Plays a run at a temperature; what was printed meanwhile.
fn play(folder: &Path, temperature: f32, seed: u64) -> (Transcript, String) {
    let (scenario, kept) = (doors(), Kept::default());
    let page = Page::new(Box::new(kept.clone()), None);
    let mut dialogue = DialogueOutput::on(page, false, scenario.clone(), scenario.plan().clone());
    let sampling = Hints { temperature: Some(temperature), ..Hints::default() };
    let options = RunOptions { seed, sampling, ..RunOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = Arc::new(Drawing(Scripted::new(|_| None)));
    let playing = perform(&scenario, backend, folder, &options, &mut dialogue, std::future::pending());
    let played = runtime.block_on(playing).unwrap();
    drop(dialogue);
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    (Transcript::open(&played.transcript).unwrap(), text)
}

fn figure(summary: &Summary, wanted: impl Fn(&Subject) -> bool) -> f64 {
    let found = summary.figures.iter().find(|figure| wanted(&figure.subject)).unwrap();
    found.cells[0].estimate.value.unwrap()
}

#[test]
fn every_place_shows_the_share_at_the_runs_temperature() {
    for (temperature, share, permille) in [
        (0.0, "100 %", 1000.0),
        (0.3, "72 %", 721.0),
        (0.7, "60 %", 600.0),
        (1.0, "57 %", 571.0),
        (1.5, "55 %", 547.0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let runs = (0..20).map(|seed| {
            let name = format!("seed-{seed}");
            let (transcript, printed) = play(&folder.path().join(&name), temperature, seed);
            let rest = format!("Left {share}, Right");
            assert!(printed.contains(&rest), "T = {temperature}: {printed}");
            assert_eq!(printed.matches("mass under 0.1 %").count(), ROUNDS);
            assert_eq!(
                printed.matches("the options have almost no probability").count(),
                1,
                "a hint, once: {printed}"
            );
            Run { cell: 0, seed, folder: name, transcript, scenario: doors() }
        });
        let sample = Sample { cells: vec![Cell::default()], runs: runs.collect() };
        let summary = summarize(&sample);
        let is_left = |option: &str| option == "left";
        let drawn = figure(&summary, |s| matches!(s, Subject::Choice(asked) if is_left(&asked.option)));
        let shown = figure(&summary, |s| matches!(s, Subject::Share(asked) if is_left(&asked.option)));
        // Four standard errors of 1,000 draws.
        assert!((drawn - shown).abs() < 4.0 * (0.25f64 / 1000.0).sqrt(), "{drawn} drawn, {shown} shown");
        assert!((1000.0 * shown - permille).abs() < 0.6, "T = {temperature}: {shown}");
        let text = statistics(&summary, &[], false);
        assert!(
            text.contains(share) && text.contains("under 0.1 %") && text.contains("shares say little"),
            "{text}"
        );
        let tables = tables(&sample);
        let options = tables.get("options").unwrap();
        let Some(Values::Float(shares)) = options.column("share") else { panic!("no shares") };
        assert!((1000.0 * shares[0].unwrap() - permille).abs() < 0.6);
        let Some(Values::Float(logprobs)) = options.column("logprob") else { panic!("no log-probabilities") };
        assert_eq!(logprobs[0], Some(f64::from(LOGPROBS[0])), "as recorded");
        let Some(Values::Float(masses)) = tables.get("choices").unwrap().column("mass") else {
            panic!("no mass")
        };
        assert!(masses.iter().all(|mass| (mass.unwrap() - 1.1e-6).abs() < 1e-7));
        let scenario = folder.path().join("doors.yaml");
        std::fs::write(&scenario, doors().sources.main().text.as_bytes()).unwrap();
        let search =
            Search { scenario: Some(scenario), root: Some(folder.path().to_owned()), ..Search::default() };
        let page =
            html(&ReportSources::open(&folder.path().join("seed-0"), &search).unwrap(), false).unwrap();
        let percent = format!("{:.1} %", permille / 10.0);
        assert!(
            page.contains(&percent) && page.contains("mass of all options under 0.1 %"),
            "T = {temperature}: {percent}"
        );
    }
}
