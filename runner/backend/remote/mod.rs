//! Engines in other processes or on other machines: the same plan, prompts laid out so that their prefix
//! caches hit.
//!
//! Where an engine takes token ids ([`Api::takes_ids`]) and the model's tokenizer is here, a prompt is the
//! ids sent before, the ids that came back, and new ones. Elsewhere it is messages, each sent again as it
//! was. `greenroom serve` is asked in the engine's own words ([`greenroom`]). What was reused of a prompt is
//! compared with what could be ([`held`]).

mod ask;
mod dialect;
mod greenroom;
mod held;
mod http;
mod opening;
mod pace;
mod reply;
mod shown;

use super::embedded::source;
use super::engine::{conversation, in_file_order, room};
use super::{Backend, BoxFuture, ModelCard, Reply, Request, Session, Sink, StopReason, locate};
use crate::prompt::StopStrings;
use crate::sampling::suggested;
use crate::scenario::{Api, ChoiceMethod, EngineAddress, Hints, Reasoning};
use crate::transcript::ModelRecord;
use anyhow::{Context as _, anyhow, bail, ensure};
use ask::{PartialReply, Prompt, RemoteRequest, ReplyBounds, messages};
use greenroom::GreenroomBackend;
use greenroom_engine::{PromptEncoder, StreamedReply, ThoughtForm};
use held::{ExpectedReuse, HeldSessions, ReuseOutcome};
use http::{Http, HttpFailure, with_retries};
use opening::{describe, probe};
use pace::Pace;
use reply::{Cutting, by_ids, by_text};
use serde_json::{Value, json};
use shown::ShownReply;
use std::sync::Arc;
use std::time::Instant;

/// Opens the engine at an address.
///
/// # Errors
/// There is no answer, the key or the tokenizer is missing, or the tokenizer is another model's.
pub(super) fn open(address: &EngineAddress) -> anyhow::Result<Arc<dyn Backend>> {
    let opened: anyhow::Result<Arc<dyn Backend>> = match address.api {
        Api::Greenroom => GreenroomBackend::open(address).map(|served| Arc::new(served) as _),
        _ => RemoteBackend::open(address).map(|remote| Arc::new(remote) as _),
    };
    opened.with_context(|| format!("can't use the engine {address}"))
}

/// An engine of another kind.
struct RemoteBackend {
    address: EngineAddress,
    http: Http,
    pace: Pace,
    /// The model's name there.
    model: String,
    /// The model's tokenizer and chat template: prompts are ids.
    prompter: Option<PromptEncoder>,
    context: Option<usize>,
    held: HeldSessions,
}

impl RemoteBackend {
    fn open(address: &EngineAddress) -> anyhow::Result<Self> {
        let http = Http::new(address)?;
        let prompter = match &address.tokenizer {
            Some(file) if address.api.takes_ids() => Some(
                PromptEncoder::open(&source(&locate(file)?))
                    .with_context(|| format!("the tokenizer {file}"))?,
            ),
            Some(_) => {
                bail!("{} takes messages, so `tokenizer` has no effect; remove it", address.api.name())
            }
            None if address.api.takes_ids() => bail!(
                "{} takes token ids; give a local model file with its tokenizer and chat template, \
                 `tokenizer=FILE.gguf` (or use messages: openai+URL)",
                address.api.name()
            ),
            None => None,
        };
        let (model, context) = describe(address, &http)?;
        if let Some(prompter) = &prompter {
            probe(address, &http, &model, prompter)?;
        }
        let context = address.context.or(context);
        let pace =
            Pace::new(address.slots, address.requests_per_minute, address.tokens_per_minute, address.budget);
        Ok(Self {
            address: address.clone(),
            http,
            pace,
            model,
            prompter,
            context,
            held: HeldSessions::default(),
        })
    }

    /// All that the speaker has read and said, as the engine reads it.
    fn prompt(&self, request: &Request) -> anyhow::Result<Prompt> {
        let Some(prompter) = &self.prompter else {
            return Ok(Prompt::Messages(messages(&request.conversation)));
        };
        let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
        Ok(Prompt::Ids(prompter.prompt_ids(&conversation.into())?))
    }

    /// How reasoning is marked in the reply to a prompt; of messages, only the engine knows whether its template
    /// opens it.
    fn thoughts(&self, request: &Request, prompt: &Prompt) -> ThoughtForm {
        match (&self.prompter, prompt) {
            (Some(prompter), Prompt::Ids(ids)) => prompter.thoughts(ids),
            _ if request.conversation.reasoning == Reasoning::None => ThoughtForm::of_text(),
            _ => ThoughtForm::of_text().perhaps_opened(),
        }
    }

    async fn answer(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        let path = request.path.clone();
        let reply = self.answered(request, sink).await;
        reply.with_context(|| path)
    }

