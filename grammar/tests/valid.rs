//! What a grammar accepts of a schema that masks can't enforce whole, against an independent validator.

#![allow(clippy::unwrap_used)]

use boon::{Compiler, Draft, Schemas};
use greenroom_grammar::{Grammar, Token, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

/// True where everything is tried, as in CI; else a part of it, every day.
fn is_deep() -> bool {
    std::env::var_os("GREENROOM_DEEP").is_some()
}

/// The other validator's verdict.
fn is_valid(schema: &Value, value: &Value) -> bool {
    is_valid_at(schema, "", value)
}

/// The same by the schema that a reference leads to.
fn is_valid_at(schema: &Value, reference: &str, value: &Value) -> bool {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.set_default_draft(Draft::V2020_12);
    compiler.add_resource("schema.json", schema.clone()).unwrap();
    let id = compiler.compile(&format!("schema.json{reference}"), &mut schemas).unwrap();
    schemas.validate(value, id).is_ok()
}

fn accepts(schema: &Value, value: &Value) -> bool {
    Grammar::json_schema(schema).relaxed().unwrap().accepts(&value.to_string()).is_ok()
}

#[test]
fn keywords_that_no_mask_enforces_are_checked() {
    let tags = json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true });
    for (schema, good, bad) in [
        (tags, json!(["a", "b"]), json!(["a", "a"])),
        (json!({ "type": "string", "not": { "const": "x" } }), json!("y"), json!("x")),
        (
            json!({ "type": "object", "propertyNames": { "pattern": "^[a-z]+$" } }),
            json!({ "ab": 1 }),
            json!({ "A": 1 }),
        ),
        (
            json!({ "type": "array", "items": { "type": "integer" }, "contains": { "minimum": 5 } }),
            json!([1, 7]),
            json!([1, 2]),
        ),
        (
            json!({ "type": "array", "contains": { "const": 1 }, "minContains": 2, "maxContains": 3 }),
            json!([1, 0, 1]),
            json!([1, 1, 1, 1]),
        ),
        (
            json!({ "type": "object", "dependentRequired": { "a": ["b"] } }),
            json!({ "a": 1, "b": 2 }),
            json!({ "a": 1 }),
        ),
        (
            json!({
                "type": "integer", "if": { "minimum": 10 }, "then": { "multipleOf": 10 },
                "else": { "minimum": 5 }
            }),
            json!(20),
            json!(15),
        ),
        (
            json!({ "oneOf": [{ "type": "integer" }, { "type": "number", "minimum": 0 }] }),
            json!(-3),
            json!(3),
        ),
        (json!({ "type": "string", "pattern": "^(?!no)[a-z]+$" }), json!("yes"), json!("nobody")),
        (
            json!({
                "type": "object", "patternProperties": { "^(?=a)": { "type": "integer" } },
                "additionalProperties": { "type": "string" }
            }),
            json!({ "ab": 1, "b": "x" }),
            json!({ "ab": "x" }),
        ),
    ] {
        let grammar = Grammar::json_schema(&schema);
        assert!(grammar.check().is_err(), "{schema}: masks alone");
        let relaxed = grammar.relaxed().unwrap();
        relaxed.grammar.check().unwrap();
        assert!(relaxed.left.iter().any(|left| left.is_checked), "{schema}");
        for (value, is_good) in [(&good, true), (&bad, false)] {
            assert_eq!(accepts(&schema, value), is_good, "{schema}: {value}");
            // The other validator's patterns can't look around.
            let is_readable = !schema.to_string().contains("(?");
            assert!(!is_readable || is_valid(&schema, value) == is_good, "{schema}: {value}");
        }
        // Masks alone allow both.
        relaxed.grammar.accepts(&bad.to_string()).unwrap();
        assert!(relaxed.accepts(&bad.to_string()).unwrap_err().to_string().contains('`'));
    }
}

#[test]
fn what_masks_enforce_is_left_as_it_is() {
    let schema = json!({ "oneOf": [{ "const": 1 }, { "const": "a" }], "$comment": "x" });
    let grammar = Grammar::json_schema(&schema);
    let relaxed = grammar.relaxed().unwrap();
    assert!(!relaxed.is_checked());
    assert_eq!((relaxed.grammar, relaxed.left), (grammar, Vec::new()));
}

