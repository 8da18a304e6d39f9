//! An API-neutral question to a model: admitted, played piece by piece, and answered.
//!
//! An API's handler turns its request into an [`Ask`]. [`Ask::admit`] finds the model, limits the prompt and
//! joins the queue; it refuses requests before anything is sent. [`AdmittedAsk::play`] waits for a place,
//! finds the memory, and lets the engine answer.

use super::App;
use super::answer::CompletedReply;
use super::dialogue::Dialogue;
use super::error::Refusal;
use super::live::{RequestGuard, RequestStage};
use super::models::Served;
use super::queue::Ticket;
use super::sessions::{self, RawPlace, SessionScope};
use super::tenants::Tenant;
use crate::stage::sampled_again;
use axum::http::HeaderMap;
use greenroom_engine::{
    Constraint, Conversation, Engine, Event, Grammar, MAX_TOP_LOGPROBS, Prompt, Request, Retention, Sampling,
    SessionKey, TokenLogprob, ToolCalls, ToolChoice, Tools, Usage,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Headers in which clients name a session.
const SESSION_HEADERS: [&str; 5] =
    ["x-session-id", "session-id", "x-claude-code-session-id", "x-dynamo-session-id", "thread-id"];
/// Maximum number of options of a choice.
pub(super) const MAX_OPTIONS: usize = 256;
/// Maximum number of tokens in a tool call, if the reply has no limit.
const CALL_TOKENS: usize = 4_096;

/// A question.
pub(super) struct Ask {
    /// The route that it came by.
    pub(super) route: &'static str,
    pub(super) tenant: Arc<Tenant>,
    pub(super) model: String,
    pub(super) subject: AskSubject,
    pub(super) settings: AnswerSettings,
    /// Number of replies; each except the first has a seed derived from the first one's.
    pub(super) n: usize,
}

/// What is answered, and with which memory.
#[derive(Clone)]
pub(super) enum AskSubject {
    /// A dialogue that the client keeps; the name, which may be empty, separates it from others with the same
    /// beginning.
    Dialogue(Box<Dialogue>, String),
    /// A text or ids without a chat template; the name as with a dialogue.
    Raw(Prompt, String),
    /// A conversation that the server keeps, by the name of its memory and of the one that it began with.
    Kept { conversation: Conversation, memory: String, parent: Option<String> },
}

/// How it is answered.
#[derive(Clone)]
pub(super) struct AnswerSettings {
    pub(super) sampling: Sampling,
    /// Maximum number of tokens in the reply; `None`: as many as there is room for.
    pub(super) max_tokens: Option<usize>,
    /// Maximum number of tokens of a thought before it, among these; `None`: no limit of its own.
    pub(super) max_thought_tokens: Option<usize>,
    /// What is added to the logits of the tokens of these texts.
    pub(super) biased_texts: Vec<(String, f32)>,
    /// Minimum number of tokens in the reply.
    pub(super) min_tokens: usize,
    pub(super) stop: Vec<String>,
    /// Tokens that end the reply besides the model's own.
    pub(super) end_ids: Vec<u32>,
    pub(super) constraint: Option<Constraint>,
    pub(super) grammar: Option<Grammar>,
    pub(super) calls: ToolChoice,
    /// A reply may be several calls.
    pub(super) parallel_tool_calls: bool,
    /// Number of alternatives whose log-probabilities are returned with each token's.
    pub(super) logprobs: Option<usize>,
    /// Nothing of an earlier memory is used.
    pub(super) cold: bool,
    /// When the memory is needed next ([`Request::next_use`]); `None`: unknown.
    pub(super) next_use: Option<u64>,
}

impl AnswerSettings {
    /// OpenAI's defaults: temperature 1, no filters, as long as there is room.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            sampling: Sampling { temperature: 1.0, canonical: true, seed, ..Sampling::default() },
            max_tokens: None,
            max_thought_tokens: None,
            biased_texts: Vec::new(),
            min_tokens: 0,
            stop: Vec::new(),
            end_ids: Vec::new(),
            constraint: None,
            grammar: None,
            calls: ToolChoice::Never,
            parallel_tool_calls: false,
            logprobs: None,
            cold: false,
            next_use: None,
        }
    }
}

