//! The engine's front: opening a model, submitting turns, and receiving results.

use crate::config::EngineConfig;
use crate::device::{self, DEFAULT_NUMERICS, Device, DeviceChoice};
use crate::kv::layout::KvLayout;
use crate::memory::Memory;
use crate::memory::arena::Arena;
use crate::memory::session::CacheContext;
use crate::memory::states::borders;
use crate::model::gguf::Gguf;
use crate::prompter::PromptEncoder;
use crate::scoring::fastest::{self, Opening};
use crate::scoring::self_check;
use crate::store::cipher::CacheKey;
use crate::store::inventory::Folder;
use crate::store::manifest::Identity;
use crate::store::medium::Traffic;
use crate::store::numerics::Numerics;
use crate::store::{Bound, STORE_VERSION, Store, StoreLocation};
use crate::text::chat::reply_ids;
use crate::text::prefix::flatten;
use crate::text::tokenizer::{After, Tokenizer};
use crate::turns::draft_model::DraftModel;
use crate::turns::worker::{Command, Worker};
use crate::{
    Completion, Conversation, EngineStatus, Error, ErrorKind, Event, FormatDivergence, KvChoice, Meter,
    ModelInfo, ModelSource, Ranking, Request, Result, SessionKey, TokenScore,
};
use futures_core::Stream;
use greenroom_kernels::threads::ThreadPool;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// A model and the memories of its sessions, on its own thread. Clones are handles to the same engine.
///
/// It ends when the last handle is dropped, including those of its [`Agent`](crate::Agent)s, even if turns
/// are active: unfinished [`Turn`]s get [`Event::Failed`], and uncommitted ones leave the stored session as
/// it was before them. That drop blocks until the engine's thread has ended (at most the current pass and
/// pending writes), so that the cache folder is free again.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

/// An engine, once for all its handles.
pub(crate) struct EngineInner {
    prompter: PromptEncoder,
    kv: String,
    worker: WorkerHandle,
    thread: Option<std::thread::JoinHandle<()>>,
    next_id: AtomicU64,
    /// Where memories are, and the bytes that the folder may take.
    bound: Option<(StoreLocation, Bound)>,
    pub(crate) store_handle: StoreHandle,
}

/// State for managing memories from the engine's front.
pub(crate) struct StoreHandle {
    pub(crate) context: CacheContext,
    pub(crate) store: Option<Arc<Store>>,
    /// Where the store is.
    pub(crate) place: Option<StoreLocation>,
    /// The secret that exports are signed with, once it was needed.
    pub(crate) secret: OnceLock<[u8; 32]>,
}

impl StoreHandle {
    /// The whole store, for maintenance; keeps the place open.
    pub(crate) fn folder(&self) -> Option<Folder> {
        Some(self.store.as_ref()?.folder(self.place.clone()?))
    }
}

/// A running turn: receive its events, then commit.
pub struct Turn {
    id: u64,
    events: UnboundedReceiver<Event>,
    worker: WorkerHandle,
    committed: bool,
}

/// The channel to the engine's thread.
#[derive(Clone)]
struct WorkerHandle {
    commands: Sender<Command>,
    /// Message of the panic that ended the thread, if one did.
    fault: Arc<OnceLock<String>>,
}

impl WorkerHandle {
    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| self.closed())
    }

    /// The error for a command that can no longer be answered.
    fn closed(&self) -> Error {
        match self.fault.get() {
            Some(fault) => Error::internal(fault),
            None => Error::new(ErrorKind::Closed, "the engine has ended"),
        }
    }
}

/// Progress of opening a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loading {
    /// Weights are packed for the kernels: bytes of the file.
    Weights {
        /// Packed so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The model reads short texts, to measure how its keys are best coded and whether its cache's formats
    /// are fine enough: once for a model and a cache folder, each time without a folder.
    Measuring,
}

