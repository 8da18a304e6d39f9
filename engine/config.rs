//! Settings of an engine.

use crate::device::DeviceChoice;
use crate::share::MemoryBudget;
use crate::store::StoreLocation;
use crate::store::cipher::CacheKey;
use crate::store::objects::ObjectsAddress;
use crate::turns::schedule::Guessing;
use crate::{Error, KvChoice, ModelSource, Result};
use std::path::PathBuf;

/// Settings of an engine: [`EngineConfig::new`], then what differs, by setter or field.
///
/// ```
/// # use greenroom_engine::*;
/// let config = EngineConfig::new(ModelSource::Path("model.gguf".into())).cache_dir("memories").threads(4);
/// assert_eq!(config.threads, Some(4));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The model.
    pub model: ModelSource,
    /// The device that computes.
    pub device: DeviceChoice,
    /// Formats of sealed keys and values.
    pub kv: KvChoice,
    /// Folder in which persistent sessions are stored; `None` keeps everything in memory.
    pub cache_dir: Option<PathBuf>,
    /// An object store in which they are stored instead; `cache_dir` is then required and serves as a local
    /// cache.
    pub objects: Option<ObjectsAddress>,
    /// Key that encrypts what is stored there; memories encrypted with another key are ignored.
    pub cache_key: Option<CacheKey>,
    /// Bytes that the folder may take: when the engine opens and when it is dropped, the least valuable
    /// sessions are removed (see [`crate::cache::Folder::shrink`]), unless another process uses the folder.
    /// Of copies of an object store, the oldest are removed. Default: no bound.
    pub cache_disk: Option<u64>,
    /// True (the default) if `cache_disk` also removes what no session needs each time; false: while the
    /// folder is within its bound, nothing is removed.
    pub cache_tidy: bool,
    /// Bytes that cached keys and values may take in memory (default: 1 GiB). Above that, what is also on
    /// disk is evicted, from the session that is needed last. A turn waits until its maximum
    /// ([`KvCost::most`](crate::KvCost::most) of prompt and longest reply, and 512 tokens in f16) fits beside
    /// the active turns; one that alone exceeds the budget is played alone.
    pub cache_memory: u64,
    /// A budget that this engine shares with others: it takes the place of `cache_memory`, and their passes
    /// take turns.
    pub share: Option<MemoryBudget>,
    /// Threads (default: all cores).
    pub threads: Option<usize>,
    /// Maximum number of prompt tokens in one pass: a longer prompt is read in chunks, between which others
    /// decode. The actual chunk size adapts to measured pass times.
    pub prefill_chunk: usize,
    /// True if a model with coded keys or values is compared with an f16 cache on a short text before it is
    /// used for the first time. [`KvChoice::Auto`] then gives way to finer formats where its own are too
    /// coarse for the model; any other choice stays, and a warning says so. The verdict is kept in the cache
    /// folder; without one it is found each time.
    pub self_check: bool,
    /// True if memories of another device are adopted: sessions whose keys and values another device computed
    /// are continued, and each turn based on them reports it ([`Usage::adopted`](crate::Usage::adopted)).
    /// Model, formats and tenant must be the same. Keys are coded with the constants of the newest such
    /// memory in the cache folder; memories that this device computed with its own constants are not used
    /// meanwhile. Default: false.
    pub adopt: bool,
    /// True (the default) if tokens of replies are guessed, so that one pass may produce several of them. It
    /// changes the time of a reply, never the reply. Only the CPU does it.
    pub drafts: bool,
    /// Rule that decides which guesses are worth their time.
    pub(crate) guessing: Guessing,
    /// A smaller model of the same vocabulary, which guesses the tokens that were not said before
    /// ([`EngineConfig::drafts`]). What it has read stays in memory, in an eighth of `cache_memory` at most.
    pub draft_model: Option<ModelSource>,
}

impl EngineConfig {
    /// A model with everything else at its default: the processor, the family's own cache formats, nothing on
    /// disk, 1 GiB of cache in memory, all cores.
    pub fn new(model: ModelSource) -> Self {
        let (kv, cache_memory, prefill_chunk) = (KvChoice::Auto, 1 << 30, 512);
        Self {
            model,
            device: DeviceChoice::default(),
            kv,
            cache_dir: None,
            objects: None,
            cache_key: None,
            cache_disk: None,
            cache_tidy: true,
            cache_memory,
            share: None,
            threads: None,
            prefill_chunk,
            self_check: false,
            adopt: false,
            drafts: true,
            guessing: Guessing::default(),
            draft_model: None,
        }
    }

    /// Sets the folder in which sessions are stored.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(dir.into());
        self
    }

    /// Sets the bytes that the folder may take.
    #[must_use]
    pub fn cache_disk(mut self, bytes: u64) -> Self {
        self.cache_disk = Some(bytes);
        self
    }

    /// Sets the key that encrypts what is stored.
    #[must_use]
    pub fn cache_key(mut self, key: CacheKey) -> Self {
        self.cache_key = Some(key);
        self
    }

    /// Sets the bytes that cached keys and values may take in memory.
    #[must_use]
    pub fn cache_memory(mut self, bytes: u64) -> Self {
        self.cache_memory = bytes;
        self
    }

    /// Sets the device that computes.
    #[must_use]
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// Sets the formats of sealed keys and values.
    #[must_use]
    pub fn kv(mut self, kv: KvChoice) -> Self {
        self.kv = kv;
        self
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = Some(n);
        self
    }

    /// Where memories are to lie, if anywhere.
    ///
    /// # Errors
    /// There is an object store, but no folder for copies.
    pub(crate) fn place(&self) -> Result<Option<StoreLocation>> {
        let (objects, key) = (self.objects.clone(), self.cache_key.clone());
        match &self.cache_dir {
            Some(dir) => Ok(Some(StoreLocation::new(dir.clone(), key, objects))),
            None if objects.is_none() => Ok(None),
            None => {
                let missing = "memories in an object store need a folder for local copies; set `cache_dir`";
                Err(Error::request(missing))
            }
        }
    }
}
