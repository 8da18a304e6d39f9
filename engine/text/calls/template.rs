//! The form of calls, found by rendering some through a chat template.

use super::arguments::{ArgumentsForm, JsonType, PairsForm, ValueForm};
use super::markup::Markup;
use super::notation::Notation;
use super::{CallForm, Cue, Joint};
use crate::Tool;
use crate::conversation::FIXED_DATE;
use crate::text::render::{RESULT, Renderer, SkeletonPiece, from_json, jinja, messages, placeholder};
use crate::text::tokenizer::{After, Tokenizer};
use serde_json::{Value, json};

/// Ids of the calls; a model's calls have the first one, too. (Some templates insist on nine letters or digits.)
const IDS: [&str; 2] = ["call00001", "call00002"];
/// Name of the made-up tool, which stands for any in what is between a call and the next reply; and of its
/// arguments.
pub(super) const NAME: &str = "greenroom_probe";
const KEY: &str = "greenroom_key";
const KEYS: [&str; 2] = ["greenroom_one", "greenroom_two"];
const WORDS: [&str; 2] = ["greenroom value", "greenroom other"];
/// A string that a quoted form must escape.
const QUOTES: &str = "greenroom \"quotes\"";
const NUMBER: u32 = 73_193;

/// Calls as models write them whose template describes tools, but prints no past calls (Kimi-K2's does so by changing
/// a list, which minijinja has not): what its source names, and a template of the calls of a reply.
const UNPRINTED: [(&str, &str); 5] = [
    (
        "<|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|>{% for c in calls %}<|tool_call_begin|>functions.{{ c.name }}:{{ loop.index0 }}\
         <|tool_call_argument_begin|>{{ c.arguments|tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
    ),
    ("<|tool_list_start|>", LFM2),
    ("List of tools: [", LFM2),
    (
        "<|tool_call|>",
        r#"<|tool_call|>[{% for c in calls %}{"name": {{ c.name|tojson }}, "arguments": {{ c.arguments|tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]"#,
    ),
    (
        "<tool_call>",
        "{% for c in calls %}<tool_call>\n{\"name\": {{ c.name|tojson }}, \"arguments\": {{ c.arguments|tojson }}}\n</tool_call>\
         {% if not loop.last %}\n{% endif %}{% endfor %}",
    ),
];

const LFM2: &str = "<|tool_call_start|>[{% for c in calls %}{{ c.name }}({% for k, v in c.arguments|items %}{{ k }}={{ v|tojson }}\
    {% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]<|tool_call_end|>";

/// A template and the least conversation with a call.
struct Probe<'a> {
    renderer: &'a Renderer<'a>,
    tokenizer: &'a Tokenizer,
    tools: [Tool; 1],
    given: Given,
}

/// How calls are given to a template.
#[derive(Clone, Copy)]
enum Given {
    /// As calls, whose arguments are an object.
    Calls,
    /// As calls, whose arguments are the text of one.
    Texts,
    /// As the text of a reply, which this template writes.
    Reply(&'static str),
}

/// A rendered call, from the end of the user's message on.
struct RenderedCall {
    /// Text before the name.
    before: String,
    /// Text from the end of the name to the result of the call.
    after: String,
    /// Text after the result.
    end: String,
}

impl Probe<'_> {
    /// Renders [user, calls, results].
    fn render(&self, calls: &[Value]) -> Option<String> {
        self.render_with(calls, &placeholder(RESULT))
    }

    fn render_with(&self, calls: &[Value], result: &str) -> Option<String> {
        let call = |(arguments, id): (&Value, &str)| {
            let is_text = matches!(self.given, Given::Texts);
            let arguments = if is_text { json!(arguments.to_string()) } else { arguments.clone() };
            let function = json!({ "name": NAME, "arguments": arguments });
            json!({ "id": id, "type": "function", "function": function })
        };
        let said = match self.given {
            Given::Calls | Given::Texts => {
                let calls: Vec<Value> = calls.iter().zip(IDS).map(call).collect();
                json!({ "role": "assistant", "content": "", "tool_calls": calls })
            }
            Given::Reply(template) => {
                let calls: Vec<Value> =
                    calls.iter().map(|arguments| json!({ "name": NAME, "arguments": arguments })).collect();
                json!({ "role": "assistant", "content": filled(template, &calls)? })
            }
        };
        let result =
            |id: &str| json!({ "role": "tool", "name": NAME, "tool_call_id": id, "content": result });
        let mut asked = messages(&[("user", &placeholder(1))]);
        asked.push(said);
        asked.extend(IDS.iter().take(calls.len()).map(|id| result(id)));
        let rendered = self.renderer.render(&asked, Some(&self.tools)).ok()?;
        Some(rendered.split_once(&placeholder(1))?.1.to_owned())
    }

