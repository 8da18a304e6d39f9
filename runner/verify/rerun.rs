//! Plays a recorded run again, and compares what is said now with what was said then.

use super::compare::{Difference, What, differences};
use super::fitting::Fitting;
use crate::backend::{Backend, CastBackend};
use crate::files::{self, FileKind};
use crate::replay;
use crate::run::records;
use crate::stage::{Control, End, RecordedRetrievals};
use crate::transcript::{Cause, Drift, Footer, Header, PROGRAM, Recorder, Transcript};
use anyhow::{Context as _, bail};
use std::sync::Arc;

/// The part of a run that must be equal when it is played again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Every token.
    #[default]
    Exact,
    /// The choices and the results: decisions, payoffs, outcomes, assertions.
    Choices,
    /// Nothing; but all assertions must hold again.
    Assertions,
}

impl Level {
    /// As arguments write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Choices => "choices",
            Self::Assertions => "assertions",
        }
    }
}

/// A run that was played again.
pub(super) struct Again {
    /// The first difference that counts.
    pub(super) drift: Option<Drift>,
    /// The new recording.
    pub(super) text: String,
    pub(super) footer: Footer,
}

/// Plays a recording that fits once more.
///
/// # Errors
/// It is to be exact, and another model, cache format or kernel contract recorded it, or memory of another
/// device was adopted; or a turn failed.
pub(super) fn rerun(
    fitting: &Fitting<'_>,
    model: &Arc<dyn Backend>,
    level: Level,
    allow_tools: bool,
) -> anyhow::Result<Again> {
    let was = &fitting.transcript.header.record;
    let players = fitting.players(model)?;
    let card = players.own.card();
    if let Some(doubt) = fitting.doubts(&players).first().filter(|_| level == Level::Exact) {
        bail!("{doubt}: the run can't be played again exactly; use --rerun=choices or --rerun=assertions");
    }
    let header = Header {
        engine: PROGRAM.to_string(),
        model: card.model,
        kv: card.kv,
        numerics: card.numerics,
        models: records(&players.named),
        carried: None,
        ..replay::header_now(was, &fitting.memories())
    };
    let folder = tempfile::tempdir().context("can't create a folder for the run")?;
    let file = folder.path().join(crate::transcript::FILE);
    let recorder = Recorder::create(&file, header)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cast = players.map(|model| Arc::new(CastBackend::new(model, Arc::new(Control::default()))));
    // Programs need not give twice the same; what they are asked again is what was not asked then.
    let retrievals = RecordedRetrievals {
        calls: RecordedRetrievals::of(fitting.transcript).calls,
        ..RecordedRetrievals::default()
    };
    let played = fitting.play(cast, recorder, retrievals, allow_tools);
    let End::Complete(footer) = runtime.block_on(played)? else {
        bail!("the run was stopped");
    };
    let text = files::read_text(&file, FileKind::Transcript).context("can't read what was played")?;
    let now = Transcript::parse(&file, &text)?;
    let drift = differences(fitting.transcript, &now).into_iter().find(|found| counts(found, level));
    let drift = drift.map(|found| {
        let (path, detail) = (found.at.clone(), found.what.words().to_string());
        let cause = if is_by_rule(fitting, &found) { Cause::RuleChanged } else { Cause::ReplyChanged };
        let drift = Drift::new(path, cause, detail).texts(found.was, found.now);
        found.line.map_or(drift.clone(), |line| drift.at_line(line))
    });
    Ok(Again { drift, text, footer: *footer })
}

/// True if a rule gives another reply: a strategy, and no human.
fn is_by_rule(fitting: &Fitting<'_>, found: &Difference) -> bool {
    let turn = fitting.transcript.turns.iter().find(|turn| turn.record.path == found.at);
    let agent = turn.and_then(|turn| fitting.transcript.header.record.agents.get(&turn.record.agent));
    let is_rule = agent.and_then(|agent| agent.strategy.as_deref()).is_some_and(|rule| rule != "human");
    is_rule && matches!(found.what, What::Reply | What::Choice | What::Detail)
}

fn counts(found: &Difference, level: Level) -> bool {
    match level {
        Level::Exact => found.what.is_said(),
        Level::Choices => found.what.is_result(),
        Level::Assertions => false,
    }
}
