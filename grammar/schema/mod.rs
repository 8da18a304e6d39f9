//! JSON schemas as values: their direct subschemas, and the targets of `$ref`.
//!
//! `exact` follows bounds of integers that masks would round, `validate` checks a complete value against a
//! whole schema, and `number` compares numbers without rounding them.

mod exact;
mod number;
mod validate;

pub(crate) use exact::{Exact, KEYWORD, SOURCES};
pub(crate) use number::{EXACT, integer};
pub(crate) use validate::{is_usable, violation};

use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Keywords whose value is a schema; the first four apply to the same value as the schema around them.
const ONE: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords whose value is a list of schemas; the first three apply to the same value.
const LIST: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords whose value is a mapping to schemas; the first two apply to the same value.
const MAP: &[&str] =
    &["dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions"];

/// The direct subschemas of a schema, or only those that apply to the same value.
fn children(schema: &Value, in_place: bool) -> impl Iterator<Item = &Value> {
    let keywords = |all: &'static [&'static str], n: usize| if in_place { &all[..n] } else { all };
    let one = keywords(ONE, 4).iter().filter_map(|keyword| schema.get(keyword));
    let list = keywords(LIST, 3).iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
    let map = keywords(MAP, 2).iter().filter_map(|keyword| schema.get(keyword)?.as_object());
    let map = map.flat_map(|map| map.values());
    one.chain(list).chain(map).filter(|schema| schema.is_object())
}

/// Where a `$ref` of a schema leads.
///
/// # Errors
/// It leads out of the schema.
pub(crate) fn target<'s>(root: &'s Value, reference: &str) -> Result<&'s Value> {
    let id = root.get("$id").and_then(Value::as_str).unwrap_or_default();
    let fragment = reference.strip_prefix(id.trim_end_matches('#')).unwrap_or(reference);
    let found = match fragment.strip_prefix('#') {
        _ if fragment.is_empty() => Some(root),
        Some("") => Some(root),
        Some(pointer) if pointer.starts_with('/') => root.pointer(&decoded(pointer)),
        Some(anchor) => anchored(root, anchor),
        None => None,
    };
    found.ok_or_else(|| {
        Error(format!("`{reference}` is not in the schema; remote references are not fetched"))
    })
}

/// The schema that has an anchor.
fn anchored<'s>(schema: &'s Value, anchor: &str) -> Option<&'s Value> {
    let named = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
    if named("$anchor") == Some(anchor) || named("$id").and_then(|id| id.strip_prefix('#')) == Some(anchor) {
        return Some(schema);
    }
    children(schema, false).find_map(|inner| anchored(inner, anchor))
}

/// A fragment of a URI without its percent signs.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *byte == b'%');
        let code = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        rest = &after[if code.is_some() { 2 } else { 0 }..];
        bytes.push(code.unwrap_or(*byte));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The `$ref`s of a schema that apply to the same value as the schema itself.
fn references_in_place<'s>(schema: &'s Value, found: &mut BTreeSet<&'s str>) {
    found.extend(schema.get("$ref").and_then(Value::as_str));
    children(schema, true).for_each(|inner| references_in_place(inner, found));
}

/// A name as it is written in a JSON Pointer.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// JSON Pointer to a value within another one.
pub(crate) fn pointer_to(root: &Value, inner: &Value) -> Option<String> {
    let mut open = vec![(String::new(), root)];
    while let Some((at, value)) = open.pop() {
        if std::ptr::eq(value, inner) {
            return Some(at);
        }
        match value {
            Value::Array(items) => {
                open.extend(items.iter().enumerate().map(|(index, item)| (format!("{at}/{index}"), item)));
            }
            Value::Object(fields) => {
                let at = |name: &String| format!("{at}/{}", escaped(name));
                open.extend(fields.iter().map(|(name, value)| (at(name), value)));
            }
            _ => {}
        }
    }
    None
}

