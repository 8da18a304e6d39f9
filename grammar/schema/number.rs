//! Numbers of JSON, compared as they are written: a float would round integers from 2^53 on.

use serde_json::{Number, Value};
use std::cmp::Ordering;

/// From here on floats skip integers.
pub(crate) const EXACT: i128 = 1 << 53;

/// The integer that a number is, if it is one.
pub(crate) fn integer(number: &Number) -> Option<i128> {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e38);
    // Below 2^127 every whole float is one of these.
    whole.or_else(|| float().map(|float| float as i128))
}

/// Compares two numbers.
pub(super) fn compare(one: &Number, other: &Number) -> Ordering {
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        (Some(one), None) => beside(one, float(other)),
        (None, Some(other)) => beside(other, float(one)).reverse(),
        (None, None) => float(one).total_cmp(&float(other)),
    }
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or_default()
}

/// An integer next to a float that is none, or that is larger than all of them.
fn beside(integer: i128, float: f64) -> Ordering {
    if float.abs() >= 1e38 {
        return if float > 0.0 { Ordering::Less } else { Ordering::Greater };
    }
    if integer <= float.floor() as i128 { Ordering::Less } else { Ordering::Greater }
}

/// True if a number is a multiple of another one, both as the decimals that they are written as.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    let (Some(one), Some(other)) = (decimal(number), decimal(of)) else {
        let times = float(number) / float(of);
        return times.is_finite() && times.fract() == 0.0;
    };
    let scaled =
        |(digits, places): (i128, u32), to: u32| 10i128.checked_pow(to - places)?.checked_mul(digits);
    let places = one.1.max(other.1);
    match (scaled(one, places), scaled(other, places)) {
        (Some(_), Some(0)) => false,
        (Some(one), Some(other)) => one % other == 0,
        _ => (float(number) / float(of)).fract() == 0.0,
    }
}

/// A number as digits, and how many of them are after the point.
fn decimal(number: &Number) -> Option<(i128, u32)> {
    if let Some(whole) = integer(number) {
        return Some((whole, 0));
    }
    let text = float(number).to_string();
    let (whole, places) = text.split_once('.')?;
    Some((format!("{whole}{places}").parse().ok()?, places.len().try_into().ok()?))
}

/// True if two values are equal, numbers by what they are: `1` is `1.0`.
pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare(one, other) == Ordering::Equal,
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(key, value)| other.get(key).is_some_and(|other| equal(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn number(value: Value) -> Number {
        value.as_number().cloned().unwrap_or_else(|| 0.into())
    }

    #[test]
    fn numbers_are_compared_as_they_are_written() {
        let ascending = [
            json!(-1e300),
            json!(i64::MIN),
            json!(-2.5),
            json!(-2),
            json!(0.1),
            json!(9_007_199_254_740_992_u64),
            json!(9_007_199_254_740_993_u64),
            json!(9_007_199_254_740_994_u64),
            json!(u64::MAX - 1),
            json!(u64::MAX),
            json!(1e20),
            json!(1e300),
        ];
        for (at, one) in ascending.iter().enumerate() {
            for (to, other) in ascending.iter().enumerate() {
                assert_eq!(
                    compare(&number(one.clone()), &number(other.clone())),
                    at.cmp(&to),
                    "{one} {other}"
                );
            }
        }
        assert!(equal(&json!({ "a": [1] }), &json!({ "a": [1.0] })));
    }

    #[test]
    fn multiples_are_those_of_decimals() {
        for (one, of, is_multiple_of) in [
            (json!(0.07), json!(0.01), true),
            (json!(0.075), json!(0.01), false),
            (json!(9_007_199_254_740_993_u64), json!(2), false),
            (json!(9_007_199_254_740_993_u64), json!(3), true),
            (json!(10), json!(2.5), true),
            (json!(-4), json!(2), true),
            (json!(0), json!(1e-300), true),
        ] {
            assert_eq!(
                is_multiple(&number(one.clone()), &number(of.clone())),
                is_multiple_of,
                "{one} of {of}"
            );
        }
    }
}
