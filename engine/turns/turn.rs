//! One running turn: its prompt is fed, its reply sampled token by token, or chosen as a whole.

use crate::device::Best;
use crate::memory::Recalled;
use crate::memory::arena::Arena;
use crate::memory::pass::Wanted;
use crate::memory::session::{CacheContext, Session, known_bytes};
use crate::scoring::distribution::Distribution;
use crate::text::chat::{Chat, after};
use crate::text::prefix::{Segment, SegmentKind, common_prefix, n_tokens};
use crate::text::thoughts::ReplyParts;
use crate::text::tokenizer::Tokenizer;
use crate::turns::calling::Calling;
use crate::turns::constraint::{ChoiceStep, Chosen, ScoreOptions, Spelling};
use crate::turns::digest::digest;
use crate::turns::draft_model::{DraftModel, Terms};
use crate::turns::drafting::Drafter;
use crate::turns::drawing::{drawn, drawn_among, no_probabilities};
use crate::turns::dry::Said;
use crate::turns::follow::Following;
use crate::turns::grammar::GrammarState;
use crate::turns::logprobs::token_logprob;
use crate::turns::reply::{ReplyPiece, ReplyText};
use crate::turns::sampler::{self, Row};
use crate::turns::schedule::Load;
use crate::{
    Completion, Constraint, Error, Event, ForcedToken, Reasoning, Remedy, Request, Result, StopReason,
    TokenLogprob, Usage,
};
use std::slice::ChunksExact;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// An active turn. Its session is taken out of the memory until it ends.
pub(crate) struct ActiveTurn {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) session: Session,
    pub(crate) events: UnboundedSender<Event>,
    prompt: Vec<Segment>,
    /// Tokens of the prompt; everything after is the reply.
    prompt_len: usize,
    /// Length of the sequence when the turn began.
    start: usize,
    decode: Decode,
    /// Findings at each recorded token, if a recording was followed.
    followed: Vec<ForcedToken>,
    /// Guesses the next tokens.
    drafter: Drafter,
    /// Guesses among its tokens, after the last one that was said.
    n_guessed: usize,
    stop: Option<StopReason>,
    usage: Usage,
    /// Tokens that the request's meter has counted.
    n_metered: usize,
    began: Instant,
    /// Maximum bytes of the session, with the longest possible reply.
    pub(crate) need: u64,
    /// Bytes of what is known of it.
    known_bytes: u64,
}

/// Mode of decoding a reply.
pub(crate) enum Decode {
    /// Token by token.
    Sample(ReplyText),
    /// A recorded reply.
    TeacherForce(Following),
    /// One of several options, which are being weighed.
    ScoreOptions(ScoreOptions),
    /// The option that was chosen.
    Forced(Chosen),
    /// Nothing is said: the prompt is read.
    Read,
}

