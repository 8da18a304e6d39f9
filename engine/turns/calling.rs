//! Whether a reply is a call of a tool: its beginning says so, and from there on it is under the tools' grammar.
//!
//! The token that a reply begins with is drawn as without tools. So a reply that is no call is what it would have been.

use crate::text::calls::CallForm;
use crate::text::tokenizer::Tokenizer;
use crate::turns::grammar::Guide;
use crate::{Call, Request, Result};
use greenroom_grammar::{Grammar, Matcher};
use std::sync::Arc;

/// A reply that may be, or is, a call.
pub(crate) struct Calling {
    form: CallForm,
    stage: Stage,
}

enum Stage {
    /// It could become one: by its ids, or by the first character of its text.
    Open { call: Matcher, otherwise: Option<Guide> },
    /// It is one, or its grammar knows.
    Decided { is_call: Option<bool> },
}

/// What a reply is with one more token.
pub(crate) enum Beginning {
    /// A call or not, as before.
    Unclear,
    /// No call; under a grammar of its own, if it has one.
    Free(Option<Guide>),
    /// A call from the next token on.
    Behind(Guide),
    /// A call that begins with what was said so far, this token included.
    With(Guide),
}

impl Calling {
    /// At the beginning of a reply; also the guide that it has from there on.
    ///
    /// # Errors
    /// The tools' schemas, or the reply's grammar, can't be used.
    pub(crate) fn new(
        request: &Request,
        form: &CallForm,
        tokenizer: &Tokenizer,
    ) -> Result<(Option<Self>, Option<Guide>)> {
        let guide = |grammar: &Arc<Grammar>| Guide::new(grammar, tokenizer);
        let own = request.grammar.as_ref();
        let Some(tools) = request.conversation.tools.as_ref().filter(|_| request.may_call) else {
            return Ok((None, own.map(guide).transpose()?));
        };
        let call = form.grammar(tools);
        let form = form.clone();
        if let Some(own) = own.filter(|_| form.opening.is_empty()) {
            let either = Grammar::Either(vec![call, (**own).clone()]);
            let calling = Self { form, stage: Stage::Decided { is_call: None } };
            return Ok((Some(calling), Some(guide(&Arc::new(either))?)));
        }
        let (call, otherwise) = (tokenizer.matcher(&call)?, own.map(guide).transpose()?);
        Ok((Some(Self { form, stage: Stage::Open { call, otherwise } }), None))
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
        let Stage::Open { call, otherwise } = &self.stage else { return Ok(Beginning::Unclear) };
        let free = || Beginning::Free(otherwise.as_ref().map(Guide::fresh));
        let Some(first) = self.form.first() else {
            let said = [ids, &[id]].concat();
            return Ok(match self.form.opening.strip_prefix(&said[..]) {
                Some([]) => Beginning::Behind(Guide::at(call.fresh())),
                Some(_) => Beginning::Unclear,
                None => free(),
            });
        };
        let text = [bytes, piece].concat();
        let text = text.trim_ascii_start();
        let mut buffer = [0; 4];
        if text.is_empty() {
            return Ok(Beginning::Unclear);
        }
        if !text.starts_with(first.encode_utf8(&mut buffer).as_bytes()) {
            return Ok(free());
        }
        let mut guide = Guide::at(call.fresh());
        for id in ids {
            guide.follow(*id)?;
        }
        Ok(Beginning::With(guide))
    }

    /// The reply is a call from now on, or is none.
    pub(crate) fn decide(&mut self, is_call: bool) {
        self.stage = Stage::Decided { is_call: Some(is_call) };
    }

    /// The call that a whole reply is, its ids and text given; `None`: it is none, or was cut.
    pub(crate) fn read(&self, ids: &[u32], text: impl Fn(&[u32]) -> String) -> Option<Call> {
        let Stage::Decided { is_call } = &self.stage else { return None };
        let rest = ids.strip_prefix(&self.form.opening[..])?;
        is_call.unwrap_or(true).then(|| self.form.read(&text(rest))).flatten()
    }
}