    fn call(&self, arguments: &Value) -> Option<RenderedCall> {
        let rendered = self.render(std::slice::from_ref(arguments))?;
        let (before, rest) = rendered.split_once(NAME)?;
        let (after, end) = rest.split_once(&placeholder(RESULT))?;
        Some(RenderedCall { before: before.to_owned(), after: after.to_owned(), end: end.to_owned() })
    }

    fn markup(&self, text: &str) -> Markup {
        Markup::new(text, self.tokenizer)
    }

    /// Length of the end that two texts have in common, which begins within no special token.
    fn common_suffix(&self, a: &str, b: &str) -> usize {
        let pairs = a.chars().rev().zip(b.chars().rev());
        let mut n: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let within = |text: &str, n: usize| {
            let (at, spans) = (text.len() - n, self.tokenizer.special_spans(text));
            spans
                .into_iter()
                .find(|(span, _)| span.start < at && at < span.end)
                .map(|(span, _)| text.len() - span.end)
        };
        while let Some(less) = within(a, n).or_else(|| within(b, n)) {
            n = less;
        }
        n
    }

    /// Cuts what follows the arguments after what the model still says of it: up to the first special token, or
    /// with it, if nothing else says that the arguments are complete.
    fn cut_close<'t>(&self, tail: &'t str) -> (&'t str, &'t str) {
        let spans = self.tokenizer.special_spans(tail);
        let (begin, end) = spans.first().map_or((tail.len(), tail.len()), |(span, _)| (span.start, span.end));
        let close = tail[..begin].trim_end().len();
        tail.split_at(if close == 0 { end } else { close })
    }

    /// The notation in which arguments are written, and the rest of a call's text.
    fn notation(&self) -> Option<(Notation, String)> {
        let said = |arguments: &Value| self.call(arguments).map(|call| call.after);
        let one = said(&json!({ KEY: WORDS[0] }))?;
        let quote = one.strip_prefix(&format!("{{{KEY}:"))?.split_once(WORDS[0])?.0;
        let notation = Notation { quote: self.markup(quote) };
        let is_token = matches!(&notation.quote.pieces[..], [(Some(_), _)]);
        let tail = is_token.then(|| one.strip_prefix(&format!("{{{KEY}:{quote}{}{quote}}}", WORDS[0])))??;
        let nested = json!({ KEYS[1]: [1, WORDS[0], { KEY: true }], KEYS[0]: { KEY: -0.5, KEYS[0]: [] } });
        let written: String = notation.pieces(&nested).into_iter().map(|(_, text)| text).collect();
        (said(&nested)? == format!("{written}{tail}")).then(|| (notation.clone(), tail.to_owned()))
    }

    /// Middle, form and close of arguments that are written one by one, and the rest of a call's text.
    fn pairs(&self) -> Option<(String, PairsForm, String, String)> {
        let word = |key: &str, value: Value| self.call(&json!({ key: value }));
        let one = word(KEYS[0], json!(WORDS[0]))?.after;
        let (before_key, rest) = one.split_once(KEYS[0])?;
        let (open, post) = rest.split_once(WORDS[0])?;
        let two = self.call(&json!({ KEYS[0]: WORDS[0], KEYS[1]: WORDS[1] }))?.after;
        let between = two.strip_prefix(&format!("{before_key}{}{open}{}", KEYS[0], WORDS[0]))?;
        let (between, rest) = between.split_once(KEYS[1])?;
        (rest == format!("{open}{}{post}", WORDS[1])).then_some(())?;
        let n = self.common_suffix(before_key, between);
        let (middle, before) = before_key.split_at(before_key.len() - n);
        let between = &between[..between.len() - n];
        let n = self.tokenizer.common_length(between, post);
        let ((after, separator), tail) = (between.split_at(n), &post[n..]);
        let around = |value: Value, texts: &[&str]| {
            let call = word(KEYS[0], value)?.after;
            let rest = call.strip_prefix(&format!("{before_key}{}", KEYS[0]))?.strip_suffix(tail)?;
            let (open, close) = texts.iter().find_map(|text| rest.rsplit_once(text))?;
            Some(ValueForm { open: self.markup(open), close: self.markup(close) })
        };
        let is_raw = around(json!(QUOTES), &[QUOTES]).is_some() && !open.ends_with('\'');
        let quote = open.chars().next_back().filter(|last| !is_raw && (*last == '"' || *last == '\''));
        let unquoted = |open: &str, after: &str| {
            let Some(quote) = quote else { return Some((open.to_owned(), after.to_owned())) };
            Some((open.strip_suffix(quote)?.to_owned(), after.strip_prefix(quote)?.to_owned()))
        };
        let (open, after) = unquoted(open, after)?;
        let form = |of: JsonType| match of {
            JsonType::String => Some(ValueForm { open: self.markup(&open), close: self.markup(&after) }),
            JsonType::Number => around(json!(NUMBER), &[&NUMBER.to_string()]),
            JsonType::Boolean => around(json!(true), &["true", "True"]),
            JsonType::Null => around(Value::Null, &["null", "None"]),
            JsonType::Array => around(
                json!([1, WORDS[0]]),
                &[
                    &json!([1, WORDS[0]]).to_string().replace(',', ", "),
                    &format!("[1, '{}']", WORDS[0]),
                    &json!([1, WORDS[0]]).to_string(),
                ],
            ),
            JsonType::Object => around(
                json!({ KEY: WORDS[0] }),
                &[
                    &format!("{{\"{KEY}\": \"{}\"}}", WORDS[0]),
                    &format!("{{'{KEY}': '{}'}}", WORDS[0]),
                    &json!({ KEY: WORDS[0] }).to_string(),
                ],
            ),
        };
        let values: Vec<ValueForm> = JsonType::ALL.into_iter().map(form).collect::<Option<_>>()?;
        let values = values.try_into().ok()?;
        // A raw string ends where what closes it begins.
        (!is_raw || !after.trim().is_empty()).then_some(())?;
        let (close, tail) = self.cut_close(tail);
        let form =
            PairsForm { before: self.markup(before), separator: self.markup(separator), values, is_raw };
        Some((middle.to_owned(), form, close.to_owned(), tail.to_owned()))
    }
}

