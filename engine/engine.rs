//! The engine's front.
use crate::{Completion, Conversation, Error, ErrorKind, Event, KvFormat, ModelInfo, Request, Result, SessionKey, TokenScore};
use std::path::{Path, PathBuf};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file, memory-mapped.
    Path(PathBuf),
    /// A GGUF compiled into the program; the name is used in messages.
    Bundled(&'static str, &'static [u8]),
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The model.
    pub model: ModelSource,
    /// Format of sealed keys and values.
    pub kv: KvFormat,
    /// Where persistent sessions are stored; `None` keeps everything in memory.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that cached keys and values may take in memory; above, sessions are evicted (to disk).
    pub cache_memory: u64,
    /// Threads (default: all cores).
    pub threads: Option<usize>,
}

/// A model and the memories of its sessions, on a thread of its own.
pub struct Engine {}

/// A running turn: receive its events, then commit.
pub struct Turn {}

/// Tokenizer and chat template of a model without its weights: for `check`, which counts tokens.
pub struct Prompter {}

impl Engine {
    /// Opens a model. `on_progress(done, total)` is told of bytes converted at load, if any.
    pub fn open(_config: EngineConfig, _on_progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }

    /// What the model is.
    pub fn model(&self) -> &ModelInfo {
        unreachable!()
    }

    /// Starts a turn. Requests of one session are served in order; different sessions share batches.
    pub fn submit(&self, _request: Request) -> Result<Turn> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }

    /// Drops a session's memory from RAM (an ephemeral agent at its phase's end). Its files, if any, stay.
    pub fn forget(&self, _session: &SessionKey) {}

    /// Log-probabilities of `ids` (teacher forcing) from an empty cache, chunk by chunk.
    pub fn score(&self, _ids: &[u32], _on_score: &mut dyn FnMut(TokenScore)) -> Result<()> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }

    /// Ids of a text as a message (special tokens are never recognised in it).
    pub fn encode(&self, _text: &str) -> Result<Vec<u32>> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }
}

impl Turn {
    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        None
    }

    /// Lets the engine write the session's manifest, and waits until it has: call it once the turn's own
    /// record (the transcript line) is on disk. A turn dropped without it leaves the stored session as it was
    /// before the turn, while the one in memory goes on. The completion comes back with the final account.
    pub async fn commit(self) -> Result<Box<Completion>> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }
}

impl Prompter {
    /// Reads a model's metadata and tokenizer.
    pub fn open(_model: &ModelSource) -> Result<Self> {
        Err(Error::new(ErrorKind::Model, "skeleton"))
    }

    /// What the model is.
    pub fn model(&self) -> &ModelInfo {
        unreachable!()
    }

    /// Tokens of a text as message text.
    pub fn count(&self, _text: &str) -> usize {
        0
    }

    /// Tokens of the whole rendered prompt of a conversation, templates included.
    pub fn prompt_tokens(&self, _conversation: &Conversation) -> Result<usize> {
        Ok(0)
    }
}

/// Lists and removes what a cache folder holds.
pub mod cache {
    use super::*;

    /// One stored session.
    #[derive(Clone, Debug)]
    pub struct Entry {
        /// Hash that names its manifest.
        pub id: String,
        /// The run and agent, as given by their owner.
        pub session: SessionKey,
        /// Name of the model.
        pub model: String,
        /// KV format.
        pub format: String,
        /// Tokens held.
        pub tokens: usize,
        /// Bytes of its blocks and tail.
        pub bytes: u64,
        /// Bytes of them that other sessions use too.
        pub shared_bytes: u64,
        /// Seconds since the epoch of its last save.
        pub saved_at: u64,
    }

    /// What `verify` found wrong, a line each, and how many files it read.
    #[derive(Clone, Debug, Default)]
    pub struct Verdict {
        /// Files read.
        pub files: usize,
        /// Damaged or missing things, in words.
        pub problems: Vec<String>,
    }

    /// All sessions of a folder.
    pub fn list(_dir: &Path) -> Result<Vec<Entry>> {
        Ok(Vec::new())
    }

    /// Removes sessions by id prefix, run or agent; blocks go with their last owner. Returns (sessions, bytes).
    pub fn remove(_dir: &Path, _select: &dyn Fn(&Entry) -> bool) -> Result<(usize, u64)> {
        Ok((0, 0))
    }

    /// Reads every file and checks every checksum.
    pub fn verify(_dir: &Path) -> Result<Verdict> {
        Ok(Verdict::default())
    }
}
