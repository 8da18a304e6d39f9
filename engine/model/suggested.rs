//! Sampling that a model's makers suggest: `general.sampling.*` of its file, under llama.cpp's keys.
//!
//! These are suggestions. One that is not a number, or out of its range, is ignored with a warning; the model
//! is served all the same.
//!
//! Sampling that a model's file suggests (`general.sampling.*`) overrides defaults and is overridden by
//! flags; the transcript records the result, so no replay asks the file.

use crate::SuggestedSampling;
use crate::model::gguf::{Gguf, Value};

/// Reads the sampling that a file suggests.
pub(crate) fn suggested(gguf: &Gguf) -> SuggestedSampling {
    let number = |name: &str, fits: fn(f64) -> bool, expected: &str| {
        let key = format!("general.sampling.{name}");
        let found = match gguf.get(&key)? {
            Value::Float(x) => *x,
            Value::Int(n) => *n as f64,
            _ => f64::NAN,
        };
        if !fits(found) {
            tracing::warn!("{}: ignoring `{key}`, which is {found}; expected a number {expected}", gguf.name);
        }
        Some(found).filter(|found| fits(*found))
    };
    let share = |name| number(name, |x| (0.0..=1.0).contains(&x), "from 0 to 1");
    let whole = |name, fits, expected| number(name, fits, expected).map(|n| n as usize);
    let temperature = number("temp", |x| (0.0..f64::from(f32::MAX)).contains(&x), "of at least 0");
    let above_zero = |x: f64| x as f32 > 0.0 && x < f64::from(f32::MAX);
    SuggestedSampling {
        temperature: temperature.map(|x| x as f32),
        top_k: whole(
            "top_k",
            |n| n.fract() == 0.0 && (0.0..1e9).contains(&n),
            "of at least 0, without a fraction",
        ),
        top_p: share("top_p").map(|x| x as f32),
        min_p: share("min_p").map(|x| x as f32),
        repetition_penalty: number("penalty_repeat", above_zero, "above 0").map(|x| x as f32),
        repetition_window: whole(
            "penalty_last_n",
            |n| n.fract() == 0.0 && (1.0..1e9).contains(&n),
            "of at least 1, without a fraction",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::RandomModel;
    use crate::model::gguf::FileBytes;

    fn of(numbers: &[(&str, f32)]) -> SuggestedSampling {
        let sampling = numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let model = RandomModel { sampling, ..RandomModel::tiny(1) };
        suggested(&Gguf::parse("test".to_owned(), FileBytes::Held(model.bytes().into())).unwrap())
    }

    #[test]
    fn what_a_file_suggests_is_read_and_what_cannot_be_is_ignored() {
        assert_eq!(of(&[]), SuggestedSampling::default());
        let all = [("temp", 1.0), ("top_k", 64.0), ("top_p", 0.5), ("min_p", 0.0), ("penalty_repeat", 1.5)];
        let expected = SuggestedSampling {
            temperature: Some(1.0),
            top_k: Some(64),
            top_p: Some(0.5),
            min_p: Some(0.0),
            repetition_penalty: Some(1.5),
            repetition_window: None,
        };
        assert_eq!(of(&all), expected);
        for bad in [-1.0, f32::NAN, f32::INFINITY, -0.1, f32::MAX] {
            let names = ["temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n"];
            assert_eq!(of(&names.map(|name| (name, bad))), SuggestedSampling::default(), "{bad}");
        }
        let odd = [("top_k", 0.5), ("penalty_last_n", 0.0), ("penalty_repeat", 0.0), ("mirostat", 2.0)];
        assert_eq!(of(&odd), SuggestedSampling::default());
        assert_eq!(of(&[("penalty_last_n", 32.0)]).repetition_window, Some(32));
    }
}
