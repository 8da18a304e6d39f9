//! One running turn: its prompt is fed, its reply sampled, token by token.

use crate::constraint;
use crate::memory::Recalled;
use crate::prefix::{Segment, SegmentKind};
use crate::reply::Reply;
use crate::session::Session;
use crate::tokenizer::Tokenizer;
use crate::{Completion, Event, Request, Result, StopReason, Usage, sampler};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// A turn at work. Its session is taken out of the memory until it ends.
pub(crate) struct ActiveTurn {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) session: Session,
    pub(crate) events: UnboundedSender<Event>,
    prompt: Vec<Segment>,
    /// Tokens of the prompt; everything after is the reply.
    prompt_len: usize,
    /// Where the sequence stood when the turn began.
    start: usize,
    reply: Reply,
    stop: Option<StopReason>,
    usage: Usage,
    began: Instant,
}

impl ActiveTurn {
    /// A turn whose memory was recalled.
    pub(crate) fn new(
        id: u64,
        request: Request,
        prompt: Vec<Segment>,
        recalled: Recalled,
        events: UnboundedSender<Event>,
        began: Instant,
    ) -> Self {
        let Recalled { mut session, kind, source, reused, recomputed, .. } = recalled;
        session.sequence.begin_turn();
        let prompt_len = session.tokens.len();
        let usage = Usage {
            kind,
            source,
            reused,
            prefilled: prompt_len - reused - recomputed,
            recomputed,
            generated: 0,
            layer0_rows: 0,
            ttft_ms: 0.0,
            total_ms: 0.0,
            bytes_read: recalled.bytes_read,
            bytes_written: 0,
            waited_ms: recalled.waited_ms,
            hidden_ms: recalled.hidden_ms,
            saved_ms: 0.0,
            memory_bytes: 0,
            reason: recalled.reason,
        };
        let reply = Reply::new(&request.stop);
        Self {
            id,
            request,
            session,
            events,
            prompt,
            prompt_len,
            start: reused,
            reply,
            stop: None,
            usage,
            began,
        }
    }

    /// Counts bytes that were written before the turn's end.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.usage.bytes_written += bytes;
    }

    /// Whether the prompt is read.
    pub(crate) fn decoding(&self) -> bool {
        self.session.sequence.len() >= self.prompt_len
    }

    /// Tokens known but not fed.
    pub(crate) fn pending(&self) -> usize {
        self.session.tokens.len() - self.session.sequence.len()
    }

    /// Whether the turn found memory to go on from.
    pub(crate) fn warm(&self) -> bool {
        self.start > 0
    }

    /// Whether the caller has gone.
    pub(crate) fn cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether the reply is complete and everything that it keeps is fed.
    pub(crate) fn done(&self) -> bool {
        self.stop.is_some() && self.pending() == 0
    }

    /// After a pass that left prompt tokens to feed.
    pub(crate) fn report_prefill(&self) {
        let done = self.session.sequence.len() - self.start;
        let _ = self.events.send(Event::Prefill { done, total: self.prompt_len - self.start });
    }

    /// Takes the logits of the last fed token: samples, streams, decides whether the reply ends.
    pub(crate) fn advance(&mut self, logits: &[f32], tokenizer: &Tokenizer, eog: &[u32]) -> Result<()> {
        if self.stop.is_some() {
            return Ok(()); // the last token of a reply cut by length was fed
        }
        if self.reply.ids().is_empty() {
            self.usage.ttft_ms = self.elapsed_ms();
        }
        let mut logits = Cow::Borrowed(logits);
        if let Some(constraint) = &self.request.constraint {
            constraint::mask(constraint, self.reply.bytes(), logits.to_mut(), tokenizer, eog)?;
        } else if self.reply.ids().len() < self.request.min_tokens {
            let logits = logits.to_mut();
            for id in eog {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let id = sampler::choose(&logits, self.reply.ids(), &self.request.sampling)?;
        if eog.contains(&id) {
            self.end(StopReason::EndOfTurn);
            return Ok(());
        }
        self.session.tokens.push(id);
        if let Some(stop) = self.reply.push(id, tokenizer) {
            self.end(stop);
            return Ok(());
        }
        self.stream(|reply| reply.take_certain());
        if self.request.constraint.as_ref().is_some_and(|c| constraint::complete(c, self.reply.bytes())) {
            self.end(StopReason::EndOfTurn);
        } else if self.reply.ids().len() >= self.request.max_tokens {
            self.end(StopReason::Length);
        }
        Ok(())
    }

    /// The reply ends here: what was cut off leaves the token list; what was kept but not fed is fed next.
    fn end(&mut self, stop: StopReason) {
        self.stream(Reply::finish);
        self.session.tokens.truncate(self.prompt_len + self.reply.ids().len());
        self.stop = Some(stop);
    }

    fn stream(&mut self, take: impl FnOnce(&mut Reply) -> Option<String>) {
        if let Some(text) = take(&mut self.reply) {
            let _ = self.events.send(Event::Text(text));
        }
    }

    /// Milliseconds since the turn began.
    pub(crate) fn elapsed_ms(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e3
    }

    /// The turn stands: the session holds prompt and reply, and the completion says what it cost.
    pub(crate) fn complete(&mut self) -> Completion {
        let ids = self.reply.ids().to_vec();
        let text = self.reply.text();
        self.usage.layer0_rows = self.session.sequence.layer0_rows();
        self.usage.generated = self.usage.layer0_rows - self.usage.prefilled - self.usage.recomputed;
        // Segments that matched are there already, with the ids that the cache holds.
        let known = self.session.segments.len();
        self.session.segments.extend(self.prompt.drain(..).skip(known));
        let reply: Arc<[u32]> = ids.clone().into();
        let segment = Segment { kind: SegmentKind::Reply, text: text.clone(), ids: reply, guessed: false };
        self.session.segments.push(segment);
        let stop = self.stop.unwrap_or(StopReason::Length);
        Completion { ids, text, stop, usage: self.usage.clone() }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::RandomModel;
    use crate::*;

    /// Tokens that a random model's reply of up to 60 took.
    fn generated(engine: &Engine, seed: u64, min_tokens: usize) -> usize {
        let mut turn = engine
            .submit(Request {
                session: SessionKey { run: "r".into(), agent: "a".into() },
                parent: None,
                retention: Retention::Ephemeral,
                conversation: Conversation { next: "Go on.".into(), ..Conversation::default() },
                sampling: Sampling { temperature: 4.0, seed, ..Sampling::default() },
                max_tokens: 60,
                min_tokens,
                stop: Vec::new(),
                constraint: None,
                next_use: None,
                cold: true,
            })
            .unwrap();
        while let Some(event) = turn.blocking_next() {
            if let Event::Done(done) = event {
                return done.usage.generated;
            }
        }
        panic!("the turn did not end");
    }

    #[test]
    fn a_turn_does_not_end_before_min_tokens() {
        let model = ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak());
        let engine = Engine::open(EngineConfig::new(model), &mut |_, _| {}).unwrap();
        let early = |min: usize| (0..12).filter(|seed| generated(&engine, *seed, min) < 50).count();
        assert!(early(0) > 0, "no reply ended early: the test shows nothing");
        assert_eq!(early(55), 0);
    }
}
