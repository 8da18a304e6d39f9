//! A reply in the making: ids, bytes, and where it must be cut.
//!
//! A stop string cuts before the first token that overlaps it; one that begins with a line break is also met
//! at the reply's beginning. Where the cut would leave nothing, the token is refused instead. Where stops are
//! exact ([`Request::exact_stops`]), it cuts where it begins, and what remains of a token is tokenized again.
//! A reply that reached its limit may be cut after its last whole sentence; an incomplete character at the
//! end is cut in any case. Only text that no cut can take back is streamed.
//!
//! A reply is a thought, perhaps ([`opening`]), then speech or a call ([`calling`](super::calling)). Stop strings,
//! grammars and calls count from the end of the thought on, and a special token is no part of a stop string.
//!
//! Replies stream by sentences, because at the limit an incomplete one is removed from cache and record, at a
//! token boundary.

mod elsewhere;
mod opening;

pub use elsewhere::StreamedReply;
pub(crate) use elsewhere::{cut, cut_text};

use crate::text::chat::ReplyForm;
use crate::text::prefix::{common_prefix, overlap, whole_characters};
#[cfg(test)]
use crate::text::thoughts::N_EXAMINED;
use crate::text::thoughts::{ReplyParts, find};
use crate::text::tokenizer::{After, Tokenizer};
use crate::turns::calling::{Beginning, Begun, Calling, Speech};
use crate::turns::canonical::CanonicalText;
use crate::turns::dry::Said;
use crate::turns::grammar::GrammarState;
use crate::turns::sampler::{self, Row};
use crate::turns::sentence::Sentences;
use crate::{Request, Result, Sampling, StopReason, TokenLogprob, ToolCalls, ToolChoice};
use opening::Opening;

/// A piece of a reply that nothing can take back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPiece {
    /// Of its thought.
    Thought(String),
    /// Of its text.
    Text(String),
    /// Of a call, markup included.
    Call(String),
}

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
    /// True if a stop string cuts where it begins, and may leave nothing.
    has_exact_stops: bool,
    /// The text that the next token goes on with; `None`: its ids need not be those of its text.
    canonical: Option<CanonicalText>,
    /// The token that was last found to leave them so, and its place.
    canonical_with: Option<(usize, u32)>,
    /// Number of ids that somebody else has said for it, at its beginning.
    n_given: usize,
    /// True if its tokens were drawn by a remote engine: a stop string that would leave nothing was not
    /// refused, so it is passed over.
    is_from_elsewhere: bool,
    /// What it begins with, after a thought, that counts for nothing.
    head: Vec<u8>,
    /// Number of the stop string that was met.
    met: Option<usize>,
    /// What is before its speech.
    opening: Opening,
    /// Offset after leading spaces, which follow the thought or begin the text.
    begin: usize,
    /// Offset after the last token that is no part of a stop string: a special one, or one that was forced.
    after_special: usize,
    /// True if a reply that reaches its limit ends with its last whole sentence.
    whole_sentences: bool,
    sentences: Sentences,
    streamed: usize,
    /// True if nothing more is said.
    has_ended: bool,
    /// Log-probabilities of each id, if requested.
    logprobs: Vec<TokenLogprob>,
    /// Number of those that were given to the caller.
    n_reported: usize,
    /// The reply's tokens after those of the agent's earlier replies.
    said: Said,
    /// Its place in its grammar.
    guide: Option<GrammarState>,
    /// The grammar that it is in once its thought is over.
    waiting: Option<GrammarState>,
    /// Whether it is a call of a tool; `None`: it can't be one.
    calling: Option<Calling>,
}