/// A question in the queue.
pub(super) struct AdmittedAsk {
    app: Arc<App>,
    ask: Ask,
    served: Arc<Served>,
    ticket: Ticket,
    entry: RequestGuard,
    /// The prompt's ids, as far as they are known before its memory is.
    ids: Vec<u32>,
}

/// A piece of an answer.
#[derive(Debug)]
pub(super) enum ReplyPiece {
    /// The reply begins.
    Begun,
    /// A piece of the thought before it.
    Thought(String),
    /// Text that is final.
    Text(String),
    /// The reply is a call of this tool, or continues with one.
    Called(String),
    /// A piece of the call's arguments, which are the text of a JSON object.
    Arguments(String),
    /// Log-probabilities of the tokens that the text so far is made of, after those of earlier pieces.
    Logprobs(Vec<TokenLogprob>),
    /// The reply is complete, and its memory saved.
    Ended(Box<CompletedReply>),
}

/// Takes the pieces of each reply, by its number.
pub(super) type PieceSender = mpsc::Sender<(usize, ReplyPiece)>;

/// The name that a client gave its session: a key in the body, or a header.
pub(super) fn scope(key: Option<String>, headers: &HeaderMap) -> String {
    let named = || SESSION_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    key.or_else(|| named().map(str::to_string)).unwrap_or_default()
}

/// A random number, for seeds and names.
pub(super) fn random() -> u64 {
    // The system's generator fails on no system that has one.
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}

/// A random seed that any client can read: JavaScript's numbers are exact up to 2^53.
pub(super) fn random_seed() -> u64 {
    random() >> 11
}

/// A unique name for an answer.
pub(super) fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

impl Ask {
    /// Finds the model, limits the prompt and joins the queue.
    ///
    /// # Errors
    /// There is no such model, the prompt is too long, the tenant or the queue has no room.
    pub(super) async fn admit(mut self, app: &Arc<App>) -> Result<AdmittedAsk, Refusal> {
        self.settings.sampling.validate()?;
        if let AskSubject::Dialogue(dialogue, _) = &mut self.subject {
            dialogue.conversation.date = Some(app.today());
        }
        if self.settings.logprobs.is_some_and(|n| n > MAX_TOP_LOGPROBS) {
            let message = format!("expected at most {MAX_TOP_LOGPROBS} alternatives");
            return Err(Refusal::field("top_logprobs", message));
        }
        self.tenant.ask()?;
        let entry = app.live.enter(&self.tenant.name, self.route, &self.model);
        let served = app.models.get(&self.model).await?;
        let subject = self.subject.clone();
        let counted = served.clone();
        // Long texts take time and memory to tokenize: other requests are answered meanwhile, and only a few
        // are tokenized at a time.
        let place = app.tokenizing.acquire().await.map_err(|_| Refusal::ending())?;
        let ids =
            tokio::task::spawn_blocking(move || counted.engine().prompter().prompt_ids(&subject.prompt()));
        let ids = ids.await.map_err(|error| Refusal::internal(error.to_string()))??;
        drop(place);
        let prompt_tokens = ids.len();
        let context = served.engine().model().context_length;
        if prompt_tokens >= context {
            return Err(Refusal::too_long(prompt_tokens, context));
        }
        let is_warm = match &self.subject {
            AskSubject::Dialogue(dialogue, name) => {
                let scope = Self::scope(&self.tenant, &served, name);
                app.sessions.is_warm(&scope, dialogue)
            }
            AskSubject::Raw(..) | AskSubject::Kept { .. } => true,
        };
        for (text, bias) in std::mem::take(&mut self.settings.biased_texts) {
            let ids = served.engine().encode(&text, true)?;
            self.settings.sampling.bias.extend(ids.into_iter().map(|id| (id, bias)));
        }
        self.fits(served.engine())?;
        let ticket = app.queue.enter(&self.tenant, is_warm)?;
        Ok(AdmittedAsk { app: app.clone(), ask: self, served, ticket, entry, ids })
    }

