//! `greenroom serve` as an engine: asked in the words in which one here would be ([`wire`]), so the replies
//! are the same to the bit.

use super::http::{Http, HttpFailure, with_retries};
use super::opening::choose;
use super::pace::Pace;
use super::shown::ShownReply;
use crate::backend::engine::{by_tokens, conversation, in_file_order, needed_for_calls, reply_of};
use crate::backend::wire::{self, VERSION, WireEvent};
use crate::backend::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Session, Sink};
use crate::sampling::suggested;
use crate::scenario::{EngineAddress, Hints};
use crate::transcript::ModelRecord;
use anyhow::{Context as _, anyhow};
use greenroom_engine as engine;
use serde_json::{Value, json};

/// A model of a server.
pub(super) struct GreenroomBackend {
    address: EngineAddress,
    http: Http,
    pace: Pace,
    /// The model's name there.
    model: String,
    card: ModelCard,
    context: usize,
    sampling: Hints,
}

impl GreenroomBackend {
    /// Reaches a server, and has it open the model.
    ///
    /// # Errors
    /// There is no answer, or no such model.
    pub(super) fn open(address: &EngineAddress) -> anyhow::Result<Self> {
        let http = Http::new(address)?;
        let listed = http.get("/v1/models")?;
        let model = choose(address.model.as_deref(), &listed)?;
        // Opens a requested model.
        http.post("/tokenize", &json!({ "content": "", "model": model }))?;
        let described = http.get(&format!("/v1/models/{model}"))?;
        let of = &described["greenroom"];
        let text = |name: &str| of[name].as_str().map(str::to_string);
        let card = text("identity").zip(text("kv")).zip(text("numerics"));
        let ((identity, kv), numerics) = card
            .context("it does not describe its model; check that it is `greenroom serve` of this version")?;
        let (name, family) = (text("name").unwrap_or_default(), text("family").unwrap_or_default());
        let card = ModelCard { model: ModelRecord { name, family, identity }, kv, numerics };
        let context = of["context_length"].as_u64().and_then(|n| usize::try_from(n).ok());
        let sampling: Option<engine::SuggestedSampling> = serde_json::from_value(of["sampling"].clone()).ok();
        let pace =
            Pace::new(address.slots, address.requests_per_minute, address.tokens_per_minute, address.budget);
        Ok(Self {
            address: address.clone(),
            http,
            pace,
            model,
            card,
            context: address.context.or(context).unwrap_or(usize::MAX),
            sampling: suggested(&sampling.unwrap_or_default()),
        })
    }

    async fn answer(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        let path = request.path.clone();
        let open = request.choice.as_ref().map(in_file_order).unwrap_or_default();
        let request = engine::Request::from(request);
        let turn = wire::WireTurn { version: VERSION, model: self.model.clone(), request };
        let completion = self.asked(&serde_json::to_value(turn)?, &sink).await.with_context(|| path)?;
        Ok(reply_of(completion, open, None))
    }

    /// Asks until there is an answer, or asking again has no use. What was read for an answer that broke off
    /// is not read again.
    async fn asked(&self, body: &Value, sink: &Sink) -> anyhow::Result<engine::Completion> {
        let shown = &ShownReply::new(sink);
        let attempt = || async move {
            let completion = self.attempt(body, shown).await?;
            let usage = &completion.usage;
            let tokens = usage.reused + usage.prefilled + usage.recomputed + completion.ids.len();
            Ok((completion, tokens))
        };
        with_retries(&self.pace, attempt).await
    }

    async fn attempt(&self, body: &Value, shown: &ShownReply<'_>) -> Result<engine::Completion, HttpFailure> {
        let mut events = self.http.stream("/v1/turns", body.clone(), Vec::new());
        let mut said = 0;
        while let Some(event) = events.recv().await {
            let event = serde_json::from_value(event?).context("can't read an event of the answer")?;
            match event {
                WireEvent::Reading { done, total } => (shown.sink())(Progress::Prefill { done, total }),
                WireEvent::Text(text) => shown.show(&mut said, &text),
                WireEvent::Done(completion) => return Ok(*completion),
                WireEvent::Failed { message, status } => {
                    let error = anyhow!("{} answered {status}: {message}", self.address.host());
                    let may_pass = status == 429 || status >= 500;
                    return Err(if may_pass {
                        HttpFailure::Transient(error, None)
                    } else {
                        HttpFailure::Permanent(error)
                    });
                }
            }
        }
        Err(HttpFailure::Transient(anyhow!("{}: the answer ended early", self.address.host()), None))
    }

    /// Tokens that a turn may take, without calls and with them; asked of the server only where the prompt's
    /// length does not say.
    fn room(&self, request: &Request) -> anyhow::Result<(usize, usize)> {
        let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
        let for_calls = needed_for_calls(request);
        // A token is a byte at least, and a template puts some around each message.
        let tools = conversation.tools.as_ref().map_or(0, |tools| format!("{tools:?}").len());
        let texts = conversation.exchanges.iter().map(|past| past.user.len()).sum::<usize>()
            + request.conversation.exchanges.iter().map(|past| past.ids.len()).sum::<usize>()
            + conversation.system.as_ref().map_or(0, String::len)
            + conversation.next.len();
        let most = texts + tools + 64 * (conversation.exchanges.len() + 4);
        let needed = by_tokens(most, request);
        if needed <= self.context / 2 && needed.saturating_add(for_calls) <= self.context {
            return Ok((needed, needed + for_calls));
        }
        let body = wire::Counted { model: self.model.clone(), prompt: conversation.into() };
        let counted = self.http.post("/v1/turns/count", &serde_json::to_value(body)?)?;
        let tokens = counted["tokens"].as_u64().and_then(|n| usize::try_from(n).ok());
        let needed = by_tokens(tokens.context("the server did not count the prompt")?, request);
        Ok((needed, needed + for_calls))
    }
}

impl Backend for GreenroomBackend {
    fn card(&self) -> ModelCard {
        self.card.clone()
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(self.answer(request, sink))
    }

    fn forget(&self, session: &Session) {
        let (run, agent) = (session.run.clone(), session.agent.clone());
        let body = serde_json::to_value(wire::Forgotten { model: self.model.clone(), run, agent });
        let http = self.http.clone();
        // It is not waited for.
        std::thread::spawn(move || {
            if let Err(failure) = body
                .map_err(Into::into)
                .and_then(|body| http.post("/v1/turns/forget", &body).map_err(anyhow::Error::from))
            {
                tracing::debug!("{failure:#}");
            }
        });
    }

    fn suggested_sampling(&self) -> Hints {
        self.sampling.clone()
    }

    fn text(&self, ids: &[u32]) -> String {
        let body = json!({ "tokens": ids, "model": self.model });
        let answer = self.http.post("/detokenize", &body).ok();
        answer.as_ref().and_then(|answer| answer["content"].as_str()).unwrap_or_default().to_string()
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        Ok(self.room(request)?.1 > self.context)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        let (needed, with_calls) = self.room(request)?;
        Ok(needed > self.context / 2 || with_calls > self.context)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        Box::pin(super::embed(&self.http, "/v1/embeddings", &self.model, texts))
    }
}
