//! Whether a reply is a call of a tool, or ends with one: the markup of a call says so wherever it is drawn, a call
//! that begins with text at the beginning. From there on the reply is under the tools' grammar. A thought before
//! it does not count.
//!
//! What a call begins with is drawn as without tools. So a reply that is not a call is the same as without
//! tools. A reply that must be a call begins with a call's markup and is under a grammar of calls from there
//! on.
//!
//! After a call, where several are allowed, the ids that follow in any case are appended; then the model
//! draws whether the reply ends or another call begins. What follows the last whole call is removed from the
//! reply.

use crate::text::calls::{CallForm, Joint};
use crate::text::prefix::overlap;
use crate::text::tokenizer::Tokenizer;
use crate::turns::grammar::GrammarState;
use crate::{Call, Request, Result, ToolCalls, ToolChoice, Tools};
use greenroom_grammar::Matcher;
use std::sync::Arc;

/// A reply that may be a call, is one, or must not be one any more.
pub(crate) struct Calling {
    form: CallForm,
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

/// Maximum number of calls in one reply.
const MAX_CALLS: usize = 16;

enum CallStage {
    /// It could become one: by its ids, or by the first character of its text.
    Open(Box<Matcher>),
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
    Behind(GrammarState),
    /// A call that begins with what was said so far, this token included.
    With(GrammarState),
}

impl Calling {
    /// At the beginning of a reply; `None`: nothing is a call.
    ///
    /// # Errors
    /// The tools' schemas can't be used.
    pub(crate) fn new(request: &Request, form: &CallForm, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let knows = request
            .prompt
            .conversation()
            .and_then(|conversation| conversation.tools.as_ref())
            .filter(|_| request.grammar.is_none());
        let Some(tools) = knows else { return Ok(None) };
        let open = |grammar| Ok(CallStage::Open(Box::new(tokenizer.matcher(&grammar)?)));
        let (stage, is_forced) = match &request.calls {
            ToolChoice::Never => return Ok(None),
            ToolChoice::Allowed => (open(form.grammar(tools)), false),
            ToolChoice::Forbidden => (Ok(CallStage::Barred), false),
            ToolChoice::Required => (open(form.forced_grammar(tools, None)), true),
            ToolChoice::Named(name) => (open(form.forced_grammar(tools, Some(name))), true),
        };
        let name = match &request.calls {
            ToolChoice::Named(name) => Some(&**name),
            _ => None,
        };
        let joint = form.joint.as_ref().filter(|_| request.parallel_tool_calls);
        let further = joint.map(|_| tokenizer.matcher(&form.forced_grammar(tools, name))).transpose()?;
        Ok(Some(Self {
            form: form.clone(),
            tools: tools.clone(),
            stage: stage?,
            begin: None,
            is_forced,
            further,
            ends: Vec::new(),
            is_between: false,
        }))
    }

    /// True if a call begins with markup, not with text.
    pub(crate) fn has_markup(&self) -> bool {
        !self.form.opening.is_empty()
    }

    /// True if the reply must be a call.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// The grammar of a reply that must be a call and begins with text.
    pub(crate) fn forced_guide(&mut self) -> Option<GrammarState> {
        let CallStage::Open(call) = &self.stage else { return None };
        let guide =
            (self.is_forced && self.form.opening.is_empty()).then(|| GrammarState::at(call.fresh()))?;
        self.stage = CallStage::Decided(true);
        Some(guide)
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
        let joint = self.form.joint.as_ref().filter(|_| self.is_between)?;
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
        let CallStage::Open(_) = self.stage else { return None };
        self.form.opening.get(ids.len().checked_sub(n_before)?).copied().filter(|_| self.is_forced)
    }

