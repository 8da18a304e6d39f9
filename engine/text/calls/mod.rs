//! Tool calls: how a model writes them, and how their results are given to it.
//!
//! A chat template that knows tools says both itself ([`template`]): it renders a conversation with a call of a
//! made-up tool, and what it printed around the name, the arguments ([`arguments`]) and the result is the form. The
//! first special token of a call (`<tool_call>`) is known by its id; what follows is under a grammar made of that
//! form and the tools' schemas. A template that knows none gets the plain form.
//!
//! Models write calls in other ways, too: as a JSON object, perhaps in a fenced block ([`CallForm::untagged`]), and
//! in another header than their template has ([`harmony`]). Such a call is read; the template's form is written.

mod arguments;
mod harmony;
mod markup;
mod notation;
mod schema;
mod template;

use super::prefix::{common_prefix, overlap};
use super::render::{SkeletonPiece, spaced};
use super::tokenizer::{After, Tokenizer};
use crate::{Call, CallSoFar, Tool, Tools};
use arguments::{ArgumentsForm, object};
use greenroom_grammar::Grammar;
pub(crate) use markup::CallPiece;
use markup::{Found, Markup, quoted};
use schema::PartialArguments;
use serde_json::json;
use std::borrow::Cow;

/// The forms of calls of one template: its own, and others that its model may use.
#[derive(Clone, Debug)]
pub(crate) struct CallForms {
    own: CallForm,
    others: Vec<CallForm>,
}

impl CallForms {
    /// Those of a template; `own` is what it writes, if it knows tools.
    pub(super) fn new(own: Option<CallForm>, tokenizer: &Tokenizer) -> Self {
        let own = own.unwrap_or_else(|| CallForm::plain(tokenizer));
        let others = [harmony::forms(&own, tokenizer), CallForm::untagged(&own, tokenizer)].concat();
        Self { own, others }
    }

    /// The one that is written.
    pub(crate) fn own(&self) -> &CallForm {
        &self.own
    }

    /// All of them, first the one that is written.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CallForm> {
        [&self.own].into_iter().chain(&self.others)
    }

    /// True if a reply of these ids, with this speech, is or ends with a call of one of these tools.
    pub(crate) fn are_in(&self, ids: &[u32], speech: &str, tools: &Tools) -> bool {
        let is_named =
            |form: &CallForm| form.opening.is_empty() && !form.so_far(tools, "", speech).is_empty();
        // (One that was required may have been cut before its name.)
        let is_cut = self.own.opening.is_empty() && self.own.bare_head.after(speech).is_some();
        self.is_marked(ids) || is_cut || self.iter().any(is_named)
    }

    /// True if there is the markup of a call among some ids.
    pub(super) fn is_marked(&self, ids: &[u32]) -> bool {
        self.iter().any(|form| {
            !form.opening.is_empty() && ids.windows(form.opening.len()).any(|ids| ids == form.opening)
        })
    }

    /// Reads the calls in a partial text that ends with some of these tools, as [`CallForm::so_far`].
    pub(crate) fn so_far<'a>(
        &self,
        tools: &'a Tools,
        text: &str,
        tokenizer: &Tokenizer,
    ) -> Vec<CallSoFar<'a>> {
        let read = self.iter().map(|form| form.so_far(tools, &tokenizer.decode(&form.opening), text));
        read.into_iter().find(|calls| !calls.is_empty()).unwrap_or_default()
    }
}

/// How calls are written, and the text between a call and the next reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// Ids of the markup that begins a call; empty: it begins with text.
    pub(crate) opening: Vec<u32>,
    /// How soon a call that begins with text is known.
    cue: Cue,
    /// True if it stands in the place of a speech and of the header that a speech has.
    pub(crate) replaces_header: bool,
    /// True if its opening ends a thought, too.
    pub(crate) ends_thought: bool,
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

/// How soon a call that begins with text is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cue {
    /// By its first character: a model that knows no form of calls is given one.
    First,
    /// By the name of a tool, at the beginning of what is said.
    Name,
    /// By the name of a tool, wherever this text was said before it.
    NameAfter(&'static str),
}

