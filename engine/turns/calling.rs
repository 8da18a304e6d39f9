//! Whether a reply is a call of a tool, or ends with one: the markup of a call says so wherever it is drawn, a call
//! that begins with text at the beginning, or in a fenced block. From there on the reply is under the tools'
//! grammar. A thought before it does not count.
//!
//! What a call begins with is drawn as without tools. So a reply that is not a call is the same as without
//! tools. A reply that must be a call begins with a call's markup and is under a grammar of calls from there
//! on.
//!
//! After a call, where several are allowed, the ids that follow in any case are appended; then the model
//! draws whether the reply ends or another call begins. What follows the last whole call is removed from the
//! reply.

use crate::text::calls::{CallForm, CallForms, Joint, MAX_CUE};
use crate::text::prefix::{overlap, whole_characters};
use crate::text::tokenizer::Tokenizer;
use crate::turns::grammar::GrammarState;
use crate::{Call, Request, Result, ToolCalls, ToolChoice, Tools};
use greenroom_grammar::Matcher;
use std::sync::{Arc, OnceLock};

/// A reply that may be a call, is one, or must not be one any more.
pub(crate) struct Calling {
    /// The forms that calls may have, first the template's own.
    ways: Vec<Way>,
    /// Index of the one that it has, or would have if it must be one.
    way: usize,
    tools: Arc<Tools>,
    stage: CallStage,
    /// Number of ids before it, once it has begun.
    begin: Option<usize>,
    /// True if it must be one.
    is_forced: bool,
    /// Each further call.
    further: Option<Matcher>,
    /// For each complete call, the number of ids up to its end.
    ends: Vec<usize>,
    /// True after a whole call, before the next one.
    is_between: bool,
}

/// A form of calls, and their grammar once one has begun so.
struct Way {
    form: CallForm,
    matcher: OnceLock<Matcher>,
}

/// Maximum number of calls in one reply.
const MAX_CALLS: usize = 16;

#[derive(Clone, Copy)]
enum CallStage {
    /// It could become one.
    Open,
    /// It is one, or it is none.
    Decided(bool),
    /// It may be none any more.
    Barred,
}

/// What a reply is with one more token.
pub(crate) enum Beginning {
    /// A call or not, as before.
    Unclear,
    /// No call.
    Free,
    /// A call from the next token on.
    Behind(Begun),
    /// A call that begins with what was said so far, this token included.
    With(Begun),
}

/// A call that has begun.
pub(crate) struct Begun {
    /// Index of its form.
    pub(crate) way: usize,
    /// Number of ids before it.
    pub(crate) at: usize,
    /// The grammar that it is in.
    pub(crate) guide: GrammarState,
}

/// What a reply says after a thought and what leads to it, or all of it in a thought.
#[derive(Clone, Copy)]
pub(crate) struct Speech<'a> {
    /// Ids of the whole reply, and offsets at which each one's bytes end.
    pub(crate) ids: &'a [u32],
    pub(crate) ends: &'a [usize],
    /// Bytes of the whole reply.
    pub(crate) bytes: &'a [u8],
    /// Number of ids before it.
    pub(crate) n_before: usize,
    pub(crate) is_thought: bool,
}

impl Speech<'_> {
    /// Offset at which it begins.
    fn begin(&self) -> usize {
        self.n_before.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Its end with another token: whole characters, each byte that is none as `?`.
    fn end(&self, piece: &[u8]) -> SpeechEnd {
        let said = &self.bytes[self.begin()..];
        let recent = said.len().saturating_sub(MAX_CUE)..said.len();
        let from = recent.clone().find(|at| said[*at] & 0xc0 != 0x80).unwrap_or(recent.end);
        let bytes = [&said[from..], piece].concat();
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes[..whole_characters(&bytes)].utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| '?'));
        }
        SpeechEnd { text, at: self.begin() + from, is_all: from == 0 }
    }
}

/// The end of a speech, in which a call that begins with text is looked for.
struct SpeechEnd {
    text: String,
    /// Offset in the reply at which it begins.
    at: usize,
    /// True if that is where the speech begins.
    is_all: bool,
}

