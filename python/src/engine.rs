//! The engine of a process, and its agents.

use crate::errors::{closed, failed, forked, internal, of_engine, of_model};
use crate::runtime::{awaitable, locked, runtime, wait};
use greenroom::backend::{Embedded, Pool, Sampling};
use greenroom::commands::{self, Opened};
use greenroom::sampling::{DEFAULT, resolved, suggested};
use greenroom::scenario::{Hints, Reasoning};
use greenroom::server::Service;
use greenroom_engine as engine;
use greenroom_engine::{Completion, Conversation, Grammar, ToolCalls, Tools};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::{Mutex as Lock, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

/// Something of the engine that only the process that opened it may use.
pub(crate) struct OfProcess<T> {
    process: u32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.process != std::process::id() {
            return Err(forked());
        }
        self.value.as_ref().ok_or_else(|| internal("it was dropped"))
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Its threads are not here, so nothing would wait for them in vain.
            std::mem::forget(self.value.take());
        }
    }
}

/// A model that is open, with the memories of its agents.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Engine {
    /// `None` once it is closed.
    opened: Lock<Option<OfProcess<Opened>>>,
    /// Begun by the first request.
    service: Lock<Option<OfProcess<Service>>>,
    model: String,
    /// Its agents, which keep the engine open.
    agents: Lock<Vec<Weak<Seat>>>,
}

/// An agent, and its turns in progress.
#[derive(Default)]
struct Seat {
    /// `None` while it is being set, in one step, and once the engine is closed.
    agent: Arc<Mutex<Option<engine::Agent>>>,
    turns: Lock<Vec<AbortHandle>>,
}

impl Seat {
    fn holds(&self, turn: AbortHandle) {
        let mut turns = locked(&self.turns);
        turns.retain(|turn| !turn.is_finished());
        turns.push(turn);
    }

    /// Takes turns in progress back, and lets the agent go.
    fn close(&self) {
        let turns = std::mem::take(&mut *locked(&self.turns));
        turns.iter().for_each(AbortHandle::abort);
        drop(self.agent.blocking_lock().take());
    }
}

impl Engine {
    pub(crate) fn pool(&self) -> PyResult<Arc<Pool>> {
        self.with(|opened| Ok(opened.pool.clone()))
    }

    fn with<T>(&self, see: impl FnOnce(&Opened) -> PyResult<T>) -> PyResult<T> {
        match &*locked(&self.opened) {
            Some(opened) => see(opened.get()?),
            None => Err(closed()),
        }
    }

    /// The server of this process.
    fn service(&self) -> PyResult<Service> {
        let mut service = locked(&self.service);
        if service.is_none() {
            let _runtime = runtime().enter();
            let begun = self.with(|opened| opened.service().map_err(|error| failed(&error)))?;
            *service = begun.map(OfProcess::new);
        }
        service.as_ref().ok_or_else(|| elsewhere(&self.model))?.get().cloned()
    }

    /// The agent as Python has it.
    fn seated(&self, agent: engine::Agent) -> Agent {
        let seat = Seat { agent: Arc::new(Mutex::new(Some(agent))), ..Seat::default() };
        let seat = Arc::new(seat);
        let mut agents = locked(&self.agents);
        agents.retain(|agent| agent.strong_count() > 0);
        agents.push(Arc::downgrade(&seat));
        Agent { seat: OfProcess::new(seat) }
    }

    fn embedded(&self) -> PyResult<Arc<Embedded>> {
        self.pool()?.embedded().cloned().ok_or_else(|| elsewhere(&self.model))
    }
}

/// How often the memories on disk are measured.
const MEASURED: Duration = Duration::from_secs(60);

/// Keeps the memories on disk within their limit until the model is closed, which keeps it for the last time.
async fn keep_within_limit(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(MEASURED).await;
        let Some(pool) = pool.upgrade() else { return };
        match tokio::task::spawn_blocking(move || shrink(&pool)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("can't limit the memories on disk: {error}"),
            Err(error) => tracing::warn!("can't limit the memories on disk: {error}"),
        }
    }
}

