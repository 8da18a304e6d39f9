//! A golden, as `form.py` writes it, and how far an engine is from one.

use greenroom_engine::{Engine, TokenScore};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A reference's answer about a model. Entry i of the lists but `ids` is position i + 1.
#[derive(Deserialize)]
pub(crate) struct Golden {
    #[serde(skip)]
    pub(crate) name: &'static str,
    /// The model: how it is made, or its file and the text that it read.
    pub(crate) model: Map<String, Value>,
    pub(crate) ids: Vec<u32>,
    logprobs: Vec<f64>,
    tops: Vec<u32>,
    /// The most likely token's logit less the second's.
    pub(crate) margins: Vec<f64>,
}

/// Distance of scores from a golden.
pub(crate) struct Distance {
    /// The engine's log-probabilities less the reference's.
    pub(crate) differences: Vec<f64>,
    /// Margins of the reference where the engine has another token on top.
    pub(crate) other_tops: Vec<f64>,
}

impl Golden {
    pub(crate) fn read(name: &'static str, text: &str) -> Self {
        Self { name, ..serde_json::from_str(text).expect("a golden") }
    }

    /// Scores ids, which may differ from this golden's, with an engine in its own formats.
    pub(crate) fn distance(&self, engine: &Engine, ids: &[u32]) -> Distance {
        let mut scores: Vec<TokenScore> = Vec::new();
        engine.score(ids, None, &mut |score| scores.push(score)).expect("scores");
        let n = self.ids.len();
        assert!(scores.iter().map(|s| s.pos).eq(1..n), "every position but the first has a score");
        assert_eq!(
            [self.logprobs.len(), self.tops.len(), self.margins.len()],
            [n - 1; 3],
            "the golden is whole"
        );
        let differences =
            scores.iter().zip(&self.logprobs).map(|(s, logprob)| f64::from(s.logprob) - logprob);
        let differences: Vec<f64> = differences.collect();
        let nan = differences.iter().position(|difference| !difference.is_finite());
        assert_eq!(nan, None, "{}: a log-probability that is no number", self.name);
        let others = (0..n - 1).filter(|i| scores[*i].top != self.tops[*i]);
        Distance { other_tops: others.map(|i| self.margins[i]).collect(), differences }
    }
}