#[test]
fn integers_keep_their_bounds_beyond_what_floats_can_say() {
    const N: i64 = 1 << 53;
    let range = json!({ "type": "integer", "minimum": N + 1, "maximum": N + 3 });
    for (schema, good, bad) in [
        (range.clone(), vec![N + 1, N + 2, N + 3], vec![N, N + 4]),
        (json!({ "const": N + 1 }), vec![N + 1], vec![N, N + 2]),
        (json!({ "enum": ["a", -N - 1] }), vec![-N - 1], vec![-N, -N - 2]),
        (
            json!({ "type": "integer", "exclusiveMinimum": N, "maximum": N + 2 }),
            vec![N + 1, N + 2],
            vec![N, N + 3],
        ),
        (
            json!({ "type": "integer", "minimum": i64::MAX - 1 }),
            vec![i64::MAX - 1, i64::MAX],
            vec![i64::MAX - 2, 0],
        ),
        (
            json!({ "anyOf": [range, { "type": "integer", "maximum": i64::MIN + 1 }] }),
            vec![N + 2, i64::MIN],
            vec![i64::MIN + 2, N],
        ),
    ] {
        for (values, is_good) in [(&good, true), (&bad, false)] {
            for value in values {
                assert_eq!(accepts(&schema, &json!(value)), is_good, "{schema}: {value}");
            }
        }
    }
    // While they are written, too: byte by byte, nothing else can be said.
    let range = Grammar::json_schema(&json!({
        "type": "object",
        "properties": { "n": {
            "type": "array", "items": { "type": "integer", "minimum": N + 1, "maximum": N + 3 }
        } },
        "required": ["n"],
        "additionalProperties": false,
    }));
    let masks = range.relaxed().unwrap().grammar;
    let written = |n: i64| masks.accepts(&json!({ "n": [N + 1, n] }).to_string()).is_ok();
    assert_eq!((N - 3..N + 7).filter(|n| written(*n)).collect::<Vec<_>>(), [N + 1, N + 2, N + 3]);
    // Masks alone would round it; bounds of a number that need not be an integer are not followed.
    Grammar::json_schema(&json!({ "type": "integer", "minimum": N + 1 })).check().unwrap();
    let error = Grammar::json_schema(&json!({ "type": "number", "minimum": N + 1 })).check().unwrap_err();
    assert_eq!(error.to_string(), "`minimum` can't be enforced while a text is written");
    // A bound beyond 64 bits is no bound of 63.
    assert!(accepts(&json!({ "type": "integer", "maximum": u64::MAX }), &json!(u64::MAX)));
    assert!(accepts(&json!({ "const": { "n": [u64::MAX] } }), &json!({ "n": [u64::MAX] })));
    assert!(!accepts(&json!({ "const": { "n": [u64::MAX] } }), &json!({ "n": [u64::MAX - 1] })));
}

