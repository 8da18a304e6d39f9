//! The served models: opened on demand, within a memory limit for their weights.
//!
//! If another model needs room, the least recently used idle one is closed; its memories stay on disk. If
//! none is idle and the other model has waited for a while, no new requests reach the open models, so a busy
//! model can't keep it out.
//!
//! Loading and closing belong to the server, not to the request that caused them: they hold [`LoadGuard`]
//! until they are over, even if the client disconnects meanwhile. So no model is loaded twice, and what is
//! being loaded or closed always counts against the limit.

use super::error::Refusal;
use crate::backend::{Embedded, EmbeddedConfig, Loading, MemoryBudget, ModelFile, locate};
use anyhow::{Context as _, ensure};
use greenroom_engine::Engine;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval for checking whether a model has become idle.
const RETRY: Duration = Duration::from_millis(20);
/// How long a model that waits for room lets requests pass to the open ones.
const MAX_PASSING: Duration = Duration::from_secs(2);
/// Maximum time to wait for room.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Creates the observer of opening a model.
type ModelObserver = dyn Fn() -> Box<dyn FnMut(Loading) + Send> + Send + Sync;

/// The right to load and close models; one has it at a time.
type LoadGuard = tokio::sync::OwnedMutexGuard<()>;

/// Models by the names that clients ask for.
pub struct Models {
    offered: BTreeMap<String, ModelFile>,
    names: Names,
    config: EmbeddedConfig,
    /// Bytes of weights that may be open at once.
    max_bytes: u64,
    open: Mutex<OpenModels>,
    /// Held while a model is loaded or closed.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// True while one has waited for room longer than [`MAX_PASSING`].
    is_late: AtomicBool,
    on_progress: Box<ModelObserver>,
    /// Seconds since 1970 at which the server started.
    started: u64,
}

/// Other names that clients may ask for.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Models by other names.
    pub aliases: BTreeMap<String, String>,
    /// True if the only model answers to any name.
    pub any: bool,
}

#[derive(Default)]
struct OpenModels {
    served: BTreeMap<String, (Arc<Served>, u64)>,
    clock: u64,
}

/// A model in use.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) backend: Embedded,
    bytes: u64,
}

impl Served {
    pub(super) fn engine(&self) -> &Engine {
        self.backend.engine()
    }
}

impl Models {
    /// Models, each under its name, with these settings; the memories of all live in one budget. As many are
    /// opened as there is room for.
    ///
    /// # Errors
    /// A model can't be found or opened, or is larger than `max_bytes`; a name is given twice, or is another
    /// name of no model.
    pub fn open(
        config: EmbeddedConfig,
        given: &BTreeMap<String, String>,
        names: Names,
        max_bytes: Option<u64>,
        on_progress: Box<ModelObserver>,
    ) -> anyhow::Result<Self> {
        let named = |name: &str| format!("the model `{name}`");
        let offered =
            given.iter().map(|(name, model)| Ok((name.clone(), locate(model).with_context(|| named(name))?)));
        for (alias, name) in &names.aliases {
            ensure!(
                !given.contains_key(alias),
                "`{alias}` is an alias and a model; expected it to be one of them"
            );
            let known = given.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            ensure!(
                given.contains_key(name),
                "the alias `{alias}` is of `{name}`, but the models are {known}"
            );
        }
        ensure!(
            !names.any || given.len() == 1,
            "`--any-model` lets one model answer to any name, but there are {}; serve one, or name others by `--alias`",
            given.len()
        );
        let config = EmbeddedConfig { share: Some(MemoryBudget::new(config.cache_memory)), ..config };
        let models = Self {
            offered: offered.collect::<anyhow::Result<_>>()?,
            names,
            config,
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            open: Mutex::default(),
            opening: Arc::default(),
            is_late: AtomicBool::new(false),
            on_progress,
            started: now(),
        };
        let mut left = models.max_bytes;
        for (name, file) in &models.offered {
            let bytes = size(file);
            ensure!(
                bytes <= models.max_bytes,
                "{} takes {bytes} bytes, but `--model-memory` allows {}",
                named(name),
                models.max_bytes
            );
            if bytes <= left {
                left -= bytes;
                models.begin(name, file)?;
            }
        }
        Ok(models)
    }

