//! Arguments in a notation that is nearly JSON (Gemma 4): names without quotes, strings between special tokens, no
//! spaces, fields in the order of their names: `{city:<|"|>Rome<|"|>,days:[1,2]}`.

use super::markup::{CallPiece, Markup, quoted};
use super::schema::{PartialArguments, enforced, fields_in_order};
use serde_json::{Map, Value};

/// Most values within each other that are under a schema of their own.
const MAX_DEPTH: usize = 12;
/// Most values within each other that are read.
const MAX_READ: usize = 64;

/// The notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notation {
    /// The special token around strings.
    pub(super) quote: Markup,
}

impl Notation {
    /// A value as it is written.
    pub(super) fn pieces(&self, value: &Value) -> Vec<CallPiece> {
        let text = |text: &str| vec![(None, text.to_owned())];
        let joined = |items: Vec<Vec<CallPiece>>| items.join(&(None, ",".to_owned()));
        match value {
            Value::String(said) => [&self.quote.pieces[..], &text(said), &self.quote.pieces].concat(),
            Value::Array(items) => {
                let items = joined(items.iter().map(|item| self.pieces(item)).collect());
                [text("["), items, text("]")].concat()
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    [text(&format!("{name}:")), self.pieces(value)].concat()
                };
                let fields = joined(sorted(fields).into_iter().map(field).collect());
                [text("{"), fields, text("}")].concat()
            }
            scalar => text(&scalar.to_string()),
        }
    }

    /// Rules of a grammar for the arguments of a schema: one that is named `name`, and others whose names begin so.
    pub(super) fn rules(&self, name: &str, schema: &Value) -> String {
        format!("{}{}", self.value(name, schema, schema, 0), self.any(name))
    }

    /// The rule of a value; `root` has the definitions that its schema may refer to.
    fn value(&self, rule: &str, schema: &Value, root: &Value, depth: usize) -> String {
        let root_rule = rule.split('_').next().unwrap_or(rule);
        let quote = &self.quote.lark;
        let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array()).cloned();
        let alternatives = alternatives.or_else(|| {
            let types = schema["type"].as_array()?.iter();
            let typed = |word: &Value| {
                let mut schema = schema.clone();
                schema["type"] = word.clone();
                schema
            };
            Some(types.map(typed).collect())
        });
        if depth >= MAX_DEPTH {
            return format!("{rule}: {root_rule}_any\n");
        }
        if let Some(schemas) = alternatives {
            let each = schemas.iter().enumerate().map(|(n, schema)| {
                let name = format!("{rule}_{n}");
                (self.value(&name, schema, root, depth + 1), name)
            });
            let (rules, names): (Vec<String>, Vec<String>) = each.unzip();
            return format!("{rule}: {}\n{}", names.join(" | "), rules.concat());
        }
        if let Some(path) = schema["$ref"].as_str() {
            let target = root.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null);
            return self.value(rule, target, root, depth + 1);
        }
        if let Some(values) =
            schema["enum"].as_array().cloned().or_else(|| Some(vec![schema.get("const")?.clone()]))
        {
            let written = |value: &Value| {
                let pieces = self.pieces(value).into_iter();
                let pieces =
                    pieces.map(|(special, text)| special.map_or(quoted(&text), |id| format!("<[{id}]>")));
                format!("({})", pieces.collect::<Vec<_>>().join(" "))
            };
            return format!("{rule}: {}\n", values.iter().map(written).collect::<Vec<_>>().join(" | "));
        }
        match schema["type"].as_str() {
            Some("string") => format!("{rule}: {quote} {rule}_text {quote}\n{rule}_text: /(?s:.*)/\n"),
            Some("integer" | "number" | "boolean" | "null") => {
                format!("{rule}: %json {}\n", enforced(schema))
            }
            Some("array") => {
                let items = self.value(&format!("{rule}_item"), &schema["items"], root, depth + 1);
                format!("{rule}: \"[\" ({rule}_item (\",\" {rule}_item)*)? \"]\"\n{items}")
            }
            Some("object") if schema["properties"].is_object() => {
                let pair = |pair: &str, key: &str, of: &Value| {
                    let value = self.value(&format!("{pair}_value"), of, root, depth + 1);
                    format!("{pair}: {} {pair}_value\n{value}", quoted(&format!("{key}:")))
                };
                let properties = schema["properties"].as_object().map(sorted).unwrap_or_default();
                let fields = fields_in_order(&format!("{rule}_fields"), &properties, schema, "\",\"", pair);
                format!("{rule}: \"{{\" {rule}_fields \"}}\"\n{fields}")
            }
            Some("object") => format!("{rule}: {root_rule}_object\n"),
            _ => format!("{rule}: {root_rule}_any\n"),
        }
    }

    /// The rules of any value, and of any object.
    fn any(&self, name: &str) -> String {
        let (name, quote) = (name.split('_').next().unwrap_or(name), &self.quote.lark);
        format!(
            "{name}_any: {quote} {name}_anytext {quote} | {name}_scalar | {name}_array | {name}_object\n\
             {name}_anytext: /(?s:.*)/\n\
             {name}_scalar: %json {{ \"type\": [\"number\", \"boolean\", \"null\"] }}\n\
             {name}_array: \"[\" ({name}_any (\",\" {name}_any)*)? \"]\"\n\
             {name}_object: \"{{\" ({name}_field (\",\" {name}_field)*)? \"}}\"\n\
             {name}_field: /[^:,{{}}\\[\\] \\t\\r\\n]+/ \":\" {name}_any\n"
        )
    }

    /// The arguments that a text begins with, as far as they are known.
    pub(super) fn arguments<'t>(&self, text: &'t str) -> Option<PartialArguments<'t>> {
        let text = text.trim_start();
        let mut rest = text.strip_prefix('{')?;
        if let Some((Value::Object(all), after)) = self.read(text, 0) {
            return Some(PartialArguments { json: super::spaced(&Value::Object(all)), rest: Some(after) });
        }
        let mut fields = Vec::new();
        while let Some((name, value, after)) = self.field(rest, 0) {
            // A number may go on.
            if after.trim_start().is_empty() {
                break;
            }
            fields.push(format!("{}: {}", quoted(name), super::spaced(&value)));
            let Some(after) = after.trim_start().strip_prefix(',') else { break };
            rest = after;
        }
        Some(PartialArguments { json: format!("{{{}", fields.join(", ")), rest: None })
    }

    /// The value that a text begins with, and what follows it.
    fn read<'t>(&self, text: &'t str, depth: usize) -> Option<(Value, &'t str)> {
        let text = (depth < MAX_READ).then(|| text.trim_start())?;
        if let Some(said) = text.strip_prefix(&*self.quote.text) {
            let (said, rest) = said.split_once(&*self.quote.text)?;
            return Some((Value::from(said), rest));
        }
        if let Some(mut rest) = text.strip_prefix('[') {
            let mut items = Vec::new();
            loop {
                if let Some(rest) = rest.trim_start().strip_prefix(']') {
                    return Some((Value::from(items), rest));
                }
                let (item, after) = self.read(rest, depth + 1)?;
                items.push(item);
                rest = after.trim_start();
                rest = rest.strip_prefix(',').or_else(|| rest.starts_with(']').then_some(rest))?;
            }
        }
        if let Some(mut rest) = text.strip_prefix('{') {
            let mut fields = Map::new();
            loop {
                if let Some(rest) = rest.trim_start().strip_prefix('}') {
                    return Some((Value::Object(fields), rest));
                }
                let (name, value, after) = self.field(rest, depth + 1)?;
                fields.insert(name.to_owned(), value);
                rest = after.trim_start();
                rest = rest.strip_prefix(',').or_else(|| rest.starts_with('}').then_some(rest))?;
            }
        }
        let end = text.find([',', ']', '}', ' ', '\n', '<']).unwrap_or(text.len());
        Some((serde_json::from_str(&text[..end]).ok()?, &text[end..]))
    }

    fn field<'t>(&self, text: &'t str, depth: usize) -> Option<(&'t str, Value, &'t str)> {
        let (name, rest) = text.split_once(':')?;
        let (value, rest) = self.read(rest, depth)?;
        Some((name.trim(), value, rest))
    }
}

/// Fields in the order of their names, as Jinja's `dictsort` has them.
fn sorted(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_cached_key(|(name, _)| name.to_lowercase());
    fields
}