#[test]
fn integers_are_followed_to_their_bounds_wherever_they_stand() {
    const N: i64 = 1 << 53;
    let follows = |schema: &Value, text: &str| {
        let masks = Grammar::json_schema(schema).relaxed().unwrap().grammar;
        masks.accepts(text).is_ok()
    };
    let range = json!({ "type": "integer", "minimum": N + 1, "maximum": N + 3 });
    let wrapped = json!({
        "type": "object",
        "properties": {
            "a/b": {
                "type": "array", "prefixItems": [{ "type": "string" }], "items": { "$ref": "#/$defs/n" }
            },
            "\u{e9}": { "$ref": "#/$defs/n" },
        },
        "additionalProperties": { "allOf": [{ "$ref": "#/$defs/n" }] },
        "$defs": { "n": range },
    });
    for value in N - 2..N + 6 {
        let is_good = (N + 1..=N + 3).contains(&value);
        assert_eq!(follows(&range, &value.to_string()), is_good, "{value}");
        for text in [
            format!(r#"{{"a/b": ["1{value}", {value}]}}"#),
            format!("{{\"\u{e9}\":{value}, \"x\" : {value} }}"),
            format!(r#"{{"a/b": ["\"", {}, {value}], "x": {}}}"#, N + 1, N + 2),
        ] {
            assert_eq!(follows(&wrapped, &text), is_good, "{text}");
        }
        let below = json!({ "type": "integer", "maximum": -N - 1 });
        assert_eq!(follows(&below, &format!("-{value}")), value > N, "{value}");
        let some = json!({ "enum": ["a", N + 1, N + 5, 7] });
        assert_eq!(follows(&some, &value.to_string()), [N + 1, N + 5].contains(&value), "{value}");
    }
    assert!(follows(&json!({ "enum": ["a", N + 1, 7] }), "7"));
    assert!(!follows(&json!({ "enum": ["a", N + 1, 7] }), "8"));
    let far = json!({ "type": "integer", "minimum": u64::MAX });
    assert!(follows(&far, &u64::MAX.to_string()) && follows(&far, &"9".repeat(40)));
    assert!(!follows(&far, &(u64::MAX - 1).to_string()) && !follows(&far, &format!("-{}", "9".repeat(40))));
    assert!(!follows(&range, "0") && !follows(&range, "-") && !follows(&range, "9007"));
}

#[test]
fn bounds_that_masks_follow_exactly_are_enforced() {
    const N: i64 = 1 << 53;
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let vocabulary = Vocabulary::new(bytes.iter().map(|byte| Token::Text(&byte[..]))).unwrap();
    let nullable = json!({ "anyOf": [{ "type": "integer", "minimum": N + 1 }, { "type": "null" }] });
    for (schema, good, bad) in [
        (
            json!({ "type": "integer", "maximum": i64::MAX }),
            i64::MAX.to_string(),
            "9223372036854775808".into(),
        ),
        (
            json!({ "type": "integer", "maximum": u64::MAX, "minimum": 0 }),
            u64::MAX.to_string(),
            "18446744073709551616".into(),
        ),
        (json!({ "type": "integer", "exclusiveMinimum": N }), (N + 1).to_string(), N.to_string()),
        (json!({ "const": N + 1 }), (N + 1).to_string(), N.to_string()),
        (json!({ "enum": [null, N + 1] }), (N + 1).to_string(), (N + 2).to_string()),
        (
            json!({
                "type": "object", "properties": { "n": nullable }, "required": ["n"],
                "additionalProperties": false
            }),
            format!(r#"{{"n":{}}}"#, N + 1),
            format!(r#"{{"n":{N}}}"#),
        ),
    ] {
        let grammar = Grammar::json_schema(&schema);
        grammar.check().unwrap();
        let enforced = grammar.enforced().unwrap();
        enforced.accepts(&good).unwrap();
        assert!(enforced.accepts(&bad).is_err(), "{schema}: {bad}");
        assert!(grammar.relaxed().unwrap().left.iter().all(|left| left.is_followed), "{schema}");
        // Masks of the grammar as it is written follow them, too.
        let is_whole = |text: &str| {
            let mut matcher = vocabulary.matcher(&grammar).unwrap();
            let mut bytes = text.bytes().map(u32::from);
            bytes.all(|byte| matcher.allows(byte).unwrap() && matcher.take(byte).is_ok())
                && matcher.may_end().unwrap()
        };
        if !good.starts_with('{') {
            assert!(is_whole(&good) && !is_whole(&bad), "{schema}");
        }
    }
    // In alternatives of objects they are not.
    let bound =
        json!({ "type": "object", "properties": { "n": { "type": "integer", "maximum": i64::MAX } } });
    let either = Grammar::json_schema(&json!({ "anyOf": [bound, { "type": "string" }] }));
    let error = either.check().unwrap_err().to_string();
    assert_eq!(error, "`maximum` at `anyOf.0.properties.n` can't be enforced while a text is written");
    let far = json!({ "const": { "n": [N + 1, 1e30] } });
    assert!(Grammar::json_schema(&far).check().is_err(), "one of two numbers is not followed");
    // What is enforced is enforced again, and stays as it is.
    let schema = json!({ "type": "object", "properties": { "a/b~": { "const": N + 1 } } });
    let enforced = Grammar::json_schema(&schema).enforced().unwrap();
    assert_eq!(enforced.enforced().unwrap(), enforced);
}

#[test]
fn references_lead_where_they_led() {
    const N: i64 = (1 << 53) + 1;
    let a = json!({ "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 2 });
    for (keywords, reference) in [
        (json!({ "allOf": [{ "properties": { "z": a } }] }), "#/allOf/0/properties/z"),
        (json!({ "oneOf": [{ "type": "object", "not": {} }, a] }), "#/oneOf/1"),
        (json!({ "not": { "properties": { "x~y": a } } }), "#/not/properties/x~0y"),
        (json!({ "contains": a }), "#/contains"),
        (json!({ "patternProperties": { "^(?=b)": a } }), "#/patternProperties/%5E(%3F=b)"),
        (json!({ "components": { "schemas": { "a": a } } }), "#/components/schemas/a"),
        (
            json!({ "if": {
                "$anchor": "here", "type": "array", "items": { "type": "integer" }, "minItems": 2
            } }),
            "#here",
        ),
        (json!({ "not": { "contains": { "$ref": "#/not/items" }, "items": a } }), "#/not/items"),
    ] {
        // A bound that is added, before and after the others.
        for at in [0, 1] {
            let mut schema = json!({ "properties": { "a": { "$ref": reference } } });
            let fields = schema.as_object_mut().unwrap();
            if at == 0 {
                fields.insert("minimum".into(), json!(N));
            }
            fields.extend(keywords.as_object().unwrap().clone());
            if at == 1 {
                fields.insert("maximum".into(), json!(N));
            }
            let relaxed = Grammar::json_schema(&schema).relaxed().unwrap();
            relaxed.grammar.check().unwrap();
            let written = |text: &str| relaxed.grammar.accepts(&format!(r#"{{"a":{text}}}"#));
            written("[1,2]").unwrap();
            for bad in [r#""x""#, "1", "[1]", &N.to_string()] {
                assert!(written(bad).is_err(), "{schema}: {bad}");
            }
        }
    }
}

#[test]
fn what_is_named_as_exact_bounds_are_stays() {
    const N: i64 = (1 << 53) + 1;
    let schema = json!({
        "type": "object",
        "properties": { "x-bounds": { "type": "string" }, "n": { "type": "integer", "minimum": N } },
        "required": ["x-bounds"],
    });
    let relaxed = Grammar::json_schema(&schema).relaxed().unwrap();
    assert!(
        relaxed.elsewhere.text().contains(r#""x-bounds":{"type":"string"}"#),
        "{}",
        relaxed.elsewhere.text()
    );
    let forged = json!({
        "type": "array", "uniqueItems": true,
        "items": { "type": "integer", "x-bounds": { "minimum": N, "sources": [0] } }
    });
    assert!(Grammar::json_schema(&forged).check().is_err(), "nothing stands for `uniqueItems`");
}

#[test]
fn more_ranges_than_are_followed_are_not_cut() {
    const N: i64 = (1 << 53) + 1;
    let all: Vec<i64> = (0..300).map(|n| N + 2 * n).collect();
    let schema = json!({ "allOf": [{ "enum": all }, { "type": "integer", "minimum": all[280] }] });
    let relaxed = Grammar::json_schema(&schema).relaxed().unwrap();
    relaxed.accepts(&all[290].to_string()).unwrap();
    assert!(relaxed.accepts(&all[270].to_string()).is_err());
}

#[test]
fn circles_are_refused() {
    for schema in [
        json!({
            "$ref": "#/$defs/A", "$defs": { "A": { "$ref": "#/$defs/B" }, "B": { "$ref": "#/$defs/A" } }
        }),
        json!({ "not": { "$ref": "#" } }),
    ] {
        let error = Grammar::json_schema(&schema).relaxed().unwrap_err().to_string();
        assert!(error.contains("circular"), "{schema}: {error}");
        assert!(Grammar::json_schema(&schema).check().is_err(), "{schema}");
    }
}

#[test]
fn a_schema_that_would_be_followed_for_long_is_given_up() {
    // Twice as many ways at each level.
    let both = |next: usize| {
        json!({ "allOf": [
        { "$ref": format!("#/$defs/a{next}") }, { "$ref": format!("#/$defs/a{next}") }
    ] })
    };
    let mut defs: serde_json::Map<String, Value> = (0..40).map(|n| (format!("a{n}"), both(n + 1))).collect();
    defs.insert("a40".into(), json!({ "type": "integer" }));
    let schema = json!({ "type": "integer", "not": { "$ref": "#/$defs/a0" }, "$defs": defs });
    let error = Grammar::json_schema(&schema).relaxed().unwrap().accepts("1").unwrap_err().to_string();
    assert!(error.contains("too many steps"), "{error}");
}

#[test]
fn messages_advise_what_there_is() {
    let message = |schema: Value| Grammar::json_schema(&schema).check().unwrap_err().to_string();
    let overlap = message(json!({ "oneOf": [{ "type": "integer" }, { "type": "number", "minimum": 0 }] }));
    assert!(overlap.contains("use `anyOf`") && !overlap.contains("coerce"), "{overlap}");
    assert_eq!(
        message(json!({ "type": "string", "not": {} })),
        "`not` can't be enforced while a text is written"
    );
    assert_eq!(message(json!({ "type": "string", "format": "int32" })), "the format `int32` is unknown");
}

fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({})),
        Just(json!({ "type": "integer" })),
        Just(json!({ "type": ["string", "null"] })),
        (-3..3i64).prop_map(|n| json!({ "minimum": n })),
        (-3..3i64).prop_map(|n| json!({ "exclusiveMaximum": n })),
        (1..4i64).prop_map(|n| json!({ "multipleOf": n })),
        Just(json!({ "multipleOf": 0.5 })),
        (0..3u64).prop_map(|n| json!({ "minLength": n, "maxLength": n + 1 })),
        Just(json!({ "pattern": "^a" })),
        Just(json!({ "const": "a" })),
        Just(json!({ "enum": [1, 1.5, null, ["a"], { "a": 1 }] })),
        Just(json!({ "uniqueItems": true })),
        Just(json!({ "required": ["a"] })),
        (0..3u64).prop_map(|n| json!({ "minItems": n })),
        (0..3u64).prop_map(|n| json!({ "maxProperties": n })),
        Just(json!({ "dependentRequired": { "a": ["b"] } })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            inner.clone().prop_map(|a| json!({ "not": a })),
            two.clone().prop_map(|(a, b)| json!({ "anyOf": [a, b] })),
            two.clone().prop_map(|(a, b)| json!({ "oneOf": [a, b] })),
            two.clone().prop_map(|(a, b)| json!({ "allOf": [a, b] })),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
            two.clone().prop_map(|(a, b)| json!({ "properties": { "a": a }, "additionalProperties": b })),
            two.clone().prop_map(|(a, b)| json!({ "patternProperties": { "^b": a }, "propertyNames": b })),
            two.clone().prop_map(|(a, b)| json!({ "prefixItems": [a], "items": b })),
            inner.clone().prop_map(|a| json!({ "contains": a, "maxContains": 2 })),
            inner.clone().prop_map(|a| json!({ "contains": a, "minContains": 0 })),
            inner.clone().prop_map(|a| json!({ "dependentSchemas": { "a": a } })),
            inner.prop_map(|a| json!({ "$defs": { "d": a }, "$ref": "#/$defs/d" })),
        ]
    })
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        (-3..4i64).prop_map(|n| json!(n)),
        (-6..6i64).prop_map(|n| json!(n as f64 / 4.0)),
        "[ab]{0,3}".prop_map(Value::String),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[ab]{1,2}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if is_deep() { 3000 } else { 600 }, ..ProptestConfig::default() })]
    /// `not` and `not`: masks enforce nothing of it, and all is checked.
    #[test]
    fn values_are_checked_as_another_validator_checks_them(schema in schemas(), value in values()) {
        // References are from the root.
        let mut outer = json!({ "not": { "not": schema } });
        if let Some(defs) = outer["not"]["not"].get("$defs").cloned() {
            outer["$defs"] = defs;
        }
        // One within another may lead elsewhere than to its own.
        let n_refs = outer.to_string().matches("$ref").count();
        prop_assume!(n_refs == 0 || n_refs == 1 && outer.get("$defs").is_some());
        prop_assert_eq!(accepts(&outer, &value), is_valid(&outer, &value), "{}: {}", outer, value);
    }
}

/// Pointers to all schemas in a schema, itself included.
fn pointers(schema: &Value, at: &str, found: &mut Vec<String>) {
    let Some(fields) = schema.as_object() else { return };
    found.push(at.to_string());
    for (keyword, value) in fields {
        let at = format!("{at}/{keyword}");
        match (keyword.as_str(), value) {
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => {
                list.iter().enumerate().for_each(|(n, inner)| pointers(inner, &format!("{at}/{n}"), found));
            }
            ("properties" | "patternProperties" | "dependentSchemas" | "$defs", Value::Object(map)) => {
                map.iter().for_each(|(name, inner)| pointers(inner, &format!("{at}/{name}"), found));
            }
            ("enum" | "const", _) => {}
            (_, inner) => pointers(inner, &at, found),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if is_deep() { 600 } else { 60 }, ..ProptestConfig::default() })]
    /// A reference may lead into any keyword, one that masks can't enforce included.
    #[test]
    fn references_lead_to_schemas_that_allow_no_less(
        keywords in prop::sample::subsequence(
            vec!["minimum", "allOf", "oneOf", "enum", "not", "const", "if", "contains", "maximum"], 1..9
        ).prop_shuffle(),
        a in schemas(), b in schemas(),
        values in prop::collection::vec(values(), 20),
    ) {
        const N: i64 = (1 << 53) + 1;
        prop_assume!(!a.to_string().contains("$ref") && !b.to_string().contains("$ref"));
        let mut schema = json!({ "properties": {} });
        for keyword in &keywords {
            schema[*keyword] = match *keyword {
                "minimum" | "maximum" | "const" => json!(N),
                "enum" => json!(["a", N, 1]),
                "allOf" | "oneOf" => json!([a, b]),
                _ => json!({ "anyOf": [b, a], "minimum": N }),
            };
        }
        let mut targets = Vec::new();
        pointers(&schema, "", &mut targets);
        targets.retain(|at| !at.contains('^'));
        // A name for each, and one that leads to the next.
        for (n, at) in targets.iter().enumerate() {
            schema["properties"][format!("r{n}")] = json!({ "$ref": format!("#{at}") });
        }
        // The root leads back to itself only through properties, which no schema above it has.
        let relaxed = Grammar::json_schema(&schema).relaxed().unwrap();
        let relaxed: Value = serde_json::from_str(relaxed.grammar.text()).unwrap();
        for (n, at) in targets.iter().enumerate() {
            let reference = relaxed["properties"][format!("r{n}")]["$ref"].as_str().unwrap();
            for value in values.iter().chain([&json!(N), &json!(1)]) {
                let was_valid = is_valid_at(&schema, &format!("#{at}"), value);
                prop_assert!(
                    !was_valid || is_valid_at(&relaxed, reference, value), "{}: {} at {}, now {}: {}", schema,
                    relaxed, at, reference, value
                );
            }
        }
    }
}

/// A number ends as soon as it may, so an object with one goes on to its next key.
#[test]
fn an_example_is_found_of_objects_with_numbers() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "a": { "type": "integer" }, "b": { "type": "array", "items": { "type": "number" }, "minItems": 2 },
            "c": { "type": "string" } },
        "required": ["a", "b", "c"], "additionalProperties": false,
    });
    let grammar = greenroom_grammar::Grammar::json_schema(&schema);
    let example = grammar.example().expect("one is found");
    let value: serde_json::Value = serde_json::from_str(&example).expect("it is JSON");
    assert!(
        value["a"].is_number() && value["b"].as_array().is_some_and(|items| items.len() == 2),
        "{example}"
    );
    grammar.accepts(&example).expect("it is in the grammar");
}