impl ReplyText {
    /// An empty reply after what was said before; empty stop strings are ignored.
    pub(crate) fn new(stops: &[String], whole_sentences: bool, said: Said) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).map(|s| s.as_bytes().to_vec()).collect();
        Self { stops, whole_sentences, said, ..Self::default() }
    }

    /// The same, to a prompt whose replies have this form, with a thought of at most so many tokens.
    pub(crate) fn in_form(self, form: &ReplyForm, max_thought: usize) -> Self {
        Self { opening: Opening::new(form, max_thought), ..self }
    }

    /// The same, whose stop strings cut where they begin.
    pub(crate) fn with_exact_stops(self, has_exact_stops: bool) -> Self {
        Self { has_exact_stops, ..self }
    }

    /// The same, whose first ids somebody else has said for it.
    pub(crate) fn begun_with(self, n_given: usize) -> Self {
        Self { n_given, n_reported: n_given, ..self }
    }

    /// The same, whose ids are those of its text, after what its prompt ends with.
    pub(crate) fn canonical(self, after: Option<After>) -> Self {
        Self { canonical: after.map(|after| CanonicalText { begin: 0, after }), ..self }
    }

    /// The same, in a grammar once it has begun: nothing else ends or cuts it. `thinks`: a thought may come
    /// first.
    pub(crate) fn guided(mut self, guide: GrammarState, thinks: bool) -> Self {
        self.end_by_itself();
        self.waiting = Some(guide);
        self.begin_form(thinks);
        self
    }

    /// The same, where it may be a call, or must be one; `thinks`: a thought may come before.
    pub(crate) fn calling(mut self, mut calling: Calling, thinks: bool) -> Self {
        let is_forced = calling.is_forced();
        if is_forced {
            self.end_by_itself();
            self.waiting = calling.forced_guide();
            if calling.replaces_header() {
                self.opening.lead_to_call();
            }
        }
        self.calling = Some(calling);
        if is_forced {
            self.begin_form(thinks);
        }
        self
    }

    fn begin_form(&mut self, thinks: bool) {
        if self.opening.begin_form(thinks) {
            self.begin_speech();
        }
    }

    /// What it says begins with the next id.
    fn begin_speech(&mut self) {
        self.opening.n_before = self.ids.len();
        if let Some(guide) = self.waiting.take() {
            self.guide = Some(guide);
            self.opening.thoughts.end_thoughts();
        }
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

    /// The id that must be said next: of what ends a thought or leads to a reply, or markup of a call.
    fn forced(&self) -> Option<u32> {
        let markup = || self.calling.as_ref().filter(|_| self.may_call())?.forced(&self.ids, self.n_before());
        self.opening.forced(self.ids.len()).or_else(markup)
    }

    /// True where what is said is no thought, nor what leads to a reply.
    fn may_call(&self) -> bool {
        let Opening { thoughts, .. } = &self.opening;
        !thoughts.is_in_thought() && !self.opening.is_scripted() && !self.may_think_first()
    }

    /// True if it must have a form that has not begun yet.
    fn awaits_form(&self) -> bool {
        self.waiting.is_some() || self.calling.as_ref().is_some_and(Calling::is_forced)
    }

    /// True at the beginning of a reply that has a form, and may begin with a thought.
    fn may_think_first(&self) -> bool {
        self.ids.is_empty() && self.awaits_form() && self.opening.may_open()
    }

    /// True in a thought before what has a form: it must not end here.
    pub(crate) fn must_go_on(&self) -> bool {
        self.awaits_form() && self.opening.thoughts.is_in_thought()
    }

    /// True if an id goes on with a thought though it ends replies.
    pub(crate) fn goes_on_with(&self, id: u32) -> bool {
        self.opening.goes_on_with(id)
    }

    /// Number of ids before its speech or call.
    fn n_before(&self) -> usize {
        self.opening.n_before
    }

    /// The ids of which one is drawn after a call.
    fn fork(&self) -> Option<(u32, Option<u32>)> {
        self.calling.as_ref()?.fork(&self.ids)
    }

    /// True if it is in a grammar, or will be, or after a call that another one may follow.
    pub(crate) fn is_guided(&self) -> bool {
        self.guide.is_some() || self.waiting.is_some() || self.is_after_call()
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
        let begun = self.calling.as_ref().and_then(Calling::begin);
        let (most, from) = match begun {
            Some(begin) => (request.max_call_tokens, begin),
            None if self.is_call() => (request.max_call_tokens, self.n_before()),
            // What leads to a reply is not counted, nor is a thought that has a limit of its own.
            None if self.opening.counts_thought(request.counts_thought) => {
                (request.max_tokens, self.opening.n_lead)
            }
            None if !self.may_call() => (usize::MAX, 0),
            None => (request.max_tokens, self.n_before().max(self.n_given)),
        };
        let left = most.saturating_sub(self.ids.len().saturating_sub(from));
        left.min(self.most(request).saturating_sub(self.ids.len()))
    }

    /// Maximum number of its tokens, a thought and a call included.
    pub(crate) fn most(&self, request: &Request) -> usize {
        let calls = !matches!(request.calls, ToolChoice::Never | ToolChoice::Forbidden);
        let most = request.max_tokens.max(if calls { request.max_call_tokens } else { 0 });
        most.saturating_add(self.opening.n_besides(request.counts_thought).saturating_add(self.n_given))
    }

    /// The parts of its text, in bytes of [`ReplyText::text`].
    pub(crate) fn parts(&self) -> ReplyParts {
        let ReplyParts { thought, speech } = self.opening.thoughts.parts(&self.bytes);
        let end = self.begin_of_call().unwrap_or(self.bytes.len()).min(speech.end).max(speech.start);
        let at = |offset: usize| String::from_utf8_lossy(&self.bytes[..offset]).len();
        ReplyParts { thought: at(thought.start)..at(thought.end), speech: at(speech.start)..at(end) }
    }

    /// Number of tokens of its thought, marks included.
    pub(crate) fn n_thought(&self) -> usize {
        let ReplyParts { thought, speech } = self.opening.thoughts.parts(&self.bytes);
        if thought.is_empty() { 0 } else { self.ends.partition_point(|end| *end <= speech.start) }
    }

    /// Offset at which the call begins that it has or is.
    fn begin_of_call(&self) -> Option<usize> {
        let calling = self.calling.as_ref().filter(|_| self.is_call())?;
        Some(self.end_of(calling.begin().unwrap_or(self.n_before()).min(self.ids.len())))
    }

    /// True if it is a call of a tool, and has begun as one.
    pub(crate) fn is_call(&self) -> bool {
        self.may_call() && self.calling.as_ref().is_some_and(Calling::is_call)
    }

    /// The call that it is, if it is one.
    pub(crate) fn call(&self, tokenizer: &Tokenizer) -> Option<ToolCalls> {
        self.calling.as_ref()?.read(&self.ids, self.n_before(), |ids| tokenizer.decode(ids))
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

    /// Number of ids that somebody else has said for it.
    pub(crate) fn n_given(&self) -> usize {
        self.n_given.min(self.ids.len())
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
    pub(crate) fn refuses(&mut self, id: u32, tokenizer: &Tokenizer) -> bool {
        let piece = tokenizer.piece(id);
        let calling = self.calling.as_ref();
        if calling.is_some_and(|calling| calling.refuses(self.speech(), id, piece)) {
            return true;
        }
        self.opening.refuses(id, self.ids.len())
            || self.is_broken_by(id, tokenizer)
            || !self.has_exact_stops && !tokenizer.is_special(id) && self.would_leave_nothing(piece)
    }

    /// True if a token would make its ids others than those of its text.
    fn is_broken_by(&mut self, id: u32, tokenizer: &Tokenizer) -> bool {
        let token = Some((self.ids.len(), id));
        if self.canonical_with == token {
            return false;
        }
        let is_broken = self.canonical.is_some_and(|text| text.is_broken_by(id, &self.ids, tokenizer));
        if !is_broken {
            self.canonical_with = token;
        }
        is_broken
    }

    /// What is said after a thought and what leads to the reply.
    fn speech(&self) -> Speech<'_> {
        let (n_before, is_thought) = (self.n_before(), !self.may_call());
        Speech { ids: &self.ids, ends: &self.ends, bytes: &self.bytes, n_before, is_thought }
    }

    fn would_leave_nothing(&mut self, piece: &[u8]) -> bool {
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
        let canonical = self.canonical;
        let breaks = |id: u32| canonical.is_some_and(|text| text.is_broken_by(id, so_far.0, tokenizer));
        if self.may_think_first() && !self.opening.opens(drawn) {
            // It does not think first: what it says begins here.
            let markup = || self.calling.as_ref()?.forced(&self.ids, 0);
            if let Some(id) = self.opening.first_of_lead().or_else(markup) {
                return Ok(id);
            }
            if let Some(guide) = &mut self.waiting {
                return guide.choose(drawn, logits, so_far, sampling, eog, (|_| true, breaks));
            }
        }
        if let Some((more, end)) = self.fork() {
            let fits = |id: u32| id == more || Some(id) == end || eog.contains(&id);
            let (ids, said) = so_far;
            let chosen = || sampler::choose_allowed(&Row::new(logits, ids, said, sampling), sampling, fits);
            return Ok(if fits(drawn) { drawn } else { chosen().unwrap_or(more) });
        }
        if let Some(Begun { way, mut guide, .. }) = self.begun_by(drawn, tokenizer)? {
            // What is drawn in its place begins a call, too: the ids alone say what a reply is.
            let calling = self.calling.as_ref();
            let begins =
                |id: u32| calling.is_some_and(|it| it.begins(way, self.speech(), tokenizer.piece(id)));
            return guide.choose(drawn, logits, so_far, sampling, eog, (begins, breaks));
        }
        match &mut self.guide {
            Some(guide) => guide.choose(drawn, logits, so_far, sampling, eog, (|_| true, breaks)),
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
        if self.may_think_first() {
            return Ok(self.opening.opens(id));
        }
        if let Some((more, end)) = self.fork() {
            return Ok(id == more || Some(id) == end || eog.contains(&id));
        }
        let mut begun = self.begun_by(id, tokenizer)?.map(|begun| begun.guide);
        begun.as_mut().or(self.guide.as_mut()).map_or(Ok(true), |guide| guide.allows(id, eog))
    }

    /// The call that would have begun with a token.
    fn begun_by(&self, id: u32, tokenizer: &Tokenizer) -> Result<Option<Begun>> {
        Ok(match self.beginning(id, tokenizer)? {
            Beginning::With(begun) => Some(begun),
            Beginning::Unclear | Beginning::Free | Beginning::Behind(_) => None,
        })
    }

    fn beginning(&self, id: u32, tokenizer: &Tokenizer) -> Result<Beginning> {
        // (A thought may begin as a call that begins with text does.)
        let is_mark = tokenizer.is_special(id) && self.opening.opens(id);
        let is_scripted = self.opening.is_scripted() || self.may_think_first() || is_mark;
        match self.calling.as_ref().filter(|_| !is_scripted) {
            Some(calling) => calling.beginning(self.speech(), id, tokenizer),
            None => Ok(Beginning::Unclear),
        }
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
        if self.may_think_first() && self.opening.begin_with(id) {
            self.begin_speech();
        }
        let after = match self.beginning(id, tokenizer)? {
            Beginning::Unclear => None,
            Beginning::Free => {
                self.decide(None);
                None
            }
            Beginning::With(begun) => {
                self.decide(Some(begun));
                None
            }
            Beginning::Behind(begun) => Some(begun),
        };
        let known = self.bytes.len();
        // What is given is encoded by itself.
        let is_given = self.ids.len() < self.n_given;
        let begins_text = is_given || tokenizer.is_special(id) || self.forced().is_some();
        // Where a grammar leaves no other token, the ids can't be those of the text any more: what follows is a text of
        // its own.
        let begins_text = begins_text || self.is_broken_by(id, tokenizer);
        let stop = self.push(id, tokenizer.piece(id), Some(tokenizer));
        if let Some(text) = self.canonical.as_mut().filter(|_| begins_text) {
            *text = CanonicalText { begin: self.ids.len(), after: tokenizer.after(Some(id)) };
        }
        if let Some(begun) = after {
            self.decide(Some(begun));
            return Ok(None);
        }
        if let Some(begins) = self.opening.see(&self.ids, &self.bytes, known) {
            if begins {
                self.begin_speech();
            }
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

    /// The reply is this call from here on; or it is none.
    fn decide(&mut self, begun: Option<Begun>) {
        let Some(calling) = &mut self.calling else { return };
        let Some(Begun { way, at, guide }) = begun else { return calling.give_up() };
        calling.begin_call(way, at);
        if self.opening.thoughts.is_in_thought() {
            let end = self.end_of(at);
            self.opening.thoughts.end_thought_at(&self.bytes[..end]);
            self.opening.n_before = at;
        }
        self.waiting = None;
        self.follow_guide(guide);
    }

    /// Adds a token of text.
    fn push_bytes(&mut self, id: u32, piece: &[u8]) -> Option<StopReason> {
        self.push(id, piece, None)
    }

    fn push(&mut self, id: u32, piece: &[u8], tokenizer: Option<&Tokenizer>) -> Option<StopReason> {
        let known = self.bytes.len();
        self.ids.push(id);
        self.n_generated += 1;
        self.said.push(id, piece, tokenizer);
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
        self.opening.thoughts.read(&self.bytes);
        // What the template says ends no reply, nor does the end of a thought.
        let is_special = tokenizer.is_some_and(|tokenizer| tokenizer.is_special(id));
        let is_given = self.ids.len() <= self.n_given;
        if is_given || is_special || self.opening.is_scripted() || self.opening.thoughts.head() > known {
            self.after_special = self.bytes.len();
        }
        if is_given {
            self.streamed = whole_characters(&self.bytes);
        }
        let found = self.first_stop(known);
        self.begin = self.first_text_from(self.opening.thoughts.after_head().unwrap_or(0));
        let (found, stop) = found?;
        self.met = Some(stop);
        self.cut_at(found, tokenizer);
        Some(StopReason::StopString)
    }

    /// Cuts where a stop string begins: before the token there, or within it.
    fn cut_at(&mut self, at: usize, tokenizer: Option<&Tokenizer>) {
        let n = self.tokens_before(at);
        let rest = self.bytes.get(self.end_of(n)..at).unwrap_or_default().to_vec();
        self.keep(n);
        let Some(tokenizer) = tokenizer.filter(|_| self.has_exact_stops && !rest.is_empty()) else { return };
        let begin = self.ends.partition_point(|end| *end <= self.after_special);
        let text = CanonicalText { begin, after: After::Text };
        let text = self.canonical.unwrap_or(text);
        let Some(ids) =
            str::from_utf8(&rest).ok().and_then(|rest| text.with(&self.ids, rest, tokenizer).ok())
        else {
            return;
        };
        self.keep(common_prefix(&self.ids, &ids));
        for id in &ids[self.ids.len()..] {
            self.ids.push(*id);
            self.bytes.extend_from_slice(tokenizer.piece(*id));
            self.ends.push(self.bytes.len());
        }
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

    /// Offset at which a stop string begins in the text, and its number, none being complete in its first
    /// `known` bytes.
    fn first_stop(&self, known: usize) -> Option<(usize, usize)> {
        let thought = self.opening.thoughts.after_head()?;
        let (text, begin) = (&self.bytes, self.first_text_from(thought));
        let least = if self.is_from_elsewhere { self.first_text_kept(begin)? } else { thought };
        let least = least.max(self.after_special);
        let first = |(n, stop): (usize, &Vec<u8>)| {
            let is_plain = begin >= self.after_special && !self.has_exact_stops;
            let at_begin = is_plain && line_of(stop).is_some_and(|line| text[begin..].starts_with(line));
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

    /// What has become certain since the last call.
    pub(crate) fn take_certain(&mut self) -> Vec<ReplyPiece> {
        if self.opening.thoughts.speech().is_none() {
            return self.stream_to(self.streamed);
        }
        let mut certain = whole_characters(&self.bytes).min(self.opening.thoughts.certain_end(&self.bytes));
        if let Some(calling) = self.calling.as_ref().filter(|calling| calling.is_open()) {
            // What it is will be known soon.
            let (n, text) = calling.certain(self.speech());
            certain = certain.min(self.end_of(n)).min(text);
        }
        if self.is_after_call() {
            certain = self.end_of(self.end_of_calls().unwrap_or(0)); // perhaps nothing follows
        }
        for stop in &self.stops {
            certain = certain.min(self.bytes.len() - overlap(&self.bytes, stop));
            let begun = &self.bytes[self.begin..];
            let is_line = !self.has_exact_stops && line_of(stop).is_some_and(|line| line.starts_with(begun));
            if is_line {
                certain = certain.min(self.opening.thoughts.after_head().unwrap_or(0));
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
    pub(crate) fn finish(&mut self) -> Vec<ReplyPiece> {
        self.keep(self.end_of_calls().unwrap_or(self.ids.len()));
        self.keep(self.tokens_before(whole_characters(&self.bytes)));
        self.has_ended = true;
        self.stream_to(self.bytes.len())
    }

    /// The whole text. Bytes that are not UTF-8 inside it become U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Records the log-probability of the last token, unless it was cut at once.
    pub(crate) fn note(&mut self, logprob: Option<TokenLogprob>) {
        let is_new = self.met.is_none() && self.logprobs.len() < self.ids.len();
        self.logprobs.extend(logprob.filter(|_| is_new));
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

    /// Gives what was not given yet of what is before an offset, of a thought all that is certain.
    fn stream_to(&mut self, end: usize) -> Vec<ReplyPiece> {
        let ReplyParts { mut thought, speech } = self.opening.thoughts.parts(&self.bytes);
        if !self.has_ended {
            // (A call may end it.)
            let calling = self.calling.as_ref().filter(|_| self.opening.thoughts.is_in_thought());
            let known = calling.map_or(self.ids.len(), |calling| calling.certain(self.speech()).0);
            thought = self.opening.thoughts.certain_thought(&self.bytes[..self.end_of(known)]);
            thought.end = thought.end.min(whole_characters(&self.bytes));
        }
        let call = self.begin_of_call().unwrap_or(self.bytes.len());
        let text = speech.start..speech.end.min(call).min(end);
        let mut pieces = Vec::new();
        for (range, piece) in [
            (thought, ReplyPiece::Thought as fn(String) -> ReplyPiece),
            (text, ReplyPiece::Text),
            (call..end, ReplyPiece::Call),
        ] {
            let begin = range.start.max(self.streamed);
            if begin < range.end {
                pieces.push(piece(String::from_utf8_lossy(&self.bytes[begin..range.end]).into_owned()));
                self.streamed = range.end;
            }
        }
        pieces
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
        self.opening.thoughts.cut(self.bytes.len());
        self.sentences.cut(self.bytes.len(), n);
    }
}

/// The rest of a stop string that begins with a line break; `None` if it does not, or nothing follows.
fn line_of(stop: &[u8]) -> Option<&[u8]> {
    stop.strip_prefix(b"\n").filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests;
