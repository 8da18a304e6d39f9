//! Checks a complete value against a whole schema, within a limit of steps: for what masks can't enforce.
//!
//! Drafts 4 to 2020-12, as far as they agree; `format` is an annotation here. What is unknown to all of them
//! has no effect. Checked against an independent validator by `tests/valid.rs`.

use super::number::{compare, equal, integer, is_multiple};
use super::{children, references, target};
use crate::error::{Error, Result};
use fancy_regex::{Regex, RegexBuilder};
use serde_json::{Map, Number, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of schemas that are applied to values.
const MAX_STEPS: usize = 200_000;
/// Maximum number of schemas that are applied within each other.
const MAX_DEPTH: usize = 400;
/// Steps of a pattern that looks back.
const MAX_BACKTRACKING: usize = 100_000;

/// The reason why a value is not in a schema, which has no circles; `None`: it is.
///
/// # Errors
/// The schema can't be followed, or not within the limit.
pub(crate) fn violation(schema: &Value, value: &Value) -> Result<Option<String>> {
    let mut work = Validation { root: schema, steps: 0, depth: 0, patterns: BTreeMap::new() };
    match work.schema(schema, value, "") {
        Ok(()) => Ok(None),
        Err(Fault::Invalid(reason)) => Ok(Some(reason)),
        Err(Fault::Unusable(error)) => Err(error),
    }
}

/// Rejects a schema that could not be followed: where a reference leads out of it, or a pattern is none.
///
/// # Errors
/// The reference or the pattern.
pub(crate) fn is_usable(schema: &Value) -> Result<()> {
    let mut found = BTreeSet::new();
    references(schema, &mut found);
    found.into_iter().try_for_each(|reference| target(schema, reference).map(drop))?;
    has_patterns(schema)
}

fn has_patterns(schema: &Value) -> Result<()> {
    let own = schema.get("pattern").and_then(Value::as_str);
    let names = schema.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
    own.into_iter()
        .chain(names.map(|(name, _)| name.as_str()))
        .try_for_each(|pattern| regex(pattern).map(drop))?;
    children(schema, false).try_for_each(has_patterns)
}

fn regex(pattern: &str) -> Result<Regex> {
    let regex = RegexBuilder::new(pattern).backtrack_limit(MAX_BACKTRACKING).build();
    regex.map_err(|error| Error(format!("invalid regular expression `{pattern}`: {error}")))
}

/// A value is not in a schema, or a schema can't be followed.
enum Fault {
    Invalid(String),
    Unusable(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Unusable(error)
    }
}

type Checked = std::result::Result<(), Fault>;

struct Validation<'s> {
    root: &'s Value,
    steps: usize,
    depth: usize,
    patterns: BTreeMap<&'s str, Regex>,
}

