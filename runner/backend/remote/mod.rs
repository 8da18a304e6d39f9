//! Engines in other processes or on other machines: the same plan, prompts laid out so that their prefix caches hit.
//!
//! Where an engine takes token ids ([`Api::takes_ids`]) and the model's tokenizer is here, a prompt is the ids sent before, the ids that
//! came back, and new ones. Elsewhere it is messages, each sent again as it was. `greenroom serve` is asked in the engine's own words
//! ([`greenroom`]). What was reused of a prompt is compared with what could be ([`held`]).

mod ask;
mod dialect;
mod greenroom;
mod held;
mod http;
mod pace;

use super::embedded::{conversation, in_file_order, source};
use super::{
    Backend, BoxFuture, GivenSampling, ModelCard, Progress, Reply, Request, Session, Sink, Stop, locate,
};
use crate::prompt::Conversation;
use crate::scenario::{Address, Api, Method, Reasoning};
use crate::tools::Call;
use crate::transcript::ModelRecord;
use anyhow::{Context as _, anyhow, bail, ensure};
use ask::{Ask, Bounds, Finish, Message, Prompt, Said};
use greenroom::Served;
use greenroom_engine::{Ends, Prompter, cut_reply};
use held::{Expected, Held, Outcome};
use http::{Failure, Http, persistently};
use pace::Pace;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Opens the engine at an address.
///
/// # Errors
/// Nobody answers there, the key or the tokenizer is missing, or the tokenizer is another model's.
pub(super) fn open(address: &Address) -> anyhow::Result<Arc<dyn Backend>> {
    let opened: anyhow::Result<Arc<dyn Backend>> = match address.api {
        Api::Greenroom => Served::open(address).map(|served| Arc::new(served) as _),
        _ => Remote::open(address).map(|remote| Arc::new(remote) as _),
    };
    opened.with_context(|| format!("can't use the engine {address}"))
}

/// An engine of another kind.
struct Remote {
    address: Address,
    http: Http,
    pace: Pace,
    /// The model's name there.
    model: String,
    /// The model's tokenizer and chat template: prompts are ids.
    prompter: Option<Prompter>,
    context: Option<usize>,
    held: Held,
}