    async fn answered(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        ensure!(
            request.follow.is_none(),
            "{} can't follow a recorded reply (--score, --rerun=exact); use a local model or `greenroom \
             serve`",
            self.address.api.name()
        );
        let prompt = self.prompt(&request)?;
        let options = options(&request);
        if let [only] = options[..] {
            return self.given(&request, only);
        }
        let bounds = match (&request.form, options.is_empty()) {
            (_, false) => ReplyBounds::OneOf(options.clone()),
            (Some(form), true) => ReplyBounds::Grammar(form.elsewhere()),
            (None, true) => ReplyBounds::Free,
        };
        // A choice is never cut: a token is a byte at least, and there is JSON around it where an API knows
        // no other form.
        let longest = options.iter().map(|option| option.len()).max();
        // Most engines count reasoning as tokens of the reply.
        let of_reply = request.max_tokens + request.max_thought_tokens;
        let max_tokens = longest.map_or(of_reply, |bytes| bytes + 64);
        let is_free = bounds == ReplyBounds::Free;
        // What is bounded ends by itself.
        let stops = if is_free { request.stops.clone() } else { StopStrings::default() };
        let key = key(&request.session);
        let ask = RemoteRequest {
            model: &self.model,
            prompt: &prompt,
            sampling: &request.sampling,
            max_tokens,
            bounds,
            tools: request.tools.as_deref().filter(|_| self.prompter.is_none() && request.may_call),
            must_call: request.must_call.as_deref(),
            effort: effort(request.conversation.reasoning),
            key: &key,
            cold: request.cold,
        };
        let body = dialect::body(self.address.api, &ask)?;
        // A choice may come within JSON; it is shown once it is known.
        let thoughts = self.thoughts(&request, &prompt);
        let cutting = Cutting { stops: &stops, whole_sentences: is_free, thoughts: &thoughts };
        let (said, outcome) = self.asked(&body, &key, &sink, options.is_empty().then_some(cutting)).await?;
        let ids = match &prompt {
            Prompt::Ids(ids) => ids.as_slice(),
            Prompt::Messages(_) => &[],
        };
        let past = self.held.past(&request.session, request.parent.as_ref());
        let expected = ExpectedReuse::new(past.as_ref(), ids, dialect::block(self.address.api));
        let mut reply = match &self.prompter {
            Some(prompter) => by_ids(prompter, ids, &said, cutting, &request)?,
            None => by_text(&said, &ask.bounds, cutting, request.may_call),
        };
        let mut past = past.unwrap_or_default();
        past.ids = if ids.is_empty() { Vec::new() } else { [ids, &reply.ids].concat() };
        // The token that was said last was not read, unless another one was drawn after it, which was cut or
        // ended the turn.
        past.read.push(match &prompt {
            Prompt::Ids(ids) => {
                let is_last_read = reply.stop == StopReason::EndOfTurn || said.ids.len() > reply.ids.len();
                ids.len() + reply.ids.len() - usize::from(!is_last_read && !reply.ids.is_empty())
            }
            Prompt::Messages(_) if reply.text == said.text => {
                outcome.prompt_tokens + outcome.reply_tokens.saturating_sub(1)
            }
            // The engine's reply was another text than the one that it will read: how far it goes back for
            // that is up to it.
            Prompt::Messages(_) => 0,
        });
        self.held.keep(request.session, past);
        reply.usage = expected.account(&outcome);
        Ok(reply)
    }

    /// Asks until there is an answer, or asking again has no use. Text is shown as it becomes certain, if it
    /// is known how it is cut.
    async fn asked(
        &self,
        body: &Value,
        key: &str,
        sink: &Sink,
        cutting: Option<Cutting<'_>>,
    ) -> anyhow::Result<(PartialReply, ReuseOutcome)> {
        let shown = &ShownReply::new(sink);
        let attempt = || async move {
            let (said, outcome) = self.attempt(body, key, shown, cutting).await?;
            let tokens = outcome.prompt_tokens + outcome.reply_tokens;
            Ok(((said, outcome), tokens))
        };
        with_retries(&self.pace, attempt).await
    }

