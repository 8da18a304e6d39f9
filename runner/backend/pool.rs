//! Several models in one process: opened when they are first asked for, each file once, within one budget of memory.

use super::{
    Backend, BoxFuture, Embedded, EmbeddedConfig, GivenSampling, Loading, ModelCard, ModelFile, Reply,
    Request, Session, Share, Sink, locate,
};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Makes what is told of opening a model.
type Progress = dyn Fn() -> Box<dyn FnMut(Loading) + Send> + Send + Sync;

/// The scenario's own model, and others as they are needed.
pub struct Pool {
    /// Settings of every engine; the model is another one for each.
    config: EmbeddedConfig,
    own: Arc<Embedded>,
    opened: Mutex<Vec<(ModelFile, Arc<Embedded>)>>,
    /// Models in the place of those that scenarios name; the empty name is a scenario's own.
    replaced: BTreeMap<String, String>,
    on_progress: Box<Progress>,
}

impl Pool {
    /// Opens the scenario's own model; all live in `config.cache_memory`.
    ///
    /// # Errors
    /// As [`Embedded::open`].
    pub fn open(
        config: EmbeddedConfig,
        replaced: BTreeMap<String, String>,
        on_progress: Box<Progress>,
    ) -> anyhow::Result<Self> {
        let config = EmbeddedConfig { share: Some(Share::new(config.cache_memory)), ..config };
        let own = Arc::new(Embedded::open(&config, &mut on_progress())?);
        let opened = Mutex::new(vec![(same_file(config.model.clone()), own.clone())]);
        Ok(Self { config, own, opened, replaced, on_progress })
    }

    fn engine(&self, model: &str) -> anyhow::Result<Arc<Embedded>> {
        let file = same_file(locate(model)?);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, engine)) = opened.iter().find(|(known, _)| *known == file) {
            return Ok(engine.clone());
        }
        let config = EmbeddedConfig { model: file.clone(), ..self.config.clone() };
        let engine = Arc::new(Embedded::open(&config, &mut (self.on_progress)())?);
        opened.push((file, engine.clone()));
        Ok(engine)
    }
}

/// A file by the one path that all ways to it have.
fn same_file(model: ModelFile) -> ModelFile {
    match model {
        ModelFile::Path(path) => ModelFile::Path(path.canonicalize().unwrap_or(path)),
        ModelFile::Understudy => model,
    }
}

impl Backend for Pool {
    fn card(&self) -> ModelCard {
        self.own.card()
    }

    fn named(&self, name: &str, model: &str) -> anyhow::Result<Option<Arc<dyn Backend>>> {
        let model = self.replaced.get(name).map_or(model, String::as_str);
        let told =
            || if name.is_empty() { "the scenario's model".into() } else { format!("the model `{name}`") };
        Ok(Some(self.engine(model).with_context(told)?))
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        self.own.reply(request, sink)
    }

    fn forget(&self, session: &Session) {
        self.own.forget(session);
    }

    fn expect(&self, session: &Session, next_use: u64) {
        self.own.expect(session, next_use);
    }

    fn suggested_sampling(&self) -> GivenSampling {
        self.own.suggested_sampling()
    }

    fn text(&self, ids: &[u32]) -> String {
        self.own.text(ids)
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        self.own.overflows(request)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.own.fills_half(request)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.own.embed(texts)
    }
}