impl Remote {
    fn open(address: &Address) -> anyhow::Result<Self> {
        let http = Http::new(address)?;
        let prompter = match &address.tokenizer {
            Some(file) if address.api.takes_ids() => Some(
                Prompter::open(&source(&locate(file)?)).with_context(|| format!("the tokenizer {file}"))?,
            ),
            Some(_) => bail!("{} takes messages: `tokenizer` has no use there", address.api.name()),
            None if address.api.takes_ids() => bail!(
                "{} is asked by token ids: name a model file here that has its tokenizer and chat template, `tokenizer=FILE.gguf` \
                 (or ask it by messages: openai+URL)",
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
        Ok(Self { address: address.clone(), http, pace, model, prompter, context, held: Held::default() })
    }

    /// All that the speaker has read and said, as the engine reads it.
    fn prompt(&self, request: &Request) -> anyhow::Result<Prompt> {
        let Some(prompter) = &self.prompter else {
            return Ok(Prompt::Messages(messages(&request.conversation)));
        };
        let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
        Ok(Prompt::Ids(prompter.prompt_ids(&conversation.into())?))
    }

    async fn answer(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        let path = request.path.clone();
        let reply = self.answered(request, sink).await;
        reply.with_context(|| path)
    }

    async fn answered(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        ensure!(
            request.follow.is_none(),
            "{} has no way to be led along a recorded reply (--score, --rerun=exact): a model here or `greenroom serve` has",
            self.address.api.name()
        );
        let prompt = self.prompt(&request)?;
        let options = options(&request);
        if let [only] = options[..] {
            return self.given(&request, only);
        }
        let bounds = match (&request.form, options.is_empty()) {
            (_, false) => Bounds::OneOf(options.clone()),
            (Some(form), true) => Bounds::Grammar(&form.grammar),
            (None, true) => Bounds::Free,
        };
        // A choice is never cut: a token is a byte at least, and there is JSON around it where an API knows no other form.
        let longest = options.iter().map(|option| option.len()).max();
        let max_tokens = longest.map_or(request.max_tokens, |bytes| bytes + 64);
        let is_free = bounds == Bounds::Free;
        let stop: &[String] = if is_free { &request.stop } else { &[] };
        let key = key(&request.session);
        let ask = Ask {
            model: &self.model,
            prompt: &prompt,
            sampling: &request.sampling,
            seed: request.seed,
            max_tokens,
            stop,
            bounds,
            tools: request.tools.as_deref().filter(|_| self.prompter.is_none() && request.may_call),
            effort: effort(request.conversation.reasoning),
            key: &key,
            cold: request.cold,
        };
        let body = dialect::body(self.address.api, &ask)?;
        let (said, outcome) = self.asked(&body, &key, &sink).await?;
        let ids = match &prompt {
            Prompt::Ids(ids) => ids.as_slice(),
            Prompt::Messages(_) => &[],
        };
        let past = self.held.past(&request.session, request.parent.as_ref());
        let expected = Expected::new(past.as_ref(), ids, dialect::block(self.address.api));
        let is_full = said.finish == Some(Finish::Full);
        let ends = Ends { stop, whole_sentences: is_free, is_full };
        let mut reply = match &self.prompter {
            Some(prompter) => by_ids(prompter, ids, &said, ends, &request)?,
            None => by_text(&said, &ask.bounds, ends, request.may_call),
        };
        let mut past = past.unwrap_or_default();
        past.ids = if ids.is_empty() { Vec::new() } else { [ids, &reply.ids].concat() };
        // The token that was said last was not read, unless another one that ended the turn was drawn behind it.
        past.read.push(match &prompt {
            Prompt::Ids(ids) => {
                ids.len() + reply.ids.len()
                    - usize::from(reply.stop != Stop::EndOfTurn && !reply.ids.is_empty())
            }
            Prompt::Messages(_) if reply.text == said.text => {
                outcome.prompt_tokens + outcome.reply_tokens.saturating_sub(1)
            }
            // The engine's reply was another text than the one that it will read: how far it goes back for that is its own affair.
            Prompt::Messages(_) => 0,
        });
        self.held.keep(request.session, past);
        reply.usage = expected.account(&outcome);
        Ok(reply)
    }

    /// Asks until there is an answer, or asking again has no use.
    async fn asked(&self, body: &Value, key: &str, sink: &Sink) -> anyhow::Result<(Said, Outcome)> {
        let shown = &AtomicUsize::new(0);
        let attempt = || async move {
            let (said, outcome) = self.attempt(body, key, sink, shown).await?;
            let tokens = outcome.prompt_tokens + outcome.reply_tokens;
            Ok(((said, outcome), tokens))
        };
        persistently(&self.pace, attempt).await
    }

    /// Asks once. Text is shown as it comes, but for as many characters as an earlier attempt has shown.
    async fn attempt(
        &self,
        body: &Value,
        key: &str,
        sink: &Sink,
        shown: &AtomicUsize,
    ) -> Result<(Said, Outcome), Failure> {
        let (began, mut first) = (Instant::now(), None);
        // Routers that keep a session on one worker go by this.
        let headers = vec![("x-session-id", key.to_string())];
        let mut events = self.http.stream(dialect::path(self.address.api), body.clone(), headers);
        let mut said = Said::default();
        while let Some(event) = events.recv().await {
            dialect::take(self.address.api, &event?, &mut said)?;
            let known = shown.fetch_max(said.text.len(), Ordering::Relaxed);
            if said.text.len() > known {
                first.get_or_insert_with(|| began.elapsed());
                // An engine may take back what it had said of a character.
                if let Some(new) = said.text.get(known..) {
                    sink(Progress::Text(new.to_string()));
                }
            }
        }
        if said.finish.is_none() {
            let error = anyhow!("{}: the answer broke off before its end", self.address.host());
            return Err(Failure::Transient(error, None));
        }
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let total = began.elapsed();
        let outcome = Outcome {
            prompt_tokens: said.prompt_tokens.unwrap_or(0),
            cached: said.cached,
            reply_tokens: said.reply_tokens.unwrap_or(said.ids.len()),
            token_ms: said.token_ms.unwrap_or(0.0),
            ttft_ms: ms(first.unwrap_or(total)),
            total_ms: ms(total),
        };
        Ok((said, outcome))
    }

    /// A reply that is given from outside, or the only option left: nobody need be asked.
    fn given(&self, request: &Request, text: &str) -> anyhow::Result<Reply> {
        let ids = match &self.prompter {
            Some(prompter) => {
                let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
                prompter.reply_ids(&conversation.into(), text)?
            }
            None => Vec::new(),
        };
        Ok(Reply::of(ids, text.to_string(), Stop::EndOfTurn))
    }
}

/// The texts of which a reply must be one.
fn options(request: &Request) -> Vec<&str> {
    let decoded = request.choice.as_ref().filter(|options| options.choice.method == Method::Decode);
    let texts = |options| in_file_order(options).into_iter();
    decoded.map_or_else(Vec::new, |options| {
        texts(options).map(|at| options.choice.options[at].text.as_str()).collect()
    })
}

/// The name by which an engine may keep a memory apart: of nothing that anybody reads.
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

/// A conversation as messages.
fn messages(conversation: &Conversation) -> Vec<Message> {
    let mut told: Vec<Message> = conversation.system.clone().map(Message::System).into_iter().collect();
    let mut is_result = false;
    let mut reads = |text: &str, is_call: bool| {
        let message =
            if is_result { Message::Result(text.to_string()) } else { Message::User(text.to_string()) };
        is_result = is_call;
        message
    };
    for past in &conversation.exchanges {
        let call = Call::read(&past.raw).filter(|_| past.is_call);
        told.push(reads(&past.user, call.is_some()));
        told.push(call.map_or_else(|| Message::Assistant(past.raw.to_string()), Message::Call));
    }
    told.push(reads(&conversation.next, false));
    told
}

/// The reply that ids say.
fn by_ids(
    prompter: &Prompter,
    prompt: &[u32],
    said: &Said,
    ends: Ends<'_>,
    request: &Request,
) -> anyhow::Result<Reply> {
    ensure!(
        !said.ids.is_empty() || said.text.is_empty(),
        "the engine does not tell the ids of its reply: is it recent enough to?"
    );
    let n_vocab = prompter.model().n_vocab;
    if let Some(id) = said.ids.iter().find(|id| **id as usize >= n_vocab) {
        bail!(
            "the engine's reply has the id {id}; the tokenizer's vocabulary has {n_vocab}: it is another model's"
        );
    }
    let spelled = prompter.decode(&said.ids);
    // Behind a character that is not whole each side has its own way; a stop string may be left out of the text.
    let sure = |text: &str| text.split('\u{fffd}').next().unwrap_or_default().trim_start().to_string();
    let (by_ids, by_text) = (sure(&spelled), sure(&said.text));
    ensure!(
        by_ids.starts_with(&by_text) || by_text.starts_with(&by_ids),
        "the ids of the engine's reply spell `{spelled}`, its text is `{}`: the tokenizer is another model's",
        said.text
    );
    let (ids, text, stop) = prompter.cut(prompt, &said.ids, ends);
    let offered = request.tools.as_deref().filter(|_| request.may_call);
    let tools = offered.and_then(|offer| conversation(Conversation::default(), Some(offer)).tools);
    let called = tools.as_ref().and_then(|tools| {
        let so_far = prompter.calls_so_far(tools, &text);
        let call = so_far.first()?;
        let arguments = serde_json::from_str(call.arguments).ok();
        Some(arguments.map_or_else(Call::cut, |arguments| Call { tool: call.tool.to_string(), arguments }))
    });
    Ok(Reply { call: called, ..Reply::of(ids, text, stop.into()) })
}

/// The reply that a text is.
fn by_text(said: &Said, bounds: &Bounds<'_>, ends: Ends<'_>, may_call: bool) -> Reply {
    if let Some((tool, arguments)) = said.call.as_ref().filter(|_| may_call) {
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return Reply {
                call: Some(Call::cut()),
                ..Reply::of(Vec::new(), said.text.clone(), Stop::Length)
            };
        };
        let text = json!({ "tool": tool, "arguments": arguments }).to_string();
        let call = Some(Call { tool: tool.clone(), arguments });
        return Reply { call, ..Reply::of(Vec::new(), text, Stop::EndOfTurn) };
    }
    if let Bounds::OneOf(_) = bounds {
        // It was asked for as JSON: APIs of messages have no other bounds.
        let value: Option<Value> = serde_json::from_str(&said.text).ok();
        let chosen = value.as_ref().and_then(|value| value["choice"].as_str());
        return Reply::of(Vec::new(), chosen.unwrap_or(&said.text).to_string(), Stop::EndOfTurn);
    }
    let (text, stop) = cut_reply(&said.text, ends);
    Reply::of(Vec::new(), text, stop.into())
}

/// The model's name there, and how many tokens its context holds, as far as the engine says.
fn describe(address: &Address, http: &Http) -> anyhow::Result<(String, Option<usize>)> {
    let context = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    match address.api {
        Api::LlamaCpp => {
            let props = http.get("/props")?;
            let name =
                props["model_alias"].as_str().or_else(|| props["model_path"].as_str()).unwrap_or("llama.cpp");
            let name = name.rsplit('/').next().unwrap_or(name).to_string();
            Ok((
                address.model.clone().unwrap_or(name),
                context(&props["default_generation_settings"]["n_ctx"]),
            ))
        }
        Api::SgLang => {
            let info = http.get("/get_model_info")?;
            let name = info["model_path"].as_str().unwrap_or("sglang").to_string();
            Ok((address.model.clone().unwrap_or(name), None))
        }
        Api::Vllm | Api::OpenAi => {
            let path = if address.api == Api::Vllm { "/v1/models" } else { "/models" };
            let listed = http.get(path);
            let listed = match (&address.model, listed) {
                // Some gateways list nothing; the name is enough.
                (Some(name), Err(Failure::Permanent(_))) => return Ok((name.clone(), None)),
                (_, listed) => listed?,
            };
            let name = choose(address.model.as_deref(), &listed)?;
            let all = listed["data"].as_array().into_iter().flatten();
            let own = all.into_iter().find(|model| model["id"] == name.as_str());
            Ok((name, own.and_then(|model| context(&model["max_model_len"]))))
        }
        Api::Anthropic | Api::Greenroom => {
            let name = address.model.clone().context("`model` is missing: the model's name there")?;
            Ok((name, None))
        }
    }
}

/// The model that is asked for among those of a list in OpenAI's form; the only one, where none is.
fn choose(asked: Option<&str>, listed: &Value) -> anyhow::Result<String> {
    let all = listed["data"].as_array().into_iter().flatten();
    let names: Vec<&str> = all.filter_map(|model| model["id"].as_str()).collect();
    match (asked, &names[..]) {
        (Some(name), names) if names.is_empty() || names.contains(&name) => Ok(name.to_string()),
        (None, [only]) => Ok((*only).to_string()),
        (Some(name), names) => bail!("there is no model `{name}` there; there is {}", names.join(", ")),
        (None, names) => bail!("`model` is missing: one of {}", names.join(", ")),
    }
}

/// A text that tokenizers cut in different ways.
const PROBE: &str =
    "Naïve Zoë’s 3 cats — 12,345 of them! — ran: “¿Qué?”\n\n\tif (x != y) { don't(); } 漢字 🐈";

/// Compares the tokenizer here with the engine's, where it has a route for that.
fn probe(address: &Address, http: &Http, model: &str, prompter: &Prompter) -> anyhow::Result<()> {
    let body = match address.api {
        Api::Vllm => json!({ "model": model, "prompt": PROBE, "add_special_tokens": true }),
        _ => {
            json!({ "content": PROBE, "add_special": true, "parse_special": true, "prompt": PROBE, "model": model })
        }
    };
    let answer = match http.post("/tokenize", &body) {
        Ok(answer) => answer,
        Err(Failure::Permanent(_)) if address.api != Api::LlamaCpp => {
            tracing::debug!("{} has no route that tokenizes: the tokenizer is not compared", address.host());
            return Ok(());
        }
        Err(failure) => return Err(failure.into()),
    };
    let theirs: Vec<u32> = answer["tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|id| u32::try_from(id.as_u64()?).ok())
        .collect();
    let ours = prompter.prompt_ids(&greenroom_engine::Prompt::Text(PROBE.to_string()))?;
    let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    ensure!(
        ours == theirs,
        "the tokenizer {} is not that of `{model}`: a text of {} tokens there has {} here, and the first that differs is number {at} \
         ({} there, {} here)",
        address.tokenizer.as_deref().unwrap_or_default(),
        theirs.len(),
        ours.len(),
        theirs.get(at).map_or("none".to_string(), u32::to_string),
        ours.get(at).map_or("none".to_string(), u32::to_string),
    );
    Ok(())
}

impl Backend for Remote {
    fn card(&self) -> ModelCard {
        // Nobody says what the weights are, and where they lie is no part of what was said.
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

    fn suggested_sampling(&self) -> GivenSampling {
        self.prompter
            .as_ref()
            .map_or_else(GivenSampling::default, |prompter| prompter.model().sampling.into())
    }

    fn text(&self, ids: &[u32]) -> String {
        self.prompter.as_ref().map_or_else(String::new, |prompter| prompter.decode(ids))
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        let (Some(prompter), Some(context)) = (&self.prompter, self.context) else { return Ok(false) };
        Ok(super::embedded::room(prompter, request)?.1 > context)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        let (Some(prompter), Some(context)) = (&self.prompter, self.context) else { return Ok(false) };
        let (needed, with_calls) = super::embedded::room(prompter, request)?;
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
        .with_context(|| format!("{path} gave no embeddings of {n} texts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Exchange;

    fn said(text: &str, finish: Finish) -> Said {
        Said { text: text.to_string(), finish: Some(finish), ..Said::default() }
    }

    #[test]
    fn a_form_is_cut_neither_to_sentences_nor_at_a_stop_string() {
        let text = "{\"a\": \"I know. You do";
        let schema = greenroom_engine::Grammar::JsonSchema("{}".into());
        let form = Ends { stop: &[], whole_sentences: false, is_full: true };
        let reply = by_text(&said(text, Finish::Full), &Bounds::Grammar(&schema), form, false);
        assert_eq!((reply.text.as_str(), reply.stop), (text, Stop::Length));
        let free = Ends { whole_sentences: true, ..form };
        let reply = by_text(&said("I know. You do", Finish::Full), &Bounds::Free, free, false);
        assert_eq!((reply.text.trim(), reply.stop), ("I know.", Stop::Sentence));
    }

    #[test]
    fn a_choice_is_taken_out_of_its_json() {
        let ends = Ends { stop: &[], whole_sentences: false, is_full: false };
        let bounds = Bounds::OneOf(vec!["I talk", "I stay silent"]);
        for (text, chosen) in [
            ("{\"choice\": \"I talk\"}", "I talk"),
            ("I stay silent", "I stay silent"),
            ("{\"x\": 1}", "{\"x\": 1}"),
        ] {
            assert_eq!(by_text(&said(text, Finish::Ended), &bounds, ends, false).text, chosen);
        }
    }

    #[test]
    fn a_call_is_remembered_as_one_and_its_result_as_such() {
        let ends = Ends { stop: &[], whole_sentences: true, is_full: false };
        let call = Some(("dice".to_string(), "{\"sides\": 6}".to_string()));
        let heard = Said { call: call.clone(), ..said("", Finish::Ended) };
        let reply = by_text(&heard, &Bounds::Free, ends, true);
        let arguments = json!({ "sides": 6 });
        assert_eq!(reply.call, Some(Call { tool: "dice".into(), arguments }));
        assert!(reply.call.as_ref().unwrap().is_said_in(&reply.text));
        assert_eq!(by_text(&heard, &Bounds::Free, ends, false).call, None, "where none may be made");
        let cut = Said { call: Some(("dice".into(), "{\"si".into())), ..said("", Finish::Full) };
        assert_eq!(by_text(&cut, &Bounds::Free, ends, true).call, Some(Call::cut()));
        let exchange = |user: &str, raw: &str, is_call| Exchange {
            user: user.to_string(),
            ids: Arc::new([]),
            raw: raw.into(),
            is_call,
            reasoning: Reasoning::None,
        };
        let conversation = Conversation {
            exchanges: vec![exchange("Roll.", &reply.text, true), exchange("4", "A four.", false)],
            next: "Again.".into(),
            ..Conversation::default()
        };
        let call = reply.call.unwrap();
        assert_eq!(
            messages(&conversation),
            [
                Message::User("Roll.".into()),
                Message::Call(call),
                Message::Result("4".into()),
                Message::Assistant("A four.".into()),
                Message::User("Again.".into()),
            ]
        );
    }
}