fn shrink(pool: &Pool) -> greenroom_engine::Result<()> {
    match (pool.config().disk_limit(), pool.embedded()) {
        (Some(limit), Some(embedded)) => embedded.engine().shrink(limit).map(drop),
        _ => Ok(()),
    }
}

fn elsewhere(model: &str) -> PyErr {
    let found = format!(
        "{model} is an engine elsewhere: it plays scenarios, but has no agents, ranks or embeddings here"
    );
    of_model(&anyhow::anyhow!(found))
}

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, flags: Vec<PathBuf>) -> PyResult<Self> {
        crate::logging::begin();
        let flags = flags.into_iter().map(PathBuf::into_os_string);
        let opened = py.detach(|| commands::open(flags)).map_err(|error| of_model(&error))?;
        let model = opened.model.clone();
        runtime().spawn(keep_within_limit(Arc::downgrade(&opened.pool)));
        let opened = Lock::new(Some(OfProcess::new(opened)));
        Ok(Self { opened, service: Lock::default(), model, agents: Lock::default() })
    }

    /// Closes it, also for its agents, whose turns in progress are taken back.
    fn close(&self, py: Python<'_>) {
        let opened = locked(&self.opened).take();
        let service = locked(&self.service).take();
        let agents = std::mem::take(&mut *locked(&self.agents));
        if opened.as_ref().is_some_and(|opened| opened.get().is_ok()) {
            py.detach(|| agents.iter().filter_map(Weak::upgrade).for_each(|agent| agent.close()));
        }
        py.detach(|| drop((service, opened)));
    }

    /// Removes the least valuable memories on disk beyond the limit, as happens now and then while it is open.
    fn shrink(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        py.detach(|| shrink(&pool)).map_err(of_engine)
    }

    /// The model as it was named.
    #[getter]
    fn model(&self) -> &str {
        &self.model
    }

    /// What is known of the model, as JSON.
    fn info(&self) -> PyResult<String> {
        let embedded = self.embedded()?;
        let (info, kv) = (embedded.engine().model(), embedded.engine().kv());
        let described = json!({
            "name": info.name, "family": info.family, "identity": info.identity, "numerics": info.numerics,
            "kv": kv, "n_layers": info.n_layers, "n_vocab": info.n_vocab, "n_params": info.n_params,
            "context_length": info.context_length, "file_bytes": info.file_bytes, "sampling": info.sampling,
        });
        Ok(described.to_string())
    }

    /// An agent: the run and the name of its memory, and its setting as JSON. `resumes`: as its stored memory has it.
    fn agent(&self, py: Python<'_>, run: &str, name: &str, setting: &str, resumes: bool) -> PyResult<Agent> {
        let setting: Setting = read(setting)?;
        let engine = self.embedded()?.engine().clone();
        let agent = py
            .detach(|| if resumes { engine.resume(run, name) } else { Ok(engine.agent(run, name)) })
            .map_err(of_engine)?;
        Ok(self.seated(setting.set(agent)))
    }

    /// Ranks of options as replies to a text, as JSON.
    fn rank(
        &self,
        py: Python<'_>,
        system: Option<String>,
        text: String,
        options: Vec<String>,
    ) -> PyResult<String> {
        let conversation = Conversation { system, next: text, ..Conversation::default() };
        rank(py, self.embedded()?.engine().clone(), conversation, options)
    }

    /// The log-probability of each token of a text but the first, as JSON.
    fn score(&self, py: Python<'_>, text: String) -> PyResult<String> {
        let engine = self.embedded()?.engine().clone();
        let scores = async move {
            let scored = runtime().spawn_blocking(move || {
                let ids = engine.begin(&engine.encode(&text, false)?);
                let mut scores = Vec::new();
                engine.score(&ids, None, &mut |score| {
                    scores.push(json!({
                        "text": engine.decode(&[score.id]), "id": score.id, "logprob": score.logprob,
                        "is_likeliest": score.top == score.id,
                    }));
                })?;
                Ok(Value::Array(scores).to_string())
            });
            scored.await.map_err(|error| internal(&error.to_string()))?.map_err(of_engine)
        };
        wait(py, scores)
    }

    /// Texts as vectors.
    fn embed(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        let engine = self.embedded()?.engine().clone();
        wait(py, async move { engine.embed(texts).await.map_err(of_engine) })
    }

    /// Texts as vectors, awaited.
    fn embed_async<'py>(&self, py: Python<'py>, texts: Vec<String>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.embedded()?.engine().clone();
        awaitable(py, async move { engine.embed(texts).await.map_err(of_engine) })
    }

    /// Answers a request to the server in this process: `status`, then the `body` piece by piece.
    fn request(&self, method: String, path: String, body: String) -> PyResult<Turn> {
        let service = self.service()?;
        let (events, received) = mpsc::unbounded_channel();
        let task = runtime().spawn(async move {
            if let Err(error) = answer(&service, &method, &path, body, &events).await {
                let _ = events.send(Err(failed(&error)));
            }
        });
        let events = Arc::new(Mutex::new(received));
        Ok(Turn { events: OfProcess::new(events), task: task.abort_handle() })
    }

    /// Number of tokens of a text.
    fn count(&self, text: &str) -> PyResult<usize> {
        Ok(self.embedded()?.engine().encode(text, false).map_err(of_engine)?.len())
    }

    /// Memories that are stored, as JSON.
    fn stored(&self, py: Python<'_>) -> PyResult<String> {
        let engine = self.embedded()?.engine().clone();
        let stored = py.detach(|| engine.stored("")).map_err(of_engine)?;
        let each = stored.iter().map(|one| {
            json!({
                "run": one.session.run, "agent": one.session.agent, "model": one.model, "format": one.format,
                "tokens": one.tokens, "turns": one.turns, "bytes": one.bytes, "shared_bytes": one.shared_bytes,
                "saved_at": one.saved_at,
            })
        });
        Ok(Value::Array(each.collect()).to_string())
    }

    /// Removes a stored memory.
    fn remove(&self, py: Python<'_>, run: &str, name: &str) -> PyResult<()> {
        let engine = self.embedded()?.engine().clone();
        let key = engine::SessionKey::new(run, name);
        py.detach(|| engine.blocking_remove(&key)).map(drop).map_err(of_engine)
    }
}

