//! A recording that fits its scenario, to be played again.

use crate::backend::{Backend, ModelCard};
use crate::prompt::Memories;
use crate::replay;
use crate::scenario::{Scenario, compile};
use crate::stage::{End, Settings, Stage, Unwatched};
use crate::timeline::Timeline;
use crate::trace::{self, Trace};
use crate::transcript::{Header, Recorder, Transcript};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A recording whose scenario was found, and which fits it.
pub(super) struct Fitting<'a> {
    pub(super) file: &'a Path,
    pub(super) scenario: &'a Arc<Scenario>,
    pub(super) transcript: &'a Transcript,
    pub(super) earlier: BTreeMap<String, Timeline>,
}

impl Fitting<'_> {
    pub(super) fn memories(&self) -> Memories {
        replay::memories(self.scenario, &self.transcript.header.record, self.earlier.clone())
    }

    /// Plays the recorded plan with its settings. Memories stay in RAM.
    pub(super) async fn play(&self, backend: Arc<dyn Backend>, recorder: Recorder) -> anyhow::Result<End> {
        let header = &self.transcript.header.record;
        let settings = Settings {
            sampling: header.sampling.clone().into(),
            max_tokens: header.max_tokens,
            before: replay::settings_before(header, &compile(self.scenario)),
            ..Settings::default()
        };
        let name = format!("verify {}", self.file.display());
        let mut stage = Stage::new(self.memories(), backend, settings, recorder, Trace::in_memory(&name));
        stage.play(&mut Unwatched, std::future::pending()).await
    }

    /// Notes on why this model need not say the same: it is not the recording's, or turns rested on memory that another device
    /// computed, as the trace beside the recording has it.
    pub(super) fn doubts(&self, card: &ModelCard) -> Vec<String> {
        let other = other_model(&self.transcript.header.record, card);
        other.into_iter().chain(self.adopted()).collect()
    }

    fn adopted(&self) -> Option<String> {
        let trace = Trace::turns_of(&self.file.with_file_name(trace::FILE))?;
        let turns = self.transcript.turns.iter().filter_map(|turn| trace.get(&turn.record.path));
        let origins: Vec<&String> = turns.filter_map(|turn| turn.adopted.as_ref()).collect();
        let verb = if origins.len() == 1 { "turn rests" } else { "turns rest" };
        origins.first().map(|first| format!("{} {verb} on memory adopted from `{first}`", origins.len()))
    }
}

/// A note that the model, cache format or numerics are not those of the recording.
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