impl Engine {
    /// Opens a model. [`Engine::open_with_progress`] also reports how far it is.
    ///
    /// # Errors
    /// The model can't be served, or the cache folder is being cleaned. (If the folder can't be used,
    /// memories stay in RAM, with a warning.)
    pub fn open(config: EngineConfig) -> Result<Self> {
        Self::open_with_progress(config, &mut |_| {})
    }

    /// [`Engine::open`]; `on_progress` is called with each step of what takes a while.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with_progress(
        config: EngineConfig,
        on_progress: &mut (dyn FnMut(Loading) + Send),
    ) -> Result<Self> {
        let choice = config.device.clone();
        Self::open_on(config, |opening| fastest::open(&choice, opening), on_progress)
    }

    /// [`Engine::open_with_progress`], on the device that `load` gives.
    pub(crate) fn open_on(
        config: EngineConfig,
        load: impl FnOnce(Opening<'_>) -> Result<Box<dyn Device>> + Send,
        on_progress: &mut (dyn FnMut(Loading) + Send),
    ) -> Result<Self> {
        let began = Instant::now();
        let gguf = Arc::new(Gguf::open(&config.model)?);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = config.threads.unwrap_or(cores).max(1);
        let mut pool = ThreadPool::new(threads)
            .map_err(|e| Error::new(ErrorKind::Closed, format!("can't start threads: {e}")))?;
        let has_header = Instant::now();
        let place = config.place()?;
        let limit = config.cache_disk.map(|bytes| Bound { bytes, is_tidy: config.cache_tidy });
        let bound = place.clone().zip(limit);
        bound.iter().for_each(|(place, bound)| place.keep_within(*bound));
        let (store, storeless) = open_store(place.as_ref())?;
        let (mut prompter, mut device) = pool.install(|| {
            PromptEncoder::read_beside(&gguf, store.as_ref(), |model| {
                let store = store.as_ref();
                load(Opening { gguf: &gguf, model, store, threads, on_progress: &mut *on_progress })
            })
        })?;
        let (model, tokenizer) = (&prompter.info.identity, prompter.tokenizer.clone());
        tracing::info!(
            "model opened: header {:.0?}, weights and tokenizer {:.0?}",
            has_header - began,
            has_header.elapsed()
        );
        if device.n_vocab() < tokenizer.n_vocab() {
            let (rows, tokens) = (device.n_vocab(), tokenizer.n_vocab());
            return Err(
                gguf.error(format!("its vocabulary has {tokens} tokens, but its output only {rows} rows"))
            );
        }
        let folder = store.as_ref().zip(place.clone()).map(|(store, place)| store.folder(place));
        let measuring = &mut || on_progress(Loading::Measuring);
        let to_adopt = folder.iter().filter(|_| config.adopt);
        let to_adopt: Vec<Numerics> = to_adopt.flat_map(|folder| folder.numerics_of(model)).collect();
        let constants = pool.install(|| {
            self_check::calibrate(&mut *device, &tokenizer, store.as_ref(), model, &to_adopt, measuring)
        })?;
        let device: Arc<dyn Device> = Arc::from(device);
        prompter.spec = device.spec().clone();
        let info = &prompter.info;
        let numerics = |layout: &KvLayout| {
            let shaped = layout.layers.iter().any(|layer| layer.k.shaped());
            Numerics::new(device.numerics(), shaped.then_some(&constants.name))
        };
        let identity = |layout: &KvLayout| Identity {
            model_name: info.name.clone(),
            model: info.identity.clone(),
            layout: layout.describe(),
            numerics: numerics(layout).to_string(),
            store: STORE_VERSION,
            salt: String::new(),
        };
        let names = config.cache_key.as_ref().map_or(String::new(), CacheKey::names);
        let context = |layout: Arc<KvLayout>| {
            let identity = identity(&layout);
            CacheContext { layout, identity, names: names.clone(), adopt: config.adopt }
        };
        let root = |layout: &KvLayout| context(Arc::new(layout.clone())).root_of("");
        let layout = match config.self_check {
            true => {
                let store = store.as_ref();
                pool.install(|| self_check::choose(&device, &tokenizer, &config.kv, store, &root, measuring))?
            }
            false => Arc::new(device.spec().kv_layout(&config.kv)?),
        };
        let context = context(layout.clone());
        // Replies depend on the constants, too: with those of another device they are not what this one gives
        // alone.
        prompter.info.numerics =
            if constants.adopted { context.identity.numerics.clone() } else { device.numerics().to_owned() };
        let kv = device.spec().kv_name(&layout);
        let mut memory = pool.install(|| Memory::new(&device, context.clone(), store, config.cache_memory));
        let store_handle =
            StoreHandle { context, store: memory.store.clone(), place, secret: OnceLock::new() };
        memory.storeless = storeless;
        memory.tokenizer = Some(tokenizer.clone());
        let (commands, receiver) = channel();
        let waker = commands.clone();
        memory.wake_by(move || drop(waker.send(Command::Woken)));
        if let Some(share) = &config.share {
            let (member, waker) = (share.join(), commands.clone());
            member.wake_by(move || drop(waker.send(Command::Shared)));
            memory.share = Some(Arc::new(member));
        }
        // A GPU gives the likeliest tokens of one row, not the logits of many.
        let drafts = config.drafts && device.numerics() == DEFAULT_NUMERICS;
        let draft_model = config.draft_model.as_ref().map(|draft| {
            if !drafts {
                return Err(Error::request("a draft model needs a main model that runs on the processor"));
            }
            let packed = &mut |done, total| on_progress(Loading::Weights { done, total });
            pool.install(|| draft_model(draft, &gguf, &tokenizer, config.cache_memory / 8, packed))
        });
        let draft_model = draft_model.transpose()?;
        let worker = Worker::new(
            device,
            tokenizer.clone(),
            prompter.chat.clone(),
            memory,
            config.prefill_chunk,
            drafts.then_some(config.guessing),
            draft_model,
        );
        let handle = WorkerHandle { commands, fault: Arc::default() };
        let thread = start(pool, worker, receiver, handle.fault.clone())?;
        let next_id = AtomicU64::new(0);
        let inner =
            EngineInner { prompter, kv, worker: handle, thread: Some(thread), next_id, bound, store_handle };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Traffic with the object store of the memories since the engine was opened; `None` if they are in a
    /// folder.
    pub fn traffic(&self) -> Option<Traffic> {
        self.inner.store_handle.store.as_ref()?.traffic()
    }

    /// The model's name, shape and identity.
    pub fn model(&self) -> &ModelInfo {
        self.inner.prompter.model()
    }

    /// The model's tokenizer and chat template, for counting tokens and bytes.
    pub fn prompter(&self) -> &PromptEncoder {
        &self.inner.prompter
    }

    /// Starts a turn. Requests of one session are served in order; different sessions share passes.
    ///
    /// # Errors
    /// A number of the request is out of its range, what it asks for can't go together, or the engine's
    /// thread has ended.
    pub fn submit(&self, request: Request) -> Result<Turn> {
        request.validate()?;
        self.begin_turn(|id, events| Command::Turn { id, request: Box::new(request), events })
    }

    /// A turn that begins with a command.
    pub(crate) fn begin_turn(
        &self,
        command: impl FnOnce(u64, UnboundedSender<Event>) -> Command,
    ) -> Result<Turn> {
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = unbounded_channel();
        self.inner.worker.send(command(id, sender))?;
        Ok(Turn { id, events, worker: self.inner.worker.clone(), committed: false })
    }

    /// Sends a command that is answered once.
    pub(crate) fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>> {
        let (answer, receiver) = oneshot::channel();
        self.inner.worker.send(command(answer))?;
        Ok(receiver)
    }

    /// The error for a command that can no longer be answered.
    pub(crate) fn closed(&self) -> Error {
        self.inner.worker.closed()
    }

    /// Gives a session a copy of another's current memory, if that is in RAM; [`Request::parent`] does so at
    /// its first turn, from RAM or disk. `replace`: the session's stored memory may be replaced.
    pub(crate) fn fork(&self, from: &SessionKey, to: &SessionKey, replace: bool) {
        let _ = self.inner.worker.send(Command::Fork { from: from.clone(), to: to.clone(), replace });
    }

    /// Says that a session, or one that begins with its memory, will speak, and when (on the scale of
    /// [`Request::next_use`]): its memory is read ahead then.
    pub fn hint_next_use(&self, session: &SessionKey, next_use: u64) {
        let _ = self.inner.worker.send(Command::HintNextUse { session: session.clone(), next_use });
    }

    /// Active turns, waiting turns, and the sessions in memory. Computed on request, between two passes.
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub async fn status(&self) -> Result<EngineStatus> {
        let answer = self.request(|answer| Command::Status { answer })?;
        answer.await.map_err(|_| self.inner.worker.closed())
    }

    /// [`Engine::status`] for callers without an async runtime.
    ///
    /// # Errors
    /// As [`Engine::status`].
    pub fn blocking_status(&self) -> Result<EngineStatus> {
        let answer = self.request(|answer| Command::Status { answer })?;
        answer.blocking_recv().map_err(|_| self.inner.worker.closed())
    }

    /// Drops a session's memory from RAM (an ephemeral agent at its phase's end). Its files, if any, stay.
    pub fn forget(&self, session: &SessionKey) {
        let _ = self.inner.worker.send(Command::Forget { session: session.clone() });
    }

    /// The formats of sealed keys and values, by their name in transcripts: `q4`, `q8/q4` (keys, values), or
    /// `mixed-` and a hash.
    pub fn kv(&self) -> &str {
        &self.inner.kv
    }

    /// Log-probabilities of `ids` (teacher forcing) from an empty cache, in order; in the engine's own
    /// formats, or others.
    ///
    /// # Examples
    /// ```
    /// # use greenroom_engine::*;
    /// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
    /// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
    /// let ids = engine.encode("Once upon a time", false)?;
    /// let mut logprob = 0.0;
    /// engine.score(&ids, None, &mut |score| logprob += f64::from(score.logprob))?;
    /// assert!(logprob < 0.0); // of all tokens but the first
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// An id outside the vocabulary, more ids than the context holds, formats for another model.
    pub fn score(
        &self,
        ids: &[u32],
        kv: Option<&KvChoice>,
        on_score: &mut dyn FnMut(TokenScore),
    ) -> Result<()> {
        let (scores, receiver) = channel();
        self.inner.worker.send(Command::Score { ids: ids.to_vec(), kv: kv.cloned(), scores })?;
        let mut n_missing = ids.len().saturating_sub(1);
        for score in receiver {
            on_score(score?);
            n_missing -= 1;
        }
        if n_missing > 0 { Err(self.inner.worker.closed()) } else { Ok(()) }
    }

    /// Reads `ids` with empty caches of several formats side by side; `see` is given each position and a
    /// figure for each format, all compared with the first one.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn compare(
        &self,
        ids: &[u32],
        formats: &[KvChoice],
        see: &mut dyn FnMut(usize, &[FormatDivergence]),
    ) -> Result<()> {
        let (figures, receiver) = channel();
        self.inner.worker.send(Command::Compare { ids: ids.to_vec(), formats: formats.to_vec(), figures })?;
        let mut n_missing = ids.len();
        for figure in receiver {
            let (pos, figures) = figure?;
            see(pos, &figures);
            n_missing -= 1;
        }
        if n_missing > 0 { Err(self.inner.worker.closed()) } else { Ok(()) }
    }

    /// Computes how likely each of `options` is as the reply to a conversation, from an empty cache; the
    /// prompt is read once.
    ///
    /// # Examples
    /// ```
    /// # use greenroom_engine::*;
    /// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
    /// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
    /// let question = Conversation { next: "Rolf: Left or right?".into(), ..Conversation::default() };
    /// let ranking = engine.rank(&question, &["left".into(), "right".into()], None)?;
    /// assert_eq!(ranking.options.len(), 2);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn rank(
        &self,
        conversation: &Conversation,
        options: &[String],
        kv: Option<&KvChoice>,
    ) -> Result<Ranking> {
        let PromptEncoder { tokenizer, chat, .. } = &self.inner.prompter;
        let segments = chat.prompt(conversation, tokenizer)?;
        let lead = &chat.replies(conversation.reasoning).lead;
        let prompt = [&flatten(&segments), &lead[..]].concat();
        if prompt.is_empty() {
            return Err(Error::request("the prompt is empty"));
        }
        let ids = |option: &String| {
            reply_ids(&segments, lead, option, tokenizer).map(|ids| ids[lead.len()..].to_vec())
        };
        let options = options.iter().map(ids).collect::<Result<_>>()?;
        let (answer, receiver) = channel();
        let borders = borders(&segments, true);
        self.inner.worker.send(Command::Rank { prompt, borders, options, kv: kv.cloned(), answer })?;
        receiver.recv().map_err(|_| self.inner.worker.closed())?
    }

    /// Embeds texts: for each a vector of length 1, as wide as the model's hidden states
    /// ([`ModelInfo::d_model`]). It is the direction of the mean, over all positions, of the hidden state
    /// after the final norm. Equal texts give equal bits on one device, whatever else is embedded or played
    /// at the same time. Nothing is kept in memory; dropping the future cancels.
    ///
    /// # Errors
    /// A text is empty or longer than the model's context, or a pass fails.
    pub async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>> {
        self.request_embeddings(&texts, None)?.await.map_err(|_| self.inner.worker.closed())?
    }

    /// [`Engine::embed`], where `meter` counts the tokens as they are read.
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub async fn embed_metered(&self, texts: Vec<String>, meter: Meter) -> Result<Vec<Vec<f32>>> {
        self.request_embeddings(&texts, Some(meter))?.await.map_err(|_| self.inner.worker.closed())?
    }

    /// [`Engine::embed`] for callers without an async runtime.
    ///
    /// # Examples
    /// ```
    /// # use greenroom_engine::*;
    /// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
    /// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
    /// let embedded = engine.blocking_embed(vec!["A cat.".into(), "A dog.".into()])?;
    /// let length = embedded[0].iter().map(|x| x * x).sum::<f32>();
    /// assert!(embedded[0].len() == engine.model().d_model && (length - 1.0).abs() < 1e-3);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::embed`].
    pub fn blocking_embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>> {
        self.request_embeddings(&texts, None)?.blocking_recv().map_err(|_| self.inner.worker.closed())?
    }

    fn request_embeddings(
        &self,
        texts: &[String],
        meter: Option<Meter>,
    ) -> Result<oneshot::Receiver<Result<Vec<Vec<f32>>>>> {
        let tokenizer = &self.inner.prompter.tokenizer;
        let ids = |text: &String| Ok(tokenizer.begin(&tokenizer.encode_message(text, After::Special)?));
        let texts = texts.iter().map(ids).collect::<Result<_>>()?;
        let (answer, receiver) = oneshot::channel();
        self.inner.worker.send(Command::Embed { texts, meter, answer })?;
        Ok(receiver)
    }

    /// Ids of a text as a message: special tokens are not recognised in it unless `special` says so.
    ///
    /// # Errors
    /// The tokenizer can't encode it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        if special {
            self.inner.prompter.tokenizer.encode_template(text, After::Special)
        } else {
            self.inner.prompter.tokenizer.encode_message(text, After::Special)
        }
    }

    /// `ids` after the begin-of-sequence token, if the model's texts begin with it and these don't.
    pub fn begin(&self, ids: &[u32]) -> Vec<u32> {
        self.inner.prompter.tokenizer.begin(ids)
    }

    /// Text of ids, special tokens included; bytes that are not UTF-8 become U+FFFD, an unknown id nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.prompter.tokenizer.decode(ids)
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // Turns have channels to the thread too, so that it would not end by the loss of this one.
        let _ = self.worker.send(Command::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.store_handle.store = None;
        self.bound.iter().for_each(|(place, bound)| place.keep_within(*bound));
    }
}

