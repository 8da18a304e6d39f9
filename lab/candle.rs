//! candle's own models of GGUF files, from candle-transformers: an oracle for the tests, a peer for the
//! benchmarks.
//!
//! Anything that it can't do correctly is refused here, or noted where it matters: its Gemma 3 is a different
//! model (`tests/candle.rs`).

use anyhow::{Context as _, bail};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_gemma3, quantized_llama, quantized_qwen2, quantized_qwen3};
use std::io::{Read, Seek};

/// A model that candle runs, and the tokens in its cache.
pub(crate) struct Candle {
    weights: Weights,
    family: String,
    /// Number of positions for which it has angles.
    n_positions: usize,
    n_held: usize,
    /// True if a token was fed alone.
    had_one_alone: bool,
}

enum Weights {
    Llama(quantized_llama::ModelWeights),
    Qwen2(quantized_qwen2::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
    Gemma3(quantized_gemma3::ModelWeights),
}

impl Candle {
    /// Reads a GGUF.
    pub(crate) fn open(gguf: &mut (impl Read + Seek)) -> anyhow::Result<Self> {
        let mut content = Content::read(gguf).context("candle can't read the file as GGUF")?;
        let family = match content.metadata.get("general.architecture") {
            Some(Value::String(family)) => family.clone(),
            found => bail!("expected the name of a family in general.architecture, found {found:?}"),
        };
        let context = content.metadata.get(&format!("{family}.context_length"));
        let context = context.and_then(|n| n.to_u32().ok()).map_or(usize::MAX, |n| n as usize);
        // Without it Qwen 3's angles are computed in f16 (`quantized_qwen3.rs`, 489), with an accuracy of
        // 1/32 at position 60.
        content.metadata.insert("general.dtype".to_owned(), Value::U32(0));
        let (cpu, can_not_load) = (Device::Cpu, format!("candle can't load its quantized {family}"));
        let (weights, n_positions) = match family.as_str() {
            "llama" => {
                let weights = quantized_llama::ModelWeights::from_gguf(content, gguf, &cpu);
                (weights.map(Weights::Llama), quantized_llama::MAX_SEQ_LEN)
            }
            "qwen2" => {
                let weights = quantized_qwen2::ModelWeights::from_gguf(content, gguf, &cpu);
                (weights.map(Weights::Qwen2), context)
            }
            "qwen3" => {
                let weights = quantized_qwen3::ModelWeights::from_gguf(content, gguf, &cpu);
                (weights.map(Weights::Qwen3), context)
            }
            "gemma3" => {
                let weights = quantized_gemma3::ModelWeights::from_gguf(content, gguf, &cpu);
                (weights.map(Weights::Gemma3), quantized_gemma3::MAX_SEQ_LEN)
            }
            _ => bail!("candle has no quantized {family}; use a model of one of llama, qwen2, qwen3, gemma3"),
        };
        let weights = weights.context(can_not_load)?;
        Ok(Self { weights, family, n_positions, n_held: 0, had_one_alone: false })
    }

    /// Its `general.architecture`.
    pub(crate) fn family(&self) -> &str {
        &self.family
    }

    /// Refuses what candle can't do, or would do incorrectly: `n` ids at once after `held` others.
    pub(crate) fn check(&self, held: usize, n: usize) -> anyhow::Result<()> {
        let (family, total) = (&self.family, held + n);
        if n == 0 {
            bail!("candle expects at least one token");
        }
        if total > self.n_positions {
            let most = self.n_positions;
            bail!(
                "candle's quantized {family} has {most} positions, but {total} are needed; use fewer tokens"
            );
        }
        // Its mask hides what came before, if it were of the type of the rest (`quantized_gemma3.rs`, 171).
        if n > 1 && held > 0 && matches!(self.weights, Weights::Gemma3(_)) {
            bail!(
                "candle's quantized gemma3 can't read {n} tokens at once after {held} others; read all at \
                 once (--depth 0), or one at a time"
            );
        }
        Ok(())
    }

    /// Reads ids after those in its cache; returns the last one's logits.
    pub(crate) fn feed(&mut self, ids: &[u32]) -> anyhow::Result<Vec<f32>> {
        self.check(self.n_held, ids.len())?;
        // Of its two caches, the one for several tokens is not updated with those fed alone
        // (`quantized_qwen3.rs`, 316).
        if self.had_one_alone && ids.len() > 1 && matches!(self.weights, Weights::Qwen3(_)) {
            bail!("candle's quantized qwen3 forgets single tokens read before when it reads several at once");
        }
        let (at, input) = (self.n_held, Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?);
        let logits = match &mut self.weights {
            Weights::Llama(weights) => weights.forward(&input, at),
            Weights::Qwen2(weights) => weights.forward(&input, at),
            Weights::Qwen3(weights) => weights.forward(&input, at),
            Weights::Gemma3(weights) => weights.forward(&input, at),
        };
        let logits = logits.with_context(|| format!("candle can't read {} tokens after {at}", ids.len()))?;
        self.n_held += ids.len();
        self.had_one_alone |= ids.len() == 1;
        Ok(logits.flatten_all()?.to_vec1()?)
    }

    /// Clears its cache.
    pub(crate) fn forget(&mut self) {
        match &mut self.weights {
            Weights::Llama(weights) => weights.clear_kv_cache(),
            Weights::Qwen2(weights) => weights.clear_kv_cache(),
            Weights::Qwen3(weights) => weights.clear_kv_cache(),
            Weights::Gemma3(_) => {} // drops it at position 0
        }
        (self.n_held, self.had_one_alone) = (0, false);
    }
}
