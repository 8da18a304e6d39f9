//! Tool calls: how a model writes them, and how their results are given to it.
//!
//! A chat template that knows tools says both itself: it renders a conversation with a call of a made-up
//! tool, and what it printed around the name, the arguments and the result is the form. Markup before a call
//! (`<tool_call>`) is known by its ids; what follows is text, under a grammar made of that form and the
//! tools' schemas. A template that knows none gets the plain form.

use super::prefix::common_prefix;
use super::render::{RESULT, Renderer, SkeletonPiece, messages, placeholder, spaced};
use super::tokenizer::{After, Tokenizer};
use crate::{Call, CallSoFar, Tool, Tools};
use greenroom_grammar::Grammar;
use serde_json::json;

/// How calls are written, and the text between a call and the next reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// Ids of the markup that begins a call; empty: it begins with text.
    pub(crate) opening: Vec<u32>,
    /// Text from there to the tool's name.
    head: String,
    /// Text between the name and the arguments.
    middle: String,
    /// Text after the arguments that the model still says.
    close: String,
    /// Text from the end of a call to the next generation prompt, the result in it; `None`: that of any
    /// message.
    pub(super) result: Option<Vec<SkeletonPiece>>,
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
        Self {
            joint: Joint::new("\n", "", tokenizer),
            opening: Vec::new(),
            head: r#"{"tool": ""#.to_owned(),
            middle: r#"", "arguments": "#.to_owned(),
            close: "}".to_owned(),
            result: None,
        }
    }

    /// The form in which a template writes calls; `None`: it knows no tools, or its calls are not text
    /// (harmony's channels).
    pub(super) fn of(renderer: &Renderer<'_>, tokenizer: &Tokenizer) -> Option<Self> {
        let (user, assistant, result) = (placeholder(1), placeholder(2), placeholder(RESULT));
        let function = json!({ "name": NAME, "arguments": { KEY: KEY } });
        let call = |id: &str| json!({ "id": id, "type": "function", "function": function });
        let calls =
            |calls: &[serde_json::Value]| json!({ "role": "assistant", "content": "", "tool_calls": calls });
        let result_message =
            |id: &str| json!({ "role": "tool", "name": NAME, "tool_call_id": id, "content": result });
        let arguments = json!({ "type": "object", "properties": {} });
        let tools = [Tool { name: NAME.to_owned(), about: NAME.to_owned(), arguments }];
        let mut asked = messages(&[("user", &user)]);
        // A reply with more after it, as a call has: templates write the last one otherwise (Qwen 3 shows
        // that it did not think).
        let spoken = [&asked[..], &messages(&[("assistant", &assistant), ("user", &user)])].concat();
        let several =
            [&asked[..], &[calls(&IDS.map(call)), result_message(IDS[0]), result_message(IDS[1])]].concat();
        asked.extend([calls(&[call(IDS[0])]), result_message(IDS[0])]);
        let rendered = |messages: &[serde_json::Value]| renderer.render(messages, Some(&tools)).ok();
        let (spoken, called, several) = (rendered(&spoken)?, rendered(&asked)?, rendered(&several));
        let (header, _) = spoken.split_once(&user)?.1.split_once(&assistant)?;
        let call = called.split_once(&user)?.1.strip_prefix(header)?;
        let (head, rest) = call.split_once(NAME)?;
        let (middle, rest) = rest.split_once('{')?;
        let end = 1 + arguments_end(rest)?;
        let (tail, after) = rest.split_at(end).1.split_once(&result)?;
        let (markup, head) = split_markup(head, tokenizer);
        let is_text = |text: &str| split_markup(text, tokenizer).0.is_empty();
        if !is_text(middle) || head.trim().is_empty() && markup.is_empty() {
            return None;
        }
        let close = &tail[..tail.len() - tail.trim_start_matches(['}', ']', ')']).len()];
        let pieces = [
            SkeletonPiece::Text(tail[close.len()..].to_owned()),
            SkeletonPiece::Content(RESULT),
            SkeletonPiece::Text(after.to_owned()),
        ];
        let is_empty = |piece: &SkeletonPiece| matches!(piece, SkeletonPiece::Text(text) if text.is_empty());
        let joint = several.and_then(|several| {
            let first = called.split_once(tail)?.0;
            let between = several.strip_prefix(first)?.split_once(NAME)?.0.strip_prefix(close)?;
            let between = between.strip_suffix(&head)?;
            Joint::new(between, &tail[close.len()..], tokenizer)
        });
        Some(Self {
            joint,
            opening: tokenizer.encode_template(&markup, After::Text).ok()?,
            head,
            middle: middle.to_owned(),
            close: close.to_owned(),
            result: Some(pieces.into_iter().filter(|piece| !is_empty(piece)).collect()),
        })
    }

    /// What a call is, after its opening. White space before it is let pass.
    pub(crate) fn grammar(&self, tools: &Tools) -> Grammar {
        let start = "start: SPACE? call\nSPACE: /[ \\t\\n\\r]+/\n";
        self.lark(start, self.head.trim_start(), tools.list.iter())
    }

    /// Grammar of a requested call, of any tool or a given one, after its opening: as the template writes it.
    /// (If white space were allowed, a model that would rather say something else could write it for ever.)
    pub(crate) fn forced_grammar(&self, tools: &Tools, name: Option<&str>) -> Grammar {
        let named = tools.list.iter().filter(|tool| name.is_none_or(|name| tool.name == name));
        self.lark("start: call\n", self.forced_head(), named)
    }

    /// True if a reply of these ids, with this speech, is or ends with a call.
    pub(super) fn is_in(&self, ids: &[u32], speech: &str) -> bool {
        match self.opening.len() {
            0 => speech.trim_start().starts_with(self.head.trim_start()),
            n => ids.windows(n).any(|ids| ids == self.opening),
        }
    }

    fn forced_head(&self) -> &str {
        if self.opening.is_empty() { self.head.trim_start() } else { &self.head }
    }

    fn lark<'t>(&self, start: &str, head: &str, tools: impl Iterator<Item = &'t Tool>) -> Grammar {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (mut lark, mut names, rest) = (String::new(), Vec::new(), &self.middle);
        for (n, tool) in tools.enumerate() {
            names.push(format!("call{n}"));
            let opened = quoted(&format!("{head}{}{rest}", tool.name));
            let close = if self.close.is_empty() { String::new() } else { quoted(&self.close) };
            let schema = with_spacing(&enforced(&tool.arguments));
            lark += &format!("call{n}: {opened} arguments{n} {close}\narguments{n}: %json {schema}\n");
        }
        Grammar::Lark(format!("{start}call: {}\n{lark}", names.join(" | ")))
    }

    /// The text of a call after its opening, as the template writes it.
    pub(super) fn spell(&self, call: &Call) -> String {
        let (head, arguments) = (self.forced_head(), spaced(&call.arguments));
        format!("{head}{}{}{arguments}{}", call.tool, self.middle, self.close)
    }

    /// The first character of a call that begins with text.
    pub(crate) fn first(&self) -> Option<char> {
        self.head.trim_start().chars().next().filter(|_| self.opening.is_empty())
    }

    /// Reads the text of a call of one of these tools, its opening left out; `None`: it is not a whole call.
    pub(crate) fn read(&self, tools: &Tools, text: &str) -> Option<Call> {
        let rest = text.trim().strip_prefix(self.head.trim_start())?;
        // The name of a tool may begin another's.
        tools.list.iter().find_map(|tool| {
            let rest = rest.strip_prefix(&tool.name)?.strip_prefix(self.middle.trim_end())?;
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
            let arguments = values.next()?.ok().filter(serde_json::Value::is_object)?;
            let is_whole = rest[values.byte_offset()..].trim_start().starts_with(&self.close);
            is_whole.then(|| Call { tool: tool.name.clone(), arguments })
        })
    }
}

