//! Replies from a function: exact, instant, without a model. For tests and for controls in experiments.

use super::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Session, Sink, StopReason};
use crate::tools::read_call;
use crate::transcript::{ModelRecord, call_of};
use std::collections::HashMap;

/// Answers each request with what a function says.
pub struct Scripted {
    script: Box<Script>,
}

/// A function that answers turns.
type Script = dyn Fn(&Request) -> Option<String> + Send + Sync;

impl Scripted {
    /// From a function of the request; `None` is an error that names the turn.
    pub fn new(script: impl Fn(&Request) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { script: Box::new(script) }
    }

    /// From a list of `(path of a line, reply)`; a reply `{"tool": NAME, "arguments": {…}}` is a call, where
    /// one may be made.
    pub fn lines<'a>(lines: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let lines: HashMap<String, String> =
            lines.into_iter().map(|(path, reply)| (path.to_string(), reply.to_string())).collect();
        Self::new(move |request| {
            let call = request.may_call.then(|| lines.get(&call_of(&request.path, request.n_calls + 1)));
            call.flatten().or_else(|| lines.get(&request.path)).cloned()
        })
    }
}

impl Backend for Scripted {
    fn card(&self) -> ModelCard {
        let model = ModelRecord { name: "scripted".into(), family: "none".into(), identity: "none".into() };
        ModelCard { model, kv: "none".into(), numerics: "none".into() }
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            let text = (self.script)(&request)
                .ok_or_else(|| anyhow::anyhow!("the script has no reply for {}", request.path))?;
            let call = read_call(&text).filter(|_| request.may_call);
            // One id a character: what was said and what it was made of can be compared by eye.
            let ids = text.chars().map(u32::from).collect();
            let reply = Reply { call, ..Reply::of(ids, text, StopReason::EndOfTurn) };
            if reply.call.is_none() {
                sink(Progress::Text(reply.speech().to_string()));
            }
            Ok(reply)
        })
    }

    fn forget(&self, _session: &Session) {}

    /// A substitute by words: texts that share words are near.
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        Box::pin(async move { Ok(texts.iter().map(|text| bag_of_words(text)).collect()) })
    }
}

/// Term frequencies of a text, each word hashed to an index, as a vector of length 1.
fn bag_of_words(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0f32; 64];
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        counts[usize::from(blake3::hash(word.to_lowercase().as_bytes()).as_bytes()[0]) % 64] += 1.0;
    }
    let length = counts.iter().map(|n| n * n).sum::<f32>().sqrt().max(1.0);
    counts.iter().map(|n| n / length).collect()
}
