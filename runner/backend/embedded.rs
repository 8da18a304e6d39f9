//! The engine in this process: turns requests into the engine's plain data and its answers back.

use super::engine::{in_file_order, reply_of, room};
use super::{
    BoxFuture, Commit, Device, Kv, ModelCard, ModelFile, Progress, Reply, Request, Session, Sink, Usage,
};
use crate::sampling;
use crate::scenario::Hints;
use crate::transcript::ModelRecord;
use anyhow::{Context as _, anyhow};
use greenroom_engine as engine;
use greenroom_engine::cache::Traffic;
pub use greenroom_engine::cache::{CacheKey, ObjectsAddress};
pub use greenroom_engine::{Loading, MemoryBudget};
use std::path::{Path, PathBuf};

/// The bundled model: small talk only, there so that everything runs at once.
static UNDERSTUDY: &[u8] = include_bytes!("../../models/understudy.gguf");

/// The embedded engine as a backend.
pub struct Embedded {
    engine: engine::Engine,
    tenant: String,
    /// Counts the tokens that are computed for the tenant.
    meter: Option<engine::Meter>,
}

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The model.
    pub model: ModelFile,
    /// The device that computes.
    pub device: Device,
    /// Formats of cached keys and values.
    pub kv: Kv,
    /// Folder for memories; `None`: they stay in RAM.
    pub cache_dir: Option<PathBuf>,
    /// An object store for them instead; the folder is for copies then.
    pub objects: Option<ObjectsAddress>,
    /// Encrypts them.
    pub cache_key: Option<CacheKey>,
    /// Keeps tenants of one folder apart; may be empty.
    pub tenant: String,
    /// Bytes that the folder may take.
    pub cache_disk: Option<u64>,
    /// True if that bound is the default: then nothing is removed while the folder is within it.
    pub is_default_bound: bool,
    /// Bytes that memories may take in RAM.
    pub cache_memory: u64,
    /// Another model's share of RAM that this one lives in, instead.
    pub share: Option<MemoryBudget>,
    /// Threads; `None`: all cores.
    pub threads: Option<usize>,
    /// True if a coded cache is tried on a short text before the model's first use.
    pub self_check: bool,
    /// True if memories that another device computed are adopted.
    pub adopt: bool,
    /// A smaller model of the same vocabulary that guesses what this one says.
    pub draft: Option<ModelFile>,
}

/// Bytes of all memories in a folder; 0 if it can't be read.
pub fn bytes_in(folder: &Path) -> u64 {
    engine::cache::Folder::new(folder, None).bytes().unwrap_or(0)
}

/// A model file as the engine names it.
pub fn source(model: &ModelFile) -> engine::ModelSource {
    match model {
        ModelFile::Path(path) => engine::ModelSource::Path(path.clone()),
        ModelFile::Understudy => engine::ModelSource::Bundled("understudy", UNDERSTUDY),
    }
}

impl EmbeddedConfig {
    /// Bytes that memories may take on this machine's disk; `None`: there is no limit, or they are elsewhere.
    pub fn disk_limit(&self) -> Option<u64> {
        self.cache_disk.filter(|_| self.cache_dir.is_some() && self.objects.is_none())
    }

    /// A model on the processor with its own cache formats, memories in RAM alone and without a bound, all
    /// cores, no self-check.
    pub fn new(model: ModelFile) -> Self {
        Self {
            model,
            device: Device::default(),
            kv: Kv::default(),
            cache_dir: None,
            objects: None,
            cache_key: None,
            tenant: String::new(),
            cache_disk: None,
            is_default_bound: false,
            cache_memory: u64::MAX,
            share: None,
            threads: None,
            self_check: false,
            adopt: false,
            draft: None,
        }
    }

    /// As the engine has it.
    pub fn engine(&self) -> engine::EngineConfig {
        let mut config = engine::EngineConfig::new(source(&self.model))
            .device(self.device.choice().clone())
            .kv(self.kv.choice().clone())
            .cache_memory(self.cache_memory);
        config.cache_dir.clone_from(&self.cache_dir);
        config.objects.clone_from(&self.objects);
        config.cache_key.clone_from(&self.cache_key);
        (config.cache_disk, config.cache_tidy) = (self.cache_disk, !self.is_default_bound);
        config.share.clone_from(&self.share);
        config.threads = self.threads;
        config.self_check = self.self_check;
        config.adopt = self.adopt;
        config.draft_model = self.draft.as_ref().map(source);
        config
    }
}

/// An error of the engine, with what its reader can do about it here.
pub fn worded(error: engine::Error) -> anyhow::Error {
    let remedy = match error.remedy() {
        Some(engine::Remedy::ShorterReply) => {
            "shorten the scenario, lower --max-tokens or take a model with a longer context"
        }
        Some(engine::Remedy::ShorterOptions) => {
            "shorten the scenario or its options, or take a model with a longer context"
        }
        Some(engine::Remedy::FormatsOfThisModel) => "make one for this model with `greenroom-lab kv-config`",
        None if error.kind() == engine::ErrorKind::Device => {
            "`greenroom devices` lists the devices (a software renderer must be named: gpu:NAME), --device \
             cpu uses the processor"
        }
        _ => return error.into(),
    };
    anyhow!("{error}; {remedy}")
}

