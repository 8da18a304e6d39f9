//! Tool calls: how a model writes them, and how their results are given to it.
//!
//! A chat template that knows tools says both itself ([`template`]): it renders a conversation with a call of a
//! made-up tool, and what it printed around the name, the arguments ([`arguments`]) and the result is the form. The
//! first special token of a call (`<tool_call>`) is known by its id; what follows is under a grammar made of that
//! form and the tools' schemas. A template that knows none gets the plain form.

mod arguments;
mod markup;
mod template;

use super::prefix::common_prefix;
use super::render::{SkeletonPiece, spaced};
use super::tokenizer::{After, Tokenizer};
use crate::{Call, CallSoFar, Tool, Tools};
use arguments::{ArgumentsForm, PartialArguments, object};
use greenroom_grammar::Grammar;
pub(crate) use markup::CallPiece;
use markup::{Markup, quoted};
use serde_json::json;
use std::borrow::Cow;

/// How calls are written, and the text between a call and the next reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// Ids of the markup that begins a call; empty: it begins with text.
    pub(crate) opening: Vec<u32>,
    /// Text from there to the tool's name.
    head: Markup,
    /// The same without spaces at its beginning.
    bare_head: Markup,
    /// Text between the name and the arguments.
    middle: Markup,
    arguments: ArgumentsForm,
    /// Text after the arguments that the model still says.
    close: Markup,
    /// Text from the end of a call to the next generation prompt, the result in it; `None`: that of any
    /// message.
    pub(super) result: Option<Vec<SkeletonPiece>>,
    /// True if a result is written as a JSON string, its quotes part of the text around it.
    is_result_quoted: bool,
    /// How another call follows in the same reply; `None`: a reply is one call.
    pub(crate) joint: Option<Joint>,
}

/// The text between the calls of one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joint {
    /// Ids after every call.
    pub(crate) tail: Vec<u32>,
    /// The id after these where there is no further call; `None`: one that ends a reply.
    pub(crate) end: Option<u32>,
    /// Ids after the tail where there is one, up to its head.
    pub(crate) more: Vec<u32>,
    /// All of them as text, up to the head.
    text: String,
}

impl Joint {
    /// `between` separates a call from the next one's head, `after` after the last one.
    fn new(between: &str, after: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let ids = tokenizer.encode_template(between, After::Text).ok()?;
        let last = tokenizer.encode_template(after, After::Text).ok()?;
        let n = common_prefix(&ids, &last);
        let (tail, more) = ids.split_at(n);
        let is_forked = !more.is_empty();
        let text = tokenizer.decode(&ids);
        is_forked.then(|| Self { tail: tail.to_vec(), end: last.get(n).copied(), more: more.to_vec(), text })
    }
}

impl CallForm {
    /// The form of models whose template knows no tools: `{"tool": NAME, "arguments": {…}}`.
    pub(crate) fn plain(tokenizer: &Tokenizer) -> Self {
        let markup = |text: &str| Markup::new(text, tokenizer);
        let head = markup(r#"{"tool": ""#);
        Self {
            joint: Joint::new("\n", "", tokenizer),
            opening: Vec::new(),
            bare_head: head.clone(),
            head,
            middle: markup(r#"", "arguments": "#),
            arguments: ArgumentsForm::Json,
            close: markup("}"),
            result: None,
            is_result_quoted: false,
        }
    }

    /// A result as the template writes it.
    pub(super) fn written_result<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.is_result_quoted {
            return text.into();
        }
        let quoted = quoted(text);
        quoted[1..quoted.len() - 1].to_owned().into()
    }

    /// The result that is written so.
    pub(super) fn read_result(&self, written: &str) -> String {
        let read = self.is_result_quoted.then(|| serde_json::from_str(&format!("\"{written}\"")).ok());
        read.flatten().unwrap_or_else(|| written.to_owned())
    }

    /// What a call is, after its opening. White space before it is let pass.
    pub(crate) fn grammar(&self, tools: &Tools) -> Grammar {
        let start = "start: SPACE? call\nSPACE: /[ \\t\\n\\r]+/\n";
        self.lark(start, &self.bare_head, tools.list.iter())
    }

    /// Grammar of a requested call, of any tool or a given one, after its opening: as the template writes it.
    /// (If white space were allowed, a model that would rather say something else could write it for ever.)
    pub(crate) fn forced_grammar(&self, tools: &Tools, name: Option<&str>) -> Grammar {
        let named = tools.list.iter().filter(|tool| name.is_none_or(|name| tool.name == name));
        self.lark("start: call\n", self.forced_head(), named)
    }

    /// True if a reply of these ids, with this speech, is or ends with a call.
    pub(super) fn is_in(&self, ids: &[u32], speech: &str) -> bool {
        match self.opening.is_empty() {
            true => speech.trim_start().starts_with(&self.bare_head.text),
            false => self.is_marked(ids),
        }
    }

    /// True if there is the markup of a call among some ids.
    pub(super) fn is_marked(&self, ids: &[u32]) -> bool {
        !self.opening.is_empty() && ids.windows(self.opening.len()).any(|ids| ids == self.opening)
    }

    fn forced_head(&self) -> &Markup {
        if self.opening.is_empty() { &self.bare_head } else { &self.head }
    }

    fn lark<'t>(&self, start: &str, head: &Markup, tools: impl Iterator<Item = &'t Tool>) -> Grammar {
        let (mut lark, mut names) = (String::new(), Vec::new());
        for (n, tool) in tools.enumerate() {
            names.push(format!("call{n}"));
            let (head, name) = (&head.lark, quoted(&tool.name));
            let (middle, close) = (&self.middle.lark, &self.close.lark);
            lark += &format!("call{n}: {head} {name} {middle} arguments{n} {close}\n");
            lark += &self.arguments.rules(&format!("arguments{n}"), &tool.arguments);
        }
        Grammar::Lark(format!("{start}call: {}\n{lark}", names.join(" | ")))
    }

