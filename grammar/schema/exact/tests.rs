//! What is examined for each candidate token, and that nothing depends on it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::cell::Cell;

thread_local! {
    /// Copies that were made to look ahead.
    pub(super) static N_COPIED: Cell<usize> = const { Cell::new(0) };
    /// Bytes that states took.
    pub(super) static N_TAKEN: Cell<usize> = const { Cell::new(0) };
}

const N: i64 = 1 << 53;

/// A list of objects with texts and integers, as `relaxed` writes it.
fn exact() -> Exact {
    let number = json!({ "type": "integer", KEYWORD: { "minimum": -12, "maximum": N + 3 } });
    let schema = json!({
        "type": "array",
        "prefixItems": [{ "$ref": "#/$defs/number" }],
        "items": {
            "type": "object",
            "properties": { "n1": number, "text": { "type": "string" } },
            "additionalProperties": { "$ref": "#/items" },
        },
        "$defs": { "number": number },
    });
    Exact::new(&schema).unwrap()
}

fn after(text: &str) -> Exact {
    let mut exact = exact();
    exact.follow(text.as_bytes());
    exact
}

/// Copies and bytes taken while these tokens are tried.
fn cost<'a>(exact: &Exact, tokens: impl IntoIterator<Item = &'a str>) -> (usize, usize) {
    N_COPIED.set(0);
    N_TAKEN.set(0);
    tokens.into_iter().for_each(|token| _ = exact.allows(token.as_bytes()));
    (N_COPIED.get(), N_TAKEN.get())
}

#[test]
fn candidates_are_tried_without_copies_where_nothing_opens() {
    let words: Vec<String> = (0..1000).map(|n| format!("word{n}, -{n}: [{n}] {{{n}}}")).collect();
    let words = || words.iter().map(String::as_str);
    for text in [r#"[1, {"text": "so far "#, r#"[1, {"text": "\\"#, r#"[1, {"te"#] {
        assert_eq!(cost(&after(text), words()), (0, 0), "{text}");
    }
    let digits: Vec<String> = (0..1000).map(|n: u32| n.to_string()).collect();
    let n_bytes: usize = digits.iter().map(String::len).sum();
    for text in ["[", r#"[1, {"n1": "#, r#"[1, {"n1": 9"#] {
        let (n_copied, n_taken) = cost(&after(text), digits.iter().map(String::as_str));
        assert!(n_copied == 0 && n_taken <= n_bytes, "{text}: {n_copied} copies, {n_taken} bytes");
    }
    // What opens or closes something is followed by a copy only if a number may begin after it.
    assert_eq!(cost(&after(r#"[1, {"n1": 9"#), ["}", "}, {", "9}", "}, {\"text\": \""]).0, 0);
    assert_eq!(cost(&after(r#"[1, {"text": "x"#), ["\", \"n1\": 1", "\", \"n\": ", "1\""]).0, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn candidates_are_allowed_as_by_definition(
        text in prop::collection::vec(prop::sample::select(vec![
            "[", "]", "{", "}", ",", ":", "\"", "\\", "\"n1\"", "\"n1\": ", "\"text\": \"", "\"x", " ", "-", "1", "9007199254740995", "0", ".", "e", "true",
            "[1, {\"n1\": ", "[1, {\"text\": \"a",
        ]), 0..12),
        tokens in prop::collection::vec("[\\[\\]{},:\"\\\\ \\-0-9.en1]{1,9}", 1..20),
    ) {
        let text = text.concat();
        let mut exact = exact();
        for byte in text.bytes() {
            if !exact.allows(&[byte]) {
                break;
            }
            exact.follow(&[byte]);
        }
        for token in tokens {
            let expected = exact.allows_by_copy(token.as_bytes());
            prop_assert_eq!(exact.allows(token.as_bytes()), expected, "{:?} after {:?}", token, text);
        }
    }
}

#[test]
fn bounds_are_followed_or_known_not_to_be() {
    let bound = |source: u64| json!({ "type": "integer", KEYWORD: { "minimum": N + 1, SOURCES: [source] } });
    for (schema, followed) in [
        (json!({ "anyOf": [bound(0), { "type": "null" }] }), &[0][..]),
        (json!({ "anyOf": [bound(0), { "type": "object", "properties": { "a": bound(1) } }] }), &[]),
        (
            json!({
                "properties": { "a": bound(0), "a/b": { "items": bound(1) } },
                "additionalProperties": bound(2)
            }),
            &[0, 1, 2],
        ),
        (
            json!({
                "properties": { "a": bound(0) }, "patternProperties": { "^x": bound(1) },
                "additionalProperties": bound(2)
            }),
            &[0],
        ),
        (json!({ "prefixItems": [bound(0)], "items": { "allOf": [bound(1)] } }), &[0, 1]),
        (json!({ "items": [bound(0)], "additionalItems": bound(1) }), &[0]),
        (json!({ "items": { "$ref": "#/$defs/n" }, "$defs": { "n": bound(0) } }), &[0]),
        (
            json!({
                "properties": { "a": { "$ref": "#/$defs/n" } },
                "oneOf": [{ "properties": { "b": { "$ref": "#/$defs/n" } } }], "$defs": { "n": bound(0) }
            }),
            &[],
        ),
        (
            json!({ "items": { "$ref": "#n" }, "$defs": { "n": { "$anchor": "n", "allOf": [bound(0)] } } }),
            &[],
        ),
        (json!({ "allOf": [bound(0), { "multipleOf": 2 }] }), &[]),
        (json!({ "allOf": [{ "type": "integer" }, { KEYWORD: { "minimum": N + 1, SOURCES: [0] } }] }), &[0]),
        (json!({ "type": "number", KEYWORD: { "minimum": N + 1, SOURCES: [0] } }), &[]),
        (json!({ "properties": { "next": { "$ref": "#" }, "n": bound(0) } }), &[0]),
    ] {
        let found = Exact::new(&schema).unwrap().followed();
        assert!(found.iter().eq(followed), "{schema}: {found:?}");
    }
}

#[test]
fn a_schema_that_would_be_examined_for_long_is_not() {
    let names = (0..1500).map(|n| (format!("a{n}"), json!({ "$ref": "#/$defs/n" })));
    let names = Value::Object(names.collect());
    let all: Vec<Value> = (0..1500).map(|_| json!({ "$ref": "#/$defs/o" })).collect();
    let number = json!({ "type": "integer", KEYWORD: { "minimum": N + 1, SOURCES: [0] } });
    let schema = json!({ "allOf": all, "$defs": { "n": number, "o": { "properties": names } } });
    assert!(Exact::new(&schema).unwrap().followed().is_empty());
}
