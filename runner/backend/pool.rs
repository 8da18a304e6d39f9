//! Several models of one run: opened on first use, each once; those in this process within one budget of
//! memory.

use super::{
    Backend, BoxFuture, Embedded, EmbeddedConfig, Loading, MemoryBudget, ModelCard, ModelFile, Reply,
    Request, Session, Sink, Traffic, locate, remote,
};
use crate::scenario::{EngineAddress, Hints};
use anyhow::{Context as _, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Creates the observer of opening a model.
type LoadObserver = dyn Fn() -> Box<dyn FnMut(Loading) + Send> + Send + Sync;

/// The scenario's own model, and others as they are needed.
pub struct Pool {
    /// Settings of every engine; the model is another one for each.
    config: EmbeddedConfig,
    own: Arc<dyn Backend>,
    /// The same, if it is in this process.
    embedded: Option<Arc<Embedded>>,
    opened: Mutex<Vec<(FoundModel, Arc<dyn Backend>)>>,
    /// Models in the place of those that scenarios name; the empty name is a scenario's own.
    replaced: BTreeMap<String, String>,
    reach: Reach,
    on_progress: Box<LoadObserver>,
}

/// The remote engines that may be used: agents' texts are sent there, with the keys that scenarios name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All.
    All,
    /// Those that a person has given, by their addresses.
    Given(BTreeSet<String>),
}

impl Reach {
    fn check(&self, address: &EngineAddress, text: &str) -> anyhow::Result<()> {
        let is_given = match self {
            Self::All => true,
            Self::Given(given) => given.contains(text),
        };
        let key = address.key_env.as_ref().map_or(String::new(), |name| format!(", with the key in {name}"));
        ensure!(
            is_given,
            "it would be played at {}{key}, and what agents read would be sent there; allow this with \
                --allow-remote, or choose a model with --model",
            address.url
        );
        Ok(())
    }
}

/// A model by what it is, however it was named.
#[derive(Clone, Debug, PartialEq)]
enum FoundModel {
    /// A file.
    Here(ModelFile),
    /// An engine of another process or machine.
    Elsewhere(EngineAddress),
}

impl FoundModel {
    fn new(model: &str, reach: &Reach) -> anyhow::Result<Self> {
        if !EngineAddress::is_meant(model) {
            return Ok(Self::Here(same_file(locate(model)?)));
        }
        let address = model.parse()?;
        reach.check(&address, model)?;
        Ok(Self::Elsewhere(address))
    }
}

impl Pool {
    /// Opens the scenario's own model, as it is found; all that are here live in `config.cache_memory`.
    ///
    /// # Errors
    /// The model can't be found or opened.
    pub fn open(
        config: EmbeddedConfig,
        own: &str,
        replaced: BTreeMap<String, String>,
        reach: Reach,
        on_progress: Box<LoadObserver>,
    ) -> anyhow::Result<Self> {
        let config = EmbeddedConfig { share: Some(MemoryBudget::new(config.cache_memory)), ..config };
        let found = FoundModel::new(own, &reach)?;
        let (own, embedded) = open(&config, &found, &on_progress)?;
        let opened = Mutex::new(vec![(found, own.clone())]);
        Ok(Self { config, own, embedded, opened, replaced, reach, on_progress })
    }

    /// Settings of the scenario's own model.
    pub fn config(&self) -> &EmbeddedConfig {
        &self.config
    }

    /// The engine of the scenario's own model, if it is in this process.
    pub fn embedded(&self) -> Option<&Arc<Embedded>> {
        self.embedded.as_ref()
    }

    fn engine(&self, model: &str) -> anyhow::Result<Arc<dyn Backend>> {
        let found = FoundModel::new(model, &self.reach)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, engine)) = opened.iter().find(|(known, _)| *known == found) {
            return Ok(engine.clone());
        }
        let (engine, _) = open(&self.config, &found, &self.on_progress)?;
        opened.push((found, engine.clone()));
        Ok(engine)
    }
}

/// An engine, which is in this process or not.
type OpenedEngine = (Arc<dyn Backend>, Option<Arc<Embedded>>);

fn open(
    config: &EmbeddedConfig,
    found: &FoundModel,
    on_progress: &LoadObserver,
) -> anyhow::Result<OpenedEngine> {
    match found {
        FoundModel::Here(file) => {
            let config = EmbeddedConfig { model: file.clone(), ..config.clone() };
            let embedded = Arc::new(Embedded::open(&config, &mut on_progress())?);
            Ok((embedded.clone(), Some(embedded)))
        }
        FoundModel::Elsewhere(address) => Ok((remote::open(address)?, None)),
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
        let context =
            || if name.is_empty() { "the scenario's model".into() } else { format!("the model `{name}`") };
        Ok(Some(self.engine(model).with_context(context)?))
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        self.own.reply(request, sink)
    }

    fn forget(&self, session: &Session) {
        self.own.forget(session);
    }

    fn hint_next_use(&self, session: &Session, next_use: u64) {
        self.own.hint_next_use(session, next_use);
    }

    fn traffic(&self) -> Option<Traffic> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().filter_map(|(_, engine)| engine.traffic()).reduce(|sum, more| sum + more)
    }

    fn suggested_sampling(&self) -> Hints {
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