impl Turn {
    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// [`Turn::next`] for callers without an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Lets the engine write the session's manifest, and waits until it has: call it once the turn's own
    /// record (the transcript line) is on disk. If a turn is dropped without it, the stored session stays as
    /// it was before the turn, while the one in memory continues. Returns the completion with the final
    /// account.
    ///
    /// # Errors
    /// The turn has not ended. A manifest that can't be written is said in [`crate::Usage::reason`].
    pub async fn commit(self) -> Result<Box<Completion>> {
        let worker = self.worker.clone();
        self.request_commit()?.await.map_err(|_| worker.closed())?
    }

    /// [`Turn::commit`] for callers without an async runtime.
    ///
    /// # Errors
    /// As [`Turn::commit`].
    pub fn blocking_commit(self) -> Result<Box<Completion>> {
        let worker = self.worker.clone();
        self.request_commit()?.blocking_recv().map_err(|_| worker.closed())?
    }

    fn request_commit(mut self) -> Result<oneshot::Receiver<Result<Box<Completion>>>> {
        self.committed = true;
        let (answer, receiver) = oneshot::channel();
        self.worker.send(Command::Commit { id: self.id, answer })?;
        Ok(receiver)
    }
}

/// The events, as a stream.
impl Stream for Turn {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.committed {
            // First of all: a turn that ends after it was abandoned would wait for its commit for ever.
            self.events.close();
            let _ = self.worker.send(Command::Abandon { id: self.id });
        }
    }
}

