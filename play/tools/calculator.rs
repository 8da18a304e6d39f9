//! The calculator: arithmetic on decimal numbers, the same on every platform.
//!
//! `+ - * / % ^`, brackets, and `sqrt abs round floor ceil min max`; also what models write for them (`×`,
//! `÷`, `−`, `1,000`).

/// Maximum nesting of brackets and functions.
const MAX_DEPTH: usize = 64;

/// The value of an expression, to 12 significant digits.
///
/// # Errors
/// As text: it is none, or has no value.
pub(super) fn calculate(expression: &str) -> Result<String, String> {
    let text: String = expression.chars().map(plain).collect();
    let text = text.trim().trim_end_matches('=').trim_end();
    let mut reader = FormulaReader { rest: text, depth: 0, is_list: false };
    let value = reader.sum()?;
    match reader.rest.trim_start().chars().next() {
        None => number_text(value),
        Some(c) => Err(format!("`{c}` is not expected there")),
    }
}

fn plain(c: char) -> char {
    match c {
        '×' | '·' => '*',
        '÷' | ':' => '/',
        '−' | '–' => '-',
        c => c,
    }
}

fn number_text(value: f64) -> Result<String, String> {
    if !value.is_finite() {
        return Err("the result is too large".into());
    }
    let rounded: f64 = format!("{value:.11e}").parse().map_err(|_| "the result is no number")?;
    let size = rounded.abs();
    let is_plain = size == 0.0 || (1e-6..1e15).contains(&size);
    Ok(if is_plain { (rounded + 0.0).to_string() } else { format!("{rounded:e}") })
}

struct FormulaReader<'a> {
    rest: &'a str,
    depth: usize,
    /// True between the brackets of a function that takes several numbers: a comma separates them.
    is_list: bool,
}

impl FormulaReader<'_> {
    fn next(&mut self, one_of: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let found = self.rest.chars().next().filter(|c| one_of.contains(c))?;
        self.rest = &self.rest[found.len_utf8()..];
        Some(found)
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        while let Some(sign) = self.next(&['+', '-']) {
            let other = self.product()?;
            value = if sign == '+' { value + other } else { value - other };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.signed()?;
        while let Some(sign) = self.next(&['*', '/', '%']) {
            // `**` is a power, which was read before.
            let other = self.signed()?;
            if sign != '*' && other == 0.0 {
                return Err("division by zero".into());
            }
            value = match sign {
                '*' => value * other,
                '/' => value / other,
                _ => libm::fmod(value, other),
            };
        }
        Ok(value)
    }

    fn signed(&mut self) -> Result<f64, String> {
        let mut is_negative = false;
        while let Some(sign) = self.next(&['+', '-']) {
            is_negative ^= sign == '-';
        }
        let value = self.power()?;
        Ok(if is_negative { -value } else { value })
    }

    fn power(&mut self) -> Result<f64, String> {
        let base = self.atom()?;
        self.rest = self.rest.trim_start();
        let Some(rest) = self.rest.strip_prefix("**").or_else(|| self.rest.strip_prefix('^')) else {
            return Ok(base);
        };
        self.rest = rest;
        let exponent = self.nested(Self::signed)?;
        if base == 0.0 && exponent < 0.0 {
            return Err("division by zero".into());
        }
        let value = libm::pow(base, exponent);
        if value.is_nan() { Err("a root of a negative number".into()) } else { Ok(value) }
    }

    fn nested(&mut self, inner: impl FnOnce(&mut Self) -> Result<f64, String>) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("it is nested deeper than {MAX_DEPTH}"));
        }
        let value = inner(self);
        self.depth -= 1;
        value
    }

    fn atom(&mut self) -> Result<f64, String> {
        if self.next(&['(']).is_some() {
            let was_list = std::mem::replace(&mut self.is_list, false);
            let value = self.nested(Self::sum)?;
            self.is_list = was_list;
            return self.closed(value);
        }
        let n = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(n);
        if name.is_empty() { self.number() } else { self.function(&name.to_lowercase(), rest.to_string()) }
    }

    fn closed(&mut self, value: f64) -> Result<f64, String> {
        self.next(&[')']).map(|_| value).ok_or_else(|| "a `)` is missing".to_string())
    }

    fn function(&mut self, name: &str, rest: String) -> Result<f64, String> {
        if !["sqrt", "abs", "round", "floor", "ceil", "min", "max"].contains(&name) {
            return Err(format!(
                "`{name}` is unknown: numbers, + - * / % ^ ( ) and sqrt, abs, round, floor, ceil, min, max"
            ));
        }
        self.rest = &self.rest[self.rest.len() - rest.len()..];
        if self.next(&['(']).is_none() {
            return Err(format!("a `(` is missing after `{name}`"));
        }
        let takes_several = ["min", "max"].contains(&name);
        let was_list = self.is_list;
        self.is_list |= takes_several;
        let mut values = vec![self.nested(Self::sum)?];
        while self.next(&[',', ';']).is_some() {
            values.push(self.nested(Self::sum)?);
        }
        self.is_list = was_list;
        let first = values[0];
        if values.len() > 1 && !takes_several {
            return Err(format!("`{name}` takes one number"));
        }
        let value = match name {
            "sqrt" if first < 0.0 => return Err("a root of a negative number".into()),
            "sqrt" => first.sqrt(),
            "abs" => first.abs(),
            "round" => first.round(),
            "floor" => first.floor(),
            "ceil" => first.ceil(),
            "min" => values.iter().copied().fold(first, f64::min),
            _ => values.iter().copied().fold(first, f64::max),
        };
        self.closed(value)
    }

    fn number(&mut self) -> Result<f64, String> {
        let end = number_end(self.rest, !self.is_list);
        let (digits, rest) = self.rest.split_at(end);
        let value = digits.replace(',', "").parse::<f64>();
        let value = value.map_err(|_| match self.rest.chars().next() {
            None => "a number is missing at the end".to_string(),
            Some(c) => format!("a number is expected where `{c}` stands"),
        })?;
        self.rest = rest;
        Ok(value)
    }
}

