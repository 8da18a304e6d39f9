//! Findings on a recording, as plain data.

use super::score::{Score, Surprise};
use crate::diagnostic::{Diagnostic, Sources};
use crate::replay::{self, Place};
use crate::scenario::{Path, Scenario};
use crate::transcript::{
    AssertionRecord, Cause, Drift, Footer, Header, ReadError, Transcript, VerdictRecord,
};
use serde::Serialize;

/// The findings on one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The recording, or the record of an experiment.
    pub file: String,
    /// What it is that was judged of an experiment as a whole; `None`: a recording was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The scenario's id, if the recording can be read.
    pub scenario: Option<String>,
    /// Turns on record.
    pub turns: usize,
    /// True if its replies were carried over from another recording: no model gave them to these prompts.
    pub carried: bool,
    /// The problems; empty: there are none.
    pub problems: Vec<Problem>,
    /// Figures over many runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
    /// The results as they are now.
    #[serde(skip)]
    pub footer: Option<Footer>,
    /// Notes on its origin, and on differences that changed nothing of what was read or said.
    pub notes: Vec<String>,
    /// The model's score of the recorded replies, if one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
    /// The part of the run that was compared, if it was played again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<&'static str>,
    /// Path of the file that holds the recording as it would be now, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Seconds that it took to find out.
    pub seconds: f64,
}

impl Verdict {
    /// A verdict without findings.
    pub(crate) fn new(file: String) -> Self {
        Self {
            file,
            of: None,
            scenario: None,
            turns: 0,
            carried: false,
            problems: Vec::new(),
            figures: Vec::new(),
            footer: None,
            notes: Vec::new(),
            score: None,
            again: None,
            pending: None,
            seconds: 0.0,
        }
    }

    /// Its subject: the recording, or what was judged of an experiment.
    pub fn name(&self) -> String {
        self.of.as_ref().map_or_else(|| self.file.clone(), |of| format!("{}: {of}", self.file))
    }
}

/// Something that is wrong with a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// Kind of problem.
    pub kind: ProblemKind,
    /// The turn's path, `header`, `footer` or an assertion.
    pub at: String,
    /// Short description.
    pub title: String,
    /// Further details; may be empty.
    pub detail: String,
    /// The text as recorded, where there are texts to compare.
    pub recorded: String,
    /// The text as it is now.
    pub now: String,
    /// Line in the recording.
    pub line: Option<usize>,
    /// The place in the scenario that it comes from.
    pub place: Option<Place>,
}

/// Kinds of problems, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProblemKind {
    /// An assertion does not hold.
    Assertion,
    /// The scenario can't be played.
    Invalid,
    /// The recording does not fit.
    Drift,
    /// Anything else: a file that can't be read, a model that can't be opened.
    Environment,
}

/// Assertions that don't hold. With the footer of a `recording`, probabilities of a judge's options are
/// reported.
pub(super) fn failed(scenario: &Scenario, footer: &Footer, recording: Option<&Transcript>) -> Vec<Problem> {
    let all = footer.assertions.iter().enumerate();
    let verdict = |assertion: &AssertionRecord| {
        let VerdictRecord { turn, value } = assertion.verdict.as_ref()?;
        let shares = recording.and_then(|recording| recording.shares(turn));
        let shares = shares.map_or_else(String::new, |shares| format!(" ({shares})"));
        Some(format!("the verdict of {turn} is {value}{shares}"))
    };
    let detail = |assertion: &AssertionRecord| {
        let reason = assertion.error.clone().or(assertion.why.clone());
        reason.into_iter().chain(verdict(assertion)).collect::<Vec<_>>().join("\n")
    };
    let problem = |(at, assertion): (usize, &AssertionRecord)| Problem {
        kind: ProblemKind::Assertion,
        at: format!("assertions[{at}]"),
        title: format!("`{}` is false", assertion.that),
        detail: detail(assertion),
        recorded: String::new(),
        now: String::new(),
        line: None,
        place: Some(Place::of(scenario, &Path::parse(&format!("assertions[{at}].that")))),
    };
    all.filter(|(_, assertion)| assertion.fails()).map(problem).collect()
}

impl Problem {
    pub(super) fn of_drift(drift: &Drift, place: Option<Place>) -> Self {
        Self {
            kind: ProblemKind::Drift,
            at: drift.path.to_string(),
            title: drift.cause.words().to_string(),
            detail: drift.detail.to_string(),
            recorded: drift.recorded.to_string(),
            now: drift.now.to_string(),
            line: drift.line,
            place,
        }
    }

    /// From failures in reading or replaying a recording.
    pub(crate) fn of_error(error: &anyhow::Error, of: Option<(&Scenario, &Header)>) -> Self {
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
            kind: ProblemKind::Environment,
            at: String::new(),
            title: "can't be checked".to_string(),
            detail: format!("{error:#}"),
            recorded: String::new(),
            now: String::new(),
            line: None,
            place: None,
        }
    }

    /// From the first surprise of a score.
    pub(super) fn of_surprise(first: &Surprise, score: &Score) -> Self {
        let nats = |logprob: Option<f32>| logprob.map_or(String::new(), |x| format!(" ({x:.3} nats)"));
        let (n, all) = (score.surprises.len(), score.tokens);
        let before: String = {
            let skipped = first.before.chars().count().saturating_sub(60);
            let dots = if skipped > 0 { "…" } else { "" };
            dots.chars().chain(first.before.chars().skip(skipped)).collect()
        };
        Self {
            kind: ProblemKind::Drift,
            at: first.path.clone(),
            title: format!("{n} of {all} draws are surprises"),
            detail: format!(
                "the first is token {}, after \"{before}\": recorded \"{}\"{}, but the sampler draws \
                 \"{}\"{}",
                first.token,
                first.recorded,
                nats(first.logprob),
                first.drawn,
                nats(first.drawn_logprob),
            ),
            recorded: String::new(),
            now: String::new(),
            line: Some(first.line),
            place: None,
        }
    }

    pub(super) fn of_diagnostic(found: &Diagnostic, sources: &Sources) -> Self {
        let (file, line, _) = sources.place(found.span);
        Self {
            kind: ProblemKind::Invalid,
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