/// Opens a model that guesses for the one with this tokenizer, on the processor and with an f16 cache of
/// `budget` bytes.
fn draft_model(
    model: &ModelSource,
    larger: &Gguf,
    tokenizer: &Tokenizer,
    budget: u64,
    packed: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<DraftModel> {
    let gguf = Arc::new(Gguf::open(model)?);
    let n_vocab = tokenizer.shared_with(&Tokenizer::from_gguf(&gguf)?).map_err(|differs| {
        let found = format!(
            "it can't be the draft model of {}: {differs}; expected the same vocabulary",
            larger.name
        );
        gguf.error(found)
    })?;
    let device: Arc<dyn Device> = Arc::from(device::open(&DeviceChoice::Cpu, &gguf, packed)?);
    let layout = Arc::new(device.spec().kv_layout(&KvChoice::Uniform(crate::KvFormat::F16))?);
    let arena = Arena::new(&device, &layout, u64::MAX);
    Ok(DraftModel::new(arena, layout, n_vocab.min(device.n_vocab()), budget))
}

/// Opens the place of memories, if there is to be one, or returns the reason why they stay in RAM all the
/// same. A folder that can't be used only costs time, like a full disk, and one in use will soon be free; but
/// an object store was requested by name.
fn open_store(place: Option<&StoreLocation>) -> Result<(Option<Store>, Option<String>)> {
    let Some(place) = place else { return Ok((None, None)) };
    match Store::open(place) {
        Ok(store) => Ok((Some(store), None)),
        Err(e) if e.kind() == ErrorKind::InUse || place.objects.is_some() => Err(e),
        Err(e) => {
            tracing::warn!("memories stay in RAM and end with this process: {e}");
            Ok((None, Some(format!("memories stay in RAM: {e}"))))
        }
    }
}

/// Runs the worker with the pool that its kernels share.
fn start(
    mut pool: ThreadPool,
    worker: Worker,
    commands: Receiver<Command>,
    fault: Arc<OnceLock<String>>,
) -> Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("greenroom-engine".to_owned());
    let body = move || pool.install(|| worker.run(&commands, &fault));
    thread
        .spawn(body)
        .map_err(|e| Error::new(ErrorKind::Closed, format!("can't start the engine's thread: {e}")))
}