    /// One model that is open already, and stays open.
    pub fn of(name: &str, file: ModelFile, backend: &Embedded, config: EmbeddedConfig) -> Self {
        let served = Served { name: name.to_string(), backend: backend.for_tenant("", None), bytes: 0 };
        let open = OpenModels {
            served: BTreeMap::from([(name.to_string(), (Arc::new(served), 0))]),
            ..OpenModels::default()
        };
        Self {
            offered: BTreeMap::from([(name.to_string(), file)]),
            names: Names { any: true, ..Names::default() },
            config,
            max_bytes: u64::MAX,
            open: Mutex::new(open),
            opening: Arc::default(),
            is_late: AtomicBool::new(false),
            on_progress: Box::new(|| Box::new(|_| {})),
            started: now(),
        }
    }

    /// Names of all models.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.offered.keys().map(String::as_str)
    }

    /// The name under which a model is served that a client asks for; the only one if it names none.
    ///
    /// # Errors
    /// There is no such model, or none is named and there are several.
    pub(super) fn name(&self, asked: Option<&str>) -> Result<&str, Refusal> {
        let only = self.offered.keys().next().filter(|_| self.offered.len() == 1);
        let list = || self.names().collect::<Vec<_>>().join(", ");
        match asked.filter(|name| !name.is_empty()) {
            Some(name) => {
                // (Ollama's clients name a version.)
                let bare = name.strip_suffix(":latest").unwrap_or(name);
                let known = |name: &str| {
                    let offered = self.offered.get_key_value(name).map(|(name, _)| name);
                    offered.or_else(|| self.names.aliases.get(name))
                };
                let found = known(name).or_else(|| known(bare));
                found.or(only.filter(|_| self.names.any)).map(String::as_str).ok_or_else(|| {
                    let found = format!("the model `{name}` does not exist; available models: {}", list());
                    Refusal::no_model(found)
                })
            }
            None => only.map(String::as_str).ok_or_else(|| {
                Refusal::field("model", format!("`model` is missing; expected one of {}", list()))
            }),
        }
    }

    /// Bytes that the memories on disk may take.
    pub(super) fn disk_limit(&self) -> Option<u64> {
        self.config.disk_limit()
    }

    /// Models that are open now, least recently used first.
    pub(super) fn at_hand(&self) -> Vec<Arc<Served>> {
        let mut served: Vec<_> = self.state().served.values().cloned().collect();
        served.sort_by_key(|(_, used)| *used);
        served.into_iter().map(|(served, _)| served).collect()
    }

    /// The model of that name, opened if it was not.
    pub(super) async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Served>, Refusal> {
        let Some((name, file)) = self.offered.get_key_value(name) else {
            let known: Vec<&str> = self.names().collect();
            return Err(Refusal::no_model(format!(
                "the model `{name}` does not exist; available models: {}",
                known.join(", ")
            )));
        };
        let opening = self.opening.clone().lock_owned();
        tokio::pin!(opening);
        let mut opening = loop {
            if !self.is_late.load(Ordering::Relaxed)
                && let Some(served) = self.used(name)
            {
                return Ok(served);
            }
            if let Ok(opening) = tokio::time::timeout(RETRY, &mut opening).await {
                break opening;
            }
        };
        if let Some(served) = self.used(name) {
            return Ok(served);
        }
        let began = Instant::now();
        // Requests pass again, even if the client has disconnected meanwhile.
        let _on_time = OnTime(&self.is_late);
        loop {
            let has_room;
            (has_room, opening) = self.make_room(size(file), opening).await?;
            if has_room {
                break;
            }
            if began.elapsed() > MAX_WAIT {
                return Err(Refusal::too_many(
                    format!("there is no room for the model `{name}`: all loaded models are busy"),
                    RETRY,
                ));
            }
            self.is_late.store(began.elapsed() > MAX_PASSING, Ordering::Relaxed);
            tokio::time::sleep(RETRY).await;
        }
        let (models, name, file) = (self.clone(), name.clone(), file.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let _opening = opening;
            models.begin(&name, &file)
        });
        match opened.await {
            Ok(Ok(served)) => Ok(served),
            Ok(Err(error)) => Err(Refusal::internal(format!("{error:#}"))),
            Err(error) => Err(Refusal::internal(format!("can't open the model: {error}"))),
        }
    }

    fn used(&self, name: &str) -> Option<Arc<Served>> {
        let mut open = self.state();
        open.clock += 1;
        let clock = open.clock;
        let (served, used) = open.served.get_mut(name)?;
        *used = clock;
        Some(served.clone())
    }

    /// Opens a model.
    fn begin(&self, name: &str, file: &ModelFile) -> anyhow::Result<Arc<Served>> {
        let config = EmbeddedConfig { model: file.clone(), ..self.config.clone() };
        let backend = Embedded::open(&config, &mut (self.on_progress)())
            .with_context(|| format!("the model `{name}`"))?;
        let served = Arc::new(Served { name: name.to_string(), backend, bytes: size(file) });
        let mut open = self.state();
        open.clock += 1;
        let clock = open.clock;
        open.served.insert(name.to_string(), (served.clone(), clock));
        Ok(served)
    }

    /// True if this many bytes of weights fit beside the open models; idle models are closed for that.
    ///
    /// # Errors
    /// Closing a model failed.
    async fn make_room(&self, bytes: u64, mut opening: LoadGuard) -> Result<(bool, LoadGuard), Refusal> {
        loop {
            let idle = {
                let mut open = self.state();
                let held: u64 = open.served.values().map(|(served, _)| served.bytes).sum();
                if held.saturating_add(bytes) <= self.max_bytes {
                    return Ok((true, opening));
                }
                let idle = open.served.iter().filter(|(_, (served, _))| Arc::strong_count(served) == 1);
                let idle = idle.min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
                idle.and_then(|name| open.served.remove(&name))
            };
            let Some((served, _)) = idle else { return Ok((false, opening)) };
            tracing::info!("closing the model `{}` to make room", served.name);
            // It waits for writes in progress.
            let closed = tokio::task::spawn_blocking(move || {
                drop(served);
                opening
            });
            opening = closed
                .await
                .map_err(|error| Refusal::internal(format!("can't close a model to make room: {error}")))?;
        }
    }

    fn state(&self) -> MutexGuard<'_, OpenModels> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model as `/v1/models` lists it; `None`: there is none of that name.
    pub(super) fn described(&self, name: &str) -> Option<Value> {
        let file = self.offered.get(name)?;
        let mut described =
            json!({ "id": name, "object": "model", "created": self.started, "owned_by": "greenroom" });
        described["greenroom"] = match self.state().served.get(name) {
            None => json!({ "is_open": false, "bytes": size(file) }),
            Some((served, _)) => {
                let (info, engine) = (served.engine().model(), served.engine());
                json!({
                    "is_open": true,
                    "bytes": served.bytes,
                    "name": info.name,
                    "family": info.family,
                    "identity": info.identity,
                    "context_length": info.context_length,
                    "kv": engine.kv(),
                    "numerics": info.numerics,
                    "sampling": info.sampling,
                })
            }
        };
        Some(described)
    }
}