    /// Checks what only the model can tell.
    ///
    /// # Errors
    /// A token is not in its vocabulary, or a reply that has begun must have a form.
    fn fits(&self, engine: &Engine) -> Result<(), Refusal> {
        let (n_vocab, settings) = (engine.model().n_vocab, &self.settings);
        let biased = settings.sampling.bias.keys().map(|id| ("logit_bias", *id));
        let mut ids = biased.chain(settings.end_ids.iter().map(|id| ("stop_token_ids", *id)));
        if let Some((field, id)) = ids.find(|(_, id)| *id as usize >= n_vocab) {
            let found = format!("`{field}` names the token {id}, but the vocabulary has {n_vocab}");
            return Err(Refusal::field(field, found));
        }
        let is_begun =
            matches!(&self.subject, AskSubject::Dialogue(dialogue, _) if !dialogue.begun.is_empty());
        if is_begun && (settings.grammar.is_some() || settings.constraint.is_some()) {
            let found = "the last message is the assistant's, but a reply that has begun can't have a form";
            return Err(Refusal::field("messages", found));
        }
        Ok(())
    }

    fn scope<'a>(tenant: &'a Tenant, served: &'a Served, name: &'a str) -> SessionScope<'a> {
        SessionScope { tenant: &tenant.name, model: &served.engine().model().identity, name }
    }
}

impl AskSubject {
    fn prompt(&self) -> Prompt {
        match self {
            Self::Dialogue(dialogue, _) => dialogue.conversation.clone().into(),
            Self::Kept { conversation, .. } => conversation.clone().into(),
            Self::Raw(prompt, _) => prompt.clone(),
        }
    }
}

impl AdmittedAsk {
    /// Time that it may take.
    pub(super) fn limit(&self) -> Duration {
        self.app.timeout
    }

    /// Tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.ids.len()
    }

    /// Waits for a place, and lets the model answer; each piece is passed to `pieces` as it comes. Dropping
    /// it before it is ready cancels the work.
    ///
    /// # Errors
    /// The engine's, or the deadline has passed, or the receiver of the pieces is gone.
    pub(super) async fn play(self, pieces: Option<&PieceSender>) -> Result<Vec<CompletedReply>, Refusal> {
        let limit = self.app.timeout;
        let played = tokio::time::timeout(limit, self.play_all(pieces)).await;
        played.unwrap_or_else(|_| Err(Refusal::timed_out(limit)))
    }

    async fn play_all(self, pieces: Option<&PieceSender>) -> Result<Vec<CompletedReply>, Refusal> {
        let Self { app, mut ask, served, ticket, entry, ids } = self;
        let subject = ask.subject.clone();
        let _place = ticket.wait().await?;
        let engine = served.engine();
        let dialogue = match &subject {
            AskSubject::Dialogue(dialogue, _) => Some(&**dialogue),
            AskSubject::Raw(..) | AskSubject::Kept { .. } => None,
        };
        let before = Usage::default;
        let turn = |index| EngineTurn { engine, entry: &entry, pieces, index, dialogue, before: before() };
        let (answer, prompt, memory) = match &subject {
            AskSubject::Dialogue(dialogue, name) => {
                let claim = app.sessions.claim(&Ask::scope(&ask.tenant, &served, name), dialogue);
                let mut conversation = dialogue.conversation.clone();
                claim.recall(&mut conversation);
                let (prompt, memory) = (Prompt::Chat(conversation), claim.name.clone());
                if !dialogue.begun.is_empty() {
                    let ids = engine.prompter().reply_ids(&prompt, &dialogue.begun)?;
                    ask.settings.constraint = Some(Constraint::Begin(ids));
                }
                let request = ask.request(0, prompt.clone(), &memory, claim.parent.as_deref());
                let answer = turn(0).answer(request, &memory).await?;
                claim.record_reply(dialogue, &answer);
                (answer, prompt, memory)
            }
            AskSubject::Raw(prompt, name) => {
                let claim = app.sessions.claim_raw(&Ask::scope(&ask.tenant, &served, name), &ids);
                let request = |place: &RawPlace, prompt: Prompt| {
                    let request = ask.request(0, prompt, &place.name, place.parent.as_deref());
                    if place.replaces {
                        engine.forget(&request.session);
                    }
                    request
                };
                let mut turn = turn(0);
                if let Some((stem, n)) = &claim.stem {
                    let ids = ids[..*n].to_vec();
                    turn.before = turn.read(request(stem, Prompt::Ids(ids.clone().into()))).await?;
                    claim.push_ids(stem, ids);
                }
                let memory = claim.own.name.clone();
                let answer = turn.answer(request(&claim.own, prompt.clone()), &memory).await?;
                claim.push_ids(&claim.own, [ids, answer.completion.ids.clone()].concat());
                (answer, prompt.clone(), memory)
            }
            AskSubject::Kept { conversation, memory, parent } => {
                let prompt = Prompt::Chat(conversation.clone());
                let request = ask.request(0, prompt.clone(), memory, parent.as_deref());
                (turn(0).answer(request, memory).await?, prompt, memory.clone())
            }
        };
        let mut answers = vec![answer];
        for index in 1..ask.n {
            // Another reply to the same prompt, from a memory that begins with it.
            let name = format!("{memory}#{index}");
            let mut request = ask.request(index, prompt.clone(), &name, Some(&memory));
            request.retention = Retention::Ephemeral;
            let session = request.session.clone();
            let answer = turn(index).answer(request, &name).await;
            engine.forget(&session);
            answers.push(answer?);
        }
        Ok(answers)
    }
}

