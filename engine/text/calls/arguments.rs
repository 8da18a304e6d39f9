//! The arguments of a call: a JSON object, or a list of names and values, each value between marks that may
//! depend on its type (`<parameter=NAME>VALUE</parameter>`, `<arg_key>NAME</arg_key><arg_value>VALUE</arg_value>`,
//! `NAME=VALUE`).

use super::markup::{CallPiece, Markup, quoted};
use super::notation::Notation;
use super::schema::{PartialArguments, enforced, enforced_arguments, fields_in_order};
use serde_json::{Map, Value, json};

/// How arguments are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// As a JSON object.
    Json,
    /// In a notation of its own.
    Notation(Notation),
    /// One by one.
    Pairs(Box<PairsForm>),
}

/// Arguments one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PairsForm {
    /// Text before a name.
    pub(super) before: Markup,
    /// Text between an argument and the next one.
    pub(super) separator: Markup,
    /// Text around a value, by its type.
    pub(super) values: [ValueForm; JsonType::ALL.len()],
    /// True if strings are not quoted.
    pub(super) is_raw: bool,
}

/// Text around a value: after its name, and after itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueForm {
    pub(super) open: Markup,
    pub(super) close: Markup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonType {
    String,
    Number,
    Boolean,
    Null,
    Array,
    Object,
}

impl JsonType {
    pub(super) const ALL: [Self; 6] =
        [Self::String, Self::Number, Self::Boolean, Self::Null, Self::Array, Self::Object];

    fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::String,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Boolean,
            Value::Null => Self::Null,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    /// False if a schema says that a value has other types.
    fn is_allowed_by(self, schema: &Value) -> bool {
        let is_word = |word: &Value| Self::of_schema(&json!({ "type": word })).is_none_or(|of| of == self);
        match (&schema["type"], schema["anyOf"].as_array().or(schema["oneOf"].as_array())) {
            (Value::Array(words), _) => words.iter().any(is_word),
            (Value::Null, Some(cases)) => cases.iter().any(|case| self.is_allowed_by(case)),
            (Value::Null, None) => Self::of_schema(schema).is_none_or(|of| of == self),
            (word, _) => is_word(word),
        }
    }

    /// The only type that a schema allows; `None`: several, or it is not said.
    fn of_schema(schema: &Value) -> Option<Self> {
        let all_of = |values: &Value| {
            let mut types = values.as_array()?.iter().map(Self::of);
            let first = types.next()?;
            types.all(|it| it == first).then_some(first)
        };
        match schema["type"].as_str() {
            Some("string") => Some(Self::String),
            Some("integer" | "number") => Some(Self::Number),
            Some("boolean") => Some(Self::Boolean),
            Some("null") => Some(Self::Null),
            Some("array") => Some(Self::Array),
            Some("object") => Some(Self::Object),
            Some(_) => None,
            None => schema.get("const").map(Self::of).or_else(|| all_of(&schema["enum"])),
        }
    }
}

impl ArgumentsForm {
    /// Rules of a grammar for the arguments of a schema: one that is named `name`, and others whose names begin
    /// so.
    pub(super) fn rules(&self, name: &str, schema: &Value) -> String {
        match self {
            Self::Json => format!("{name}: %json {}\n", with_spacing(&enforced_arguments(schema))),
            Self::Notation(form) => form.rules(name, schema),
            Self::Pairs(form) => form.rules(name, schema),
        }
    }

    /// Arguments as the template writes them.
    pub(super) fn pieces(&self, arguments: &Value) -> Vec<CallPiece> {
        let form = match self {
            Self::Json => return vec![(None, super::spaced(arguments))],
            Self::Notation(form) => return form.pieces(arguments),
            Self::Pairs(form) => form,
        };
        let fields = arguments.as_object().into_iter().flatten().enumerate();
        let pairs = fields.flat_map(|(n, (name, value))| {
            let separator = if n == 0 { &[][..] } else { &form.separator.pieces };
            [separator, &form.pieces(name, value)].concat()
        });
        pairs.collect()
    }

