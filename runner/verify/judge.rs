//! Judges one recording: replays it, asks a model if there is one, and keeps what it would be now.

use super::fitting::Fitting;
use super::verdict::{Problem, ProblemKind, Verdict, failed};
use super::{Level, pending, rerun, score};
use crate::backend::Backend;
use crate::diagnostic::Severity;
use crate::replay::{self, Replayed, Search};
use crate::scenario::Loaded;
use crate::transcript::Transcript;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Settings for judging recordings.
pub struct JudgeSettings {
    /// Places where recordings find their scenarios and the runs that they continue.
    pub search: Search,
    /// The question to a model.
    pub question: JudgeQuestion,
    /// True if what drifted is written next to the recording.
    pub writes_pending: bool,
}

/// The question that a model is asked.
pub enum JudgeQuestion {
    /// Nothing: there is no model.
    Nothing,
    /// To read what was recorded: would it say the same, token by token?
    Score {
        /// The model.
        model: Arc<dyn Backend>,
        /// Maximum fraction of mismatched tokens.
        tolerance: f64,
    },
    /// To play the run again.
    Rerun {
        /// The model.
        model: Arc<dyn Backend>,
        /// The part that must be equal.
        level: Level,
        /// True if agents may call programs where they call otherwise than recorded.
        allow_tools: bool,
    },
}

impl JudgeSettings {
    /// Judges one recording: a run's folder, by the copy of its scenario if it has one, or a transcript, by
    /// the scenario's file.
    pub fn judge(&self, run: &Path) -> Verdict {
        let began = Instant::now();
        let file = replay::transcript_file(run);
        let mut verdict = Verdict::new(file.display().to_string());
        let search = Search { file_first: !run.is_dir(), ..self.search.clone() };
        if let Err(error) = self.look(&file, &search, &mut verdict) {
            verdict.problems.push(Problem::of_error(&error, None));
        }
        if self.writes_pending && verdict.problems.is_empty() {
            pending::fits(&file, verdict.again.is_some());
        }
        verdict.seconds = began.elapsed().as_secs_f64();
        verdict
    }

    fn look(&self, file: &Path, search: &Search, verdict: &mut Verdict) -> anyhow::Result<()> {
        let transcript = Transcript::open(file)?;
        let header = &transcript.header.record;
        verdict.scenario = Some(header.scenario.id.clone());
        verdict.turns = transcript.turns.len();
        verdict.carried = header.carried.is_some();
        verdict.notes = replay::provenance(header);
        let Loaded { scenario, report, .. } = replay::load_scenario(file, header, search)?;
        verdict.notes.extend(replay::other_scenario(file, header, search));
        let Some(scenario) = &scenario else {
            let errors = report.diagnostics.iter().filter(|found| found.severity == Severity::Error);
            verdict.problems.extend(errors.map(|found| Problem::of_diagnostic(found, &report.sources)));
            return Ok(());
        };
        let earlier = replay::brought_along(file, header, self.search.root.as_deref())?;
        let fitting = Fitting { file, scenario, transcript: &transcript, earlier: earlier.clone() };
        match replay::replay(scenario, &transcript, earlier.clone()) {
            Ok(Replayed { footer, notes, .. }) => {
                verdict.notes.extend(notes);
                verdict.problems = failed(scenario, &footer, Some(&transcript));
                verdict.footer = Some(footer);
                self.ask(&fitting, verdict)
            }
            Err(error) => {
                let problem = Problem::of_error(&error, Some((scenario, header)));
                if problem.kind == ProblemKind::Drift && self.writes_pending {
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
            JudgeQuestion::Nothing => {}
            JudgeQuestion::Score { model, tolerance } => {
                let score = score::score(fitting, model)?;
                verdict.notes.extend(fitting.doubts(&fitting.players(model)?));
                if score.surprises.len() as f64 > tolerance * score.tokens as f64 {
                    verdict
                        .problems
                        .extend(score.surprises.first().map(|first| Problem::of_surprise(first, &score)));
                }
                verdict.score = Some(score);
            }
            JudgeQuestion::Rerun { model, level, allow_tools } => {
                let again = rerun::rerun(fitting, model, *level, *allow_tools)?;
                verdict.notes.extend(fitting.doubts(&fitting.players(model)?));
                verdict.again = Some(level.word());
                if let Some(drift) = &again.drift {
                    verdict.problems.push(Problem::of_drift(drift, None));
                    if self.writes_pending {
                        verdict.pending = pending::write(fitting.file, Ok(again.text), &mut verdict.notes);
                    }
                }
                if *level != Level::Exact {
                    verdict.problems.retain(|problem| problem.kind != ProblemKind::Assertion);
                    verdict.problems.extend(failed(fitting.scenario, &again.footer, None));
                    verdict.footer = Some(again.footer);
                }
            }
        }
        Ok(())
    }
}