impl Decode {
    /// The mode that a request asks for.
    ///
    /// # Errors
    /// Its constraint can't be met.
    pub(crate) fn new(
        request: &Request,
        prompt: &[Segment],
        chat: &Chat,
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let guide =
            request.grammar.as_ref().map(|grammar| GrammarState::new(grammar, tokenizer)).transpose()?;
        let calling = Calling::new(request, chat.calls(), tokenizer)?;
        let form = chat.replies_to(&request.prompt);
        if (guide.is_some() || calling.is_some()) && matches!(request.constraint, Some(Constraint::OneOf(_)))
        {
            return Err(Error::request("a choice can't have a grammar or be a call"));
        }
        let reply = || {
            let replies = prompt.iter().filter(|segment| segment.kind == SegmentKind::Reply);
            let said =
                Said::new(replies.map(|segment| &*segment.ids), request.sampling.whole_words, tokenizer);
            let max_thought = request.max_thought_tokens.unwrap_or(usize::MAX);
            let is_canonical = request.sampling.canonical && tokenizer.is_canonical_by_beginnings();
            let after = is_canonical.then(|| after(prompt, tokenizer));
            let reply = ReplyText::new(&request.stop, request.whole_sentences, said)
                .in_form(&form, max_thought)
                .with_exact_stops(request.exact_stops)
                .canonical(after);
            let conversation = request.prompt.conversation();
            let thinks = max_thought > 0 && conversation.is_some_and(|it| it.reasoning != Reasoning::None);
            let reply = match guide {
                Some(guide) => reply.guided(guide, thinks),
                None => reply,
            };
            match calling {
                Some(calling) => reply.calling(calling, thinks),
                None => reply,
            }
        };
        Ok(match &request.constraint {
            None => Self::Sample(reply()),
            Some(Constraint::Follow(ids)) => Self::TeacherForce(Following::new(ids, reply(), tokenizer)?),
            Some(Constraint::Begin(ids)) => {
                Self::TeacherForce(Following::new(ids, reply().begun_with(ids.len()), tokenizer)?)
            }
            Some(Constraint::OneOf(texts)) => Self::ScoreOptions(ScoreOptions::new(
                texts,
                (request.by_length, request.logprobs),
                (prompt, &form.lead),
                tokenizer,
            )?),
        })
    }

    /// Tokens that the reply may take, and what would make them fewer.
    pub(crate) fn longest(&self, request: &Request) -> (usize, Remedy) {
        match self {
            Self::ScoreOptions(choosing) => (choosing.longest(), Remedy::ShorterOptions),
            Self::TeacherForce(following) => {
                (following.ids().len().max(following.reply.most(request)), Remedy::ShorterReply)
            }
            Self::Read => (0, Remedy::ShorterReply),
            Self::Sample(reply) => (reply.most(request), Remedy::ShorterReply),
            Self::Forced(_) => (request.max_tokens, Remedy::ShorterReply),
        }
    }
}

impl ActiveTurn {
    /// A turn whose memory was recalled.
    #[expect(clippy::too_many_arguments)] // one of each thing that a turn is made of
    pub(crate) fn new(
        id: u64,
        request: Request,
        prompt: Vec<Segment>,
        decode: Decode,
        recalled: Recalled,
        events: UnboundedSender<Event>,
        began: Instant,
        need: u64,
    ) -> Self {
        let Recalled { mut session, kind, source, reused, recomputed, .. } = recalled;
        session.sequence.begin_turn();
        // It may have found blocks after what the session held.
        session.sequence.reach_back(n_tokens(&session.segments));
        let known_bytes = known_bytes(&prompt, session.tokens.len());
        let prompt_len = session.tokens.len();
        let usage = Usage {
            kind,
            source,
            reused,
            prefilled: prompt_len - reused - recomputed,
            recomputed,
            generated: 0,
            guessed: 0,
            guessed_right: 0,
            layer0_rows: 0,
            ttft_ms: 0.0,
            total_ms: 0.0,
            bytes_read: recalled.bytes_read,
            bytes_written: 0,
            waited_ms: recalled.waited_ms,
            prefetch_ms: recalled.prefetch_ms,
            saved_ms: 0.0,
            memory_bytes: 0,
            reason: recalled.reason,
            divergence: recalled.divergence,
            adopted: recalled.adopted,
        };
        Self {
            id,
            request,
            session,
            events,
            prompt,
            prompt_len,
            start: reused,
            stop: matches!(decode, Decode::Read).then_some(StopReason::Length),
            decode,
            followed: Vec::new(),
            drafter: Drafter::new(),
            n_guessed: 0,
            usage,
            n_metered: 0,
            began,
            need,
            known_bytes,
        }
    }

