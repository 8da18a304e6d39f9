//! Plain scalars by YAML's core schema: null, truth values and numbers; all else is text.
//!
//! Whole numbers with leading zeros (`007`) and numbers that JSON has not (`.inf`, `1e999`) stay texts.

use serde_json::Number;

/// A value that holds no others.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaf {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number that JSON has.
    Number(Number),
    /// A string.
    Text(String),
}

/// The value of a scalar that is written without quotes.
pub fn plain(text: &str) -> Leaf {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Leaf::Null,
        "true" | "True" | "TRUE" => Leaf::Bool(true),
        "false" | "False" | "FALSE" => Leaf::Bool(false),
        _ => number(text).map_or_else(|| Leaf::Text(text.to_string()), Leaf::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let radix = [("0x", 16), ("0o", 8), ("0b", 2)];
    if let Some((digits, radix)) =
        radix.iter().find_map(|(sign, radix)| Some((digits.strip_prefix(sign)?, *radix)))
    {
        return if digits.starts_with(['+', '-']) { None } else { whole(is_negative, digits, radix) };
    }
    if digits.bytes().all(|c| c.is_ascii_digit()) {
        if digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        if let Some(whole) = whole(is_negative, digits, 10) {
            return Some(whole);
        }
    }
    Number::from_f64(text.parse().ok()?)
}

fn whole(is_negative: bool, digits: &str, radix: u32) -> Option<Number> {
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if is_negative { Some(0i64.checked_sub_unsigned(magnitude)?.into()) } else { Some(magnitude.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As another reader of YAML reads it, as an item of a list; `None`: to that reader it is not a scalar
    /// (`-` begins a list).
    fn other(text: &str) -> Option<serde_json::Value> {
        let read: [serde_yaml::Value; 1] = serde_yaml::from_str(&format!("- {text}")).ok()?;
        let value = serde_json::to_value(&read[0]).ok()?;
        (!value.is_array() && !value.is_object()).then_some(value)
    }

    fn ours(text: &str) -> serde_json::Value {
        match plain(text) {
            Leaf::Null => serde_json::Value::Null,
            Leaf::Bool(truth) => truth.into(),
            Leaf::Number(number) => number.into(),
            Leaf::Text(text) => text.into(),
        }
    }

    #[test]
    fn scalars_are_what_other_readers_take_them_for() {
        for text in [
            "1",
            "-1",
            "+1",
            "0",
            "-0",
            "007",
            "-007",
            "0x1F",
            "-0x1f",
            "0o17",
            "0b101",
            "0x",
            "0x+1",
            "1e3",
            "1.",
            ".5",
            "-.5",
            "1.5",
            "+1.5",
            "1_000",
            "1e",
            "e1",
            ".",
            "+",
            "+-1",
            "--1",
            "inf",
            "nan",
            "NaN",
            "yes",
            "no",
            "on",
            "null",
            "~",
            "True",
            "tRue",
            "1e999",
            "18446744073709551615",
            "-9223372036854775808",
            "1 2",
            "a b",
            "09.5",
            "0.5.1",
            "1e-5",
            "1E+5",
        ] {
            assert_eq!(ours(text), other(text).expect("a scalar"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_what_other_readers_take_them_for(text in "[+-]?[0-9.exob_+-]{1,8}") {
            if let Some(other) = other(&text) {
                prop_assert_eq!(ours(&text), other);
            }
        }
    }
}
