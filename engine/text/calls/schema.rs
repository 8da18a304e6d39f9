//! Arguments by a tool's schema: what grammars can enforce of it, and how far arguments were read.

use greenroom_grammar::Grammar;
use serde_json::{Map, Value};

/// Arguments in a partial text of a call.
pub(super) struct PartialArguments<'t> {
    /// As far as they are known, the text of a JSON object.
    pub(super) json: String,
    /// What follows them, once they are complete.
    pub(super) rest: Option<&'t str>,
}

/// Keywords with which an object says itself what else may be in it, or is only a part of a schema.
const OPENING: [&str; 13] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
    "dependentRequired",
    "dependencies",
    "dependentSchemas",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "$ref",
];

/// Those that make an object of several schemas.
const PARTS: [&str; 7] = ["dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "if", "$ref"];

/// The schema of a call's arguments as masks can enforce it: an object of what the tool lists, `{}` if that is nothing.
pub(super) fn enforced_arguments(schema: &Value) -> Value {
    let mut schema = if schema.is_object() { schema.clone() } else { serde_json::json!({}) };
    if let Some(fields) = schema.as_object_mut().filter(|fields| is_closed(fields)) {
        fields.insert("type".to_owned(), "object".into());
        fields.entry("properties").or_insert_with(|| serde_json::json!({}));
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    enforced(&schema)
}

/// True if an object says nothing of what it does not list.
fn is_closed(fields: &Map<String, Value>) -> bool {
    let is_listed = |name: &Value| {
        fields.get("properties").zip(name.as_str()).is_some_and(|(all, name)| all.get(name).is_some())
    };
    let required = fields.get("required").and_then(Value::as_array);
    !OPENING.iter().any(|keyword| fields.contains_key(*keyword))
        && required.into_iter().flatten().all(is_listed)
}

/// True if a schema joins schemas of one object: closed, they would exclude each other.
fn is_joined(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let has_parts = PARTS.iter().any(|keyword| fields.contains_key(*keyword));
            let is_own = ["properties", "required"].iter().any(|keyword| fields.contains_key(*keyword));
            is_own && has_parts || fields.contains_key("allOf") || fields.values().any(is_joined)
        }
        Value::Array(items) => items.iter().any(is_joined),
        _ => false,
    }
}

/// Closes the objects of a schema that list what is in them: small models invent more.
fn close(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if is_closed(fields)
        && fields.get("properties").and_then(Value::as_object).is_some_and(|all| !all.is_empty())
    {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    for (keyword, inner) in fields {
        match (keyword.as_str(), inner) {
            ("properties" | "$defs" | "definitions", Value::Object(all)) => all.values_mut().for_each(close),
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(all)) => all.iter_mut().for_each(close),
            ("items" | "additionalProperties", inner) => close(inner),
            _ => {}
        }
    }
}

/// A schema as masks can enforce it. What it says beyond that, who runs the tool checks.
pub(super) fn enforced(schema: &Value) -> Value {
    let mut closed = schema.clone();
    if !is_joined(schema) {
        close(&mut closed);
    }
    let schema = &closed;
    let relaxed = Grammar::json_schema(schema).relaxed().ok();
    let text = relaxed.and_then(|relaxed| serde_json::from_str(relaxed.grammar.text()).ok());
    text.unwrap_or_else(|| schema.clone())
}

/// Rules for these properties of a schema in their order, those that are required once, the others at most once.
/// `pair` gives the rule of one.
pub(super) fn fields_in_order(
    name: &str,
    properties: &[(&String, &Value)],
    schema: &Value,
    separator: &str,
    pair: impl Fn(&str, &str, &Value) -> String,
) -> String {
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|all| all.iter().any(|it| it.as_str() == Some(name)))
    };
    // After the first `n`, with one before it or without.
    let (mut lark, last) = (String::new(), properties.len());
    for (n, (key, of)) in properties.iter().enumerate() {
        let rule = format!("{name}_{n}");
        for (rest, joint) in [("first", ""), ("more", separator)] {
            let next = n + 1;
            lark += &format!("{name}_{rest}_{n}: {joint} {rule} {name}_more_{next}");
            lark += &if is_required(key) { "\n".to_owned() } else { format!(" | {name}_{rest}_{next}\n") };
        }
        lark += &pair(&rule, key, of);
    }
    lark + &format!("{name}_first_{last}: \"\"\n{name}_more_{last}: \"\"\n{name}: {name}_first_0\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn accepts(schema: &Value, arguments: &Value) -> bool {
        Grammar::json_schema(&enforced_arguments(schema)).accepts(&arguments.to_string()).is_ok()
    }

    #[test]
    fn what_a_schema_does_not_list_is_not_in_a_call() {
        let inner = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        let city = json!({ "type": "string" });
        let listed = json!({ "properties": { "city": city, "at": { "type": "array", "items": inner } } });
        assert!(accepts(&listed, &json!({ "city": "Oslo", "at": [{ "x": 1 }] })));
        for more in [json!({ "town": "Oslo" }), json!({ "at": [{ "x": 1, "y": 2 }] }), json!("Oslo")] {
            assert!(!accepts(&listed, &more), "{more}");
        }
        // A tool without parameters.
        for none in [json!({}), json!({ "type": "object" }), json!(null)] {
            assert!(accepts(&none, &json!({})) && !accepts(&none, &json!({ "city": "Oslo" })), "{none}");
        }
        // What says itself what else there is, or is one of several parts.
        let open = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
        let joined = json!({ "allOf": [{ "type": "object", "properties": { "a": {} } }, { "properties": { "b": {} } }] });
        let referred =
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "object", "properties": { "a": {} } } } });
        let unlisted = json!({ "properties": { "path": {} }, "required": ["file_path"] });
        let free = json!({ "properties": { "more": { "type": "object", "properties": {} } } });
        let kinds = json!({ "required": ["kind"], "anyOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] });
        assert!(accepts(&unlisted, &json!({ "path": 1, "file_path": "x" })));
        assert!(accepts(&free, &json!({ "more": { "any": 1 } })));
        assert!(accepts(&kinds, &json!({ "kind": "k", "a": 1 })));
        assert!(accepts(&json!({ "type": "object", "minProperties": 1 }), &json!({ "any": 1 })));
        assert!(accepts(&open, &json!({ "n": 3 })) && !accepts(&open, &json!({ "n": "3" })));
        assert!(accepts(&joined, &json!({ "a": 1, "b": 2 })));
        assert!(accepts(&referred, &json!({ "a": 1 })) && !accepts(&referred, &json!({ "b": 1 })));
    }
}
