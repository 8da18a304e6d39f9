//! A schema as masks can enforce it: the rest is left out, so that a mask allows a little more, never less.
//!
//! What was left out is listed. Most of it is checked against the whole schema once a text is complete
//! ([`Relaxed::accepts`]); the rest has no effect at all.

use crate::bytes::{Mismatch, compiled};
use crate::error::{Error, Result};
use crate::grammar::{Grammar, Spacing};
use crate::schema::{EXACT, Exact, KEYWORD, SOURCES, escaped, integer, is_grounded, is_usable, violation};
use serde_json::{Map, Number, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

mod references;

/// A grammar as masks can enforce it, and what is checked in addition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relaxed {
    /// The grammar without what masks can't enforce.
    pub grammar: Grammar,
    /// The same for other engines, which know nothing of exact bounds.
    pub elsewhere: Grammar,
    /// What it leaves out, in the order of the schema.
    pub left: Vec<Left>,
    /// The whole schema, if complete texts are checked for some of that.
    whole: Option<Arc<Value>>,
}

impl Grammar {
    /// The grammar without what masks can't enforce, which is listed. A grammar that is not a schema is
    /// enforced whole.
    ///
    /// # Errors
    /// It can't be read, or is beyond a bound. That masks can enforce the rest, [`Grammar::check`] says.
    pub fn relaxed(&self) -> Result<Relaxed> {
        let whole = |grammar: &Self| Relaxed {
            grammar: grammar.clone(),
            elsewhere: grammar.clone(),
            left: Vec::new(),
            whole: None,
        };
        let Self::JsonSchema(text) = self else { return Ok(whole(self)) };
        crate::bounds::within(self)?;
        let schema: Value = serde_json::from_str(text).map_err(|e| Error(e.to_string()))?;
        is_grounded(&schema)?;
        let mut work = Relaxation::default();
        let mut relaxed = work.root(&schema)?;
        if text.contains("oneOf") && is_overlapping(&relaxed) {
            // Alternatives that can't be distinguished: how many of them hold is counted afterwards.
            work = Relaxation { one_of_as_any: true, ..Relaxation::default() };
            relaxed = work.root(&schema)?;
        }
        // What masks enforce whole stays as it is written.
        if work.left.is_empty() && relaxed == schema {
            return Ok(whole(self));
        }
        let is_checked = work.left.iter().any(|left| left.is_checked);
        if is_checked {
            is_usable(&schema)?;
        }
        let whole = is_checked.then(|| Arc::new(schema));
        let grammar = Self::json_schema(&relaxed);
        without_exact(&mut relaxed);
        Ok(Relaxed { grammar, elsewhere: Self::json_schema(&relaxed), left: work.left, whole })
    }
}

impl Relaxed {
    /// What masks do not enforce of the grammar, first of all.
    pub(crate) fn not_enforced(&self) -> Option<&Left> {
        self.left.iter().find(|left| !left.is_followed)
    }

    /// True if complete texts are checked for something that masks can't enforce.
    pub fn is_checked(&self) -> bool {
        self.whole.is_some()
    }

    /// Checks that a whole text is in the grammar: as a value, where masks can't enforce all of it, and as
    /// what masks allow. JSON may be spaced as it likes.
    ///
    /// # Errors
    /// What it breaks, or the first place where it is not in the grammar.
    pub fn accepts(&self, text: &str) -> Result<(), Mismatch> {
        let value = self.whole.as_ref().and_then(|_| serde_json::from_str::<Value>(text).ok());
        if let Some(value) = value
            && let Some(reason) = self.violated_by(&value)?
        {
            return Err(Mismatch::Invalid(reason));
        }
        self.grammar.accepts(text)
    }

    /// What a value breaks of a schema, masks aside; `None`: nothing, or masks enforce all of it.
    ///
    /// # Errors
    /// The schema can't be followed within the limits.
    pub fn violated_by(&self, value: &Value) -> Result<Option<String>> {
        self.whole.as_ref().map_or(Ok(None), |whole| violation(whole, value))
    }

