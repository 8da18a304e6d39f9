//! Rendering of conversations through a chat template, within bounds and on a given day.

use crate::text::tokenizer::Tokenizer;
use crate::{Date, Error, ErrorKind, Reasoning, Result, Tool};
use greenroom_jinja::{Jinja, Template};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::value::{Enumerator, Kwargs, Object, Value};
use minijinja::{UndefinedBehavior, context};
use serde::Serialize as _;
use std::sync::Arc;

/// A piece of a rendered skeleton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkeletonPiece {
    /// Text of the template itself.
    Text(String),
    /// Place of the content with this number.
    Content(usize),
}

/// The result of a call.
pub(super) const RESULT: usize = 4;

/// Private-use characters around a number: no template looks for them, none of them is whitespace.
pub(super) fn placeholder(n: usize) -> String {
    format!("\u{e000}{n}\u{e001}")
}

pub(super) fn template_error(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Template, detail)
}

pub(super) fn refused(error: &minijinja::Error) -> Error {
    template_error(greenroom_jinja::shortened(format!("{error:#}")))
}

/// A template with what Hugging Face's renderer gives it, at noon of a day.
pub(super) struct Renderer<'a> {
    template: Template<'a>,
    source: &'a str,
    bos: Option<String>,
    eos: Option<String>,
    date: Date,
    reasoning: Reasoning,
}

impl<'a> Renderer<'a> {
    /// The environment must be [`jinja`]'s of the same day.
    pub(super) fn new(jinja: &'a Jinja, source: &'a str, date: Date, tokenizer: &Tokenizer) -> Result<Self> {
        let template = jinja.template("chat", source).map_err(|e| refused(&e))?;
        let (bos, eos) = (tokenizer.bos().0, tokenizer.eos());
        Ok(Self { template, source, bos, eos, date, reasoning: Reasoning::None })
    }

    /// The template itself.
    pub(super) fn source(&self) -> &str {
        self.source
    }

    /// The same, for replies with more or less reasoning where the template has a switch for it.
    pub(super) fn thinking(self, reasoning: Reasoning) -> Self {
        Self { reasoning, ..self }
    }

    /// Renders messages with the generation prompt.
    pub(super) fn render(&self, messages: &[serde_json::Value], tools: Option<&[Tool]>) -> Result<String> {
        let listed =
            |form: fn(&Tool) -> serde_json::Value| tools.map(|tools| tools.iter().map(form).collect());
        let rendered = self.render_as(messages, listed(Tool::as_json), true);
        match (rendered, listed(Tool::as_described_json)) {
            // Some insist on a description of each tool and parameter (Hermes, Command R+).
            (Err(e), described @ Some(_)) => self.render_as(messages, described, true).map_err(|_| e),
            (rendered, _) => rendered,
        }
    }

    /// Renders messages the last of which is complete.
    pub(super) fn history(&self, messages: &[serde_json::Value]) -> Result<String> {
        self.render_as(messages, None, false)
    }

    fn render_as(
        &self,
        messages: &[serde_json::Value],
        listed: Option<Vec<serde_json::Value>>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let thinks = self.reasoning != Reasoning::None;
        let effort = match self.reasoning {
            Reasoning::None | Reasoning::Low => "low",
            Reasoning::Medium => "medium",
            Reasoning::High => "high",
        };
        let rendered = self.template.render(context! {
            messages => messages.iter().map(from_json).collect::<Value>(),
            tools => listed.as_ref().map(|tools| tools.iter().map(from_json).collect::<Value>()),
            // As the template of firefunction has them.
            functions => listed.map_or(String::new(), |tools| spaced(&tools.into())),
            datetime => clock(self.date, "%b %d %Y %H:%M:%S GMT").map_err(|e| refused(&e))?,
            // As those of Llama have it.
            date_string => clock(self.date, "%d %b %Y").map_err(|e| refused(&e))?,
            add_generation_prompt,
            bos_token => self.bos.clone().unwrap_or_default(),
            eos_token => self.eos.clone().unwrap_or_default(),
            enable_thinking => thinks,
            thinking => thinks,
            reasoning_effort => effort,
        });
        rendered.map_err(|e| refused(&e))
    }

    pub(super) fn pieces(&self, texts: &[(&str, &str)], expected: &[usize]) -> Result<Vec<SkeletonPiece>> {
        cut(&self.render(&messages(texts), None)?, expected)
    }
}

