//! A reply in the making: ids, bytes, and where it must be cut.
//!
//! A stop string cuts before the first token that overlaps it; one that begins with a line break is also met
//! at the reply's beginning. Where the cut would leave nothing, the token is refused instead. A reply that
//! reached its limit may be cut after its last whole sentence; an incomplete character at the end is cut in
//! any case. All cuts are between tokens. Only text that no cut can take back is streamed. In a thought,
//! which ends with `</think>`, stop strings count for nothing.
//!
//! Replies stream by sentences, because at the limit an incomplete one is removed from cache and record, at a
//! token boundary.

use crate::text::tokenizer::Tokenizer;
use crate::turns::calling::{Beginning, Calling};
use crate::turns::dry::Said;
use crate::turns::grammar::GrammarState;
use crate::turns::sampler::{self, Row};
use crate::turns::sentence::Sentences;
use crate::{Request, Result, Sampling, StopConditions, StopReason, TokenLogprob, ToolCalls};

/// The marks around a thought.
const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// Ids sampled so far and their bytes.
#[derive(Default)]
pub(crate) struct ReplyText {
    ids: Vec<u32>,
    /// Number of tokens so far, those that were cut included.
    n_generated: usize,
    /// Offsets at which each id's bytes end.
    ends: Vec<usize>,
    bytes: Vec<u8>,
    stops: Vec<Vec<u8>>,
    /// True if its tokens were drawn by a remote engine: a stop string that would leave nothing was not
    /// refused, so it is passed over.
    is_from_elsewhere: bool,
    /// What it begins with, after a thought, that counts for nothing.
    head: Vec<u8>,
    /// Number of the stop string that was met.
    met: Option<usize>,
    /// True if the prompt has opened a thought.
    is_opened: bool,
    /// Offset after the reply's thought, once that has ended.
    after_thought: Option<usize>,
    /// Offset after leading spaces, which follow the thought or begin the text.
    begin: usize,
    /// True if a reply that reaches its limit ends with its last whole sentence.
    whole_sentences: bool,
    sentences: Sentences,
    streamed: usize,
    /// Log-probabilities of each id, if requested.
    logprobs: Vec<TokenLogprob>,
    /// Number of those that were given to the caller.
    n_reported: usize,
    /// The reply's tokens after those of the agent's earlier replies.
    said: Said,
    /// Its place in its grammar.
    guide: Option<GrammarState>,
    /// Whether it is a call of a tool; `None`: it can't be one.
    calling: Option<Calling>,
}