/// An error about a model that is named before it: one about its file begins with the file's name.
pub fn about(model: &str, error: anyhow::Error) -> anyhow::Error {
    let file = Path::new(model).file_name().map_or_else(Default::default, |file| file.to_string_lossy());
    match error.to_string().strip_prefix(&format!("{file}: ")) {
        Some(found) => anyhow!("{found}"),
        None => error,
    }
}

impl Embedded {
    /// Opens the engine; `on_progress` is called with what takes a while.
    ///
    /// # Errors
    /// The engine's error about the model or the cache folder.
    pub fn open(
        config: &EmbeddedConfig,
        on_progress: &mut (dyn FnMut(Loading) + Send),
    ) -> anyhow::Result<Self> {
        let engine = engine::Engine::open_with_progress(config.engine(), on_progress).map_err(|e| {
            let name = config.model.to_string();
            about(&name, worded(e)).context(format!("can't open the model {name}"))
        })?;
        let name = &engine.model().name;
        if let Some(other) = config.kv.measured_on().filter(|other| other != name) {
            tracing::warn!("{} was measured on `{other}`, but this model is `{name}`", config.kv.word());
        }
        Ok(Self { engine, tenant: config.tenant.clone(), meter: None })
    }

    /// The same engine for another tenant, whose tokens are counted as they are computed.
    pub fn for_tenant(&self, tenant: &str, meter: Option<engine::Meter>) -> Self {
        Self { engine: self.engine.clone(), tenant: tenant.to_string(), meter }
    }

    /// Lets a session's memory go, in RAM and on disk; called where no async runtime is active.
    pub fn remove(&self, session: &Session) {
        if let Err(error) = self.engine.blocking_remove(&self.key(session)) {
            tracing::debug!("can't remove `{}`: {error}", session.agent);
        }
    }

    /// The engine itself, for who serves other requests than a scenario's.
    pub fn engine(&self) -> &engine::Engine {
        &self.engine
    }

    fn key(&self, session: &Session) -> engine::SessionKey {
        engine::SessionKey { tenant: self.tenant.clone(), ..session.clone().into() }
    }

    async fn answer(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        let path = request.path.clone();
        let open = request.choice.as_ref().map(in_file_order).unwrap_or_default();
        let mut request = engine::Request { meter: self.meter.clone(), ..request.into() };
        for session in request.parent.iter_mut().chain([&mut request.session]) {
            session.tenant.clone_from(&self.tenant);
        }
        let mut turn = self.engine.submit(request).with_context(|| path.clone())?;
        while let Some(event) = turn.next().await {
            match event {
                engine::Event::Prefill { done, total } => sink(Progress::Prefill { done, total }),
                engine::Event::Text(text) => sink(Progress::Text(text)),
                engine::Event::Failed(error) => return Err(worded(error).context(path)),
                engine::Event::Done(completion) => {
                    return Ok(reply_of(*completion, open, Some(Box::new(EngineCommit(turn)))));
                }
                _ => {}
            }
        }
        Err(anyhow!("{path}: the engine ended the turn without an answer"))
    }
}

impl super::Backend for Embedded {
    fn card(&self) -> ModelCard {
        let info = self.engine.model();
        let model = ModelRecord {
            name: info.name.clone(),
            family: info.family.clone(),
            identity: info.identity.clone(),
        };
        ModelCard { model, kv: self.engine.kv().into(), numerics: info.numerics.clone() }
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(self.answer(request, sink))
    }

    fn forget(&self, session: &Session) {
        self.engine.forget(&self.key(session));
    }

    fn hint_next_use(&self, session: &Session, next_use: u64) {
        self.engine.hint_next_use(&self.key(session), next_use);
    }

    fn traffic(&self) -> Option<Traffic> {
        self.engine.traffic()
    }

    fn suggested_sampling(&self) -> Hints {
        sampling::suggested(&self.engine.model().sampling)
    }

    fn text(&self, ids: &[u32]) -> String {
        self.engine.decode(ids)
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        Ok(room(self.engine.prompter(), request)?.1 > self.engine.model().context_length)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        let (needed, with_calls) = room(self.engine.prompter(), request)?;
        let context = self.engine.model().context_length;
        Ok(needed > context / 2 || with_calls > context)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        Box::pin(async move {
            let embedded = match &self.meter {
                Some(meter) => self.engine.embed_metered(texts, meter.clone()).await,
                None => self.engine.embed(texts).await,
            };
            embedded.map_err(worded)
        })
    }
}

/// A finished turn of the engine whose manifest waits for the transcript line.
struct EngineCommit(engine::Turn);

impl Commit for EngineCommit {
    fn commit(self: Box<Self>) -> BoxFuture<'static, anyhow::Result<Usage>> {
        Box::pin(async move { Ok(self.0.commit().await.context("can't save the agent's memory")?.usage) })
    }
}
