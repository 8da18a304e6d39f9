//! A recording that fits its scenario, to be played again.

use crate::backend::{Backend, ModelCard};
use crate::prompt::Memories;
use crate::replay;
use crate::scenario::Scenario;
use crate::stage::{Control, End, ModelHandle, RecordedRetrievals, Settings, Stage, Unwatched};
use crate::timeline::Timeline;
use crate::tools::{self, Toolbox};
use crate::trace::{self, Trace};
use crate::transcript::{NamedRecord, Recorder, Transcript};
use anyhow::Context as _;
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

/// The models that answer for a recording.
pub(super) struct Players {
    /// The scenario's own.
    pub(super) own: Arc<dyn Backend>,
    /// Those that it names.
    pub(super) named: BTreeMap<String, ModelHandle>,
}

impl Players {
    /// The same, each after a different context.
    pub(super) fn map(self, wrap: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        let seat = |seat: ModelHandle| ModelHandle { backend: wrap(seat.backend), ..seat };
        let named = self.named.into_iter().map(|(name, of)| (name, seat(of))).collect();
        Self { own: wrap(self.own), named }
    }
}

impl Fitting<'_> {
    pub(super) fn memories(&self) -> Memories {
        replay::memories(self.scenario, &self.transcript.header.record, self.earlier.clone())
    }

    /// Plays the recorded plan with its settings; what was looked up already is not looked up again. Memories
    /// stay in RAM.
    pub(super) async fn play(
        &self,
        players: Players,
        recorder: Recorder,
        retrievals: RecordedRetrievals,
        allow_tools: bool,
    ) -> anyhow::Result<End> {
        let header = &self.transcript.header.record;
        let Players { own, named: models } = players;
        let embeddings = self.scenario.embeddings.as_ref();
        let embeddings = embeddings.and_then(|name| Some(models.get(name)?.backend.clone()));
        let toolbox = match allow_tools && !Toolbox::outside(self.scenario).is_empty() {
            true => {
                let folder = tools::folder(self.scenario, Some(&header.scenario.path))?;
                Toolbox::open(self.scenario, folder).await?
            }
            false => Toolbox::recorded(self.scenario, &header.tools),
        };
        let toolbox = Arc::new(toolbox);
        let settings = Settings {
            sampling: header.sampling.clone(),
            max_tokens: header.max_tokens,
            before: replay::settings_before(header, self.scenario.plan()),
            models,
            embeddings,
            retrievals,
            toolbox: toolbox.clone(),
            ..Settings::default()
        };
        let name = format!("verify {}", self.file.display());
        let mut stage = Stage::new(self.memories(), own, settings, recorder, Trace::in_memory(&name));
        let played = stage.play(&mut Unwatched, &Control::default(), std::future::pending()).await;
        toolbox.close().await;
        played
    }

    /// The models that answer for it: `model` for the scenario's own, where that names none, and those that
    /// it opens for others, as the trace next to the recording names them.
    ///
    /// # Errors
    /// A model can't be found or opened, or the scenario does not name it any more.
    pub(super) fn players(&self, model: &Arc<dyn Backend>) -> anyhow::Result<Players> {
        let traced = Trace::models_of(&self.file.with_file_name(trace::FILE)).unwrap_or_default();
        // A file may be elsewhere on another machine.
        let is_there = |of: &&String| !Path::new(of).is_absolute() || Path::new(of).is_file();
        let played = |name: &str, of: String| traced.get(name).filter(is_there).cloned().unwrap_or(of);
        let own = self.scenario.usual_model().map(|of| model.named("", &played("", of))).transpose()?;
        let own = own.flatten().unwrap_or_else(|| model.clone());
        let mut named = BTreeMap::new();
        for (name, was) in &self.transcript.header.record.models {
            let of = self.scenario.model(name);
            let of = of.with_context(|| format!("the scenario no longer has a model `{name}`"))?;
            let backend = model.named(name, &played(name, of))?.unwrap_or_else(|| model.clone());
            named.insert(name.clone(), ModelHandle { backend, sampling: was.sampling.clone() });
        }
        Ok(Players { own, named })
    }

    /// Notes on why this model may answer differently: it is not the recording's, or turns are based on
    /// memory that another device computed, according to the trace next to the recording.
    pub(super) fn doubts(&self, players: &Players) -> Vec<String> {
        let header = &self.transcript.header.record;
        let was = ModelCard {
            model: header.model.clone(),
            kv: header.kv.clone(),
            numerics: header.numerics.clone(),
        };
        let other = other_model(&was, &players.own.card());
        let named = header.models.iter().filter_map(|(name, was)| {
            let NamedRecord { model, kv, numerics, sampling: _ } = was.clone();
            let is = players.named.get(name)?.backend.card();
            let note = other_model(&ModelCard { model, kv, numerics }, &is)?;
            Some(format!("model `{name}`: {note}"))
        });
        other.into_iter().chain(named).chain(self.adopted()).collect()
    }

    fn adopted(&self) -> Option<String> {
        let trace = Trace::turns_of(&self.file.with_file_name(trace::FILE))?;
        let turns = self.transcript.turns.iter().filter_map(|turn| trace.get(&turn.record.path));
        let origins: Vec<&String> = turns.filter_map(|turn| turn.adopted.as_ref()).collect();
        let verb = if origins.len() == 1 { "turn is based" } else { "turns are based" };
        origins.first().map(|first| format!("{} {verb} on memory adopted from `{first}`", origins.len()))
    }
}

/// A note that the model, cache format or numerics are not those of the recording.
fn other_model(was: &ModelCard, is: &ModelCard) -> Option<String> {
    let pairs = [
        ("model", &was.model.identity, &is.model.identity),
        ("cache", &was.kv, &is.kv),
        ("numerics", &was.numerics, &is.numerics),
    ];
    let (what, recorded, now) = pairs.into_iter().find(|(_, was, is)| was != is)?;
    let (recorded, now, help) = match what {
        "model" => (&was.model.name, &is.model.name, " (--model gives another)"),
        _ => (recorded, now, ""),
    };
    Some(format!("recorded with the {what} `{recorded}`, but read with `{now}`{help}"))
}