    /// A short text that is in the grammar, if one is found without looking back.
    pub fn example(&self) -> Option<String> {
        self.grammar.example().filter(|example| !self.is_checked() || self.accepts(example).is_ok())
    }
}

/// Removes the numbers of keywords from exact bounds.
fn without_sources(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(bounds) = fields.get_mut(KEYWORD).filter(|value| is_exact(value)) {
                bounds.as_object_mut().into_iter().for_each(|bounds| _ = bounds.shift_remove(SOURCES));
            }
            fields.values_mut().for_each(without_sources);
        }
        Value::Array(items) => items.iter_mut().for_each(without_sources),
        _ => {}
    }
}

/// Removes exact bounds from a schema.
fn without_exact(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get(KEYWORD).is_some_and(is_exact) {
                fields.shift_remove(KEYWORD);
            }
            fields.values_mut().for_each(without_exact);
        }
        Value::Array(items) => items.iter_mut().for_each(without_exact),
        _ => {}
    }
}

/// True of exact bounds; a property may have the name of their keyword.
fn is_exact(value: &Value) -> bool {
    let known = |keyword: &String| ["minimum", "maximum", SOURCES].contains(&keyword.as_str());
    value.as_object().is_some_and(|fields| fields.keys().all(known))
}

/// True if alternatives of a schema can't be distinguished.
fn is_overlapping(schema: &Value) -> bool {
    matches!(compiled(&Grammar::json_schema(schema), Spacing::Any), Err(error) if error.is_overlap())
}

/// True if masks can enforce a small schema alone.
fn is_enforced(schema: &Value) -> bool {
    /// Answers that are kept: schemas come again at each turn.
    const MAX_KNOWN: usize = 256;
    static KNOWN: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
    let text = schema.to_string();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known().get(&text) {
        return *known;
    }
    let is_enforced = compiled(&Grammar::JsonSchema(text.clone()), Spacing::Any).is_ok();
    let mut known = known();
    if known.len() >= MAX_KNOWN {
        known.clear();
    }
    known.insert(text, is_enforced);
    is_enforced
}

/// A keyword of a schema that masks can't enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The keyword.
    pub keyword: String,
    /// JSON Pointer to the schema that has it; empty: the schema itself.
    pub place: String,
    /// True if complete texts are checked for it; false: it has no effect.
    pub is_checked: bool,
    /// True if masks enforce it all the same: the exact bounds of an integer are followed while it is
    /// written.
    pub is_followed: bool,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place.as_str() {
            "" => write!(f, "`{}`", self.keyword),
            place => {
                let names = place.trim_start_matches('/').replace('/', ".");
                write!(f, "`{}` at `{}`", self.keyword, names.replace("~1", "/").replace("~0", "~"))
            }
        }
    }
}