    /// Asks once.
    async fn attempt(
        &self,
        body: &Value,
        key: &str,
        shown: &ShownReply<'_>,
        cutting: Option<Cutting<'_>>,
    ) -> Result<(PartialReply, ReuseOutcome), HttpFailure> {
        let (began, mut first) = (Instant::now(), None);
        // Routers that keep a session on one worker go by this.
        let headers = vec![("x-session-id", key.to_string())];
        let mut events = self.http.stream(dialect::path(self.address.api), body.clone(), headers);
        let (mut said, mut n_read, mut n_shown) = (PartialReply::default(), 0, 0);
        let mut streamed: Option<StreamedReply> = None;
        while let Some(event) = events.recv().await {
            dialect::take(self.address.api, &event?, &mut said)?;
            // An engine may retract an incomplete character.
            if said.text.get(n_read..).is_none_or(str::is_empty) {
                continue;
            }
            first.get_or_insert_with(|| began.elapsed());
            if streamed.is_none() {
                // How it is cut depends on its beginning.
                let Some((begin, speech)) = cutting.and_then(|cutting| cutting.streamed(&said.text)) else {
                    continue;
                };
                n_read = begin;
                streamed = Some(speech);
            }
            let new = &said.text[n_read..];
            if let Some(certain) = streamed.as_mut().and_then(|reply| reply.push(new)) {
                shown.show(&mut n_shown, &certain);
            }
            n_read = said.text.len();
        }
        if said.finish.is_none() {
            let error = anyhow!("{}: the answer ended early", self.address.host());
            return Err(HttpFailure::Transient(error, None));
        }
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let total = began.elapsed();
        let outcome = ReuseOutcome {
            prompt_tokens: said.prompt_tokens.unwrap_or(0),
            cached: said.cached,
            reply_tokens: said.reply_tokens.unwrap_or(said.ids.len()),
            token_ms: said.token_ms.unwrap_or(0.0),
            ttft_ms: ms(first.unwrap_or(total)),
            total_ms: ms(total),
        };
        Ok((said, outcome))
    }

    /// A reply that is given from outside, or the only option left: no request is needed.
    fn given(&self, request: &Request, text: &str) -> anyhow::Result<Reply> {
        let ids = match &self.prompter {
            Some(prompter) => {
                let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
                prompter.reply_ids(&conversation.into(), text)?
            }
            None => Vec::new(),
        };
        Ok(Reply::of(ids, text.to_string(), StopReason::EndOfTurn))
    }
}

/// The texts of which a reply must be one.
fn options(request: &Request) -> Vec<&str> {
    let decoded = request.choice.as_ref().filter(|options| options.choice.method == ChoiceMethod::Decode);
    let texts = |options| in_file_order(options).into_iter();
    decoded.map_or_else(Vec::new, |options| {
        texts(options).map(|at| options.choice.options[at].text.as_str()).collect()
    })
}

/// A name under which an engine may keep a memory separate: derived from nothing that anyone reads.
fn key(session: &Session) -> String {
    let name = format!("{}\n{}", session.run, session.agent);
    format!("greenroom-{}", &blake3::hash(name.as_bytes()).to_hex()[..24])
}

fn effort(reasoning: Reasoning) -> &'static str {
    match reasoning {
        Reasoning::None => "",
        reasoning => reasoning.word(),
    }
}

impl Backend for RemoteBackend {
    fn card(&self) -> ModelCard {
        // The weights are not identified, and their place does not affect the replies.
        let (name, api) = (self.model.clone(), self.address.api.name().to_string());
        let identity = format!("{api}/{name}");
        let model = ModelRecord { name, family: api, identity };
        ModelCard { model, kv: "remote".into(), numerics: "remote".into() }
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(self.answer(request, sink))
    }

    fn forget(&self, session: &Session) {
        self.held.forget(session);
    }

    fn suggested_sampling(&self) -> Hints {
        self.prompter.as_ref().map_or_else(Hints::default, |prompter| suggested(&prompter.model().sampling))
    }

    fn text(&self, ids: &[u32]) -> String {
        self.prompter.as_ref().map_or_else(String::new, |prompter| prompter.decode(ids))
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        let (Some(prompter), Some(context)) = (&self.prompter, self.context) else { return Ok(false) };
        Ok(room(prompter, request)?.1 > context)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        let (Some(prompter), Some(context)) = (&self.prompter, self.context) else { return Ok(false) };
        let (needed, with_calls) = room(prompter, request)?;
        Ok(needed > context / 2 || with_calls > context)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        Box::pin(async move {
            let path = if self.address.api == Api::OpenAi { "/embeddings" } else { "/v1/embeddings" };
            embed(&self.http, path, &self.model, texts).await
        })
    }
}

/// Embeds texts by OpenAI's route.
async fn embed(http: &Http, path: &str, model: &str, texts: Vec<String>) -> anyhow::Result<Vec<Vec<f32>>> {
    let body = json!({ "model": model, "input": texts });
    let (http, route, n) = (http.clone(), path.to_string(), texts.len());
    let answer =
        tokio::task::spawn_blocking(move || http.post(&route, &body)).await?.map_err(anyhow::Error::from)?;
    let vector = |value: &Value| -> Option<Vec<f32>> {
        value["embedding"].as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect()
    };
    let vectors: Option<Vec<Vec<f32>>> =
        answer["data"].as_array().map(|all| all.iter().filter_map(vector).collect());
    vectors
        .filter(|vectors| vectors.len() == n)
        .with_context(|| format!("{path} did not return embeddings of {n} texts"))
}
