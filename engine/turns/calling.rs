//! Whether a reply is a call of a tool: its beginning says so, and from there on it is under the tools' grammar.
//!
//! The token that a reply begins with is drawn as without tools. So a reply that is no call is what it would have been. A reply that
//! must be a call begins with a call's markup, whatever is drawn, and is in a grammar of calls from there on.

use crate::text::calls::CallForm;
use crate::text::tokenizer::Tokenizer;
use crate::turns::grammar::Guide;
use crate::{Called, Calls, Request, Result, Tools};
use greenroom_grammar::Matcher;
use std::sync::Arc;

/// A reply that may be a call, is one, or must not be one any more.
pub(crate) struct Calling {
    form: CallForm,
    tools: Arc<Tools>,
    stage: Stage,
    /// True if it must be one.
    is_forced: bool,
}

enum Stage {
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
    Behind(Guide),
    /// A call that begins with what was said so far, this token included.
    With(Guide),
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
            .and_then(|told| told.tools.as_ref())
            .filter(|_| request.grammar.is_none());
        let Some(tools) = knows else { return Ok(None) };
        let open = |grammar| Ok(Stage::Open(Box::new(tokenizer.matcher(&grammar)?)));
        let (stage, is_forced) = match &request.calls {
            Calls::Never => return Ok(None),
            Calls::Allowed => (open(form.grammar(tools)), false),
            Calls::Over => (Ok(Stage::Barred), false),
            Calls::Required => (open(form.forced_grammar(tools, None)), true),
            Calls::Named(name) => (open(form.forced_grammar(tools, Some(name))), true),
        };
        Ok(Some(Self { form: form.clone(), tools: tools.clone(), stage: stage?, is_forced }))
    }

    /// True if the reply must be a call.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// The grammar of a reply that must be a call and begins with text.
    pub(crate) fn forced_guide(&mut self) -> Option<Guide> {
        let Stage::Open(call) = &self.stage else { return None };
        let guide = (self.is_forced && self.form.opening.is_empty()).then(|| Guide::at(call.fresh()))?;
        self.decide(true);
        Some(guide)
    }

    /// The next id of the markup that a reply must begin with.
    pub(crate) fn forced(&self, ids: &[u32]) -> Option<u32> {
        let Stage::Open(_) = self.stage else { return None };
        self.form.opening.get(ids.len()).copied().filter(|_| self.is_forced)
    }

    /// True if a reply of these ids and bytes would be a call with one more token, and may be none.
    pub(crate) fn refuses(&self, (ids, bytes): (&[u32], &[u8]), id: u32, piece: &[u8]) -> bool {
        let Stage::Barred = self.stage else { return false };
        match self.form.opening.first() {
            Some(first) => ids.is_empty() && id == *first,
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
        let Stage::Open(call) = &self.stage else { return Ok(Beginning::Unclear) };
        if self.form.first().is_none() {
            let said = [ids, &[id]].concat();
            return Ok(match self.form.opening.strip_prefix(&said[..]) {
                Some([]) => Beginning::Behind(Guide::at(call.fresh())),
                Some(_) => Beginning::Unclear,
                None => Beginning::Free,
            });
        }
        if [bytes, piece].concat().trim_ascii().is_empty() {
            return Ok(Beginning::Unclear);
        }
        if !self.begins(bytes, piece) {
            return Ok(Beginning::Free);
        }
        let mut guide = Guide::at(call.fresh());
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

    /// The reply is a call from now on, or is none.
    pub(crate) fn decide(&mut self, is_call: bool) {
        self.stage = Stage::Decided(is_call);
    }

    /// True if the reply may still turn out to be one, or not.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_)) && !self.is_forced
    }

    /// True if the reply is one.
    pub(crate) fn is_call(&self) -> bool {
        match self.stage {
            Stage::Open(_) => self.is_forced,
            Stage::Decided(is_call) => is_call,
            Stage::Barred => false,
        }
    }

    /// The call that a reply is, its ids and text given; `None`: it is none.
    pub(crate) fn read(&self, ids: &[u32], text: impl Fn(&[u32]) -> String) -> Option<Called> {
        let rest = self.is_call().then(|| ids.strip_prefix(&self.form.opening[..]))?;
        let call = rest.and_then(|rest| self.form.read(&self.tools, &text(rest)));
        Some(call.map_or(Called::Cut, Called::Whole))
    }
}