/// Keywords that only a complete value can be checked for.
const CHECKED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
];
/// Keywords that say what was left over by others, or refer to what is only known while a schema is followed.
const IGNORED: &[&str] = &["unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"];
/// Keywords that are annotations, and that llguidance does not know.
const ANNOTATIONS: &[&str] =
    &["deprecated", "contentSchema", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor"];

#[derive(Default)]
struct Relaxation {
    left: Vec<Left>,
    /// Their numbers.
    numbers: HashMap<(String, String, bool), usize>,
    /// Times that something was left out, also where it was left out before.
    n_left: usize,
    /// True where `oneOf` becomes `anyOf`.
    one_of_as_any: bool,
    /// Numbers of the keywords some of whose bounds can't be exact.
    inexact: BTreeSet<u64>,
}

/// A relaxed schema in the making.
#[derive(Default)]
struct Kept {
    fields: Map<String, Value>,
    /// Schemas that must hold, too. They come after those of `allOf`, whose numbers may be referred to.
    added: Vec<Value>,
}

impl Kept {
    fn into_schema(self) -> Value {
        let Self { mut fields, added } = self;
        if !added.is_empty() {
            let all = fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(all) = all {
                all.extend(added);
            }
        }
        Value::Object(fields)
    }
}

impl Relaxation {
    /// The whole schema, whose references lead to relaxed schemas, too.
    ///
    /// # Errors
    /// It becomes too large.
    fn root(&mut self, schema: &Value) -> Result<Value> {
        let mut relaxed = self.schema(schema, "");
        self.keep_references(schema, &mut relaxed)?;
        if let Some(exact) = Exact::new(&relaxed) {
            for number in exact.followed().difference(&self.inexact) {
                let left = usize::try_from(*number).ok().and_then(|number| self.left.get_mut(number));
                left.into_iter().for_each(|left| left.is_followed = true);
            }
            without_sources(&mut relaxed);
        }
        Ok(relaxed)
    }

    /// Records a keyword that is left out, and returns its number.
    fn leave(&mut self, keyword: &str, place: &str, is_checked: bool) -> u64 {
        let (keyword, place) = (keyword.to_string(), place.to_string());
        self.n_left += 1;
        let number =
            self.numbers.entry((keyword, place, is_checked)).or_insert_with_key(|(keyword, place, _)| {
                let (keyword, place) = (keyword.clone(), place.clone());
                self.left.push(Left { keyword, place, is_checked, is_followed: false });
                self.left.len() - 1
            });
        *number as u64
    }

    fn schema(&mut self, schema: &Value, place: &str) -> Value {
        let Value::Object(fields) = schema else { return schema.clone() };
        let mut kept = Kept::default();
        for (keyword, value) in fields {
            let at = format!("{place}/{keyword}");
            match keyword.as_str() {
                "uniqueItems" if *value == Value::Bool(false) => {}
                word if CHECKED.contains(&word) => _ = self.leave(keyword, place, true),
                word if IGNORED.contains(&word) => _ = self.leave(keyword, place, false),
                word if ANNOTATIONS.contains(&word) => {}
                // Exact bounds of a grammar that is enforced again; their keywords are known only here.
                KEYWORD if is_exact(value) => {
                    let mut bounds = value.clone();
                    bounds.as_object_mut().into_iter().for_each(|bounds| _ = bounds.shift_remove(SOURCES));
                    kept.fields.insert(keyword.clone(), bounds);
                }
                "format" if !is_enforced(&json!({ "type": "string", "format": value })) => {
                    // By the standard it is an annotation.
                    self.leave(keyword, place, false);
                }
                "pattern" if !is_enforced(&json!({ "type": "string", "pattern": value })) => {
                    self.leave(keyword, place, true);
                }
                "multipleOf" if !is_enforced(&json!({ "type": "number", "multipleOf": value })) => {
                    self.leave(keyword, place, true);
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    self.bound(keyword, value, fields, place, &mut kept);
                }
                "const" if holds_large(value) => {
                    let number = self.leave(keyword, place, true);
                    kept.added.push(self.constant(value, number));
                }
                "enum" if holds_large(value) => {
                    let number = self.leave(keyword, place, true);
                    let values = value.as_array().into_iter().flatten();
                    let options: Vec<Value> = values.map(|value| self.constant(value, number)).collect();
                    kept.added.push(json!({ "anyOf": options }));
                }
                "oneOf" => self.one_of(value, place, &mut kept),
                "patternProperties" => self.pattern_properties(value, place, &mut kept),
                "properties" | "$defs" | "definitions" => {
                    let inner = |(name, inner): (&String, &Value)| {
                        (name.clone(), self.schema(inner, &format!("{at}/{}", escaped(name))))
                    };
                    let map = value.as_object().map(|map| map.iter().map(inner).collect());
                    kept.fields.insert(keyword.clone(), map.map_or_else(|| value.clone(), Value::Object));
                }
                "allOf" | "anyOf" | "prefixItems" | "items" if value.is_array() => {
                    let list = self.list(value, &at);
                    kept.fields.insert(keyword.clone(), Value::Array(list));
                }
                "items" | "additionalItems" | "additionalProperties" => {
                    let inner = self.schema(value, &at);
                    kept.fields.insert(keyword.clone(), inner);
                }
                _ => _ = kept.fields.insert(keyword.clone(), value.clone()),
            }
        }
        // What is additional depends on which patterns there are.
        if fields.contains_key("patternProperties") && !kept.fields.contains_key("patternProperties") {
            kept.fields.remove("additionalProperties");
        }
        kept.into_schema()
    }

    fn list(&mut self, list: &Value, place: &str) -> Vec<Value> {
        let items = list.as_array().into_iter().flatten().enumerate();
        items.map(|(at, inner)| self.schema(inner, &format!("{place}/{at}"))).collect()
    }

    /// Alternatives of which exactly one holds: once one of them allows more than it says, several may.
    fn one_of(&mut self, value: &Value, place: &str, kept: &mut Kept) {
        let n_left = self.n_left;
        let options = self.list(value, &format!("{place}/oneOf"));
        if !value.is_array() || (self.n_left == n_left && !self.one_of_as_any) {
            let options = if value.is_array() { Value::Array(options) } else { value.clone() };
            kept.fields.insert("oneOf".into(), options);
            return;
        }
        self.leave("oneOf", place, true);
        kept.added.push(json!({ "anyOf": options }));
    }

    fn pattern_properties(&mut self, value: &Value, place: &str, kept: &mut Kept) {
        let patterns = value.as_object().into_iter().flatten();
        let mut unknown =
            patterns.clone().map(|(pattern, _)| json!({ "type": "string", "pattern": pattern }));
        if unknown.any(|schema| !is_enforced(&schema)) {
            self.leave("patternProperties", place, true);
            return;
        }
        let inner = |(pattern, inner): (&String, &Value)| {
            let at = format!("{place}/patternProperties/{}", escaped(pattern));
            (pattern.clone(), self.schema(inner, &at))
        };
        let inner: Map<String, Value> = patterns.map(inner).collect();
        let inner = if value.is_object() { Value::Object(inner) } else { value.clone() };
        kept.fields.insert("patternProperties".into(), inner);
    }

    /// A bound that a float can't say is replaced by the next one outside it that a float can; one beyond 64
    /// bits by none.
    fn bound(
        &mut self,
        keyword: &str,
        value: &Value,
        fields: &Map<String, Value>,
        place: &str,
        kept: &mut Kept,
    ) {
        let number = match value {
            // Draft 4: refers to the adjacent bound.
            Value::Bool(true) => {
                let beside = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
                if fields.get(beside).and_then(Value::as_number).is_some_and(is_beyond) {
                    self.leave(keyword, place, true);
                    return;
                }
                None
            }
            // An exclusive bound is moved by 1, which a float has no room for there.
            _ if keyword.starts_with("exclusive") => value.as_number().filter(|number| is_beyond(number)),
            _ => value.as_number().filter(|number| is_large(number)),
        };
        let Some(number) = number else {
            kept.fields.insert(keyword.to_string(), value.clone());
            return;
        };
        let source = self.leave(keyword, place, true);
        let is_least = keyword.to_lowercase().contains("minimum");
        let inside = match (keyword.starts_with("exclusive"), is_least) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => -1,
        };
        let exact = integer(number).map(|whole| whole + inside);
        self.follow_bound(&mut kept.fields, is_least, exact, source);
        if let Some(outside) = outside(number, is_least) {
            // An exclusive bound keeps its own value out afterwards.
            let inclusive = if is_least { "minimum" } else { "maximum" };
            kept.added.push(json!({ inclusive: outside }));
        }
    }

    /// Leaves a keyword's exact bound to the matcher, or the narrower one if there is another.
    fn follow_bound(
        &mut self,
        kept: &mut Map<String, Value>,
        is_least: bool,
        bound: Option<i128>,
        source: u64,
    ) {
        let keyword = if is_least { "minimum" } else { "maximum" };
        let exact = kept.entry(KEYWORD).or_insert_with(|| json!({})).as_object_mut();
        let Some((exact, bound)) = exact.zip(bound) else {
            self.inexact.insert(source);
            return;
        };
        let other = exact.get(keyword).and_then(Value::as_number).and_then(integer);
        let narrower =
            other.map_or(bound, |other| if is_least { other.max(bound) } else { other.min(bound) });
        let number =
            i64::try_from(narrower).map(Value::from).or_else(|_| u64::try_from(narrower).map(Value::from));
        // One that JSON has no integer for is beyond 64 bits: it is checked afterwards.
        let Ok(number) = number else {
            self.inexact.insert(source);
            return;
        };
        exact.insert(keyword.to_string(), number);
        let sources = exact.entry(SOURCES).or_insert_with(|| json!([]));
        sources.as_array_mut().into_iter().for_each(|sources| sources.push(source.into()));
    }

    /// The schema of one value, in which large integers are ranges.
    fn constant(&mut self, value: &Value, source: u64) -> Value {
        match value {
            Value::Number(number) if is_large(number) => {
                let whole = integer(number);
                let mut schema = Map::new();
                schema.insert("type".into(), if whole.is_some() { "integer" } else { "number" }.into());
                for (bound, is_least) in [("minimum", true), ("maximum", false)] {
                    schema.extend(outside(number, is_least).map(|number| (bound.to_string(), number)));
                    self.follow_bound(&mut schema, is_least, whole, source);
                }
                Value::Object(schema)
            }
            Value::Array(items) => {
                let n = items.len();
                let items: Vec<Value> = items.iter().map(|item| self.constant(item, source)).collect();
                json!({ "type": "array", "prefixItems": items, "items": false, "minItems": n, "maxItems": n })
            }
            Value::Object(fields) => {
                let required: Vec<&String> = fields.keys().collect();
                let constant =
                    |(name, value): (&String, &Value)| (name.clone(), self.constant(value, source));
                let properties: Map<String, Value> = fields.iter().map(constant).collect();
                json!({
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                })
            }
            value => json!({ "const": value }),
        }
    }
}