    /// True if a reply of these bytes would be a call with one more token, and may be none.
    pub(crate) fn refuses(&self, bytes: &[u8], id: u32, piece: &[u8]) -> bool {
        let CallStage::Barred = self.stage else { return false };
        match self.form.opening.first() {
            Some(first) => id == *first,
            None => bytes.trim_ascii().is_empty() && self.begins(bytes, piece),
        }
    }

    /// What a reply of these ids and bytes is with one more token.
    ///
    /// # Errors
    /// A grammar became too costly.
    pub(crate) fn beginning(
        &self,
        (ids, bytes): (&[u32], &[u8]),
        id: u32,
        piece: &[u8],
    ) -> Result<Beginning> {
        let CallStage::Open(call) = &self.stage else { return Ok(Beginning::Unclear) };
        if let Some((last, before)) = self.form.opening.split_last() {
            let begins = *last == id && (before.is_empty() || ids.ends_with(before));
            return Ok(match begins {
                true => Beginning::Behind(GrammarState::at(call.fresh())),
                false => Beginning::Unclear,
            });
        }
        if [bytes, piece].concat().trim_ascii().is_empty() {
            return Ok(Beginning::Unclear);
        }
        if !self.begins(bytes, piece) {
            return Ok(Beginning::Free);
        }
        let mut guide = GrammarState::at(call.fresh());
        for id in ids {
            guide.follow(*id)?;
        }
        Ok(Beginning::With(guide))
    }

    /// True if a text of these bytes and a token's begins as a call that begins with text.
    pub(crate) fn begins(&self, bytes: &[u8], piece: &[u8]) -> bool {
        let (text, mut buffer) = ([bytes, piece].concat(), [0; 4]);
        let first = self.form.first().map(|first| first.encode_utf8(&mut buffer).as_bytes());
        first.is_some_and(|first| text.trim_ascii_start().starts_with(first))
    }

    /// The reply is a call from now on: one that these ids end with the opening of, or, where it begins with
    /// text, all after the first `n_before`.
    pub(crate) fn begin_call(&mut self, ids: &[u32], n_before: usize) {
        self.stage = CallStage::Decided(true);
        self.begin = Some(match self.form.opening.len() {
            0 => n_before,
            n => ids.len().saturating_sub(n),
        });
    }

    /// The reply is none.
    pub(crate) fn give_up(&mut self) {
        self.stage = CallStage::Decided(false);
    }

    /// Number of ids before the call; `None`: it has not begun, or is forced and begins with text.
    pub(crate) fn begin(&self) -> Option<usize> {
        self.begin
    }

    /// Number of these ids that are no part of a call, whatever follows.
    pub(crate) fn n_certain(&self, ids: &[u32]) -> usize {
        // (One that begins with text may begin with any of them.)
        if self.form.opening.is_empty() { 0 } else { ids.len() - overlap(ids, &self.form.opening) }
    }

    /// True if the reply may still turn out to be one, or not.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, CallStage::Open(_)) && !self.is_forced
    }

    /// True if the reply is one.
    pub(crate) fn is_call(&self) -> bool {
        match self.stage {
            CallStage::Open(_) => self.is_forced,
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
        let rest = self.is_call().then(|| ids.get(begin..)?.strip_prefix(&self.form.opening[..]))?;
        if self.ends.is_empty() {
            let call = rest.and_then(|rest| self.form.read(&self.tools, &text(rest)));
            return Some(call.map_or(ToolCalls::Truncated, |call| ToolCalls::Complete(vec![call])));
        }
        let n_between = self.form.joint.as_ref().map_or(0, |joint| joint.tail.len() + joint.more.len());
        let begins =
            [begin + self.form.opening.len()].into_iter().chain(self.ends.iter().map(|end| end + n_between));
        let calls = begins
            .zip(&self.ends)
            .map(|(begin, end)| self.form.read(&self.tools, &text(ids.get(begin..*end)?)));
        let calls: Option<Vec<Call>> = calls.collect();
        Some(calls.map_or(ToolCalls::Truncated, ToolCalls::Complete))
    }
}