/// The length of the number that a text begins with: digits, a point, an exponent, and if it may have
/// `groups`, those of thousands (`1,000`).
fn number_end(text: &str, groups: bool) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while is_digit(at) || bytes.get(at) == Some(&b'.') || bytes.get(at) == Some(&b',') {
        let is_group = groups && (1..=3).all(|n| is_digit(at + n)) && !is_digit(at + 4) && at > 0;
        if bytes[at] == b',' && !is_group {
            break;
        }
        at += 1;
    }
    if at > 0 && matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        if is_digit(at + 1 + sign) {
            at += 1 + sign;
            while is_digit(at) {
                at += 1;
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::calculate;
    use proptest::prelude::*;

    #[test]
    fn expressions_have_their_value() {
        for (expression, value) in [
            ("1 + 2 * 3", "7"),
            ("(1 + 2) * 3 =", "9"),
            ("-2^2", "-4"),
            ("2 ** 3 ** 2", "512"),
            ("2^-1", "0.5"),
            ("0.1 + 0.2", "0.3"),
            ("1,000 × 3", "3000"),
            ("1,234,567.5", "1234567.5"),
            ("10 ÷ 4 − 1", "1.5"),
            ("7 % 4", "3"),
            ("min(3, 1, 2) + max(1,5)", "6"),
            ("min(2,150) + 1,000", "1002"),
            ("max(7, (1,200), 3)", "1200"),
            ("sqrt(1,024) * 2", "64"),
            ("sqrt(2)", "1.41421356237"),
            ("round(2.5)", "3"),
            ("0 * -1", "0"),
            ("2^200", "1.60693804426e60"),
            ("1e3", "1000"),
        ] {
            assert_eq!(calculate(expression).as_deref(), Ok(value), "{expression}");
        }
    }

    #[test]
    fn missing_values_are_reported_with_the_reason() {
        for (expression, why) in [
            ("1 / 0", "division by zero"),
            ("", "a number is missing"),
            ("1 +", "a number is missing"),
            ("(1", "`)` is missing"),
            ("1 2", "not expected"),
            ("price * 2", "`price` is unknown"),
            ("10 ^ 400", "too large"),
            ("sqrt(-1)", "negative"),
        ] {
            let message = calculate(expression).expect_err(expression);
            assert!(message.contains(why), "{expression}: {message}");
        }
        assert!(calculate(&"(".repeat(100_000)).is_err());
        assert!(calculate(&"2^".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[-+*/%^(),.0-9a-z×÷ ]{0,60}|\\PC{0,30}") {
            let _ = calculate(&text);
        }
    }
}