/// Messages by role and content.
pub(super) fn messages(texts: &[(&str, &str)]) -> Vec<serde_json::Value> {
    texts.iter().map(|(role, content)| serde_json::json!({ "role": role, "content": content })).collect()
}

/// The environment of chat templates on a day.
pub(super) fn jinja(date: Date) -> Jinja {
    let refuse = |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message))
    };
    Jinja::new(UndefinedBehavior::Lenient)
        .with_methods(minijinja_contrib::pycompat::unknown_method_callback)
        .with_function("raise_exception", refuse)
        .with_function("strftime_now", move |format: String| clock(date, &format))
        .with_filter("tojson", to_json)
        // In Python `None` is not iterable.
        .with_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok())
}

/// `{% generation %}` marks training targets in some templates; for rendering it is a block without effect.
pub(super) fn without_generation_tags(source: &str) -> String {
    let open = regex::Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").expect("a valid pattern");
    let close = regex::Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").expect("a valid pattern");
    let opened = open.replace_all(source, "{%$1 if true $2%}");
    close.replace_all(&opened, "{%$1 endif $2%}").into_owned()
}

/// True if a template may print the day.
pub(super) fn asks_for_date(source: &str) -> bool {
    ["strftime_now", "datetime", "date_string"].iter().any(|name| source.contains(name))
}

/// Noon of a day, in UTC: a prompt never depends on the time at which it was rendered.
fn clock(date: Date, format: &str) -> Result<String, minijinja::Error> {
    let wrong = |e: jiff::Error| minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, e.to_string());
    let noon = date.at(12, 0, 0, 0).to_zoned(TimeZone::UTC).map_err(wrong)?;
    strtime::format(format, &noon).map_err(wrong)
}

/// An object of JSON, its keys in their order.
#[derive(Debug)]
struct Fields(Vec<(String, Value)>);

impl Object for Fields {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Value::from(name.as_str())).collect())
    }
}

/// JSON as templates see it.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Object(map) => {
            Value::from_object(Fields(map.iter().map(|(k, v)| (k.clone(), from_json(v))).collect()))
        }
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => Value::from(whole),
            None => Value::from(number.as_f64().unwrap_or_default()),
        },
    }
}

/// Maximum number of spaces that a line of JSON is indented by, for each level.
const MAX_INDENT: usize = 16;

/// JSON as Python's `json.dumps` writes it: no HTML escapes, a space after commas and colons.
fn to_json(value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let wrong = |e: serde_json::Error| {
        minijinja::Error::new(minijinja::ErrorKind::BadSerialization, "tojson").with_source(e)
    };
    let value = serde_json::to_value(&value).map_err(wrong)?;
    let Some(indent) = indent else { return Ok(Value::from_safe_string(spaced(&value))) };
    let indent = " ".repeat(indent.min(MAX_INDENT));
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter)).map_err(wrong)?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&text).into_owned()))
}

/// JSON with a space after `,` and `:`.
pub(super) fn spaced(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Array(items) => {
            format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", "))
        }
        serde_json::Value::Object(map) => {
            let item =
                |(k, v): (&String, &serde_json::Value)| format!("{}: {}", serde_json::json!(k), spaced(v));
            format!("{{{}}}", map.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// Cuts a rendered text at its placeholders, which must be exactly `expected`, each once and in this order.
pub(super) fn cut(rendered: &str, expected: &[usize]) -> Result<Vec<SkeletonPiece>> {
    let mut pieces = Vec::new();
    let mut rest = rendered;
    for content in expected {
        let mark = placeholder(*content);
        let Some((before, after)) = rest.split_once(&mark) else {
            return Err(template_error("it drops a message, or changes the order of messages"));
        };
        if !before.is_empty() {
            pieces.push(SkeletonPiece::Text(before.to_owned()));
        }
        pieces.push(SkeletonPiece::Content(*content));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(SkeletonPiece::Text(rest.to_owned()));
    }
    let marked = |p: &SkeletonPiece| matches!(p, SkeletonPiece::Text(text) if text.contains('\u{e000}'));
    if pieces.iter().any(marked) {
        return Err(template_error("it prints a message twice, or changes the order of messages"));
    }
    Ok(pieces)
}