impl Calling {
    /// At the beginning of a reply; `None`: nothing is a call.
    ///
    /// # Errors
    /// The tools' schemas can't be used.
    pub(crate) fn new(request: &Request, forms: &CallForms, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let knows = request
            .prompt
            .conversation()
            .and_then(|conversation| conversation.tools.as_ref())
            .filter(|_| request.grammar.is_none());
        let Some(tools) = knows else { return Ok(None) };
        let (stage, is_forced, name) = match &request.calls {
            ToolChoice::Never => return Ok(None),
            ToolChoice::Allowed => (CallStage::Open, false, None),
            ToolChoice::Forbidden => (CallStage::Barred, false, None),
            ToolChoice::Required => (CallStage::Open, true, None),
            ToolChoice::Named(name) => (CallStage::Open, true, Some(&**name)),
        };
        let own = forms.own();
        let grammar = if is_forced { own.forced_grammar(tools, name) } else { own.grammar(tools) };
        let matcher = matches!(stage, CallStage::Open).then(|| tokenizer.matcher(&grammar)).transpose()?;
        let joint = own.joint.as_ref().filter(|_| request.parallel_tool_calls);
        let further = joint.map(|_| tokenizer.matcher(&own.forced_grammar(tools, name))).transpose()?;
        let used = forms.iter().filter(|form| !is_forced || *form == own || form.ends_thought);
        let mut ways: Vec<Way> =
            used.map(|form| Way { form: form.clone(), matcher: OnceLock::new() }).collect();
        if let (Some(way), Some(matcher)) = (ways.first_mut(), matcher) {
            way.matcher = OnceLock::from(matcher);
        }
        let named = |name: &str| {
            let list = tools.list.iter().filter(|tool| tool.name == name).cloned().collect();
            Arc::new(Tools { list, instructions: String::new() })
        };
        let tools = name.map_or_else(|| tools.clone(), named);
        let (ends, is_between) = (Vec::new(), false);
        Ok(Some(Self { ways, way: 0, tools, stage, begin: None, is_forced, further, ends, is_between }))
    }

    fn form(&self) -> &CallForm {
        &self.ways[self.way].form
    }

    /// The grammar of a call in one of the forms, from its beginning.
    fn guide(&self, way: usize, tokenizer: &Tokenizer) -> Result<GrammarState> {
        let Way { form, matcher } = &self.ways[way];
        if let Some(matcher) = matcher.get() {
            return Ok(GrammarState::at(matcher.fresh()));
        }
        let made = tokenizer.matcher(&form.grammar(&self.tools))?;
        Ok(GrammarState::at(matcher.get_or_init(|| made).fresh()))
    }

    /// True if a call needs no header of a speech.
    pub(crate) fn replaces_header(&self) -> bool {
        self.form().replaces_header
    }

    /// True if the reply must be a call.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// The grammar of a reply that must be a call and begins with text.
    pub(crate) fn forced_guide(&mut self) -> Option<GrammarState> {
        let is_text = self.is_forced && self.form().opening.is_empty();
        let guide = is_text.then(|| self.ways[0].matcher.get()).flatten()?.fresh();
        self.stage = CallStage::Decided(true);
        Some(GrammarState::at(guide))
    }

    /// A call has ended with these ids; false: nothing follows it.
    pub(crate) fn end_call(&mut self, ids: &[u32]) -> bool {
        self.ends.push(ids.len());
        self.is_between = self.further.is_some() && self.ends.len() < MAX_CALLS;
        self.is_between
    }

    /// For each complete call, the number of ids up to its end.
    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// True after a whole call, before the next one.
    pub(crate) fn is_between(&self) -> bool {
        self.is_between
    }