    /// Bytes of its session without sealed blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.known_bytes
    }

    /// Counts bytes that were written before the turn's end.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.usage.bytes_written += bytes;
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tells whether the prompt is read.
    pub(crate) fn decoding(&self) -> bool {
        self.session.sequence.len() >= self.prompt_len
    }

    /// Tokens known but not fed.
    pub(crate) fn pending(&self) -> usize {
        self.session.tokens.len() - self.session.sequence.len()
    }

    /// Load of the turn; a pass that gives all logits takes at most `most_wanted` rows of it. Branches of a
    /// choice and recorded replies are scheduled as the prompts of warm turns are.
    pub(crate) fn load(&self, most_wanted: usize) -> Load {
        let (decoding, pending) = (self.decoding(), self.pending());
        let all = decoding && self.requested_logits(pending) == Wanted::All;
        Load {
            pending: if all { pending.min(most_wanted) } else { pending },
            decoding: decoding && pending <= 1 + self.n_guessed,
            warm: self.start > 0 || decoding,
        }
    }

    /// Tells whether what is fed now may not stay: the options of a choice that are being weighed, and
    /// guesses.
    pub(crate) fn is_speculative(&self) -> bool {
        self.n_guessed > 0 || self.decoding() && matches!(self.decode, Decode::ScoreOptions(_))
    }

    /// Number of tokens that are fed by now or next, and will stay.
    pub(crate) fn certain(&self) -> usize {
        match self.decode {
            Decode::ScoreOptions(_) if self.decoding() => self.session.sequence.len(),
            _ => self.session.tokens.len() - self.n_guessed,
        }
    }

    /// Counts what was computed since the last call, if the request asks for that. What a stop string cuts
    /// was generated, too.
    pub(crate) fn meter(&mut self) {
        let Some(meter) = &self.request.meter else { return };
        let of_prompt = self.session.sequence.len().min(self.prompt_len).saturating_sub(self.start);
        let n = match &self.decode {
            Decode::Sample(reply) => of_prompt + reply.n_generated(),
            Decode::Read => of_prompt,
            Decode::ScoreOptions(_) | Decode::TeacherForce(_) | Decode::Forced(_) => {
                self.session.sequence.n_computed()
            }
        };
        meter.add(n.saturating_sub(self.n_metered));
        self.n_metered = self.n_metered.max(n);
    }

    /// Returns whether the caller has gone.
    pub(crate) fn cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Tells whether the reply is complete and everything that it keeps is fed.
    pub(crate) fn is_done(&self) -> bool {
        self.stop.is_some() && self.pending() == 0
    }

    /// Reports progress after a pass that left prompt tokens to feed.
    pub(crate) fn report_prefill(&self) {
        let done = self.session.sequence.len() - self.start;
        let _ = self.events.send(Event::Prefill { done, total: self.prompt_len - self.start });
    }

    /// Logits that a pass over the next `n` tokens is to give.
    pub(crate) fn requested_logits(&self, n: usize) -> Wanted {
        match &self.decode {
            _ if self.stop.is_some() => Wanted::None,
            Decode::ScoreOptions(_) | Decode::TeacherForce(_) if self.decoding() => Wanted::All,
            Decode::Sample(_) if self.n_guessed > 0 => Wanted::All,
            // Figures of likely tokens are those of the whole vocabulary.
            Decode::Sample(_) if n == self.pending() && self.request.logprobs.is_none() => {
                Wanted::Best(self.request.sampling.temperature)
            }
            _ if n == self.pending() => Wanted::Last,
            _ => Wanted::None,
        }
    }

    /// Takes the requested logits of rows that were fed: samples or chooses, streams, decides whether the
    /// reply ends. What was cut off, or read for another option, is removed from the sequence; what is said
    /// but not fed is fed next.
    ///
    /// # Errors
    /// A row's logits are not probabilities, or the reply's grammar became too costly.
    pub(crate) fn advance(
        &mut self,
        rows: ChunksExact<'_, f32>,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        if self.stop.is_some() {
            return Ok(()); // the rest of a reply was fed
        }
        match &self.decode {
            Decode::Sample(_) => self.speak(rows, tokenizer, eog, arena),
            Decode::TeacherForce(_) => self.follow(rows, tokenizer, eog, arena),
            _ => self.choose(rows, tokenizer, eog, arena),
        }
    }

    /// As [`ActiveTurn::advance`], by the likeliest tokens alone; `false`, and nothing happens, where all
    /// logits are needed.
    ///
    /// # Errors
    /// As [`ActiveTurn::advance`].
    pub(crate) fn advance_by(
        &mut self,
        best: &Best,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<bool> {
        let Decode::Sample(reply) = &mut self.decode else { return Ok(false) };
        if self.stop.is_none() {
            let Some(id) = drawn_among(best, reply, &self.request, tokenizer, eog) else { return Ok(false) };
            if !reply.allows(id, tokenizer, eog)? {
                return Ok(false);
            }
            self.say(id, None, tokenizer, eog, arena)?;
        }
        Ok(true)
    }

    /// Draws a token from each of these rows, up to the first wrong guess; later rows are removed from the
    /// sequence.
    fn speak(
        &mut self,
        rows: ChunksExact<'_, f32>,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        let first = self.session.tokens.len() - std::mem::take(&mut self.n_guessed);
        let guesses = self.session.tokens.split_off(first);
        let mut n_right = 0;
        for row in rows {
            self.sample(row, tokenizer, eog, arena)?;
            let said = self.session.tokens.get(first + n_right);
            if said.is_none() || guesses.get(n_right) != said {
                break;
            }
            n_right += 1;
            if self.stop.is_some() {
                break;
            }
        }
        self.usage.guessed += guesses.len();
        self.usage.guessed_right += n_right;
        let n_true = (first + n_right).min(self.session.tokens.len());
        if self.session.sequence.len() > n_true {
            self.session.truncate(n_true, arena);
        }
        Ok(())
    }

    /// Guesses the next tokens, given the relative time of a further row; a pass gives the logits of `most`
    /// rows at most.
    pub(crate) fn guess(&mut self, cost: f64, most: usize, eog: &[u32]) {
        if let Some(reply) = self.speaking() {
            let left = reply.n_left(&self.request).min(most).saturating_sub(1);
            let guesses = self.drafter.guess(&self.session.tokens, cost, left);
            self.try_guesses(guesses, eog);
        }
    }

    /// [`ActiveTurn::guess`] by another model, where what was said before gave none.
    pub(crate) fn guess_by(&mut self, model: &mut DraftModel, terms: Terms, eog: &[u32]) {
        let Some(reply) = self.speaking() else { return };
        let most = reply.n_left(&self.request).min(terms.most).saturating_sub(1);
        let draw = |logits: &[f32], guesses: &[u32]| {
            let said = [reply.ids(), guesses].concat();
            let sampling = &self.request.sampling;
            sampler::choose(&Row::new(logits, &said, reply.ids_so_far(), sampling), sampling)
        };
        let terms = Terms { most, ..terms };
        let guesses = model.guess(&self.request.session, &self.session.tokens, &terms, draw);
        self.try_guesses(guesses, eog);
    }

    /// A reply of whose next tokens nothing is known, and that has begun.
    fn speaking(&self) -> Option<&ReplyText> {
        let is_speaking = self.stop.is_none() && self.pending() == 1;
        match &self.decode {
            Decode::Sample(reply) if is_speaking && !reply.ids().is_empty() => Some(reply),
            _ => None,
        }
    }

    /// Adds tokens that were guessed, but for an end.
    fn try_guesses(&mut self, mut guesses: Vec<u32>, eog: &[u32]) {
        let n = guesses.iter().position(|id| eog.contains(id)).unwrap_or(guesses.len());
        guesses.truncate(n);
        self.n_guessed = n;
        self.session.tokens.extend(guesses);
    }

    fn sample(
        &mut self,
        logits: &[f32],
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        let Decode::Sample(reply) = &mut self.decode else { return Ok(()) };
        let id = drawn(logits, reply, &self.request, tokenizer, eog)?;
        let logprob = |n| token_logprob(id, &Distribution::of(logits), n, |id| tokenizer.piece(id));
        self.say(id, self.request.logprobs.map(logprob), tokenizer, eog, arena)
    }

    /// Takes the token that was drawn, and its log-probability if requested.
    fn say(
        &mut self,
        id: u32,
        logprob: Option<TokenLogprob>,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        let elapsed_ms = self.elapsed_ms();
        let Decode::Sample(reply) = &mut self.decode else { return Ok(()) };
        if reply.ids().is_empty() {
            self.usage.ttft_ms = elapsed_ms;
        }
        if reply.is_full(&self.request) {
            self.end(StopReason::Length, arena); // nothing was asked for but to read
            return Ok(());
        }
        let ends = eog.contains(&id) && !reply.goes_on_with(id);
        let mut stop = ends.then_some(StopReason::EndOfTurn);
        if stop.is_none() {
            self.session.tokens.push(id);
            self.drafter.see(id);
            stop = reply.say(id, tokenizer)?;
            reply.note(logprob);
        }
        if stop.is_none() {
            stream(&self.events, reply.take_certain(), || reply.take_certain_logprobs());
            stop = reply.is_full(&self.request).then_some(StopReason::Length);
        }
        if let Some(stop) = stop {
            self.end(stop, arena);
        }
        Ok(())
    }

    /// The reply ends: what it does not keep leaves the sequence.
    fn end(&mut self, mut stop: StopReason, arena: &mut Arena) {
        if let Decode::Sample(reply) = &mut self.decode {
            if stop == StopReason::Length && reply.cut_to_sentences() {
                stop = StopReason::Sentence;
            } else if reply.is_after_call() {
                stop = StopReason::EndOfTurn;
            }
            stream(&self.events, reply.finish(), || reply.take_certain_logprobs());
            send_logprobs(&self.events, reply.take_last_logprobs());
            let ids = reply.ids().to_vec();
            let n = common_prefix(&self.session.tokens[self.prompt_len..], &ids);
            self.go_back(self.prompt_len + n, arena);
            self.session.tokens.extend(&ids[n..]);
        }
        self.stop = Some(stop);
    }

    /// Follows a recorded reply, the logits of whose rows these are; after its end the turn continues freely.
    fn follow(
        &mut self,
        rows: ChunksExact<'_, f32>,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        let elapsed_ms = self.elapsed_ms();
        let Decode::TeacherForce(following) = &mut self.decode else { return Ok(()) };
        if self.session.tokens.len() == self.prompt_len {
            self.session.tokens.extend(following.ids());
            self.usage.ttft_ms = elapsed_ms;
        }
        let mut stop = None;
        for row in rows {
            if following.is_over() {
                self.speak_freely();
                return self.sample(row, tokenizer, eog, arena);
            }
            let drawn = drawn(row, &mut following.reply, &self.request, tokenizer, eog)?;
            stop = following.see(row, drawn, self.request.logprobs, tokenizer)?;
            if following.is_over() && following.reply.is_full(&self.request) {
                stop = stop.or(Some(StopReason::Length));
            }
            if stop.is_some() {
                break;
            }
        }
        if let Some(stop) = stop {
            self.speak_freely();
            self.end(stop, arena);
        }
        Ok(())
    }

    /// The recording is over: what was read of it counts as if it had been sampled.
    fn speak_freely(&mut self) {
        if let Decode::TeacherForce(Following { reply, found, .. }) = &mut self.decode {
            self.followed = std::mem::take(found);
            self.decode = Decode::Sample(std::mem::take(reply));
        }
    }

    fn choose(
        &mut self,
        rows: ChunksExact<'_, f32>,
        tokenizer: &Tokenizer,
        eog: &[u32],
        arena: &mut Arena,
    ) -> Result<()> {
        let Decode::ScoreOptions(choosing) = &mut self.decode else { return Ok(()) };
        if self.session.sequence.len() == self.prompt_len {
            self.session.sequence.hold();
        }
        for row in rows {
            let next = Distribution::of(row);
            if !next.is_known() {
                return Err(no_probabilities(row));
            }
            choosing.see(&next, eog, |id| tokenizer.piece(id));
        }
        let (keep, ids) = match choosing.step(&self.request.sampling) {
            ChoiceStep::Wait => return Ok(()),
            ChoiceStep::Walk { keep, ids } => (keep, ids),
            ChoiceStep::Say { keep, chosen } => {
                let ids = chosen.option.ids[keep..].to_vec();
                let said = Event::Text(chosen.option.text.clone());
                let _ = self.events.send(said);
                send_logprobs(&self.events, chosen.tokens.clone());
                self.decode = Decode::Forced(chosen);
                self.stop = Some(StopReason::EndOfTurn);
                self.usage.ttft_ms = self.elapsed_ms();
                (keep, ids)
            }
        };
        self.go_back(self.prompt_len + keep, arena);
        assert_eq!(self.session.sequence.len(), self.prompt_len + keep, "a turn goes back exactly");
        self.session.tokens.extend(ids);
        Ok(())
    }

    /// Goes back to the first `n` tokens.
    fn go_back(&mut self, n: usize, arena: &mut Arena) {
        self.session.tokens.truncate(n);
        if self.session.sequence.len() > n {
            self.session.truncate(n, arena);
        }
    }

    /// The session is at rest from now on.
    pub(crate) fn end_sequence(&mut self, arena: &mut Arena) {
        let Session { sequence, tokens, .. } = &mut self.session;
        if !matches!(self.decode, Decode::Read)
            && let Err(e) = sequence.end_reply(tokens, arena)
        {
            tracing::warn!("the state of `{}` is computed again: {e}", self.request.session.agent);
        }
        sequence.end_turn(arena);
    }

    /// Milliseconds since the turn began.
    pub(crate) fn elapsed_ms(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e3
    }

    /// Commits the turn: the session holds prompt and reply, and the completion has the cost.
    pub(crate) fn complete(&mut self, tokenizer: &Tokenizer, context: &CacheContext) -> Completion {
        let followed = std::mem::take(&mut self.followed);
        let (mut call_ends, mut stop_string, mut parts) = (Vec::new(), None, None);
        let (mut n_thought, mut n_given) = (0, 0);
        let (ids, spelled, text, choice, call, logprobs) = match &self.decode {
            Decode::Sample(reply) => {
                call_ends.extend(reply.call_ends());
                stop_string = reply.met();
                (parts, n_thought, n_given) = (Some(reply.parts()), reply.n_thought(), reply.n_given());
                (reply.ids(), reply.text(), reply.text(), None, reply.call(tokenizer), reply.logprobs())
            }
            Decode::Forced(Chosen { option: Spelling { text, ids, spelled }, choice, tokens }) => {
                (&ids[..], spelled.clone(), text.clone(), Some(choice.clone()), None, &tokens[..])
            }
            Decode::Read => (&[][..], String::new(), String::new(), None, None, &[][..]),
            Decode::ScoreOptions(_) | Decode::TeacherForce(_) => {
                unreachable!("a turn that is done has spoken")
            }
        };
        let (ids, logprobs) = (ids.to_vec(), logprobs.to_vec());
        let wrong = self.usage.guessed - self.usage.guessed_right;
        self.usage.layer0_rows = self.session.sequence.n_computed() - wrong;
        self.usage.generated = self.usage.layer0_rows - self.usage.prefilled - self.usage.recomputed;
        // Segments that matched are there already, with the ids that the cache holds.
        let known = self.session.segments.len();
        self.session.segments.extend(self.prompt.drain(..).skip(known));
        let reply: Arc<[u32]> = ids.clone().into();
        let segment = Segment { kind: SegmentKind::Reply, text: spelled.into(), ids: reply, guessed: false };
        if !matches!(self.decode, Decode::Read) {
            self.session.segments.push(segment);
        }
        let stop = self.stop.unwrap_or(StopReason::Length);
        let identity = context.identity_with("", self.session.numerics.as_ref());
        let prompt = &self.session.tokens[..self.prompt_len];
        let digest = digest(&identity, prompt, &ids, self.request.sampling.seed);
        Completion {
            ids,
            parts: parts.unwrap_or(ReplyParts { thought: 0..0, speech: 0..text.len() }),
            n_thought,
            n_given,
            text,
            stop,
            stop_string,
            choice,
            call,
            call_ends,
            followed,
            logprobs,
            digest,
            usage: self.usage.clone(),
        }
    }
}

