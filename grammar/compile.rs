//! Grammars as llguidance has them.

use crate::bounds;
use crate::error::{Error, Result};
use crate::grammar::{Grammar, Spacing};
use crate::schema::Exact;
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

impl Grammar {
    /// Bounds of integers that llguidance would round.
    pub(crate) fn exact(&self) -> Option<Exact> {
        let Self::JsonSchema(text) = self else { return None };
        Exact::new(&serde_json::from_str(text).ok()?)
    }

    /// As llguidance has it.
    ///
    /// # Errors
    /// It is not a schema, or beyond a bound.
    pub(crate) fn compiled_form(&self, spacing: Spacing) -> Result<TopLevelGrammar> {
        bounds::within(self)?;
        Ok(match self {
            Self::JsonSchema(text) => {
                let mut schema: Value = serde_json::from_str(text).map_err(|e| Error(e.to_string()))?;
                if schema == Value::Bool(true) {
                    schema = json!({});
                }
                let Value::Object(fields) = &schema else {
                    return Err(Error("a schema must be a mapping, e.g. `{ type: object }`".into()));
                };
                if fields.contains_key("x-guidance") {
                    return Err(Error("`x-guidance` can't be set".into()));
                }
                crate::schema::is_grounded(&schema)?;
                let is_any = spacing == Spacing::Any;
                let options = JsonCompileOptions {
                    item_separator: if is_any { "," } else { ", " }.into(),
                    key_separator: if is_any { ":" } else { ": " }.into(),
                    whitespace_flexible: is_any,
                    ..JsonCompileOptions::default()
                };
                options.apply_to(&mut schema);
                TopLevelGrammar::from_json_schema(schema)
            }
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
        })
    }
}
