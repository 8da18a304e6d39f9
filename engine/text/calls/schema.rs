//! Arguments by a tool's schema: what grammars can enforce of it, and how far arguments were read.

use greenroom_grammar::Grammar;
use serde_json::Value;

/// Arguments in a partial text of a call.
pub(super) struct PartialArguments<'t> {
    /// As far as they are known, the text of a JSON object.
    pub(super) json: String,
    /// What follows them, once they are complete.
    pub(super) rest: Option<&'t str>,
}

/// A schema as masks can enforce it. What it says beyond that, who runs the tool checks.
pub(super) fn enforced(schema: &Value) -> Value {
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