impl ReplyText {
    /// An empty reply after what was said before; empty stop strings are ignored.
    pub(crate) fn new(stops: &[String], whole_sentences: bool, said: Said) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).map(|s| s.as_bytes().to_vec()).collect();
        Self { stops, whole_sentences, said, ..Self::default() }
    }

    /// A reply that is drawn by a remote engine.
    fn from_elsewhere(ends: StopConditions<'_>) -> Self {
        let reply = Self::new(ends.stop, ends.whole_sentences, Said::default());
        Self { is_from_elsewhere: true, head: ends.head.as_bytes().to_vec(), ..reply }
    }

    /// The same, after a prompt that ends with this text: it may have opened a thought.
    pub(crate) fn after_prompt(self, prompt: &str) -> Self {
        Self { is_opened: prompt.trim_end().ends_with(THOUGHT.0), ..self }
    }

    /// The same, in a grammar from its beginning: nothing else ends or cuts it.
    pub(crate) fn guided(mut self, guide: GrammarState) -> Self {
        self.follow_guide(guide);
        self
    }

    /// The same, where it may be a call, or must be one.
    pub(crate) fn calling(mut self, mut calling: Calling) -> Self {
        if calling.is_forced() {
            self.end_by_itself();
            self.guide = calling.forced_guide();
        }
        Self { calling: Some(calling), ..self }
    }

    fn follow_guide(&mut self, guide: GrammarState) {
        self.guide = Some(guide);
        self.end_by_itself();
    }

    /// Nothing cuts it but its limit.
    fn end_by_itself(&mut self) {
        self.stops.clear();
        self.whole_sentences = false;
    }

    /// The id that must be said next: markup of a call.
    fn forced(&self) -> Option<u32> {
        self.calling.as_ref()?.forced(&self.ids)
    }

    /// The ids of which one is drawn after a call.
    fn fork(&self) -> Option<(u32, Option<u32>)> {
        self.calling.as_ref()?.fork(&self.ids)
    }

    /// True if it is in a grammar, or after a call that another one may follow.
    pub(crate) fn is_guided(&self) -> bool {
        self.guide.is_some() || self.is_after_call()
    }

    /// True after a whole call that another one may follow.
    pub(crate) fn is_after_call(&self) -> bool {
        self.calling.as_ref().is_some_and(Calling::is_between)
    }

    /// Tells whether it has as many tokens as a request lets it have.
    pub(crate) fn is_full(&self, request: &Request) -> bool {
        self.n_left(request) == 0
    }

    /// Tokens that it may still have.
    pub(crate) fn n_left(&self, request: &Request) -> usize {
        let most = if self.is_call() { request.max_call_tokens } else { request.max_tokens };
        most.saturating_sub(self.ids.len())
    }

    /// True if it is a call of a tool.
    pub(crate) fn is_call(&self) -> bool {
        self.calling.as_ref().is_some_and(Calling::is_call)
    }

    /// The call that it is, if it is one.
    pub(crate) fn call(&self, tokenizer: &Tokenizer) -> Option<ToolCalls> {
        self.calling.as_ref()?.read(&self.ids, |ids| tokenizer.decode(ids))
    }

    /// The stop string that was met.
    pub(crate) fn met(&self) -> Option<String> {
        self.stops.get(self.met?).map(|stop| String::from_utf8_lossy(stop).into_owned())
    }

    /// For each complete call, the number of ids up to its end.
    pub(crate) fn call_ends(&self) -> &[usize] {
        self.calling.as_ref().map_or(&[], Calling::ends)
    }

    /// Number of tokens so far, those that were cut included.
    pub(crate) fn n_generated(&self) -> usize {
        self.n_generated
    }

    /// Ids so far.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Ids so far and those of earlier replies.
    pub(crate) fn ids_so_far(&self) -> &Said {
        &self.said
    }

    /// Tells whether a token with these bytes would complete a stop string that leaves nothing of the reply,
    /// or begin a call that may not be.
    pub(crate) fn refuses(&mut self, id: u32, piece: &[u8]) -> bool {
        if self.calling.as_ref().is_some_and(|calling| calling.refuses((&self.ids, &self.bytes), id, piece)) {
            return true;
        }
        // Added while it is examined: a copy would cost the whole reply for each token.
        let known = self.bytes.len();
        self.bytes.extend_from_slice(piece);
        let found = self.first_stop(known);
        self.bytes.truncate(known);
        found.is_some_and(|(at, _)| self.begin >= self.end_of(self.tokens_before(at)))
    }

    /// The token that is said where the sampler drew `drawn` from these logits.
    ///
    /// # Errors
    /// A grammar became too costly, or allows nothing that the vocabulary can say.
    pub(crate) fn choose(
        &mut self,
        drawn: u32,
        logits: &[f32],
        sampling: &Sampling,
        tokenizer: &Tokenizer,
        eog: &[u32],
    ) -> Result<u32> {
        if let Some(id) = self.forced() {
            return Ok(id);
        }
        let so_far = (&self.ids[..], &self.said);
        if let Some((more, end)) = self.fork() {
            let fits = |id: u32| id == more || Some(id) == end || eog.contains(&id);
            let (ids, said) = so_far;
            let chosen = || sampler::choose_allowed(&Row::new(logits, ids, said, sampling), sampling, fits);
            return Ok(if fits(drawn) { drawn } else { chosen().unwrap_or(more) });
        }
        if let Some(mut guide) = self.begun_by(drawn, tokenizer)? {
            // What is drawn in its place begins a call, too: the ids alone say what a reply is.
            let begins = |id: u32| self.begins(tokenizer.piece(id));
            return guide.choose(drawn, logits, so_far, sampling, eog, begins);
        }
        match &mut self.guide {
            Some(guide) => guide.choose(drawn, logits, so_far, sampling, eog, |_| true),
            None => Ok(drawn),
        }
    }

    /// True if a token may be said here.
    ///
    /// # Errors
    /// A grammar became too costly.
    pub(crate) fn allows(&mut self, id: u32, tokenizer: &Tokenizer, eog: &[u32]) -> Result<bool> {
        if let Some(forced) = self.forced() {
            return Ok(id == forced);
        }
        if let Some((more, end)) = self.fork() {
            return Ok(id == more || Some(id) == end || eog.contains(&id));
        }
        let mut begun = self.begun_by(id, tokenizer)?;
        begun.as_mut().or(self.guide.as_mut()).map_or(Ok(true), |guide| guide.allows(id, eog))
    }

    /// The grammar that a token would begin to be in.
    fn begun_by(&self, id: u32, tokenizer: &Tokenizer) -> Result<Option<GrammarState>> {
        Ok(match self.beginning(id, tokenizer)? {
            Beginning::With(guide) => Some(guide),
            Beginning::Unclear | Beginning::Free | Beginning::Behind(_) => None,
        })
    }

    fn begins(&self, piece: &[u8]) -> bool {
        self.calling.as_ref().is_some_and(|calling| calling.begins(&self.bytes, piece))
    }

    fn beginning(&self, id: u32, tokenizer: &Tokenizer) -> Result<Beginning> {
        let Some(calling) = &self.calling else { return Ok(Beginning::Unclear) };
        calling.beginning((&self.ids, &self.bytes), id, tokenizer.piece(id))
    }

    /// Adds a token that is said; the reason to stop, if the reply is complete: a stop string (the reply is
    /// then cut), or the end of its grammar.
    ///
    /// # Errors
    /// A grammar became too costly.
    pub(crate) fn say(&mut self, id: u32, tokenizer: &Tokenizer) -> Result<Option<StopReason>> {
        self.add(id, tokenizer, GrammarState::take)
    }

    /// Adds a token that was recorded, whether its grammar allows it or not; else as [`ReplyText::say`].
    ///
    /// # Errors
    /// A grammar became too costly.
    pub(crate) fn follow(&mut self, id: u32, tokenizer: &Tokenizer) -> Result<Option<StopReason>> {
        self.add(id, tokenizer, GrammarState::follow)
    }

    fn add(
        &mut self,
        id: u32,
        tokenizer: &Tokenizer,
        take: impl Fn(&mut GrammarState, u32) -> Result<()>,
    ) -> Result<Option<StopReason>> {
        let after = match self.beginning(id, tokenizer)? {
            Beginning::Unclear => None,
            Beginning::Free => {
                self.decide(None);
                None
            }
            Beginning::With(guide) => {
                self.decide(Some(guide));
                None
            }
            Beginning::Behind(guide) => Some(guide),
        };
        let stop = self.push_bytes(id, tokenizer.piece(id));
        if let Some(guide) = after {
            self.decide(Some(guide));
            return Ok(None);
        }
        if let Some(calling) = self.calling.as_mut().filter(|calling| calling.is_between()) {
            let Some(begun) = calling.next_call(&self.ids) else { return Ok(Some(StopReason::EndOfTurn)) };
            self.guide = begun;
            return Ok(None);
        }
        let Some(guide) = &mut self.guide else { return Ok(stop) };
        take(guide, id)?;
        if !guide.is_over() {
            return Ok(None);
        }
        let calling = self.calling.as_mut().filter(|calling| calling.is_call());
        if calling.is_some_and(|calling| calling.end_call(&self.ids)) {
            self.guide = None;
            return Ok(None);
        }
        Ok(Some(StopReason::EndOfTurn))
    }

    /// The reply is a call, and from here on in this grammar; or it is none.
    fn decide(&mut self, guide: Option<GrammarState>) {
        if let Some(calling) = &mut self.calling {
            calling.decide(guide.is_some());
        }
        if let Some(guide) = guide {
            self.follow_guide(guide);
        }
    }

    fn push_bytes(&mut self, id: u32, piece: &[u8]) -> Option<StopReason> {
        let known = self.bytes.len();
        self.ids.push(id);
        self.n_generated += 1;
        self.said.push(id, piece);
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
        let found = self.first_stop(known);
        self.after_thought = self.end_of_thought(known).filter(|end| *end > 0);
        self.begin = self.first_text_from(self.after_thought.unwrap_or(0));
        let (found, stop) = found?;
        self.met = Some(stop);
        self.keep(self.tokens_before(found));
        Some(StopReason::StopString)
    }

    /// Offset after the spaces at an offset, all before `begin` being known.
    fn first_text_from(&self, offset: usize) -> usize {
        let from = self.begin.max(offset).min(self.bytes.len());
        #[cfg(test)]
        N_EXAMINED.set(
            N_EXAMINED.get() + self.bytes[from..].iter().take_while(|b| b.is_ascii_whitespace()).count(),
        );
        self.bytes.len() - self.bytes[from..].trim_ascii_start().len()
    }

    /// Offset after the thought that the text begins with, none having ended in its first `known` bytes;
    /// `None`: it has not ended.
    fn end_of_thought(&self, known: usize) -> Option<usize> {
        if self.after_thought.is_some() {
            return self.after_thought;
        }
        if !self.is_opened && !self.bytes[self.first_text_from(0)..].starts_with(THOUGHT.0.as_bytes()) {
            return Some(0);
        }
        let end = THOUGHT.1.as_bytes();
        let from = known.saturating_sub(end.len() - 1);
        find(&self.bytes[from..], end).map(|at| from + at + end.len())
    }

    /// Offset at which a stop string begins in the text, and its number, none being complete in its first
    /// `known` bytes.
    fn first_stop(&self, known: usize) -> Option<(usize, usize)> {
        let thought = self.end_of_thought(known)?;
        let (text, begin) = (&self.bytes, self.first_text_from(thought));
        let least = if self.is_from_elsewhere { self.first_text_kept(begin)? } else { thought };
        let first = |(n, stop): (usize, &Vec<u8>)| {
            let at_begin = line_of(stop).is_some_and(|line| text[begin..].starts_with(line));
            let from = known.saturating_sub(stop.len() - 1).max(least);
            let found = || find(text.get(from..)?, stop).map(|at| from + at);
            let at = if at_begin && !self.is_from_elsewhere { Some(begin) } else { found() };
            at.map(|at| (at, n))
        };
        self.stops.iter().enumerate().filter_map(first).min()
    }

    /// Offset from which on a stop string leaves something that counts, in a text whose thought ends before
    /// `begin`: the end of the first token of it after which it can be cut. `None`: there is none yet.
    fn first_text_kept(&self, begin: usize) -> Option<usize> {
        let text = self.begin_of_text(begin)?;
        let first = self.ends.partition_point(|end| *end <= text);
        let mut ends = self.ends[first..].iter().copied();
        ends.find(|end| whole_characters(&self.bytes[..*end]) == *end)
    }

    /// Offset of what counts in a text whose thought ends before `begin`; `None`: its head is not whole.
    fn begin_of_text(&self, begin: usize) -> Option<usize> {
        let rest = &self.bytes[begin..];
        match rest.strip_prefix(&self.head[..]) {
            Some(after) => Some(self.bytes.len() - after.trim_ascii_start().len()),
            None if self.head.starts_with(rest) => None,
            None => Some(begin),
        }
    }

    /// Text that has become certain since the last call.
    pub(crate) fn take_certain(&mut self) -> Option<String> {
        if self.calling.as_ref().is_some_and(Calling::is_open) {
            return None; // what it is will be known soon
        }
        let mut certain = whole_characters(&self.bytes);
        if self.is_after_call() {
            certain = self.end_of(self.end_of_calls().unwrap_or(0)); // perhaps nothing follows
        }
        for stop in &self.stops {
            // The longest end of the text that could be the beginning of this stop string.
            let begins = |n: &usize| self.bytes.ends_with(&stop[..*n]);
            if let Some(n) = (1..stop.len()).rev().find(begins) {
                certain = certain.min(self.bytes.len() - n);
            }
            let begun = &self.bytes[self.begin..];
            if line_of(stop).is_some_and(|line| line.starts_with(begun)) {
                certain = certain.min(self.after_thought.unwrap_or(0));
            }
        }
        let n = self.tokens_before(certain);
        let n = if self.whole_sentences { self.tokens_of_sentences(n, false).unwrap_or(0) } else { n };
        self.stream_to(self.end_of(n))
    }

    /// Cuts after the last whole sentence, if requested and there is one.
    pub(crate) fn cut_to_sentences(&mut self) -> bool {
        self.keep(self.tokens_before(whole_characters(&self.bytes)));
        if !self.whole_sentences {
            return false;
        }
        let Some(n) = self.tokens_of_sentences(self.ids.len(), true) else { return false };
        self.keep(n);
        true
    }

    /// Number of ids up to the end of the last whole call; `None`: there is none.
    fn end_of_calls(&self) -> Option<usize> {
        self.call_ends().last().copied()
    }

    /// Ends the reply: removes an incomplete character, and what follows whole calls. Returns what was not
    /// streamed yet.
    pub(crate) fn finish(&mut self) -> Option<String> {
        self.keep(self.end_of_calls().unwrap_or(self.ids.len()));
        self.keep(self.tokens_before(whole_characters(&self.bytes)));
        self.stream_to(self.bytes.len())
    }

    /// The whole text. Bytes that are not UTF-8 inside it become U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Records the log-probability of the last token, unless it was cut at once.
    pub(crate) fn note(&mut self, logprob: Option<TokenLogprob>) {
        self.logprobs.extend(logprob.filter(|_| self.logprobs.len() < self.ids.len()));
    }

    /// Log-probabilities of the tokens whose text was streamed since the last call.
    pub(crate) fn take_certain_logprobs(&mut self) -> Vec<TokenLogprob> {
        self.take_logprobs(self.ends.partition_point(|end| *end <= self.streamed))
    }

    /// Log-probabilities that were not given yet, once the reply has ended.
    pub(crate) fn take_last_logprobs(&mut self) -> Vec<TokenLogprob> {
        self.take_logprobs(self.ids.len())
    }

    fn take_logprobs(&mut self, n: usize) -> Vec<TokenLogprob> {
        let n = n.min(self.logprobs.len());
        let new = self.logprobs.get(self.n_reported..n).unwrap_or_default().to_vec();
        self.n_reported = self.n_reported.max(n);
        new
    }

    /// Log-probabilities of all of its tokens.
    pub(crate) fn logprobs(&self) -> &[TokenLogprob] {
        &self.logprobs
    }

    fn stream_to(&mut self, end: usize) -> Option<String> {
        if end <= self.streamed {
            return None;
        }
        let text = String::from_utf8_lossy(&self.bytes[self.streamed..end]).into_owned();
        self.streamed = end;
        Some(text)
    }

    /// Offset at which the bytes of the first `n` tokens end.
    fn end_of(&self, n: usize) -> usize {
        n.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Number of tokens that end at or before a byte, the last of them with a whole character: a cut there
    /// keeps these.
    fn tokens_before(&self, byte: usize) -> usize {
        let mut n = self.ends.partition_point(|end| *end <= byte);
        while n > 0 && whole_characters(&self.bytes[..self.ends[n - 1]]) < self.ends[n - 1] {
            n -= 1;
        }
        n
    }

    /// The largest number of the first `n` tokens that ends with a whole sentence, and perhaps a space after
    /// it. While the reply is growing, that is known where something follows.
    fn tokens_of_sentences(&mut self, n: usize, has_ended: bool) -> Option<usize> {
        self.sentences.read(&self.bytes[..whole_characters(&self.bytes)], &self.ends);
        let found = if has_ended { self.sentences.last_at_end(n) } else { self.sentences.last(n) };
        found.filter(|n| self.end_of(*n) >= self.streamed)
    }

    fn keep(&mut self, n: usize) {
        self.ids.truncate(n);
        self.ends.truncate(n);
        self.logprobs.truncate(n);
        self.bytes.truncate(self.end_of(n));
        self.begin = self.begin.min(self.bytes.len());
        self.sentences.cut(self.bytes.len(), n);
    }
}