impl Ask {
    /// The engine's request for the reply of a number.
    fn request(&self, index: usize, prompt: Prompt, memory: &str, parent: Option<&str>) -> Request {
        let AnswerSettings {
            sampling,
            biased_texts: _,
            max_tokens,
            max_thought_tokens,
            min_tokens,
            stop,
            end_ids,
            constraint,
            grammar,
            calls,
            parallel_tool_calls,
            logprobs,
            cold,
            next_use,
        } = self.settings.clone();
        let key = |name: &str| -> SessionKey { sessions::key(&self.tenant.name, &self.model, name) };
        let seed = match index {
            0 => sampling.seed,
            index => {
                let hash =
                    blake3::hash(&[sampling.seed.to_le_bytes(), (index as u64).to_le_bytes()].concat());
                hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
        };
        Request {
            parent: parent.map(key),
            retention: Retention::Persistent,
            sampling: Sampling { seed, ..sampling },
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            max_call_tokens: max_tokens.unwrap_or(CALL_TOKENS),
            fits_context: true,
            max_thought_tokens,
            min_tokens,
            stop,
            exact_stops: true,
            end_ids,
            constraint,
            grammar: grammar.map(Arc::new),
            calls,
            parallel_tool_calls,
            logprobs,
            cold,
            next_use,
            meter: Some(self.tenant.meter()),
            ..Request::new(key(memory), prompt)
        }
    }
}

/// A turn of the engine.
struct EngineTurn<'a> {
    engine: &'a Engine,
    entry: &'a RequestGuard,
    pieces: Option<&'a PieceSender>,
    index: usize,
    dialogue: Option<&'a Dialogue>,
    /// What was read for it before.
    before: Usage,
}