impl CallForm {
    /// The form in which a template writes calls; `None`: it knows no tools, or writes calls in another way than
    /// by a name and arguments after it. `thought`: marks that may stand before a call, and end with this.
    pub(in crate::text) fn of(
        renderer: &Renderer<'_>,
        tokenizer: &Tokenizer,
        thought: Option<&str>,
    ) -> Option<Self> {
        let arguments = json!({ "type": "object", "properties": {} });
        let tools = [Tool { name: NAME.to_owned(), about: NAME.to_owned(), arguments }];
        let probe = |given| Probe { renderer, tokenizer, tools: tools.clone(), given };
        let (given, known) = ([Given::Calls, Given::Texts].map(probe), json!({ KEY: KEY }));
        let prints = |probe: &Probe<'_>| {
            probe.render(std::slice::from_ref(&known)).is_some_and(|text| text.contains(KEY))
        };
        match given.iter().find(|probe| prints(probe)) {
            Some(probe) => Self::of_probe(probe, thought),
            None => {
                let named = UNPRINTED.iter().find(|(name, _)| renderer.source().contains(name));
                let asked = messages(&[("user", "")]);
                let described = renderer.render(&asked, Some(&tools)).is_ok_and(|text| text.contains(NAME));
                let named = named.filter(|_| described);
                named.and_then(|(_, reply)| Self::of_probe(&probe(Given::Reply(reply)), thought))
            }
        }
    }

    fn of_probe(probe: &Probe<'_>, thought: Option<&str>) -> Option<Self> {
        let Probe { renderer, tokenizer, .. } = *probe;
        let call = probe.call(&json!({ KEY: KEY }))?;
        // A reply with more after it, as a call has: templates write the last one otherwise (Qwen 3 shows
        // that it did not think).
        let [user, assistant] = [1, 2].map(placeholder);
        let spoken = messages(&[("user", &user), ("assistant", &assistant), ("user", &user)]);
        let spoken = renderer.render(&spoken, Some(&probe.tools)).ok()?;
        let header = spoken.split_once(&user)?.1.split_once(&assistant)?.0;
        let n = tokenizer.common_length(header, &call.before);
        let markup = without_thought(&call.before[n..], thought);
        let spans = tokenizer.special_spans(markup);
        let end_of_opening = spans.first().map_or(0, |(span, _)| span.end);
        let (opening, head) = markup.split_at(end_of_opening);
        let (opening, head) = (opening.trim(), if opening.is_empty() { markup } else { head });
        if head.trim().is_empty() && opening.is_empty() {
            return None;
        }
        // A token that other replies hold, too, begins no call.
        let is_common = |text: &str| !opening.is_empty() && text.contains(opening);
        let after = spoken.split_once(&assistant)?.1;
        if is_common(header)
            || after.starts_with(opening) && !opening.is_empty()
            || thought.is_some_and(is_common)
        {
            return None;
        }
        let json = || {
            let (middle, rest) = call.after.split_once('{')?;
            let (_, tail) = rest.split_at(arguments_end(rest)? + 1);
            let close = &tail[..tail.len() - tail.trim_start_matches(['}', ']', ')']).len()];
            let tail = tail[close.len()..].to_owned();
            Some((middle.to_owned(), ArgumentsForm::Json, close.to_owned(), tail))
        };
        let notation = || {
            let (form, tail) = probe.notation()?;
            Some((String::new(), ArgumentsForm::Notation(form), String::new(), tail))
        };
        let pairs = || {
            let (middle, form, close, tail) = probe.pairs()?;
            Some((middle, ArgumentsForm::Pairs(Box::new(form)), close, tail))
        };
        let (middle, arguments, close, tail) = json().or_else(notation).or_else(pairs)?;
        (!middle.contains(NAME)).then_some(())?;
        let pieces = [
            SkeletonPiece::Text(tail.clone()),
            SkeletonPiece::Content(RESULT),
            SkeletonPiece::Text(call.end.clone()),
        ];
        let is_empty = |piece: &SkeletonPiece| matches!(piece, SkeletonPiece::Text(text) if text.is_empty());
        let one = json!({ KEY: KEY });
        let joint = probe.render(&[one.clone(), one]).and_then(|several| {
            let first = format!("{}{NAME}{}", call.before, call.after.strip_suffix(&tail)?);
            let (between, second) = several.strip_prefix(&first)?.split_once(NAME)?;
            second.starts_with(&middle).then_some(())?;
            Joint::new(between.strip_suffix(head)?, &tail, tokenizer)
        });
        let quoted = probe.render_with(&[json!({ KEY: KEY })], QUOTES);
        let escaped = serde_json::Value::from(QUOTES).to_string();
        let is_result_quoted = quoted.is_some_and(|text| text.contains(escaped.trim_matches('"')));
        let markup = |text: &str| Markup::new(text, tokenizer);
        Some(Self {
            cue: Cue::Name,
            replaces_header: n < header.trim_end().len() || !opening.is_empty(),
            ends_thought: false,
            is_result_quoted,
            joint,
            opening: tokenizer.encode_template(opening, After::Text).ok()?,
            head: markup(head),
            bare_head: markup(head.trim_start()),
            middle: markup(&middle),
            arguments,
            close: markup(&close),
            result: Some(pieces.into_iter().filter(|piece| !is_empty(piece)).collect()),
        })
    }
}

/// The text of calls that a template writes.
fn filled(template: &str, calls: &[Value]) -> Option<String> {
    let jinja = jinja(FIXED_DATE);
    let rendered = jinja
        .template("calls", template)
        .ok()?
        .render(minijinja::context! { calls => from_json(&json!(calls)) });
    rendered.ok()
}

/// A text after the last thought in it, whose end is marked so.
fn without_thought<'t>(text: &'t str, close: Option<&str>) -> &'t str {
    let end = close.and_then(|close| Some(text.rfind(close)? + close.len()));
    end.map_or(text, |end| text[end..].trim_start())
}

/// The length of the rest of a JSON object after its `{`, which holds [`KEY`] alone.
fn arguments_end(rest: &str) -> Option<usize> {
    let value = rest.rfind(KEY)?;
    let close = rest[value..].find('}')?;
    let inner = &rest[..value + close];
    let is_it = serde_json::from_str::<Value>(&format!("{{{inner}}}")).ok()? == json!({ KEY: KEY });
    is_it.then_some(inner.len())
}