/// Replaces `$ref`s of a schema by others.
pub(crate) fn redirect(schema: &mut Value, to: &BTreeMap<String, String>) {
    let Value::Object(fields) = schema else { return };
    if let Some(Value::String(reference)) = fields.get_mut("$ref")
        && let Some(new) = to.get(reference)
    {
        reference.clone_from(new);
    }
    for (keyword, value) in fields {
        let keyword = keyword.as_str();
        match value {
            Value::Array(list) if LIST.contains(&keyword) => {
                list.iter_mut().for_each(|inner| redirect(inner, to));
            }
            Value::Object(map) if MAP.contains(&keyword) => {
                map.values_mut().for_each(|inner| redirect(inner, to));
            }
            inner if ONE.contains(&keyword) => redirect(inner, to),
            _ => {}
        }
    }
}

/// All `$ref`s of a schema.
pub(crate) fn references<'s>(schema: &'s Value, found: &mut BTreeSet<&'s str>) {
    found.extend(schema.get("$ref").and_then(Value::as_str));
    children(schema, false).for_each(|inner| references(inner, found));
}

/// Rejects references that lead back to themselves without an item or a property in between: no text fits
/// such a schema, and following it would never end.
///
/// # Errors
/// The circle, by its references.
pub(crate) fn is_grounded(root: &Value) -> Result<()> {
    let mut starts = BTreeSet::new();
    references(root, &mut starts);
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for reference in starts {
        let mut found = BTreeSet::new();
        // What leads elsewhere is refused where it is followed.
        if let Ok(schema) = target(root, reference) {
            references_in_place(schema, &mut found);
        }
        next.insert(reference, found.into_iter().collect());
    }
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in next.keys() {
        // The path from the start, with what is still to be tried at each step.
        let mut way: Vec<(&str, &[&str])> = vec![(start, &next[start])];
        while let Some((here, open)) = way.last_mut() {
            let Some((step, rest)) = open.split_first() else {
                done.insert(here);
                way.pop();
                continue;
            };
            *open = rest;
            if let Some(at) = way.iter().position(|(known, _)| known == step) {
                let circle: Vec<String> = way[at..].iter().map(|(known, _)| format!("`{known}`")).collect();
                let circle = circle.join(" → ");
                return Err(Error(format!(
                    "`$ref` is circular ({circle} → `{step}`), so nothing can match it"
                )));
            }
            if !done.contains(step) {
                way.push((step, next.get(step).map_or(&[], Vec::as_slice)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn circles_of_references_are_found() {
        for (schema, is_sound) in [
            (json!({ "$ref": "#" }), false),
            (
                json!({
                    "$ref": "#/$defs/a",
                    "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }
                }),
                false,
            ),
            (
                json!({
                    "type": "object", "properties": { "x": { "$ref": "#/$defs/a" } },
                    "$defs": { "a": { "not": { "$ref": "#/$defs/a" } } }
                }),
                false,
            ),
            (
                json!({
                    "$defs": { "a": {
                        "anyOf": [{ "type": "null" }, { "allOf": [{ "$ref": "#here" }] }], "$anchor": "here"
                    } },
                    "items": { "$ref": "#/%24defs/a" }
                }),
                false,
            ),
            (json!({ "type": "object", "properties": { "next": { "$ref": "#" } } }), true),
            (
                json!({
                    "$defs": { "n": { "type": "array", "items": { "$ref": "#/$defs/n" } } },
                    "$ref": "#/$defs/n"
                }),
                true,
            ),
            (json!({ "properties": { "$ref": { "type": "string" }, "not": { "$ref": "#" } } }), true),
            (
                json!({
                    "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/a" }],
                    "$defs": { "a": { "type": "null" } }
                }),
                true,
            ),
        ] {
            let found = is_grounded(&schema);
            assert_eq!(found.is_ok(), is_sound, "{schema}: {found:?}");
        }
        let circular = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } });
        let error = is_grounded(&circular).unwrap_err().to_string();
        assert!(error.contains("`$ref` is circular (`#/$defs/a` → `#/$defs/a`)"), "{error}");
    }
}