/// Once it is dropped, no model is late.
struct OnTime<'a>(&'a AtomicBool);

impl Drop for OnTime<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Bytes of a model's file.
fn size(model: &ModelFile) -> u64 {
    match model {
        ModelFile::Path(path) => std::fs::metadata(path).map_or(0, |file| file.len()),
        ModelFile::Understudy => 0,
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_engine::fixtures::RandomModel;

    /// Models, of which one has room; each load is reported, and waits for a permit.
    fn one_at_a_time(folder: &std::path::Path, permits: Arc<(Mutex<usize>, std::sync::Condvar)>) -> Slow {
        let model = |name: &str, seed| {
            let path = folder.join(name);
            std::fs::write(&path, RandomModel::tiny(seed).bytes()).unwrap();
            (name.to_string(), path.to_str().unwrap().to_string())
        };
        let given = BTreeMap::from([model("a", 1), model("b", 2)]);
        let bytes = std::fs::metadata(&given["a"]).unwrap().len();
        let (report, loads) = tokio::sync::mpsc::unbounded_channel();
        let on_progress: Box<ModelObserver> = Box::new(move || {
            let _ = report.send(());
            let (left, changed) = &*permits;
            let mut left = changed.wait_while(left.lock().unwrap(), |left| *left == 0).unwrap();
            *left -= 1;
            Box::new(|_| {})
        });
        let config = EmbeddedConfig::new(ModelFile::Understudy);
        let models = Models::open(config, &given, Names::default(), Some(bytes + 9), on_progress).unwrap();
        Slow { models: Arc::new(models), loads }
    }

    struct Slow {
        models: Arc<Models>,
        loads: tokio::sync::mpsc::UnboundedReceiver<()>,
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_load_outlives_the_request_that_began_it_and_is_not_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let permits = Arc::new((Mutex::new(1), std::sync::Condvar::new()));
        let permit = |n: usize| {
            *permits.0.lock().unwrap() += n;
            permits.1.notify_all();
        };
        let Slow { models, mut loads } = one_at_a_time(folder.path(), permits.clone());
        loads.recv().await.unwrap(); // of the first model, as the server starts
        let asked = |name: &'static str| {
            let models = models.clone();
            tokio::spawn(async move { models.get(name).await.map(|served| served.name.clone()) })
        };
        let first = asked("b");
        loads.recv().await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(models.opening.try_lock().is_err(), "the load goes on, and nothing is loaded beside it");
        let others = [asked("b"), asked("b"), asked("b")];
        permit(2);
        for other in others {
            assert_eq!(other.await.unwrap().map_err(|refusal| refusal.status()), Ok("b".to_string()));
        }
        assert!(loads.try_recv().is_err(), "the model was loaded once");
        assert_eq!(models.at_hand().len(), 1);
        // A load that is no longer waited for leaves a model that can be closed again.
        assert_eq!(asked("a").await.unwrap().map_err(|refusal| refusal.status()), Ok("a".to_string()));
    }

    /// Back-to-back requests for a model, which keep it always busy, don't keep another one out; nor the
    /// other way round.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_model_that_is_always_asked_for_keeps_no_other_out() {
        let folder = tempfile::tempdir().unwrap();
        let model = |name: &str, seed| {
            let path = folder.path().join(name);
            std::fs::write(&path, RandomModel::tiny(seed).bytes()).unwrap();
            (name.to_string(), path.to_str().unwrap().to_string())
        };
        let given = BTreeMap::from([model("a", 1), model("b", 2)]);
        let bytes = std::fs::metadata(&given["a"]).unwrap().len();
        let config = EmbeddedConfig::new(ModelFile::Understudy);
        let models =
            Models::open(config, &given, Names::default(), Some(bytes + 9), Box::new(|| Box::new(|_| {})))
                .unwrap();
        let models = Arc::new(models);
        assert_eq!(models.at_hand().len(), 1);
        let over = Arc::new(AtomicBool::new(false));
        let ask = |name: &'static str, n: u64| {
            let (models, over) = (models.clone(), over.clone());
            tokio::spawn(async move {
                let mut served = 0;
                while !over.load(Ordering::Relaxed) {
                    let model = models.get(name).await.map_err(|refusal| refusal.status())?;
                    tokio::time::sleep(Duration::from_millis(30 + 7 * n)).await;
                    drop(model);
                    served += 1;
                }
                Ok::<u64, u16>(served)
            })
        };
        let asking: Vec<_> = (0..4).flat_map(|n| [ask("a", n), ask("b", n)]).collect();
        tokio::time::sleep(MAX_PASSING * 5).await;
        over.store(true, Ordering::Relaxed);
        for asked in asking {
            assert!(
                asked.await.unwrap().unwrap() > 10,
                "who asks is served many times while its model is open"
            );
        }
    }
}
