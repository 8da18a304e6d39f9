//! The flags for sampling. A setting that is not given comes from the scenario, else from the model's file,
//! else from the defaults.

use crate::scenario::Hints;
use crate::scenario::hints::expected;

/// Sampling settings.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SamplingArgs {
    /// 0 is greedy [default: the scenario's, the model's, else 0.7]
    #[arg(long, value_name = "T", value_parser = number("temperature"))]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens (0: all) [default: the scenario's, the model's, else 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the smallest set of tokens that reaches this probability [default: the scenario's, the
    /// model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = number("top_p"))]
    top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one [default: the scenario's, the model's,
    /// else 0.05]
    #[arg(long, value_name = "P", value_parser = number("min_p"))]
    min_p: Option<f32>,
    /// Divide the logits of tokens that the reply has used; 1 is off [default: the scenario's, the model's,
    /// else 1.05]
    #[arg(long, value_name = "R", value_parser = number("repetition_penalty"))]
    repetition_penalty: Option<f32>,
    /// DRY: penalty on a token that would extend a sequence as it was extended before (0: off)
    #[arg(long, default_value_t = 0.8, value_name = "M", value_parser = number("dry_multiplier"))]
    dry_multiplier: f32,
    /// DRY: growth of the penalty for each token beyond the allowed length
    #[arg(long, default_value_t = 1.75, value_name = "B", value_parser = number("dry_base"))]
    dry_base: f32,
    /// DRY: length in tokens of the shortest sequence that is penalized
    #[arg(long, default_value_t = 2, value_name = "N")]
    dry_allowed_length: usize,
}

impl SamplingArgs {
    /// The given settings.
    pub(super) fn given(&self) -> Hints {
        Hints {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            dry_multiplier: Some(self.dry_multiplier),
            dry_base: Some(self.dry_base),
            dry_allowed_length: Some(self.dry_allowed_length),
            repetition_window: None,
            max_tokens: None,
            model: None,
            reasoning: None,
            reasoning_budget: None,
            stops: None,
        }
    }
}

/// A parser of the values of a setting.
pub(super) fn number(name: &'static str) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let number = text.parse().unwrap_or(f32::NAN);
        expected(name, f64::from(number)).map_or(Ok(number), |expected| Err(format!("expected {expected}")))
    }
}
