//! Texts, numbers and times as the page shows them.

use crate::diagnostic::printable;
use serde_json::Value;

/// A text for the page: printable, and without characters that XML does not allow.
pub(super) fn clean(text: &str) -> String {
    let plain = printable(&text.replace("\r\n", "\n").replace('\t', "    "));
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A value of an expression or a variable.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_string(),
        Value::String(text) => text.clone(),
        Value::Number(found) => match found.as_f64() {
            Some(float) if found.is_f64() => number(float),
            _ => found.to_string(),
        },
        other => other.to_string(),
    }
}

/// A value as JSON, which the page escapes like any other text.
pub(super) fn json(value: &minijinja::Value) -> Result<String, minijinja::Error> {
    serde_json::to_string(value).map_err(|error| {
        minijinja::Error::new(minijinja::ErrorKind::BadSerialization, "a value of the page")
            .with_source(error)
    })
}

/// A number with six decimals at most.
pub(super) fn number(float: f64) -> String {
    let rounded = (float * 1e6).round() / 1e6;
    format!("{}", if rounded.is_finite() { rounded } else { float })
}

/// A number with a thousands separator.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

/// A duration in milliseconds, seconds or minutes.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        ms if ms >= 180_000.0 => format!("{:.0} min", ms / 60e3),
        ms if ms >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        ms if ms >= 1_000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// Bytes with a unit.
pub(super) fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// The day of a moment, in UTC.
pub(super) fn day(seconds: u64) -> Option<String> {
    let moment = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(moment.strftime("%-d %B %Y").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_or_turns_the_page() {
        assert_eq!(clean("a\u{1b}[31m\u{0}\r\nb\tc\u{ffff}"), "a\u{fffd}[31m\u{fffd}\nb    c\u{fffd}");
        assert_eq!(clean("\u{202e}evil\u{2069}"), "⟨U+202E⟩evil⟨U+2069⟩");
        assert_eq!(
            clean("שלום\u{200f} & <b>"),
            "שלום\u{200f} & <b>",
            "text that is only foreign is left alone"
        );
    }

    #[test]
    fn figures_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.04, 12.3, 1234.0, 61_500.0, 6e5].map(duration),
            ["0.0 ms", "12 ms", "1.23 s", "61.5 s", "10 min"]
        );
        assert_eq!(day(1_795_311_494).as_deref(), Some("22 November 2026"));
        assert_eq!(day(u64::MAX), None);
        assert_eq!(value(&serde_json::json!(0.1 + 0.2)), "0.3");
    }
}