    /// Ids after the last whole call, and what may follow it.
    fn joint<'a>(&'a self, ids: &'a [u32]) -> Option<(&'a [u32], &'a Joint)> {
        let joint = self.form().joint.as_ref().filter(|_| self.is_between)?;
        Some((&ids[*self.ends.last()?..], joint))
    }

    /// The ids of which one is drawn after a call: the one that begins another call, and the one that begins
    /// none, if that ends no reply.
    pub(crate) fn fork(&self, ids: &[u32]) -> Option<(u32, Option<u32>)> {
        let (said, joint) = self.joint(ids)?;
        (said.len() == joint.tail.len()).then(|| (joint.more[0], joint.end))
    }

    /// What begins with the ids so far, the last of which were said after a call: another call, or nothing
    /// yet. `None`: there is none.
    pub(crate) fn next_call(&mut self, ids: &[u32]) -> Option<Option<GrammarState>> {
        let (said, joint) = self.joint(ids)?;
        let expected = joint.tail.iter().chain(&joint.more);
        if !expected.clone().zip(said).all(|(expected, said)| expected == said) {
            return None;
        }
        if said.len() < expected.count() {
            return Some(None);
        }
        self.is_between = false;
        Some(self.further.as_ref().map(|further| GrammarState::at(further.fresh())))
    }

    /// The next id of the markup that must be said: where a reply begins, after `n_before` ids, that must be a
    /// call, and between calls.
    pub(crate) fn forced(&self, ids: &[u32], n_before: usize) -> Option<u32> {
        if let Some((said, joint)) = self.joint(ids) {
            let is_fork = said.len() == joint.tail.len();
            return joint.tail.iter().chain(&joint.more).nth(said.len()).copied().filter(|_| !is_fork);
        }
        let CallStage::Open = self.stage else { return None };
        self.form().opening.get(ids.len().checked_sub(n_before)?).copied().filter(|_| self.is_forced)
    }

    /// True if a reply would be a call with one more token, and may be none.
    pub(crate) fn refuses(&self, said: Speech<'_>, id: u32, piece: &[u8]) -> bool {
        let CallStage::Barred = self.stage else { return false };
        let begins = || !said.is_thought && matches!(self.begun(&said.end(piece)), Some((.., true)));
        self.opened(said, id).is_some() || begins()
    }

    /// The form whose markup a reply would end with, with one more token.
    fn opened(&self, said: Speech<'_>, id: u32) -> Option<usize> {
        let ids = &said.ids[said.n_before..];
        self.ways.iter().position(|Way { form, .. }| {
            let opens = |(last, before): (&u32, &[u32])| *last == id && ids.ends_with(before);
            (form.ends_thought || !said.is_thought) && form.opening.split_last().is_some_and(opens)
        })
    }

    /// The form in which a reply with this end may be a call that begins with text, the offset at which it begins,
    /// and whether it is one.
    fn begun(&self, end: &SpeechEnd) -> Option<(usize, usize, bool)> {
        let begun = self.ways.iter().enumerate().filter_map(|(n, way)| {
            let (at, is_call) = way.form.find(&end.text, end.is_all, &self.tools)?;
            Some((n, end.at + at, is_call))
        });
        begun.max_by_key(|(n, _, is_call)| (*is_call, std::cmp::Reverse(*n)))
    }

    /// What a reply is with one more token.
    ///
    /// # Errors
    /// A grammar became too costly.
    pub(crate) fn beginning(&self, said: Speech<'_>, id: u32, tokenizer: &Tokenizer) -> Result<Beginning> {
        let CallStage::Open = self.stage else { return Ok(Beginning::Unclear) };
        if let Some(way) = self.opened(said, id) {
            let at = said.ids.len() + 1 - self.ways[way].form.opening.len();
            return Ok(Beginning::Behind(Begun { way, at, guide: self.guide(way, tokenizer)? }));
        }
        let end = said.end(tokenizer.piece(id));
        let begun = if said.is_thought { None } else { self.begun(&end) };
        let has_markup = || self.ways.iter().any(|way| !way.form.opening.is_empty());
        let (way, at) = match begun {
            Some((way, at, true)) => (way, at),
            Some(_) => return Ok(Beginning::Unclear),
            None if said.is_thought || has_markup() => return Ok(Beginning::Unclear),
            None => return Ok(Beginning::Free),
        };
        let n = said.ends.partition_point(|end| *end <= at).max(said.n_before);
        let token = Speech { n_before: n, ..said }.begin().max(end.at) - end.at;
        // A token that holds its beginning may hold other text, too.
        if end.text.get(token..at - end.at).is_some_and(|before| !before.trim().is_empty()) {
            return Ok(Beginning::Unclear);
        }
        let at = n;
        let mut guide = self.guide(way, tokenizer)?;
        for id in &said.ids[at..] {
            guide.follow(*id)?;
        }
        Ok(Beginning::With(Begun { way, at, guide }))
    }

    /// True if a reply is a call in this form with another token than the one with which it became one.
    pub(crate) fn begins(&self, way: usize, said: Speech<'_>, piece: &[u8]) -> bool {
        let SpeechEnd { text, is_all, .. } = said.end(piece);
        matches!(self.ways[way].form.find(&text, is_all, &self.tools), Some((_, true)))
    }

    /// The reply is a call from now on.
    pub(crate) fn begin_call(&mut self, way: usize, at: usize) {
        self.stage = CallStage::Decided(true);
        (self.way, self.begin) = (way, Some(at));
        if way > 0 {
            self.further = None;
        }
    }

    /// The reply is none.
    pub(crate) fn give_up(&mut self) {
        self.stage = CallStage::Decided(false);
    }

    /// Number of ids before the call; `None`: it has not begun, or is forced and begins with text.
    pub(crate) fn begin(&self) -> Option<usize> {
        self.begin
    }

    /// Number of ids, and of bytes, that are no part of a call, whatever follows.
    pub(crate) fn certain(&self, said: Speech<'_>) -> (usize, usize) {
        let may_be = self.ways.iter().filter(|way| way.form.ends_thought || !said.is_thought);
        let opening = |way: &Way| overlap(&said.ids[said.n_before..], &way.form.opening);
        let n = said.ids.len() - may_be.map(opening).max().unwrap_or(0);
        if said.is_thought {
            return (n, said.bytes.len());
        }
        let SpeechEnd { text, at: from, is_all } = said.end(&[]);
        let begins = self.ways.iter().filter_map(|way| way.form.find(&text, is_all, &self.tools));
        (n, begins.map(|(at, _)| from + at).min().unwrap_or(said.bytes.len()))
    }

    /// True if the reply may still turn out to be one, or not.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, CallStage::Open) && !self.is_forced
    }

    /// True if the reply is one.
    pub(crate) fn is_call(&self) -> bool {
        match self.stage {
            CallStage::Open => self.is_forced,
            CallStage::Decided(is_call) => is_call,
            CallStage::Barred => false,
        }
    }

    /// The calls that a reply is or ends with, its ids and their text given; `None`: there is none.
    pub(crate) fn read(
        &self,
        ids: &[u32],
        n_before: usize,
        text: impl Fn(&[u32]) -> String,
    ) -> Option<ToolCalls> {
        let begin = self.begin.unwrap_or(n_before);
        let rest = self.is_call().then(|| ids.get(begin..)?.strip_prefix(&self.form().opening[..]))?;
        if self.ends.is_empty() {
            let call = rest.and_then(|rest| self.form().read(&self.tools, &text(rest)));
            return Some(call.map_or(ToolCalls::Truncated, |call| ToolCalls::Complete(vec![call])));
        }
        let n_between = self.form().joint.as_ref().map_or(0, |joint| joint.tail.len() + joint.more.len());
        let begins = [begin + self.form().opening.len()]
            .into_iter()
            .chain(self.ends.iter().map(|end| end + n_between));
        let calls = begins
            .zip(&self.ends)
            .map(|(begin, end)| self.form().read(&self.tools, &text(ids.get(begin..*end)?)));
        let calls: Option<Vec<Call>> = calls.collect();
        Some(calls.map_or(ToolCalls::Truncated, ToolCalls::Complete))
    }
}
