//! Judges recordings: does each still fit its scenario, its model, and what it asserts? What was found comes as plain data,
//! which [`forms`] writes for people and for machines.
//!
//! Without a model a recording is replayed; with one it can also be scored (`score`) or played again (`rerun`). A recording that
//! drifted leaves what it would be now beside it (`pending`), to be accepted or rejected.

mod compare;
mod find;
pub mod forms;
mod pending;
mod rerun;
mod score;

pub use compare::{Difference, What, differences};
pub use find::recordings;
pub use pending::{accept, is_ci, pending_file, pendings, reject};
pub use rerun::Level;
pub use score::{Score, Surprise};

use crate::backend::{Backend, ModelCard, Sampling};
use crate::diagnostic::Severity;
use crate::prompt::Memories;
use crate::replay::{self, Place, Replayed};
use crate::scenario::{Loaded, Path, Scenario};
use crate::stage::{End, Settings, Stage, Unwatched};
use crate::timeline::Timeline;
use crate::trace::Trace;
use crate::transcript::{Cause, Drift, Footer, Header, ReadError, Recorder, SamplingRecord, Transcript};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What was found of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The recording.
    pub file: String,
    /// The scenario's id, if the recording can be read.
    pub scenario: Option<String>,
    /// Turns on record.
    pub turns: usize,
    /// What is wrong; empty: nothing.
    pub problems: Vec<Problem>,
    /// Differences that changed nothing of what was read or said.
    pub notes: Vec<String>,
    /// What a model made of the recorded replies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
    /// What was compared, if the run was played again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<&'static str>,
    /// Where the recording lies as it would be now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Seconds that it took to find out.
    pub seconds: f64,
}

/// Something that is wrong with a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// What kind of thing.
    pub kind: Kind,
    /// The turn's path, `header`, `footer` or an assertion.
    pub at: String,
    /// What happened, in few words.
    pub title: String,
    /// More of it; may be empty.
    pub detail: String,
    /// The text as recorded, where there are texts to compare.
    pub recorded: String,
    /// The text as it is now.
    pub now: String,
    /// Line in the recording.
    pub line: Option<usize>,
    /// What in the scenario it comes from.
    pub place: Option<Place>,
}

/// Kinds of problems, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An assertion does not hold.
    Assertion,
    /// The scenario can't be played.
    Invalid,
    /// The recording does not fit.
    Drift,
    /// Anything else: a file that can't be read, a model that can't be opened.
    Environment,
}

/// How recordings are judged.
pub struct Judge {
    /// The scenario, if recordings don't find theirs.
    pub scenario: Option<PathBuf>,
    /// What a model is asked.
    pub question: Question,
    /// Whether what drifted is written beside the recording.
    pub writes_pending: bool,
}

/// What a model is asked.
pub enum Question {
    /// Nothing: there is no model.
    Nothing,
    /// Whether it would say the same, token by token, reading what was recorded.
    Score {
        /// The model.
        model: Arc<dyn Backend>,
        /// Share of tokens that may be others.
        tolerance: f64,
    },
    /// To play the run again.
    Rerun {
        /// The model.
        model: Arc<dyn Backend>,
        /// What must be equal.
        level: Level,
    },
}

/// A recording whose scenario was found, and which fits it.
struct Fitting<'a> {
    file: &'a std::path::Path,
    scenario: &'a Arc<Scenario>,
    transcript: &'a Transcript,
    earlier: BTreeMap<String, Timeline>,
}

impl Judge {
    /// Judges one recording: a run's folder or a transcript.
    pub fn judge(&self, run: &std::path::Path) -> Verdict {
        let began = Instant::now();
        let file = replay::transcript_file(run);
        let mut verdict = Verdict {
            file: file.display().to_string(),
            scenario: None,
            turns: 0,
            problems: Vec::new(),
            notes: Vec::new(),
            score: None,
            again: None,
            pending: None,
            seconds: 0.0,
        };
        if let Err(error) = self.look(&file, &mut verdict) {
            verdict.problems.push(Problem::of_error(&error, None));
        }
        if verdict.pending.is_none() && self.writes_pending && verdict.problems.is_empty() {
            pending::clear(&file);
        }
        verdict.seconds = began.elapsed().as_secs_f64();
        verdict
    }

    fn look(&self, file: &std::path::Path, verdict: &mut Verdict) -> anyhow::Result<()> {
        let transcript = Transcript::open(file)?;
        let header = &transcript.header.record;
        verdict.scenario = Some(header.scenario.id.clone());
        verdict.turns = transcript.turns.len();
        let Loaded { scenario, report } = replay::load_scenario(file, header, self.scenario.as_deref())?;
        let Some(scenario) = &scenario else {
            let errors = report.diagnostics.iter().filter(|found| found.severity == Severity::Error);
            verdict.problems.extend(errors.map(|found| Problem::of_diagnostic(found, &report.sources)));
            return Ok(());
        };
        let earlier = replay::brought_along(file, header)?;
        let fitting = Fitting { file, scenario, transcript: &transcript, earlier: earlier.clone() };
        match replay::replay(scenario, &transcript, earlier.clone()) {
            Ok(Replayed { footer, notes, .. }) => {
                verdict.notes = notes;
                verdict.problems = failed(scenario, &footer);
                self.ask(&fitting, verdict)
            }
            Err(error) => {
                let problem = Problem::of_error(&error, Some((scenario, header)));
                if problem.kind == Kind::Drift && self.writes_pending {
                    let carried = replay::carry(scenario, &transcript, earlier);
                    verdict.pending = pending::write(file, carried, &mut verdict.notes);
                }
                verdict.problems.push(problem);
                Ok(())
            }
        }
    }