impl EngineTurn<'_> {
    /// Reads the prompt of a request, and nothing else.
    async fn read(&self, request: Request) -> Result<Usage, Refusal> {
        let Request { session, parent, retention, prompt, next_use, meter, .. } = request;
        let request =
            Request { parent, retention, next_use, meter, max_tokens: 0, ..Request::new(session, prompt) };
        let mut turn = self.engine.submit(request)?;
        while let Some(event) = turn.next().await {
            match event {
                Event::Prefill { done, total } => self.entry.at(RequestStage::Reading { done, total }),
                Event::Failed(error) => return Err(error.into()),
                Event::Done(_) => return Ok(turn.commit().await?.usage),
                _ => {}
            }
        }
        Err(Refusal::ending())
    }

    /// Counts what was read before, too: the prompt did not find it.
    fn count_before(&self, usage: &mut Usage) {
        let Usage { prefilled, recomputed, total_ms, bytes_written, .. } = &self.before;
        usage.reused = usage.reused.saturating_sub(prefilled + recomputed);
        usage.prefilled += prefilled;
        usage.recomputed += recomputed;
        usage.ttft_ms += total_ms;
        usage.total_ms += total_ms;
        usage.bytes_written += bytes_written;
    }

    /// The answer to a request. A call that breaks what masks can't enforce of its tool's schema is asked for once
    /// more, within the reply's limit, if nothing of it was sent yet.
    async fn answer(&self, request: Request, memory: &str) -> Result<CompletedReply, Refusal> {
        let tools = request.prompt.conversation().and_then(|conversation| conversation.tools.clone());
        let mut answer = self.play(request.clone(), memory).await?;
        let left = request.max_tokens.saturating_sub(answer.n_tokens());
        let may_again = self.pieces.is_none() && left > 0;
        if let Some(broken) = answer.broken_by(tools.as_deref()).filter(|_| may_again) {
            let sampling = sampled_again(request.sampling.clone(), 1);
            let max_call_tokens = request.max_call_tokens.min(left);
            let seed = answer.seed;
            let again = Request { sampling, max_tokens: left, max_call_tokens, ..request };
            let second = self.play(again, memory).await?;
            // One that the limit has cut is worth less than one that breaks a schema.
            let is_cut = matches!(second.completion.call, Some(ToolCalls::Truncated));
            let (kept, other) = if is_cut { (answer, second) } else { (second, answer) };
            answer = CompletedReply { seed, rejected: Some((other.n_tokens(), other.said_ms())), ..kept };
            answer.warnings.push(format!("{broken}, so the model was asked again"));
        }
        Ok(answer)
    }

    async fn play(&self, request: Request, memory: &str) -> Result<CompletedReply, Refusal> {
        self.entry.remembers(memory);
        let tools = request.prompt.conversation().and_then(|conversation| conversation.tools.clone());
        let seed = request.sampling.seed;
        let (mut calling, mut sent) = (String::new(), Vec::new());
        let mut turn = self.engine.submit(request)?;
        self.tell(ReplyPiece::Begun).await?;
        while let Some(event) = turn.next().await {
            match event {
                Event::Prefill { done, total } => self.entry.at(RequestStage::Reading { done, total }),
                Event::Thought(text) => {
                    self.entry.says(&text);
                    self.tell(ReplyPiece::Thought(text)).await?;
                }
                Event::Text(text) => {
                    self.entry.says(&text);
                    self.tell(ReplyPiece::Text(text)).await?;
                }
                Event::Call(text) => {
                    self.entry.says(&text);
                    calling.push_str(&text);
                    for piece in self.called(tools.as_deref(), &calling, &mut sent) {
                        self.tell(piece).await?;
                    }
                }
                Event::Logprobs(tokens) => self.tell(ReplyPiece::Logprobs(tokens)).await?,
                Event::Failed(error) => return Err(error.into()),
                Event::Done(_) => {
                    let mut completion = *turn.commit().await?;
                    self.count_before(&mut completion.usage);
                    self.entry.ended(&completion);
                    let mut answer = CompletedReply::new(completion, seed, tools.as_deref(), self.engine);
                    if let Some(dialogue) = self.dialogue {
                        answer.begun.clone_from(&dialogue.begun);
                        answer.warnings.clone_from(&dialogue.warnings);
                    }
                    answer.warnings.extend(answer.broken_by(tools.as_deref()));
                    self.tell(ReplyPiece::Ended(Box::new(answer.clone()))).await?;
                    return Ok(answer);
                }
                _ => {}
            }
        }
        Err(Refusal::ending())
    }

    /// The new pieces of calls; `sent` has the number of bytes of each call's arguments that were sent
    /// before.
    fn called(&self, tools: Option<&Tools>, text: &str, sent: &mut Vec<usize>) -> Vec<ReplyPiece> {
        let prompter = self.engine.prompter();
        let so_far = tools.map(|tools| prompter.calls_so_far(tools, text)).unwrap_or_default();
        let mut pieces = Vec::new();
        for (n, call) in so_far.into_iter().enumerate() {
            if n == sent.len() {
                pieces.push(ReplyPiece::Called(call.tool.to_string()));
                sent.push(0);
            }
            let more = call.arguments.get(sent[n]..).filter(|more| !more.is_empty());
            pieces.extend(more.map(|more| ReplyPiece::Arguments(more.to_string())));
            sent[n] = call.arguments.len();
        }
        pieces
    }

    async fn tell(&self, piece: ReplyPiece) -> Result<(), Refusal> {
        let Some(pieces) = self.pieces else { return Ok(()) };
        pieces.send((self.index, piece)).await.map_err(|_| Refusal::request("the client disconnected"))
    }
}