    /// Reads the arguments, of this schema, that a text begins with; `close` follows them. `None`: there is none
    /// of either form, or not yet.
    pub(super) fn read<'t>(
        &self,
        schema: &Value,
        text: &'t str,
        close: &Markup,
    ) -> Option<PartialArguments<'t>> {
        match self {
            Self::Json => read_json(text),
            Self::Notation(form) => form.arguments(text),
            Self::Pairs(form) => Some(form.read(schema, text, close)),
        }
    }
}

fn read_json(text: &str) -> Option<PartialArguments<'_>> {
    let text = text.trim_start();
    // The name of a tool may begin another's: where the arguments begin, it has ended.
    let text = text.starts_with('{').then_some(text)?;
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let is_whole = matches!(values.next(), Some(Ok(_)));
    let end = if is_whole { values.byte_offset() } else { text.len() };
    Some(PartialArguments { json: text[..end].to_owned(), rest: is_whole.then(|| &text[end..]) })
}

impl PairsForm {
    fn value_form(&self, of: JsonType) -> &ValueForm {
        &self.values[of as usize]
    }

    fn pieces(&self, name: &str, value: &Value) -> Vec<CallPiece> {
        let ValueForm { open, close } = self.value_form(JsonType::of(value));
        let text = match value {
            Value::String(text) if self.is_raw => text.clone(),
            value => super::spaced(value),
        };
        let (name, value) = ((None, name.to_owned()), (None, text));
        [&self.before.pieces[..], &[name], &open.pieces, &[value], &close.pieces].concat()
    }

    fn rules(&self, name: &str, schema: &Value) -> String {
        let properties: Vec<(&String, &Value)> =
            schema["properties"].as_object().into_iter().flatten().collect();
        fields_in_order(name, &properties, schema, &self.separator.lark, |rule, key, of| {
            self.pair(rule, key, of, schema)
        })
    }

    /// The rule of one argument; `root` has the definitions that its schema may refer to.
    fn pair(&self, rule: &str, name: &str, schema: &Value, root: &Value) -> String {
        let head = format!("{} {}", self.before.lark, quoted(name));
        let within = |of: JsonType, value: &str| {
            let ValueForm { open, close } = self.value_form(of);
            format!("{} {value} {}", open.lark, close.lark)
        };
        let json = |schema: &Value| {
            let mut schema = schema.clone();
            if let Some(fields) = schema.as_object_mut() {
                for definitions in ["$defs", "definitions"] {
                    fields.extend(root.get(definitions).map(|all| (definitions.to_owned(), all.clone())));
                }
            }
            format!("%json {}", with_spacing(&enforced(&schema)))
        };
        // A raw value goes on until what closes it: a special token is in no text.
        let raw = |of: JsonType| {
            let ValueForm { open, close } = self.value_form(of);
            if close.lark.starts_with('<') {
                format!("{} {rule}_text {}\n{rule}_text: /(?s:.*)/\n", open.lark, close.lark)
            } else {
                let stop = quoted(&close.text);
                format!("{} {rule}_text\n{rule}_text[suffix={stop}]: /(?s:.*)/\n", open.lark)
            }
        };
        match JsonType::of_schema(schema) {
            Some(JsonType::String) if self.is_raw => match schema["enum"].as_array() {
                Some(values) => {
                    let words: Vec<String> = values.iter().filter_map(Value::as_str).map(quoted).collect();
                    let value = within(JsonType::String, &format!("{rule}_words"));
                    format!("{rule}: {head} {value}\n{rule}_words: {}\n", words.join(" | "))
                }
                None => format!("{rule}: {head} {}", raw(JsonType::String)),
            },
            Some(JsonType::Boolean) => {
                let value = within(JsonType::Boolean, "(\"true\" | \"false\" | \"True\" | \"False\")");
                format!("{rule}: {head} {value}\n")
            }
            Some(JsonType::Null) => {
                format!("{rule}: {head} {}\n", within(JsonType::Null, "(\"null\" | \"None\")"))
            }
            Some(of) => {
                let value = within(of, &format!("{rule}_json"));
                format!("{rule}: {head} {value}\n{rule}_json: {}\n", json(schema))
            }
            None if self.is_raw => format!("{rule}: {head} {}", raw(JsonType::String)),
            None => {
                let value = within(JsonType::String, &format!("{rule}_json"));
                format!("{rule}: {head} {value}\n{rule}_json: {}\n", json(schema))
            }
        }
    }