    /// Asks the model, of a recording that fits.
    fn ask(&self, fitting: &Fitting<'_>, verdict: &mut Verdict) -> anyhow::Result<()> {
        match &self.question {
            Question::Nothing => {}
            Question::Score { model, tolerance } => {
                let score = score::score(fitting, model)?;
                verdict.notes.extend(other_model(&fitting.transcript.header.record, &model.card()));
                if score.surprises.len() as f64 > tolerance * score.tokens as f64 {
                    verdict.problems.extend(score.surprises.first().map(|first| first.problem(&score)));
                }
                verdict.score = Some(score);
            }
            Question::Rerun { model, level } => {
                let again = rerun::rerun(fitting, model, *level)?;
                verdict.notes.extend(other_model(&fitting.transcript.header.record, &model.card()));
                verdict.again = Some(level.word());
                if let Some(drift) = &again.drift {
                    verdict.problems.push(Problem::of_drift(drift, None));
                    if self.writes_pending {
                        verdict.pending = pending::write(fitting.file, Ok(again.text), &mut verdict.notes);
                    }
                }
                if *level != Level::Exact {
                    verdict.problems.retain(|problem| problem.kind != Kind::Assertion);
                    verdict.problems.extend(failed(fitting.scenario, &again.footer));
                }
            }
        }
        Ok(())
    }
}

impl Fitting<'_> {
    fn memories(&self) -> Memories {
        replay::memories(self.scenario, &self.transcript.header.record, self.earlier.clone())
    }

    /// Plays the recorded plan with its settings. Memories stay in RAM.
    async fn play(&self, backend: Arc<dyn Backend>, recorder: Recorder) -> anyhow::Result<End> {
        let header = &self.transcript.header.record;
        let SamplingRecord { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window } =
            header.sampling;
        let settings = Settings {
            sampling: Sampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window },
            max_tokens: header.max_tokens,
            ..Settings::default()
        };
        let name = format!("verify {}", self.file.display());
        let mut stage = Stage::new(self.memories(), backend, settings, recorder, Trace::in_memory(&name));
        stage.play(&mut Unwatched, std::future::pending()).await
    }
}

/// In words, that another model answers than the one that did.
fn other_model(header: &Header, card: &ModelCard) -> Option<String> {
    let pairs = [
        ("model", &header.model.identity, &card.model.identity),
        ("cache", &header.kv, &card.kv),
        ("numerics", &header.numerics, &card.numerics),
    ];
    let (what, was, is) = pairs.into_iter().find(|(_, was, is)| was != is)?;
    let (was, is) = match what {
        "model" => (&header.model.name, &card.model.name),
        _ => (was, is),
    };
    Some(format!("recorded with the {what} `{was}`, read with `{is}`"))
}

/// Assertions that don't hold.
fn failed(scenario: &Scenario, footer: &Footer) -> Vec<Problem> {
    let all = footer.assertions.iter().enumerate();
    let problem = |(at, assertion): (usize, &crate::transcript::AssertionRecord)| Problem {
        kind: Kind::Assertion,
        at: format!("assertions[{at}]"),
        title: format!("`{}` does not hold", assertion.that),
        detail: assertion.error.clone().or(assertion.why.clone()).unwrap_or_default(),
        recorded: String::new(),
        now: String::new(),
        line: None,
        place: Some(Place::of(scenario, &Path::parse(&format!("assertions[{at}].that")))),
    };
    all.filter(|(_, assertion)| !assertion.holds).map(problem).collect()
}

impl Problem {
    fn of_drift(drift: &Drift, place: Option<Place>) -> Self {
        Self {
            kind: Kind::Drift,
            at: drift.path.to_string(),
            title: drift.cause.words().to_string(),
            detail: drift.detail.to_string(),
            recorded: drift.recorded.to_string(),
            now: drift.now.to_string(),
            line: drift.line,
            place,
        }
    }

    /// From what went wrong while a recording was read or replayed.
    fn of_error(error: &anyhow::Error, of: Option<(&Scenario, &Header)>) -> Self {
        if let Some(drift) = error.downcast_ref::<Drift>() {
            let place = of.and_then(|(scenario, header)| replay::origin(scenario, header, drift));
            return Self::of_drift(drift, place);
        }
        if let Some(unreadable) = error.downcast_ref::<ReadError>() {
            let line = unreadable.line;
            let drift = Drift::new(format!("line {line}"), Cause::Unreadable, unreadable.to_string());
            return Self::of_drift(&drift.at_line(line), None);
        }
        Self {
            kind: Kind::Environment,
            at: String::new(),
            title: "it can't be judged".to_string(),
            detail: format!("{error:#}"),
            recorded: String::new(),
            now: String::new(),
            line: None,
            place: None,
        }
    }

    fn of_diagnostic(found: &crate::diagnostic::Diagnostic, sources: &crate::diagnostic::Sources) -> Self {
        let (file, line, _) = sources.place(found.span);
        Self {
            kind: Kind::Invalid,
            at: found.code.to_string(),
            title: found.message.to_string(),
            detail: found.help.clone().unwrap_or_default().to_string(),
            recorded: String::new(),
            now: String::new(),
            line: None,
            place: Some(Place { file: file.to_string(), line, field: String::new() }),
        }
    }
}