/// A reply that was sampled by a remote engine to the prompt that ends with this text, cut like one that is
/// sampled here: at a stop string, and at its limit (`is_full`) after its last whole sentence, if requested.
/// Returns its ids, its text and why it ends.
pub(crate) fn cut<'a>(
    said: impl IntoIterator<Item = (u32, &'a [u8])>,
    prompt: &str,
    ends: StopConditions<'_>,
) -> (Vec<u32>, String, StopReason) {
    let is_full = ends.is_full;
    let mut reply = ReplyText::from_elsewhere(ends).after_prompt(prompt);
    let met = said.into_iter().find_map(|(id, piece)| reply.push_bytes(id, piece));
    let stop = match met {
        Some(stop) => stop,
        None if !is_full => StopReason::EndOfTurn,
        None if reply.cut_to_sentences() => StopReason::Sentence,
        None => StopReason::Length,
    };
    reply.finish();
    let text = reply.text();
    (reply.ids, text, stop)
}

/// [`cut`] of a reply that is known as text alone.
pub(crate) fn cut_text(said: &str, ends: StopConditions<'_>) -> (String, StopReason) {
    let characters: Vec<&[u8]> = said.split_inclusive(|_| true).map(str::as_bytes).collect();
    let (_, text, stop) = cut(characters.into_iter().map(|bytes| (0, bytes)), "", ends);
    (text, stop)
}