impl CallForm {
    /// Reads a partial text of calls of these tools, including the first one's opening (`opening`): those
    /// whose tool is named.
    pub(crate) fn so_far<'a>(&self, tools: &'a Tools, opening: &str, text: &'a str) -> Vec<CallSoFar<'a>> {
        let (mut calls, mut rest) = (Vec::new(), text.trim_start().strip_prefix(opening));
        while let Some((call, after)) = rest.and_then(|rest| self.first_so_far(tools, rest)) {
            calls.push(call);
            let after = after.and_then(|after| after.trim_start().strip_prefix(&self.close));
            rest = after.zip(self.joint.as_ref()).and_then(|(after, joint)| after.strip_prefix(&joint.text));
        }
        calls
    }

    /// The call at the beginning of a text, without its opening, and what follows its arguments if they are
    /// complete.
    fn first_so_far<'a>(&self, tools: &'a Tools, text: &'a str) -> Option<(CallSoFar<'a>, Option<&'a str>)> {
        let rest = text.trim_start().strip_prefix(self.head.trim_start())?;
        tools.list.iter().find_map(|tool| {
            let arguments = rest.strip_prefix(&tool.name)?.strip_prefix(self.middle.trim_end())?.trim_start();
            // The name of a tool may begin another's: where the arguments begin, it has ended.
            let arguments = arguments.starts_with('{').then_some(arguments)?;
            let mut values =
                serde_json::Deserializer::from_str(arguments).into_iter::<serde::de::IgnoredAny>();
            let is_whole = matches!(values.next(), Some(Ok(_)));
            let end = if is_whole { values.byte_offset() } else { arguments.len() };
            let call = CallSoFar { tool: &tool.name, arguments: &arguments[..end] };
            Some((call, is_whole.then(|| &arguments[end..])))
        })
    }
}

