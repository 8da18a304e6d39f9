//! The engine in this process: turns requests into the engine's plain data and its answers back.

use super::{
    BoxFuture, Commit, Device, ForcedToken, GivenSampling, Kv, Match, ModelCard, ModelFile, Options, Origin,
    Progress, Reply, Request, Session, Sink, Stop, Usage,
};
use crate::prompt::Conversation;
use crate::scenario::{Method, Reasoning};
use crate::tools::{Call, Offer};
use crate::transcript::ModelRecord;
use anyhow::{Context as _, anyhow};
use greenroom_engine as engine;
pub use greenroom_engine::cache::{CacheKey, ObjectsAddress, Traffic};
pub use greenroom_engine::{Loading, MemoryBudget};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
            "`greenroom devices` lists the devices (a software renderer must be named: gpu:NAME), --device cpu uses \
                the processor"
        }
        _ => return error.into(),
    };
    anyhow!("{error}; {remedy}")
}

impl Embedded {
    /// Opens the engine; `on_progress` is told what takes a while.
    ///
    /// # Errors
    /// The engine's error about the model or the cache folder.
    pub fn open(
        config: &EmbeddedConfig,
        on_progress: &mut (dyn FnMut(Loading) + Send),
    ) -> anyhow::Result<Self> {
        let engine = engine::Engine::open_with_progress(config.engine(), on_progress)
            .map_err(worded)
            .with_context(|| format!("can't open the model {}", config.model))?;
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

    /// Lets a session's memory go, in RAM and on disk; called where no async runtime is at work.
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

    fn suggested_sampling(&self) -> GivenSampling {
        self.engine.model().sampling.into()
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

/// Tokens of a call of a tool, at most, where a reply may not have more.
const CALL_TOKENS: usize = 160;
/// Tokens of a call's result that there is always room for, with what the chat template puts around it.
const RESULT_TOKENS: usize = 96;
/// Tokens that asking for a summary may take.
const SUMMARY_CUE_TOKENS: usize = 96;

/// Tokens of a call of a tool, at most.
fn max_call_tokens(max_tokens: usize) -> usize {
    max_tokens.max(CALL_TOKENS)
}

/// Tokens that are kept free for a call of a tool and its result. A result is cut where it needs more and
/// there is no more.
pub fn call_room(max_tokens: usize) -> usize {
    max_call_tokens(max_tokens) + RESULT_TOKENS
}

/// Tokens that a turn may take without calls, and with them.
pub(super) fn room(prompter: &engine::PromptEncoder, request: &Request) -> anyhow::Result<(usize, usize)> {
    let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
    let needed = by_tokens(prompter.prompt_tokens(&conversation)?, request);
    Ok((needed, needed + needed_for_calls(request)))
}

/// Tokens of a prompt, the reply, and once more as many as the reply's for a summary with its cue.
pub(super) fn by_tokens(of_prompt: usize, request: &Request) -> usize {
    of_prompt + 2 * request.max_tokens + SUMMARY_CUE_TOKENS
}

/// Tokens that the calls may take which can still come before a reply.
pub(super) fn needed_for_calls(request: &Request) -> usize {
    request.max_calls.saturating_sub(request.n_calls) * call_room(request.max_tokens)
}

/// An engine's answer; `open`: the options that it chose from, in its order.
pub(super) fn reply_of(
    completion: engine::Completion,
    open: Vec<usize>,
    commit: Option<Box<dyn Commit>>,
) -> Reply {
    let engine::Completion { ids, text, stop, choice, call, followed, usage, .. } = completion;
    let logprobs = choice.map(|choice| open.into_iter().zip(choice.logprobs).collect());
    let (stop, usage, logprobs) = (stop.into(), Some(usage.into()), logprobs.unwrap_or_default());
    let followed = followed.into_iter().map(Into::into).collect();
    let call = call.map(Into::into);
    Reply { logprobs, followed, call, usage, commit, ..Reply::of(ids, text, stop) }
}

/// A choice is weighed again also where a recording is followed: one draw tells whether it stands.
fn constraint(options: Option<Options>, follow: Option<Vec<u32>>) -> Option<engine::Constraint> {
    let decoded = options.filter(|options| options.choice.method == Method::Decode);
    let one_of = decoded.map(|options| {
        let text = |id: &usize| options.choice.options[*id].text.clone();
        engine::Constraint::OneOf(in_file_order(&options).iter().map(text).collect())
    });
    one_of.or(follow.map(engine::Constraint::Follow))
}

/// Open options as the file has them: what is likely does not depend on how they were listed, beyond the
/// prompt.
pub(super) fn in_file_order(options: &Options) -> Vec<usize> {
    let mut open = options.open.clone();
    open.sort_unstable();
    open
}

/// A finished turn of the engine whose manifest waits for the transcript line.
struct EngineCommit(engine::Turn);

impl Commit for EngineCommit {
    fn commit(self: Box<Self>) -> BoxFuture<'static, anyhow::Result<Usage>> {
        Box::pin(
            async move { Ok(self.0.commit().await.context("can't save the agent's memory")?.usage.into()) },
        )
    }
}

impl From<Session> for engine::SessionKey {
    fn from(session: Session) -> Self {
        Self::new(session.run, session.agent)
    }
}

impl From<Request> for engine::Request {
    fn from(request: Request) -> Self {
        let sampling = engine::Sampling {
            temperature: request.sampling.temperature,
            top_k: request.sampling.top_k,
            top_p: request.sampling.top_p,
            min_p: request.sampling.min_p,
            repetition_penalty: request.sampling.repetition_penalty,
            repetition_window: request.sampling.repetition_window,
            dry: request.sampling.dry.map(|dry| engine::Dry {
                multiplier: dry.multiplier,
                base: dry.base,
                allowed_length: dry.allowed_length,
            }),
            seed: request.seed,
        };
        let is_by_length = request.choice.as_ref().is_some_and(|options| options.choice.by_length);
        let retention =
            if request.permanent { engine::Retention::Persistent } else { engine::Retention::Ephemeral };
        Self {
            session: request.session.into(),
            parent: request.parent.map(Into::into),
            retention,
            prompt: conversation(request.conversation, request.tools.as_deref()).into(),
            sampling,
            max_tokens: request.max_tokens,
            min_tokens: 0,
            stop: request.stops.all(),
            whole_sentences: true,
            max_call_tokens: max_call_tokens(request.max_tokens),
            constraint: constraint(request.choice, request.follow),
            by_length: is_by_length,
            grammar: request.form.map(|form| Arc::new(form.enforced().clone())),
            calls: match request.may_call {
                true => engine::ToolChoice::Allowed,
                false if request.n_calls > 0 => engine::ToolChoice::Forbidden,
                false => engine::ToolChoice::Never,
            },
            parallel_tool_calls: false,
            logprobs: None,
            next_use: request.next_use,
            cold: request.cold,
            meter: None,
        }
    }
}

/// A conversation as the engine has it, with the tools that the agent knows.
pub fn conversation(conversation: Conversation, tools: Option<&Offer>) -> engine::Conversation {
    let reply = |is_call, ids| match is_call {
        true => engine::ReplyContent::Call(ids),
        false => engine::ReplyContent::Ids(ids),
    };
    let exchanges = conversation.exchanges.into_iter();
    let exchanges = exchanges.map(|past| engine::Exchange {
        user: past.user,
        reply: reply(past.is_call, past.ids),
        reasoning: past.reasoning.into(),
    });
    let tools = tools.map(|offer| {
        let list = offer.tools.iter().map(|tool| engine::Tool {
            name: tool.name.clone(),
            about: tool.about.clone(),
            arguments: tool.arguments.clone(),
        });
        Arc::new(engine::Tools { list: list.collect(), instructions: offer.instructions.clone() })
    });
    engine::Conversation {
        system: conversation.system,
        tools,
        exchanges: exchanges.collect(),
        next: conversation.next,
        reasoning: conversation.reasoning.into(),
    }
}

impl From<engine::SuggestedSampling> for GivenSampling {
    fn from(suggested: engine::SuggestedSampling) -> Self {
        let engine::SuggestedSampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            repetition_window,
        } = suggested;
        let dry = None;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry }
    }
}