fn rank(
    py: Python<'_>,
    engine: engine::Engine,
    conversation: Conversation,
    options: Vec<String>,
) -> PyResult<String> {
    let ranked = async move {
        let ranked = runtime().spawn_blocking(move || {
            let ranking = engine.rank(&conversation, &options, None)?;
            let ranked = options.iter().zip(&ranking.options);
            let each = ranked.map(|(option, of)| json!({ "option": option, "logprob": of.logprob }));
            Ok(Value::Array(each.collect()).to_string())
        });
        ranked.await.map_err(|error| internal(&error.to_string()))?.map_err(of_engine)
    };
    wait(py, ranked)
}

/// What an agent begins with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    system: Option<String>,
    #[serde(default)]
    tools: Vec<engine::Tool>,
    #[serde(default)]
    replace: bool,
}

impl Setting {
    fn set(self, mut agent: engine::Agent) -> engine::Agent {
        if let Some(system) = self.system {
            agent = agent.system(system);
        }
        if !self.tools.is_empty() {
            agent = agent.tools(Tools { list: self.tools, instructions: String::new() });
        }
        if self.replace { agent.replace() } else { agent }
    }
}

/// How a turn is replied to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnSettings {
    options: Option<Vec<String>>,
    #[serde(default)]
    sampling: Hints,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    stop: Vec<String>,
    logprobs: Option<usize>,
    grammar: Option<Form>,
    #[serde(default)]
    may_call: bool,
}

/// The form of a reply.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    Schema(Value),
    Regex(String),
    Lark(String),
}

