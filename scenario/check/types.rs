//! Types of variables: a value from outside has the type of the value that the scenario gives, in all its
//! parts.
//!
//! A value that is declared as null may be anything, an empty list may hold anything, and a mapping may have
//! other keys. An item of a list has the type of one of the items that are declared.

use crate::choice::text_of;
use crate::evaluate::kind;
use serde_json::Value;

/// A part of a value that has another type than the declared one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistyped {
    /// The part: `.age`, `[2]`; empty: the value itself.
    part: String,
    /// The declared type, with its article.
    expected: String,
    /// What it is instead, in the same way.
    found: String,
    /// The part as text, where it is short.
    shown: Option<String>,
}

impl Mistyped {
    fn new(expected: &str, found: &Value) -> Self {
        let text = text_of(found);
        let is_short = !found.is_null() && text.chars().count() <= 60;
        let found = if found.is_null() { "null" } else { kind(found) };
        let (expected, found) = (expected.to_string(), found.to_string());
        Self { part: String::new(), expected, found, shown: Some(text).filter(|_| is_short) }
    }

    /// The same for a value of an untyped file, as it is there.
    pub(super) fn written_as(self, found: String) -> Self {
        Self { found, ..self }
    }

    fn within(mut self, part: &str) -> Self {
        self.part.insert_str(0, part);
        self
    }

    /// The mistake in a value of a variable, or of a part of one.
    pub(super) fn of(&self, name: &str) -> String {
        format!("`{name}{}` is {}, but this value is {}", self.part, self.expected, self.found)
    }

    /// The same with the value itself.
    pub(super) fn with_value(&self, name: &str) -> String {
        let shown = self.shown.as_ref().map(|shown| format!(": `{}`", shown.escape_debug()));
        self.of(name) + &shown.unwrap_or_default()
    }

    /// The mistake of a value that is defined twice: here, and elsewhere with the declared type.
    pub(super) fn here(&self, name: &str) -> String {
        format!("`{name}{}` is {} here, but {}", self.part, self.found, self.expected)
    }

    /// The remedy for a value from outside.
    pub(super) fn help(&self) -> &'static str {
        match (self.expected.as_str(), self.found.as_str()) {
            ("a text", "a number" | "null") => "put a text in quotes, e.g. `--set 'name=\"1.50\"'`",
            _ => "a value must have the type of the variable under `variables`",
        }
    }
}

/// A value of exactly the declared type; its mappings are brought to one order.
///
/// # Errors
/// The first part that has another type.
pub(super) fn exactly(declared: &Value, mut value: Value) -> Result<Value, Mistyped> {
    value.sort_all_objects();
    fitting(declared, value, false)
}

/// A value from outside in the declared type: a whole number or a truth value is a text where one is
/// declared.
///
/// # Errors
/// The first part that has another type.
pub(super) fn typed(declared: &Value, value: Value) -> Result<Value, Mistyped> {
    fitting(declared, value, true)
}

fn fitting(declared: &Value, value: Value, as_text: bool) -> Result<Value, Mistyped> {
    match (declared, value) {
        (Value::Null, value) => Ok(value),
        (Value::String(_), value @ Value::Bool(_)) if as_text => Ok(text_of(&value).into()),
        // 1.50 would be 1.5.
        (Value::String(_), Value::Number(number)) if as_text && !number.is_f64() => {
            Ok(number.to_string().into())
        }
        (Value::Object(fields), Value::Object(values)) => {
            let field = |(name, value): (String, Value)| match fields.get(&name) {
                Some(declared) => {
                    let value = fitting(declared, value, as_text);
                    Ok((name.clone(), value.map_err(|wrong| wrong.within(&format!(".{name}")))?))
                }
                None => Ok((name, value)),
            };
            Ok(Value::Object(values.into_iter().map(field).collect::<Result<_, _>>()?))
        }
        (Value::Array(items), Value::Array(values)) => {
            let item = |(at, value)| {
                one_of(items, value, as_text).map_err(|wrong: Mistyped| wrong.within(&format!("[{at}]")))
            };
            Ok(Value::Array(values.into_iter().enumerate().map(item).collect::<Result<_, _>>()?))
        }
        (declared, value) if kind(declared) == kind(&value) => Ok(value),
        (declared, value) => Err(Mistyped::new(kind(declared), &value)),
    }
}

/// An item of a list that is declared with these items.
fn one_of(items: &[Value], value: Value, as_text: bool) -> Result<Value, Mistyped> {
    let Some(first) = items.first() else { return Ok(value) };
    let is_container = value.is_array() || value.is_object();
    let same = items.iter().filter(|item| item.is_null() || kind(item) == kind(&value));
    for item in same.take(if is_container { usize::MAX } else { 1 }) {
        if let Ok(fitting) = fitting(item, value.clone(), as_text) {
            return Ok(fitting);
        }
    }
    if items.iter().all(|item| kind(item) == kind(first)) {
        return fitting(first, value, as_text);
    }
    let text = items.iter().find(|item| item.is_string() && as_text);
    let as_text = text.map(|text| fitting(text, value.clone(), as_text));
    as_text.and_then(Result::ok).ok_or_else(|| Mistyped::new("of one of the types of its items", &value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(declared: Value, value: Value) -> String {
        match typed(&declared, value) {
            Ok(value) => value.to_string(),
            Err(wrong) => wrong.with_value("v"),
        }
    }

    #[test]
    fn all_parts_of_a_value_have_the_declared_types() {
        let person = json!({ "name": "Ann", "age": 40, "marks": [1], "town": null });
        for (declared, value, expected) in [
            (json!(1), json!(2.5), "2.5"),
            (json!(1), json!("abc"), "`v` is a number, but this value is a text: `abc`"),
            (json!(1), json!(null), "`v` is a number, but this value is null"),
            (json!(true), json!(0), "`v` is true or false, but this value is a number: `0`"),
            (json!("x"), json!(7), "\"7\""),
            (json!("x"), json!(true), "\"true\""),
            (json!("x"), json!(1.5), "`v` is a text, but this value is a number: `1.5`"),
            (json!(null), json!([1]), "[1]"),
            (json!([]), json!([1, "x"]), "[1,\"x\"]"),
            (json!([1]), json!([2, "x"]), "`v[1]` is a number, but this value is a text: `x`"),
            (json!(["a"]), json!([2]), "[\"2\"]"),
            (json!([1, "a"]), json!(["b", 2]), "[\"b\",2]"),
            (
                json!([1, "a"]),
                json!([[]]),
                "`v[0]` is of one of the types of its items, but this value is a list: `[]`",
            ),
            (person.clone(), json!({ "age": "old" }), "`v.age` is a number, but this value is a text: `old`"),
            (
                person.clone(),
                json!({ "marks": [2, []] }),
                "`v.marks[1]` is a number, but this value is a list: `[]`",
            ),
            (person.clone(), json!({ "age": 3, "more": 1, "town": 5 }), "{\"age\":3,\"more\":1,\"town\":5}"),
            (
                json!([person]),
                json!([{ "age": "x" }]),
                "`v[0].age` is a number, but this value is a text: `x`",
            ),
        ] {
            assert_eq!(message(declared.clone(), value.clone()), expected, "{declared} {value}");
        }
        assert!(exactly(&json!("x"), json!(7)).is_err(), "a file has types");
    }
}
