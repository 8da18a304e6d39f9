//! The normal distribution and Student's, on the `libm` crate alone: a platform's own `exp` and `log` differ
//! in last digits, and equal runs are to give equal figures on every machine.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// The standard normal distribution function at x.
pub(super) fn normal(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// The standard normal quantile at p, between 0 and 1.
pub(super) fn normal_quantile(p: f64) -> f64 {
    crossing(-40.0, 40.0, |x| normal(x) < p)
}

/// Student's quantile at p, between 0 and 1, with this many degrees of freedom.
pub(super) fn t_quantile(p: f64, freedom: usize) -> f64 {
    let within = |t: f64| t_within(t, freedom);
    let t = crossing(0.0, 1e9, |t| within(t) < (1.0 - 2.0 * p).abs());
    if p < 0.5 { -t } else { t }
}

/// Probability that Student's t lies between -t and t: M. Abramowitz and I. A. Stegun, "Handbook of
/// mathematical functions" (1964), formulas 26.7.3 (odd degrees of freedom) and 26.7.4 (even ones).
fn t_within(t: f64, freedom: usize) -> f64 {
    let n = freedom as f64;
    let (sin, cos2) = (t / (n + t * t).sqrt(), n / (n + t * t));
    let is_odd = freedom % 2 == 1;
    // The sum's terms, each from the one before: 1, 2/3 cos², 2·4/(3·5) cos⁴, …; or 1, 1/2 cos², 1·3/(2·4)
    // cos⁴, ….
    let (mut term, mut sum) = (1.0, if freedom == 1 { 0.0 } else { 1.0 });
    let first = if is_odd { 3 } else { 2 };
    for k in (first..freedom.saturating_sub(1)).step_by(2) {
        term *= (k as f64 - 1.0) / k as f64 * cos2;
        sum += term;
    }
    if is_odd { FRAC_2_PI * (libm::atan(t / n.sqrt()) + sin * cos2.sqrt() * sum) } else { sin * sum }
}

/// The number between two bounds up to which something holds, to the last bit.
pub(super) fn crossing(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return high;
        }
        if holds(middle) { low = middle } else { high = middle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scipy 1.17: `norm.cdf`, `norm.ppf`, `t.ppf`.
    #[test]
    fn distributions_agree_with_the_books() {
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{found}, not {expected}");
        };
        NORMAL.iter().for_each(|(x, p)| close(normal(*x), *p));
        QUANTILES.iter().for_each(|(p, x)| close(normal_quantile(*p), *x));
        STUDENT.iter().for_each(|(freedom, t)| close(t_quantile(0.025, *freedom), *t));
        close(t_quantile(0.975, 4), -t_quantile(0.025, 4));
    }

    const NORMAL: [(f64, f64); 5] = [
        (-2.147, 0.015_896_640_807_691_476),
        (-0.3, 0.382_088_577_811_047_4),
        (0.0, 0.5),
        (1.0, 0.841_344_746_068_542_9),
        (3.5, 0.999_767_370_920_964_5),
    ];
    const QUANTILES: [(f64, f64); 4] = [
        (0.000_25, -3.480_756_404_346_212),
        (0.025, -1.959_963_984_540_054_5),
        (0.4, -0.253_347_103_135_799_7),
        (0.975, 1.959_963_984_540_054),
    ];
    const STUDENT: [(usize, f64); 8] = [
        (1, -12.706_204_736_174_705),
        (2, -4.302_652_729_749_464),
        (3, -3.182_446_305_283_708_6),
        (4, -2.776_445_105_197_794),
        (9, -2.262_157_162_798_205_3),
        (19, -2.093_024_054_408_31),
        (50, -2.008_559_112_100_761),
        (999, -1.962_341_461_133_449_8),
    ];
}