/// A reply that is streamed from a remote engine as text: the part that [`cut_reply`](crate::cut_reply)
/// keeps, whatever follows.
pub struct StreamedReply {
    reply: ReplyText,
    has_ended: bool,
}

impl StreamedReply {
    /// A reply of which nothing has come yet.
    pub fn new(ends: StopConditions<'_>) -> Self {
        Self { reply: ReplyText::from_elsewhere(ends), has_ended: false }
    }

    /// Appends text, and gives what has become certain.
    pub fn push(&mut self, text: &str) -> Option<String> {
        if self.has_ended {
            return None;
        }
        let mut characters = text.split_inclusive(|_| true).map(str::as_bytes);
        self.has_ended = characters.any(|character| self.reply.push_bytes(0, character).is_some());
        if self.has_ended { self.reply.finish() } else { self.reply.take_certain() }
    }
}

/// The rest of a stop string that begins with a line break; `None` if it does not, or nothing follows.
fn line_of(stop: &[u8]) -> Option<&[u8]> {
    stop.strip_prefix(b"\n").filter(|line| !line.is_empty())
}

/// The length without a character that is begun but not ended.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let needs = match bytes[at] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if at + needs > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
thread_local! {
    /// Bytes of replies examined so far.
    static N_EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    #[cfg(test)]
    N_EXAMINED.set(N_EXAMINED.get() + bytes.len());
    bytes.windows(pattern.len()).position(|w| w == pattern)
}

#[cfg(test)]
mod tests;
