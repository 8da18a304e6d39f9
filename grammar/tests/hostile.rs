//! External grammars end soon, whatever they contain: compiled or rejected by counted steps, without a panic
//! and without a clock.

#![allow(clippy::unwrap_used)]

use greenroom_grammar::{Grammar, Mismatch, Token, Vocabulary};
use serde_json::{Value, json};

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({ "type": "string" }), |inner, _| json!({ "type": "array", "items": inner }))
}

fn schemas() -> Vec<(&'static str, Value)> {
    let many: Vec<Value> = (0..4_000).map(|i| json!(format!("option {i}"))).collect();
    let wide: serde_json::Map<String, Value> =
        (0..1_500).map(|i| (format!("field_{i}"), json!({ "type": "number" }))).collect();
    let crossed: Vec<Value> = (0..12)
        .map(|i| {
            json!({ "anyOf": [
                { "properties": { (format!("a{i}")): { "type": "string" } } },
                { "properties": { (format!("b{i}")): { "type": "integer" } } },
            ] })
        })
        .collect();
    vec![
        ("nested within bounds", nested(25)),
        ("nested too deeply", nested(90)),
        ("a huge count", json!({ "type": "array", "items": { "type": "integer" }, "minItems": 100_000_000 })),
        ("a huge length", json!({ "type": "string", "minLength": 1_000_000_000 })),
        ("a long range", json!({ "type": "integer", "minimum": -1e300, "maximum": 1e300 })),
        (
            "a narrow range",
            json!({ "type": "number", "minimum": 0.100_000_000_000_1, "maximum": 0.100_000_000_000_2 }),
        ),
        ("itself", json!({ "$ref": "#" })),
        (
            "two that are each other",
            json!({
                "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }
            }),
        ),
        (
            "a tree",
            json!({
                "$defs": { "n": {
                    "type": "object",
                    "properties": { "l": { "$ref": "#/$defs/n" }, "r": { "$ref": "#/$defs/n" } },
                    "required": ["l", "r"]
                } },
                "$ref": "#/$defs/n"
            }),
        ),
        ("from elsewhere", json!({ "$ref": "https://example.com/schema.json" })),
        ("from a file", json!({ "$ref": "file:///etc/passwd" })),
        ("powers of a pattern", json!({ "type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$" })),
        (
            "a pattern of many states",
            json!({ "type": "string", "pattern": "^(.*a.{30}|.*b.{30}|.*c.{30})$" }),
        ),
        ("a pattern with look-ahead", json!({ "type": "string", "pattern": "^(?=a)b$" })),
        ("a pattern of brackets", json!({ "type": "string", "pattern": "(".repeat(30_000) })),
        ("many words", json!({ "enum": many })),
        ("many fields", json!({ "type": "object", "properties": wide, "additionalProperties": false })),
        ("crossed alternatives", json!({ "type": "object", "allOf": crossed })),
        ("nothing", json!({ "type": "integer", "minimum": 3, "maximum": 2 })),
        ("false", json!(false)),
        ("a text", json!("string")),
        ("multiples", json!({ "type": "number", "multipleOf": 1e-300 })),
        ("multiples of a large number", json!({ "type": "integer", "multipleOf": 999_999_999_999u64 })),
        ("properties that are counted", json!({ "type": "object", "minProperties": 1_000_000 })),
        (
            "a property of itself",
            json!({ "properties": { "": { "$ref": "#/properties/" } }, "type": "object" }),
        ),
        ("x-guidance", json!({ "type": "string", "x-guidance": { "lenient": true } })),
    ]
}

fn grammars() -> Vec<(&'static str, Grammar)> {
    let lark = |text: &str| Grammar::Lark(text.to_string());
    let regex = |text: &str| Grammar::Regex(text.to_string());
    let mut all: Vec<_> =
        schemas().into_iter().map(|(name, schema)| (name, Grammar::json_schema(&schema))).collect();
    all.extend([
        ("lark without a start", lark("a: \"b\"")),
        ("lark with itself on the left", lark("start: start \"a\" | \"a\"")),
        ("lark, ambiguous", lark("start: start start | \"a\" | \"\"")),
        ("lark without an end", lark("start: \"a\" start")),
        ("lark in brackets", Grammar::Lark(format!("start: {}", "(".repeat(30_000)))),
        ("lark in tokens", lark("start[max_tokens=3]: /.*/")),
        ("lark of a token", lark("start: <[5]>")),
        ("lark of a special token", lark("start: <|im_end|>")),
        ("lark with includes", lark("%import common.NUMBER\nstart: NUMBER")),
        ("an empty lark", lark("")),
        ("powers", regex("((a{1,1000}){1,1000}){1,1000}")),
        ("exponential", regex("(a|a)*b|(a|aa)+$")),
        ("states", regex("(.*a.{200}){3}")),
        ("unclosed", regex("(a")),
        ("look-behind", regex("(?<=a)b")),
        ("back reference", regex("(a)\\1")),
        ("an empty expression", regex("")),
        ("too long", Grammar::Regex("a".repeat(100_000))),
    ]);
    all
}

/// A vocabulary of bytes and of what is often said, as a model's.
fn vocabulary() -> Vocabulary {
    let words =
        ["{\"", "\":", " \"", "\",", "},", "aa", "aaaa", "option", " 1", "00", "true", "null", "\n\n"];
    let tokens: Vec<Vec<u8>> =
        (0..=255u8).map(|byte| vec![byte]).chain(words.iter().map(|word| word.as_bytes().to_vec())).collect();
    Vocabulary::new(tokens.iter().map(|token| Token::Text(&token[..])).chain([Token::None])).unwrap()
}

#[test]
fn a_grammar_from_outside_is_compiled_or_refused_and_followed_within_bounds() {
    let (vocabulary, mut n_refused, mut table) = (vocabulary(), 0, String::new());
    for (name, grammar) in grammars() {
        let checked = grammar.check();
        n_refused += usize::from(checked.is_err());
        table +=
            &format!("{name}: {}\n", checked.as_ref().err().map_or("compiled".into(), ToString::to_string));
        for text in [
            "",
            "{",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
            "[[[[[[[",
            "{\"a0\": \"\"}",
            "\u{1F600}",
        ] {
            let accepted = grammar.accepts(text);
            assert!(checked.is_ok() || matches!(accepted, Err(Mismatch::Grammar(_))), "{name}");
        }
        let Ok(mut matcher) = vocabulary.matcher(&grammar) else { continue };
        // The largest id that may come, again and again: what is long stays long.
        for _ in 0..200 {
            if matcher.is_over() {
                break;
            }
            let Ok(mask) = matcher.mask() else { break };
            let Some(id) = (0..269).rev().find(|id| mask.allows(*id)) else { break };
            assert!(!mask.allows(269) && !mask.allows(270), "{name}: control tokens are no text");
            assert_eq!(matcher.allows(id), Ok(true), "{name}");
            if matcher.take(id).is_err() {
                break; // a bound was reached
            }
        }
    }
    println!("{table}");
    assert!(n_refused >= 15, "{table}");
}