impl TurnSettings {
    fn set(&self, agent: engine::Agent) -> engine::Agent {
        let by = suggested(&agent.engine().model().sampling);
        let given = self.sampling.clone();
        let reasoning = match given.reasoning.unwrap_or_default() {
            Reasoning::None => engine::Reasoning::None,
            Reasoning::Low => engine::Reasoning::Low,
            Reasoning::Medium => engine::Reasoning::Medium,
            Reasoning::High => engine::Reasoning::High,
        };
        let max_tokens = given.max_tokens.unwrap_or(256);
        let budget = given.reasoning_budget.unwrap_or(1024);
        let sampling = Sampling { seed: self.seed, ..resolved(&given.over(&by), &DEFAULT) };
        let grammar = self.grammar.as_ref().map(|form| match form {
            Form::Schema(schema) => Grammar::json_schema(schema),
            Form::Regex(regex) => Grammar::Regex(regex.clone()),
            Form::Lark(lark) => Grammar::Lark(lark.clone()),
        });
        let calls = if self.may_call { engine::ToolChoice::Allowed } else { engine::ToolChoice::Never };
        agent
            .sampling(sampling)
            .max_tokens(max_tokens)
            .max_thought_tokens(budget)
            .reasoning(reasoning)
            .stop(self.stop.clone())
            .grammar(grammar)
            .calls(calls)
            .logprobs(self.logprobs)
    }
}

fn read<'t, T: Deserialize<'t>>(text: &'t str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}

/// An agent's memory in the engine.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Agent {
    seat: OfProcess<Arc<Seat>>,
}

impl Agent {
    /// What of the agent is known without waiting for its turn.
    fn with<T>(&self, py: Python<'_>, see: impl FnOnce(&engine::Agent) -> T + Send) -> PyResult<T>
    where
        T: Send,
    {
        let agent = self.seat.get()?.agent.clone();
        py.detach(|| agent.blocking_lock().as_ref().map(see)).ok_or_else(closed)
    }
}

#[pymethods]
impl Agent {
    /// Begins a turn: a text is read, and replied to.
    fn begin(&self, text: String, settings: &str) -> PyResult<Turn> {
        let settings: TurnSettings = read(settings)?;
        let seat = self.seat.get()?;
        let agent = seat.agent.clone();
        let (events, received) = mpsc::unbounded_channel();
        let task = runtime().spawn(async move {
            let mut agent = agent.lock_owned().await;
            if let Err(error) = reply(&mut agent, text, &settings, &events).await {
                let _ = events.send(Err(of_engine(error)));
            }
        });
        seat.holds(task.abort_handle());
        let events = Arc::new(Mutex::new(received));
        Ok(Turn { events: OfProcess::new(events), task: task.abort_handle() })
    }

    /// An agent of this engine that begins with this one's memory.
    fn fork(&self, py: Python<'_>, engine: &Engine, name: String) -> PyResult<Self> {
        Ok(engine.seated(self.with(py, |agent| agent.fork(name))?))
    }

    /// What was read and said so far, as JSON.
    fn past(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |agent| {
            let system = agent.conversation().system.clone();
            let past: Vec<Value> =
                agent.past().map(|(user, said)| json!({ "user": user, "said": said })).collect();
            json!({ "system": system, "turns": past }).to_string()
        })
    }

    /// Bytes of its memory in RAM; `None`: it is not there.
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let (engine, session) = self.with(py, |agent| (agent.engine().clone(), agent.key().clone()))?;
        let status = py.detach(|| engine.blocking_status()).map_err(of_engine)?;
        Ok(status.sessions.into_iter().find(|one| one.key == session).map(|one| one.bytes_in_memory))
    }

    /// Ranks of options as its next reply, as JSON; nothing is remembered.
    fn rank(&self, py: Python<'_>, text: String, options: Vec<String>) -> PyResult<String> {
        let (engine, before) =
            self.with(py, |agent| (agent.engine().clone(), agent.conversation().clone()))?;
        rank(py, engine, Conversation { next: text, ..before }, options)
    }
}