    fn read<'t>(&self, schema: &Value, text: &'t str, close: &Markup) -> PartialArguments<'t> {
        let (mut fields, mut rest) = (Vec::new(), text);
        while let Some((name, value, after)) = self.read_pair(schema, rest, fields.is_empty()) {
            fields.push(format!("{}: {}", quoted(name), super::spaced(&value)));
            rest = after;
        }
        let is_whole = close.strip(rest).or_else(|| close.strip(rest.trim_start())).is_some();
        let json = format!("{{{}{}", fields.join(", "), if is_whole { "}" } else { "" });
        PartialArguments { json, rest: is_whole.then_some(rest) }
    }

    /// The argument that a text begins with: name, value, and what follows.
    fn read_pair<'t>(
        &self,
        schema: &Value,
        text: &'t str,
        is_first: bool,
    ) -> Option<(&'t str, Value, &'t str)> {
        let text = if is_first { text } else { text.strip_prefix(&*self.separator.text)? };
        let named = self.before.strip(text).or_else(|| self.before.strip(text.trim_start()))?;
        let named = named.trim_start();
        // The longest mark first: a short one may begin a longer one.
        let mut forms: Vec<(JsonType, &ValueForm)> = JsonType::ALL.into_iter().zip(&self.values).collect();
        forms.sort_by_key(|(_, form)| std::cmp::Reverse(form.open.text.len()));
        let found = forms.iter().filter_map(|(of, form)| {
            let open = form.open.text.trim_end_matches(' ');
            Some((named.find(open)?, *of, *form))
        });
        let (at, _, form) = found.min_by_key(|(at, ..)| *at)?;
        let (name, rest) = named.split_at(at);
        let rest = form.open.strip(rest)?;
        let declared = JsonType::of_schema(&schema["properties"][name]);
        let opens_line = form.open.text.ends_with('\n');
        let rest = if opens_line { rest.strip_prefix('\n').unwrap_or(rest) } else { rest };
        if !self.is_raw {
            let (value, length) = quoted_value(rest)?;
            return Some((name, value, form.close.strip(&rest[length..])?));
        }
        let end = rest.find(form.close.text.trim_end())?;
        let (value, after) = (&rest[..end], form.close.strip(&rest[end..])?);
        let parsed = || {
            let (value, declared) = (value.trim(), &schema["properties"][name]);
            let word = || python_word(value).filter(|(word, _)| *word == value).map(|(_, value)| value);
            let parsed = serde_json::from_str(value).ok().or_else(word)?;
            JsonType::of(&parsed).is_allowed_by(declared).then_some(parsed)
        };
        let value = match declared {
            Some(JsonType::String) => Value::from(value),
            _ => parsed().unwrap_or_else(|| Value::from(value)),
        };
        Some((name, value, after))
    }
}

/// The value that a text begins with, and its length: JSON, or a word of Python's. `None`: it is not whole.
fn quoted_value(text: &str) -> Option<(Value, usize)> {
    let n = text.bytes().take_while(|byte| b"+-.0123456789eE".contains(byte)).count();
    if n > 0 {
        // More digits may follow at the end.
        return (n < text.len()).then(|| Some((serde_json::from_str(&text[..n]).ok()?, n)))?;
    }
    if let Some((word, value)) = python_word(text) {
        return Some((value, word.len()));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// A word that is a value in Python or JSON, at the beginning of a text.
fn python_word(text: &str) -> Option<(&'static str, Value)> {
    let words = [
        ("True", Value::Bool(true)),
        ("False", Value::Bool(false)),
        ("None", Value::Null),
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("null", Value::Null),
    ];
    words.into_iter().find(|(word, _)| text.starts_with(word))
}

/// A schema whose JSON has one space after `,` and `:`.
fn with_spacing(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        let guidance = json!({ "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false });
        fields.insert("x-guidance".to_owned(), guidance);
    }
    schema
}

/// Arguments that were read, as an object.
pub(super) fn object(json: &str) -> Option<Value> {
    serde_json::from_str::<Map<String, Value>>(json).ok().map(Value::Object)
}