impl<'s> Validation<'s> {
    /// Checks one value; `at` is its place in the whole value, as a JSON Pointer.
    fn schema(&mut self, schema: &'s Value, value: &Value, at: &str) -> Checked {
        self.steps += 1;
        if self.steps > MAX_STEPS || self.depth > MAX_DEPTH {
            return Err(Error("checking a value against it takes too many steps".into()).into());
        }
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(false) => return invalid(at, "nothing is allowed here", "false"),
            _ => return Ok(()),
        };
        self.depth += 1;
        let checked = self.fields(fields, value, at);
        self.depth -= 1;
        checked
    }

    fn fields(&mut self, fields: &'s Map<String, Value>, value: &Value, at: &str) -> Checked {
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            self.schema(target(self.root, reference)?, value, at)?;
        }
        self.any(fields, value, at)?;
        self.combined(fields, value, at)?;
        match value {
            Value::Number(number) => numeric(fields, number, at),
            Value::String(text) => self.text(fields, text, at),
            Value::Array(items) => self.items(fields, items, at),
            Value::Object(properties) => self.properties(fields, properties, at),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    /// True if a value is in a schema.
    fn holds(&mut self, schema: &'s Value, value: &Value) -> std::result::Result<bool, Fault> {
        match self.schema(schema, value, "") {
            Ok(()) => Ok(true),
            Err(Fault::Invalid(_)) => Ok(false),
            Err(unusable) => Err(unusable),
        }
    }

    /// Keywords for values of all types.
    fn any(&mut self, fields: &'s Map<String, Value>, value: &Value, at: &str) -> Checked {
        let named: Vec<&str> = match fields.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !named.is_empty() && !named.iter().any(|name| is_type(value, name)) {
            return invalid(at, &format!("expected {}", named.join(" or ")), "type");
        }
        if let Some(only) = fields.get("const")
            && !equal(only, value)
        {
            return invalid(at, &format!("expected {only}"), "const");
        }
        if let Some(Value::Array(options)) = fields.get("enum")
            && !options.iter().any(|option| equal(option, value))
        {
            return invalid(at, "expected one of the options", "enum");
        }
        Ok(())
    }

    /// Keywords that combine schemas.
    fn combined(&mut self, fields: &'s Map<String, Value>, value: &Value, at: &str) -> Checked {
        let list = |keyword: &str| fields.get(keyword).and_then(Value::as_array);
        for schema in list("allOf").into_iter().flatten() {
            self.schema(schema, value, at)?;
        }
        let mut count = |options: Option<&'s Vec<Value>>, enough: usize| {
            let mut n = 0;
            for schema in options.into_iter().flatten() {
                n += usize::from(self.holds(schema, value)?);
                if n >= enough {
                    break;
                }
            }
            Ok::<usize, Fault>(n)
        };
        if list("anyOf").is_some() && count(list("anyOf"), 1)? == 0 {
            return invalid(at, "none of the alternatives fits", "anyOf");
        }
        if list("oneOf").is_some() {
            match count(list("oneOf"), 2)? {
                0 => return invalid(at, "none of the alternatives fits", "oneOf"),
                1 => {}
                _ => return invalid(at, "more than one of the alternatives fits", "oneOf"),
            }
        }
        if let Some(not) = fields.get("not")
            && self.holds(not, value)?
        {
            return invalid(at, "it is what it must not be", "not");
        }
        if let Some(condition) = fields.get("if") {
            let branch = if self.holds(condition, value)? { "then" } else { "else" };
            if let Some(schema) = fields.get(branch) {
                self.schema(schema, value, at)?;
            }
        }
        Ok(())
    }

    fn text(&mut self, fields: &'s Map<String, Value>, text: &str, at: &str) -> Checked {
        let n = text.chars().count() as u64;
        if limit(fields, "minLength").is_some_and(|least| n < least) {
            return invalid(at, "the text is too short", "minLength");
        }
        if limit(fields, "maxLength").is_some_and(|most| n > most) {
            return invalid(at, "the text is too long", "maxLength");
        }
        match fields.get("pattern").and_then(Value::as_str) {
            Some(pattern) if !self.is_match(pattern, text)? => {
                invalid(at, &format!("the text does not match `{pattern}`"), "pattern")
            }
            _ => Ok(()),
        }
    }

    fn is_match(&mut self, pattern: &'s str, text: &str) -> Result<bool> {
        let regex = match self.patterns.get(pattern) {
            Some(regex) => regex,
            None => self.patterns.entry(pattern).or_insert(regex(pattern)?),
        };
        let found = regex.is_match(text);
        found.map_err(|_| Error(format!("the regular expression `{pattern}` takes too many steps")))
    }

    fn items(&mut self, fields: &'s Map<String, Value>, items: &[Value], at: &str) -> Checked {
        let n = items.len() as u64;
        if limit(fields, "minItems").is_some_and(|least| n < least) {
            return invalid(at, "there are too few items", "minItems");
        }
        if limit(fields, "maxItems").is_some_and(|most| n > most) {
            return invalid(at, "there are too many items", "maxItems");
        }
        let (first, rest) = match fields.get("items") {
            Some(Value::Array(first)) => (Some(first), fields.get("additionalItems")),
            rest => (fields.get("prefixItems").and_then(Value::as_array), rest),
        };
        let first = first.map(Vec::as_slice).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(index).or(rest) {
                self.schema(schema, item, &format!("{at}/{index}"))?;
            }
        }
        if fields.get("uniqueItems") == Some(&Value::Bool(true)) {
            self.are_unique(items, at)?;
        }
        let Some(schema) = fields.get("contains") else { return Ok(()) };
        let mut n = 0;
        for item in items {
            n += u64::from(self.holds(schema, item)?);
        }
        if n < limit(fields, "minContains").unwrap_or(1) {
            return invalid(at, "too few items are of the kind that it must contain", "contains");
        }
        if limit(fields, "maxContains").is_some_and(|most| n > most) {
            return invalid(at, "too many items are of the kind that it may contain", "maxContains");
        }
        Ok(())
    }

    fn are_unique(&mut self, items: &[Value], at: &str) -> Checked {
        for (index, item) in items.iter().enumerate() {
            self.steps += index / 16;
            if items[..index].iter().any(|other| equal(other, item)) {
                return invalid(at, &format!("the item {item} appears twice"), "uniqueItems");
            }
        }
        Ok(())
    }

    fn properties(
        &mut self,
        fields: &'s Map<String, Value>,
        properties: &Map<String, Value>,
        at: &str,
    ) -> Checked {
        let n = properties.len() as u64;
        if limit(fields, "minProperties").is_some_and(|least| n < least) {
            return invalid(at, "there are too few properties", "minProperties");
        }
        if limit(fields, "maxProperties").is_some_and(|most| n > most) {
            return invalid(at, "there are too many properties", "maxProperties");
        }
        required(fields.get("required"), properties, at)?;
        let map = |keyword: &str| fields.get(keyword).and_then(Value::as_object);
        for (name, value) in properties {
            let here = format!("{at}/{name}");
            if let Some(schema) = fields.get("propertyNames") {
                let allowed = self.holds(schema, &Value::String(name.clone()))?;
                if !allowed {
                    return invalid(at, &format!("`{name}` is not an allowed name"), "propertyNames");
                }
            }
            let own = map("properties").and_then(|own| own.get(name));
            let mut is_known = own.is_some();
            if let Some(schema) = own {
                self.schema(schema, value, &here)?;
            }
            for (pattern, schema) in map("patternProperties").into_iter().flatten() {
                if self.is_match(pattern, name)? {
                    is_known = true;
                    self.schema(schema, value, &here)?;
                }
            }
            if let Some(schema) = fields.get("additionalProperties").filter(|_| !is_known) {
                self.schema(schema, value, &here)?;
            }
        }
        self.dependent(fields, properties, at)
    }

    /// What the presence of a property demands.
    fn dependent(
        &mut self,
        fields: &'s Map<String, Value>,
        properties: &Map<String, Value>,
        at: &str,
    ) -> Checked {
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (name, demand) in fields.get(keyword).and_then(Value::as_object).into_iter().flatten() {
                if !properties.contains_key(name) {
                    continue;
                }
                if demand.is_array() {
                    required(Some(demand), properties, at)?;
                } else {
                    self.schema(demand, &Value::Object(properties.clone()), at)?;
                }
            }
        }
        Ok(())
    }
}