impl From<Reasoning> for engine::Reasoning {
    fn from(reasoning: Reasoning) -> Self {
        match reasoning {
            Reasoning::None => Self::None,
            Reasoning::Low => Self::Low,
            Reasoning::Medium => Self::Medium,
            Reasoning::High => Self::High,
        }
    }
}

impl From<engine::Call> for Call {
    fn from(engine::Call { tool, arguments }: engine::Call) -> Self {
        Self { tool, arguments }
    }
}

impl From<engine::ToolCalls> for Call {
    fn from(called: engine::ToolCalls) -> Self {
        match called {
            // No more than one is asked for.
            engine::ToolCalls::Complete(calls) => calls.into_iter().next().map_or_else(Self::cut, Into::into),
            _ => Self::cut(),
        }
    }
}

impl From<engine::ForcedToken> for ForcedToken {
    fn from(token: engine::ForcedToken) -> Self {
        Self { drawn: token.drawn, logprob: token.logprob, drawn_logprob: token.drawn_logprob }
    }
}

impl From<engine::StopReason> for Stop {
    fn from(stop: engine::StopReason) -> Self {
        match stop {
            engine::StopReason::StopString => Self::StopString,
            engine::StopReason::Length => Self::Length,
            engine::StopReason::Sentence => Self::Sentence,
            _ => Self::EndOfTurn,
        }
    }
}

impl From<engine::Usage> for Usage {
    fn from(usage: engine::Usage) -> Self {
        let kind = match usage.kind {
            engine::MatchKind::Prefix => Match::Prefix,
            engine::MatchKind::Extend => Match::Extend,
            engine::MatchKind::Exact => Match::Exact,
            engine::MatchKind::Diverge => Match::Diverge,
            _ => Match::Cold,
        };
        let source = match usage.source {
            engine::Source::Memory => Origin::Memory,
            engine::Source::Disk => Origin::Disk,
            _ => Origin::None,
        };
        Self {
            kind,
            source,
            reused: usage.reused,
            prefilled: usage.prefilled,
            recomputed: usage.recomputed,
            generated: usage.generated,
            layer0_rows: usage.layer0_rows,
            ttft_ms: usage.ttft_ms,
            total_ms: usage.total_ms,
            bytes_read: usage.bytes_read,
            bytes_written: usage.bytes_written,
            waited_ms: usage.waited_ms,
            prefetch_ms: usage.prefetch_ms,
            saved_ms: usage.saved_ms,
            memory_bytes: usage.memory_bytes,
            reason: usage.reason,
            adopted: usage.adopted,
        }
    }
}
