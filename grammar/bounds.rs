//! Bounds of grammars from outside: sizes and nesting before they are compiled, counted steps while they are,
//! and at each token.

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use llguidance::api::ParserLimits;
use serde_json::Value;

/// Maximum size of a grammar's text, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum nesting of a schema's values and of a grammar's brackets: they are read recursively.
const MAX_DEPTH: usize = 64;

/// Bounds of llguidance's work; each is a count, so a grammar that is refused is refused everywhere.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 500,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Rejects grammars that are too long or nested too deeply, or whose meaning would depend on the vocabulary.
pub(crate) fn within(grammar: &Grammar) -> Result<()> {
    let text = grammar.text();
    if text.len() > MAX_BYTES {
        return Err(Error(format!("it is {} bytes long; at most {MAX_BYTES} are allowed", text.len())));
    }
    let depth = match grammar {
        Grammar::JsonSchema(text) => {
            let schema = serde_json::from_str(text).map_err(|e| Error(e.to_string()))?;
            depth(&schema)?
        }
        Grammar::Lark(text) | Grammar::Regex(text) => brackets(text),
    };
    if depth > MAX_DEPTH {
        return Err(Error(format!("it is nested {depth} levels deep; at most {MAX_DEPTH} are allowed")));
    }
    if let Grammar::Lark(text) = grammar
        && text.contains("max_tokens")
    {
        let found = "`max_tokens` counts tokens, so its effect would depend on the model; limit characters";
        return Err(Error(format!("{found}, e.g. `/.{{1,80}}/`")));
    }
    Ok(())
}

/// Nesting levels of a schema; also checks the brackets in its patterns.
fn depth(schema: &Value) -> Result<usize> {
    let inner: Vec<usize> = match schema {
        Value::Array(items) => items.iter().map(depth).collect::<Result<_>>()?,
        Value::Object(fields) => {
            let keys = fields.keys().map(String::as_str);
            let deepest =
                keys.chain(fields.values().filter_map(Value::as_str)).map(brackets).max().unwrap_or(0);
            if deepest > MAX_DEPTH {
                return Err(Error(format!(
                    "a text in it nests {deepest} brackets; at most {MAX_DEPTH} are allowed"
                )));
            }
            fields.values().map(depth).collect::<Result<_>>()?
        }
        _ => return Ok(0),
    };
    Ok(1 + inner.into_iter().max().unwrap_or(0))
}

/// The maximum number of brackets open at once, including those in quotes.
fn brackets(text: &str) -> usize {
    let (mut open, mut deepest) = (0usize, 0);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_a_bound_is_allowed_and_what_is_above_it_is_not() {
        let text = |n: usize| Grammar::Regex("a".repeat(n));
        assert!(within(&text(MAX_BYTES)).is_ok());
        assert!(within(&text(MAX_BYTES + 1)).is_err());
        let nested = |n: usize| Grammar::Regex("(".repeat(n) + &")".repeat(n));
        assert!(within(&nested(MAX_DEPTH)).is_ok());
        assert!(within(&nested(MAX_DEPTH + 1)).is_err());
        // Brackets beside each other are not nested.
        assert!(within(&Grammar::Regex("(a)".repeat(MAX_DEPTH + 1))).is_ok());
        let schema = |n: usize| Grammar::JsonSchema("[".repeat(n) + &"]".repeat(n));
        assert!(within(&schema(MAX_DEPTH)).is_ok());
        assert!(within(&schema(MAX_DEPTH + 1)).is_err());
        let pattern =
            |n: usize| Grammar::JsonSchema(format!(r#"{{"pattern": "{}{}"}}"#, "(".repeat(n), ")".repeat(n)));
        assert!(within(&pattern(MAX_DEPTH)).is_ok());
        assert!(within(&pattern(MAX_DEPTH + 1)).is_err());
    }
}
