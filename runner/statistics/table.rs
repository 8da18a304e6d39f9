//! A table: named columns of typed values that may be missing.

use crate::scenario::text_of;
use serde_json::Value;

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name, and its files'.
    pub name: &'static str,
    /// Its columns, all of one length.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name, unique within the table.
    pub name: String,
    /// Its values.
    pub values: Values,
}

/// Values of one type; `None` is null.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// True or false.
    Bool(Vec<Option<bool>>),
    /// Whole numbers.
    Int(Vec<Option<i64>>),
    /// Whole numbers of 64 bits that may be above 2⁶³: seeds.
    Natural(Vec<Option<u64>>),
    /// Numbers.
    Float(Vec<Option<f64>>),
    /// Texts.
    Text(Vec<Option<String>>),
}

impl Table {
    /// A table without columns.
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, columns: Vec::new() }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// The values of the column with a name.
    pub fn column(&self, name: &str) -> Option<&Values> {
        self.columns.iter().find(|column| column.name == name).map(|column| &column.values)
    }

    /// Adds a column.
    pub(super) fn add(&mut self, name: impl Into<String>, values: Values) {
        self.columns.push(Column { name: name.into(), values });
    }
}

impl Values {
    /// Number of values, nulls included.
    pub fn len(&self) -> usize {
        match self {
            Self::Bool(values) => values.len(),
            Self::Int(values) => values.len(),
            Self::Natural(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A value as text; `None` where it is null.
    pub fn text(&self, row: usize) -> Option<String> {
        match self {
            Self::Bool(values) => values.get(row)?.map(|value| value.to_string()),
            Self::Int(values) => values.get(row)?.map(|value| value.to_string()),
            Self::Natural(values) => values.get(row)?.map(|value| value.to_string()),
            // With a point, so that a reader of CSV takes 3.0 for the float that it is.
            Self::Float(values) => values.get(row)?.map(|value| format!("{value:?}")),
            Self::Text(values) => values.get(row)?.clone(),
        }
    }

    /// Counts.
    pub(super) fn counts(values: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self::Int(values.into_iter().map(|value| value.and_then(|n| i64::try_from(n).ok())).collect())
    }

    /// Texts.
    pub(super) fn texts<T: Into<String>>(values: impl IntoIterator<Item = Option<T>>) -> Self {
        Self::Text(values.into_iter().map(|value| value.map(Into::into)).collect())
    }
}

/// The narrowest type that holds some JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Bool,
    Int,
    Float,
    /// Also lists, objects, and values of more than one type.
    Text,
}

impl ColumnKind {
    /// The narrowest type that holds all of these; text if there are none.
    pub(super) fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Self {
        let kind = |value: &Value| match value {
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.is_i64() => Self::Int,
            // Of whole numbers beyond 2⁵³ a float would keep the first digits only.
            Value::Number(number) if number.is_f64() => Self::Float,
            _ => Self::Text,
        };
        let wider = |a: Self, b: Self| match (a, b) {
            (a, b) if a == b => a,
            (Self::Int | Self::Float, Self::Int | Self::Float) => Self::Float,
            _ => Self::Text,
        };
        values.into_iter().filter(|value| !value.is_null()).map(kind).reduce(wider).unwrap_or(Self::Text)
    }

    /// A column of this type.
    pub(super) fn column<'a>(self, values: impl Iterator<Item = Option<&'a Value>>) -> Values {
        let values = values.map(|value| value.filter(|value| !value.is_null()));
        match self {
            Self::Bool => Values::Bool(values.map(|value| value.and_then(Value::as_bool)).collect()),
            Self::Int => Values::Int(values.map(|value| value.and_then(Value::as_i64)).collect()),
            Self::Float => Values::Float(values.map(|value| value.and_then(Value::as_f64)).collect()),
            Self::Text => Values::texts(values.map(|value| value.map(text_of))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_have_the_narrowest_type_that_holds_all() {
        for (values, expected) in [
            (json!([true, null]), ColumnKind::Bool),
            (json!([1, -2]), ColumnKind::Int),
            (json!([1, 2.5, null]), ColumnKind::Float),
            (json!([1, true]), ColumnKind::Text),
            (json!([1, "1"]), ColumnKind::Text),
            (json!([u64::MAX]), ColumnKind::Text),
            (json!([[1]]), ColumnKind::Text),
            (json!([null]), ColumnKind::Text),
            (json!([]), ColumnKind::Text),
        ] {
            assert_eq!(ColumnKind::of(values.as_array().unwrap()), expected, "{values}");
        }
        let values = [json!([1, "a"]), json!("a"), Value::Null];
        let column = ColumnKind::Text.column(values.iter().map(Some));
        assert_eq!(column, Values::Text(vec![Some("[1,\"a\"]".into()), Some("a".into()), None]));
    }
}