/// Sends the pieces of a reply, and then what is known of it.
async fn reply(
    slot: &mut Option<engine::Agent>,
    text: String,
    settings: &TurnSettings,
    events: &mpsc::UnboundedSender<PyResult<Event>>,
) -> engine::Result<()> {
    use futures_core::Stream;
    let Some(agent) = slot.take() else {
        return Err(engine::Error::new(engine::ErrorKind::Closed, "this engine is closed"));
    };
    let agent = slot.insert(settings.set(agent));
    let mut reply = match &settings.options {
        Some(options) => agent.choose(text, options.clone())?,
        None => agent.extend(text)?,
    };
    let mut pieces = reply.stream();
    while let Some(piece) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut pieces).poll_next(context)).await
    {
        let _ = events.send(Ok(("text", piece?)));
    }
    drop(pieces);
    let completion = reply.finish().await?;
    let decode = |ids: &[u32]| agent.engine().decode(ids);
    let _ =
        events.send(Ok(("done", described(&completion, settings.options.as_deref(), decode).to_string())));
    Ok(())
}

fn described(
    completion: &Completion,
    options: Option<&[String]>,
    decode: impl Fn(&[u32]) -> String,
) -> Value {
    let calls = match &completion.call {
        Some(ToolCalls::Complete(calls)) => calls.clone(),
        _ => Vec::new(),
    };
    let choice = completion.choice.as_ref().zip(options).map(|(choice, options)| {
        json!({ "option": options.get(choice.chosen), "chosen": choice.chosen, "logprobs": choice.logprobs })
    });
    let logprobs = completion.speech_logprobs().iter().map(|token| {
        let top = token.top.iter().map(|top| json!({ "text": decode(&[top.id]), "logprob": top.logprob }));
        json!({ "text": decode(&[token.id]), "logprob": token.logprob, "top": top.collect::<Vec<_>>() })
    });
    json!({
        "text": completion.speech(), "thought": completion.thought(), "raw": completion.text,
        "stop": completion.stop.word(), "calls": calls, "choice": choice, "usage": completion.usage,
        "tokens": completion.ids, "logprobs": logprobs.collect::<Vec<_>>(),
    })
}

/// Sends the status of an answer, and its body as it comes.
async fn answer(
    service: &Service,
    method: &str,
    path: &str,
    body: String,
    events: &mpsc::UnboundedSender<PyResult<Event>>,
) -> anyhow::Result<()> {
    let mut answer = service.request(method, path, body).await?;
    let _ = events.send(Ok(("status", answer.status.to_string())));
    // A character may lie in two pieces.
    let mut bytes = Vec::new();
    while let Some(piece) = answer.next().await {
        bytes.extend_from_slice(&piece?);
        let whole = match std::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = bytes.split_off(whole);
        let _ = events.send(Ok(("body", String::from_utf8(std::mem::replace(&mut bytes, rest))?)));
    }
    Ok(())
}

/// What happens in a turn: its name, and its data.
type Event = (&'static str, String);
type Events = Arc<Mutex<mpsc::UnboundedReceiver<PyResult<Event>>>>;

/// A turn in progress; one that is dropped before its end is taken back.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Turn {
    events: OfProcess<Events>,
    task: AbortHandle,
}

impl Turn {
    async fn event(events: Events) -> PyResult<Option<Event>> {
        events.lock().await.recv().await.transpose()
    }
}

#[pymethods]
impl Turn {
    /// The next event, waited for: `text` with a piece of the reply, or `done` with all of it as JSON.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(&'static str, String)>> {
        wait(py, Self::event(self.events.get()?.clone()))
    }

    /// The same, awaited.
    fn next_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        awaitable(py, Self::event(self.events.get()?.clone()))
    }

    /// Takes the turn back, if it has not ended.
    fn cancel(&self) {
        self.task.abort();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.task.abort();
    }
}