/// Streams pieces, and the log-probabilities of their tokens.
fn stream(
    events: &UnboundedSender<Event>,
    pieces: Vec<ReplyPiece>,
    logprobs: impl FnOnce() -> Vec<TokenLogprob>,
) {
    if pieces.is_empty() {
        return;
    }
    for piece in pieces {
        let _ = events.send(match piece {
            ReplyPiece::Thought(text) => Event::Thought(text),
            ReplyPiece::Text(text) => Event::Text(text),
            ReplyPiece::Call(text) => Event::Call(text),
        });
    }
    send_logprobs(events, logprobs());
}

fn send_logprobs(events: &UnboundedSender<Event>, logprobs: Vec<TokenLogprob>) {
    if !logprobs.is_empty() {
        let _ = events.send(Event::Logprobs(logprobs));
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
                sampling: Sampling { temperature: 4.0, seed, ..Sampling::default() },
                max_tokens: 60,
                min_tokens,
                cold: true,
                ..Request::new(
                    SessionKey::new("r", "a"),
                    Conversation { next: "Go on.".into(), ..Conversation::default() },
                )
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
        let engine = Engine::open(EngineConfig::new(model)).unwrap();
        let early = |min: usize| (0..12).filter(|seed| generated(&engine, *seed, min) < 50).count();
        assert!(early(0) > 0, "no reply ended early: the test shows nothing");
        assert_eq!(early(55), 0);
    }

    #[test]
    fn logits_that_are_no_numbers_end_the_turn_with_an_error() {
        let all = |name: &str, numbers: &mut [f32]| {
            if name == "output_norm.weight" {
                numbers.fill(f32::NAN);
            }
        };
        // Of one token alone.
        let one = |name: &str, numbers: &mut [f32]| {
            if name == "output.weight" {
                let width = RandomModel::tiny(1).d_model;
                numbers[77 * width..78 * width].fill(f32::NAN);
            }
        };
        for damage in [&all as &dyn Fn(&str, &mut [f32]), &one] {
            let model = RandomModel::tiny(1).bytes_with(damage).leak();
            let model = ModelSource::Bundled("damaged", model);
            every_turn_fails(&Engine::open(EngineConfig::new(model)).unwrap());
        }
    }

    fn every_turn_fails(engine: &Engine) {
        let options = Constraint::OneOf(vec!["yes".to_owned(), "no".to_owned()]);
        for (temperature, constraint) in
            [(0.0, None), (1.0, None), (0.0, Some(options.clone())), (1.0, Some(options))]
        {
            let request = Request {
                sampling: Sampling { temperature, ..Sampling::default() },
                constraint,
                ..Request::new(
                    SessionKey::new("r", "a"),
                    Conversation { next: "Go on.".into(), ..Conversation::default() },
                )
            };
            let mut turn = engine.submit(request).unwrap();
            let error = loop {
                match turn.blocking_next().expect("an end") {
                    Event::Failed(error) => break error,
                    Event::Done(done) => panic!("it said {:?}", done.text),
                    _ => {}
                }
            };
            assert_eq!(error.kind(), ErrorKind::Model, "{error}");
            assert!(error.to_string().contains("NaN"), "{error}");
        }
    }
}