fn invalid(at: &str, reason: &str, keyword: &str) -> Checked {
    let place = match at {
        "" => String::new(),
        at => format!("at `{}`: ", at.trim_start_matches('/').replace('/', ".")),
    };
    Err(Fault::Invalid(format!("{place}{reason} (`{keyword}`)")))
}

fn is_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => name == "number" || name == "integer" && integer(number).is_some(),
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// A limit that is a count.
fn limit(fields: &Map<String, Value>, keyword: &str) -> Option<u64> {
    let number = fields.get(keyword)?.as_number()?;
    integer(number)?.try_into().ok()
}

fn numeric(fields: &Map<String, Value>, number: &Number, at: &str) -> Checked {
    let bound = |keyword: &str| fields.get(keyword).and_then(Value::as_number);
    // Draft 4: refers to the adjacent bound.
    let is_strict = |keyword: &str| fields.get(keyword) == Some(&Value::Bool(true));
    for (keyword, strict, beyond) in
        [("minimum", "exclusiveMinimum", Ordering::Less), ("maximum", "exclusiveMaximum", Ordering::Greater)]
    {
        if let Some(bound) = bound(keyword) {
            let order = compare(number, bound);
            if order == beyond || order == Ordering::Equal && is_strict(strict) {
                return invalid(at, &format!("{number} is {}", out_of(order, bound)), keyword);
            }
        }
        if let Some(bound) = bound(strict) {
            let order = compare(number, bound);
            if order == beyond || order == Ordering::Equal {
                return invalid(at, &format!("{number} is {}", out_of(order, bound)), strict);
            }
        }
    }
    match bound("multipleOf") {
        Some(of) if !is_multiple(number, of) => {
            invalid(at, &format!("{number} is not a multiple of {of}"), "multipleOf")
        }
        _ => Ok(()),
    }
}

fn out_of(order: Ordering, bound: &Number) -> String {
    match order {
        Ordering::Less => format!("less than {bound}"),
        Ordering::Equal => format!("{bound} itself"),
        Ordering::Greater => format!("greater than {bound}"),
    }
}

fn required(names: Option<&Value>, properties: &Map<String, Value>, at: &str) -> Checked {
    let names = names.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut missing = names.filter(|name| !properties.contains_key(*name));
    match missing.next() {
        Some(name) => invalid(at, &format!("`{name}` is missing"), "required"),
        None => Ok(()),
    }
}