/// Most bytes of what a call begins with, up to the name of its tool: it is looked for in the last ones of a reply.
pub(crate) const MAX_CUE: usize = 256;
/// What may stand around a call that is written as a JSON object.
const WRAPPERS: [(&str, &str); 3] = [("", ""), ("```json\n", "\n```"), ("```\n", "\n```")];

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
            cue: Cue::First,
            replaces_header: false,
            ends_thought: false,
            bare_head: head.clone(),
            head,
            middle: markup(r#"", "arguments": "#),
            arguments: ArgumentsForm::Json,
            close: markup("}"),
            result: None,
            is_result_quoted: false,
        }
    }

    /// Calls as JSON objects, bare or in a fenced block: models that have a form of their own write them, too.
    fn untagged(own: &Self, tokenizer: &Tokenizer) -> Vec<Self> {
        let name = if own.cue == Cue::First { "tool" } else { "name" };
        let of = |(before, after): (&'static str, &str)| {
            let head = Markup::new(&format!("{before}{{\"{name}\": \""), tokenizer);
            Self {
                opening: Vec::new(),
                cue: if before.is_empty() { Cue::Name } else { Cue::NameAfter("```") },
                replaces_header: false,
                ends_thought: false,
                bare_head: head.clone(),
                head,
                middle: Markup::new(r#"", "arguments": "#, tokenizer),
                arguments: ArgumentsForm::Json,
                close: Markup::new(&format!("}}{after}"), tokenizer),
                result: None,
                is_result_quoted: false,
                joint: None,
            }
        };
        let is_own = |form: &Self| own.opening.is_empty() && own.bare_head == form.bare_head;
        WRAPPERS.into_iter().map(of).filter(|form| !is_own(form)).collect()
    }

    /// What is between a call of a tool and the next reply, where a template has `pieces` for its made-up one.
    pub(super) fn between<'p>(
        pieces: &'p [SkeletonPiece],
        tool: &dyn Fn() -> String,
    ) -> Cow<'p, [SkeletonPiece]> {
        let is_named = |piece: &SkeletonPiece| matches!(piece, SkeletonPiece::Text(text) if text.contains(template::NAME));
        if !pieces.iter().any(is_named) {
            return pieces.into();
        }
        let tool = tool();
        let named = pieces.iter().map(|piece| match piece {
            SkeletonPiece::Text(text) => SkeletonPiece::Text(text.replace(template::NAME, &tool)),
            SkeletonPiece::Content(n) => SkeletonPiece::Content(*n),
        });
        named.collect()
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
        let markup = [&self.bare_head, &self.middle, &self.close];
        let is_loose = self.opening.is_empty() && self.cue != Cue::First;
        let markup = markup.map(|it| if is_loose { it.loose.as_str() } else { it.lark.as_str() });
        self.lark(start, markup, tools.list.iter())
    }

    /// Grammar of a requested call, of any tool or a given one, after its opening: as the template writes it.
    /// (If white space were allowed, a model that would rather say something else could write it for ever.)
    pub(crate) fn forced_grammar(&self, tools: &Tools, name: Option<&str>) -> Grammar {
        let named = tools.list.iter().filter(|tool| name.is_none_or(|name| tool.name == name));
        let markup = [self.forced_head(), &self.middle, &self.close].map(|it| it.lark.as_str());
        self.lark("start: call\n", markup, named)
    }

    /// Offset in the end of a speech at which a call that begins with text may begin, and whether it is one;
    /// `None`: there is none, whatever follows. `is_all`: that is the whole speech.
    pub(crate) fn find(&self, end: &str, is_all: bool, tools: &Tools) -> Option<(usize, bool)> {
        let state = |at: usize| self.state(end[at..].trim_start(), tools).map(|is_call| (at, is_call));
        match self.cue {
            _ if !self.opening.is_empty() => None,
            Cue::First | Cue::Name => state(0).filter(|_| is_all),
            Cue::NameAfter(cue) => {
                let last = end.rfind(cue).and_then(state);
                last.or_else(|| Some((end.len() - overlap(end.as_bytes(), cue.as_bytes()), false)))
            }
        }
    }

    /// Whether a text is a call that begins with text; `None`: it is none, whatever follows.
    fn state(&self, text: &str, tools: &Tools) -> Option<bool> {
        if text.is_empty() {
            return Some(false);
        }
        if self.cue == Cue::First {
            return text.starts_with(self.bare_head.text.chars().next()?).then_some(true);
        }
        match self.bare_head.find(text) {
            Found::Whole(named) => {
                let named = named.trim_start();
                let is_named = tools.list.iter().any(|tool| named.starts_with(&tool.name));
                let may_be = tools.list.iter().any(|tool| tool.name.starts_with(named));
                (is_named || may_be).then_some(is_named)
            }
            Found::Part => Some(false),
            Found::No => None,
        }
    }

    fn forced_head(&self) -> &Markup {
        if self.opening.is_empty() && !self.replaces_header { &self.bare_head } else { &self.head }
    }

    fn lark<'t>(
        &self,
        start: &str,
        [head, middle, close]: [&str; 3],
        tools: impl Iterator<Item = &'t Tool>,
    ) -> Grammar {
        let (mut lark, mut names) = (String::new(), Vec::new());
        for (n, tool) in tools.enumerate() {
            names.push(format!("call{n}"));
            let name = quoted(&tool.name);
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

    /// Reads the text of a call of one of these tools, its opening left out; `None`: it is not a whole call.
    pub(crate) fn read(&self, tools: &Tools, text: &str) -> Option<Call> {
        let (tool, arguments) = self.first_so_far(tools, text)?;
        let is_whole = self.close.after(arguments.rest?).is_some();
        let arguments = object(&arguments.json).filter(|_| is_whole)?;
        Some(Call { tool: tool.name.clone(), arguments })
    }

    /// Reads a partial text of calls of these tools, including the first one's opening (`opening`), and perhaps
    /// what was said before: those whose tool is named.
    pub(crate) fn so_far<'a>(&self, tools: &'a Tools, opening: &str, text: &str) -> Vec<CallSoFar<'a>> {
        let begun = match self.cue {
            Cue::NameAfter(cue) => {
                let mut begins = text.match_indices(cue).map(|(at, _)| &text[at..]);
                begins.find(|rest| self.first_so_far(tools, rest).is_some())
            }
            Cue::First | Cue::Name => text.find(opening).map(|at| &text[at + opening.len()..]),
        };
        let (mut calls, mut rest) = (Vec::new(), begun);
        while let Some((tool, arguments)) = rest.and_then(|rest| self.first_so_far(tools, rest)) {
            calls.push(CallSoFar { tool: &tool.name, arguments: arguments.json });
            let after = arguments.rest.and_then(|after| self.close.after(after));
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
        let rest = self.bare_head.after(text)?;
        // The name of a tool may begin another's.
        let mut named = tools.list.iter().filter_map(|tool| {
            let rest = self.middle.after(rest.trim_start().strip_prefix(&tool.name)?)?;
            Some((tool, self.arguments.read(&tool.arguments, rest, &self.close)?))
        });
        named.by_ref().max_by_key(|(tool, _)| tool.name.len())
    }
}

impl Tool {
    /// As templates know it (OpenAI's form, which Hugging Face's templates take).
    pub(crate) fn as_json(&self) -> serde_json::Value {
        let mut described = self.listed(&self.arguments);
        if let Some(function) = described["function"].as_object_mut().filter(|_| self.about.is_empty()) {
            function.shift_remove("description");
        }
        described
    }

    fn listed(&self, arguments: &serde_json::Value) -> serde_json::Value {
        let function = json!({ "name": self.name, "description": self.about, "parameters": arguments });
        json!({ "type": "function", "function": function })
    }

    /// The same with a description of itself and of each parameter, if an empty one.
    pub(crate) fn as_described_json(&self) -> serde_json::Value {
        let mut arguments = self.arguments.clone();
        let properties = arguments.get_mut("properties").and_then(|all| all.as_object_mut());
        let properties = properties.into_iter().flat_map(|all| all.values_mut());
        for property in properties.filter_map(|it| it.as_object_mut()) {
            property.entry("description").or_insert_with(|| "".into());
        }
        self.listed(&arguments)
    }
}