impl Tool {
    /// As templates know it (OpenAI's form, which Hugging Face's templates take).
    pub(crate) fn as_json(&self) -> serde_json::Value {
        let function = json!({ "name": self.name, "description": self.about, "parameters": self.arguments });
        json!({ "type": "function", "function": function })
    }
}

/// Name of the made-up tool, and of its only argument.
const NAME: &str = "greenroom_probe";
const KEY: &str = "greenroom_key";
/// Some templates insist on nine letters or digits.
const IDS: [&str; 2] = ["call00001", "call00002"];

/// The length of the rest of a JSON object after its `{`, which holds [`KEY`] alone.
fn arguments_end(rest: &str) -> Option<usize> {
    let value = rest.rfind(KEY)?;
    let close = rest[value..].find('}')?;
    let inner = &rest[..value + close];
    let is_it =
        serde_json::from_str::<serde_json::Value>(&format!("{{{inner}}}")).ok()? == json!({ KEY: KEY });
    is_it.then_some(inner.len())
}

/// Cuts a text after the last special token in it.
fn split_markup(text: &str, tokenizer: &Tokenizer) -> (String, String) {
    let at = tokenizer.end_of_special(text);
    (text[..at].to_owned(), text[at..].to_owned())
}

/// A schema as masks can enforce it. What it says beyond that, who runs the tool checks.
fn enforced(schema: &serde_json::Value) -> serde_json::Value {
    let relaxed = Grammar::json_schema(schema).relaxed().ok();
    let text = relaxed.and_then(|relaxed| serde_json::from_str(relaxed.grammar.text()).ok());
    text.unwrap_or_else(|| schema.clone())
}

/// A schema whose JSON has one space after `,` and `:`.
fn with_spacing(schema: &serde_json::Value) -> serde_json::Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        let guidance = json!({ "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false });
        fields.insert("x-guidance".to_owned(), guidance);
    }
    schema
}