    /// A call after its opening, as the template writes it: neighbouring pieces of text are one.
    pub(crate) fn pieces(&self, call: &Call) -> Vec<CallPiece> {
        let name = [(None, call.tool.clone())];
        let arguments = self.arguments.pieces(&call.arguments);
        let parts =
            [&self.forced_head().pieces, &name[..], &self.middle.pieces, &arguments, &self.close.pieces];
        let mut pieces: Vec<CallPiece> = Vec::new();
        for (special, text) in parts.concat() {
            match pieces.last_mut() {
                Some((None, before)) if special.is_none() => before.push_str(&text),
                _ => pieces.push((special, text)),
            }
        }
        pieces.retain(|(special, text)| special.is_some() || !text.is_empty());
        pieces
    }

    /// The first character of a call that begins with text.
    pub(crate) fn first(&self) -> Option<char> {
        self.bare_head.text.chars().next().filter(|_| self.opening.is_empty())
    }

    /// Reads the text of a call of one of these tools, its opening left out; `None`: it is not a whole call.
    pub(crate) fn read(&self, tools: &Tools, text: &str) -> Option<Call> {
        let (tool, arguments) = self.first_so_far(tools, text)?;
        let is_whole = self.close.strip(arguments.rest?.trim_start()).is_some();
        let arguments = object(&arguments.json).filter(|_| is_whole)?;
        Some(Call { tool: tool.name.clone(), arguments })
    }

    /// Reads a partial text of calls of these tools, including the first one's opening (`opening`), and perhaps
    /// what was said before: those whose tool is named.
    pub(crate) fn so_far<'a>(&self, tools: &'a Tools, opening: &str, text: &str) -> Vec<CallSoFar<'a>> {
        let begun = text.find(opening).map(|at| &text[at + opening.len()..]);
        let (mut calls, mut rest) = (Vec::new(), begun);
        while let Some((tool, arguments)) = rest.and_then(|rest| self.first_so_far(tools, rest)) {
            calls.push(CallSoFar { tool: &tool.name, arguments: arguments.json });
            let after = arguments.rest.and_then(|after| self.close.strip(after.trim_start()));
            rest = after.zip(self.joint.as_ref()).and_then(|(after, joint)| after.strip_prefix(&joint.text));
        }
        calls
    }

    /// The call at the beginning of a text, without its opening, as far as it is known.
    fn first_so_far<'a, 't>(
        &self,
        tools: &'a Tools,
        text: &'t str,
    ) -> Option<(&'a Tool, PartialArguments<'t>)> {
        let rest = self.bare_head.strip(text.trim_start())?;
        // The name of a tool may begin another's.
        let mut named = tools.list.iter().filter_map(|tool| {
            let rest = self.middle.strip(rest.trim_start().strip_prefix(&tool.name)?)?;
            Some((tool, self.arguments.read(&tool.arguments, rest, &self.close)?))
        });
        named.by_ref().max_by_key(|(tool, _)| tool.name.len())
    }
}

impl Tool {
    /// As templates know it (OpenAI's form, which Hugging Face's templates take).
    pub(crate) fn as_json(&self) -> serde_json::Value {
        let function = json!({ "name": self.name, "description": self.about, "parameters": self.arguments });
        json!({ "type": "function", "function": function })
    }
}