/// True of a number that llguidance would round: it works with floats, and with integers of 64 bits.
fn is_large(number: &Number) -> bool {
    match number.as_f64() {
        Some(float) if number.is_f64() => float.abs() >= MAX_EXACT,
        _ => integer(number).is_none_or(|whole| whole.abs() >= EXACT),
    }
}

/// Floats below it are integers of 64 bits.
const MAX_EXACT: f64 = 9.0e18;

/// True if floats skip integers where a number is.
fn is_beyond(number: &Number) -> bool {
    is_large(number) || number.as_f64().is_some_and(|float| float.abs() >= EXACT as f64)
}

fn holds_large(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_large(number),
        Value::Array(items) => items.iter().any(holds_large),
        Value::Object(fields) => fields.values().any(holds_large),
        _ => false,
    }
}

/// The nearest number at or outside a bound that a float says exactly; `None`: there is none within 64 bits.
fn outside(number: &Number, is_least: bool) -> Option<Value> {
    let whole = integer(number)?;
    let near = whole as f64;
    let is_inside = if is_least { near as i128 > whole } else { (near as i128) < whole };
    let outside = match (is_inside, is_least) {
        (false, _) => near,
        (true, true) => near.next_down(),
        (true, false) => near.next_up(),
    };
    (outside.abs() < MAX_EXACT).then(|| json!(outside))
}
