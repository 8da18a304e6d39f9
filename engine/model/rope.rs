//! Rotary embedding: the angles of each position, by the file's own parameters and scaling. Functions are
//! those of the libm crate, so that the tables are the same on every machine.
//!
//! gpt-oss's YaRN is not rounded to whole pairs, as OpenAI's code has it; llama.cpp rounds it. GGUF has no
//! key for that: it is a fact of the family.

use super::family::Yarn;
use super::metadata::MetadataReader;
use super::tensors;
use crate::model::gguf::Value;
use crate::{Error, Result};
use libm::{cos, log, pow, sin};

/// The tensor of per-pair factors.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// The same for LongRoPE, within the first training's positions and beyond.
pub(crate) const LONG_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// Frequencies of the rotary embedding.
#[derive(Clone, Debug)]
pub(crate) struct RopeSpec {
    /// The base that they come from.
    pub(crate) base: f64,
    /// Angle per position of each pair.
    frequencies: Vec<f64>,
    /// Length of the turned vectors (YaRN's attention factor; 1 otherwise).
    magnitude: f64,
    /// Factor of the scores of latent attention, applied twice (YaRN; 1 otherwise).
    pub(crate) latent_factor: f64,
}

impl RopeSpec {
    /// An embedding without scaling: `n_rot` elements turn.
    pub(crate) fn plain(n_rot: usize, base: f64) -> Self {
        let frequencies = (0..n_rot / 2).map(|i| pow(base, -2.0 * i as f64 / n_rot as f64)).collect();
        Self { base, frequencies, magnitude: 1.0, latent_factor: 1.0 }
    }

    /// Number of elements that turn.
    pub(crate) fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Reads base, scaling (`none`, `linear`, `yarn`, `longrope`) and per-pair factors (`rope_freqs.weight`:
    /// Llama 3.x).
    ///
    /// # Errors
    /// An unknown scaling, a missing or impossible value.
    pub(super) fn read(reader: &MetadataReader<'_>, n_rot: usize, head_dim: usize) -> Result<Self> {
        let gguf = reader.gguf;
        if n_rot % 2 != 0 || n_rot > head_dim {
            let key = reader.key("rope.dimension_count");
            return Err(gguf.error(format!("`{key}` is {n_rot} in a head of {head_dim}")));
        }
        let float = |name: &str| reader.float(&format!("rope.{name}"));
        let mut base = f64::from(float("freq_base")?.unwrap_or(10_000.0));
        if let Some(alpha) = float("scaling.alpha")?.filter(|alpha| *alpha > 0.0) {
            // NTK-aware scaling, as Hunyuan's authors have it.
            base *= pow(f64::from(alpha), n_rot as f64 / (n_rot as f64 - 2.0));
        }
        let mut rope = Self::plain(n_rot, base);
        if gguf.has_tensor(FACTORS) {
            rope.divide(&tensors::floats(gguf, FACTORS, &[n_rot / 2], tensors::plain)?);
        }
        let given = float("scaling.factor")?.or(float("scale_linear")?).filter(|factor| *factor != 0.0);
        let factor = f64::from(given.unwrap_or(1.0));
        reader.refuse("rope.scaling.yarn_ext_factor", &[Value::Float(1.0)])?;
        reader.refuse("rope.scaling.yarn_attn_factor", &[Value::Float(1.0)])?;
        let original = reader.positive("rope.scaling.original_context_length")?;
        let betas = [("fast", BETA_FAST), ("slow", BETA_SLOW)].map(|(name, usual)| {
            Ok::<_, Error>(float(&format!("scaling.yarn_beta_{name}"))?.map_or(usual, f64::from))
        });
        let multiplier = float("scaling.yarn_log_multiplier")?.filter(|all| *all != 0.0);
        let kind = reader.get("rope.scaling.type");
        match kind {
            None if given.is_none() => {}
            Some(Value::Str(kind)) if kind == "none" => {}
            None => rope.frequencies.iter_mut().for_each(|f| *f /= factor),
            Some(Value::Str(kind)) if kind == "linear" => {
                rope.frequencies.iter_mut().for_each(|f| *f /= factor);
            }
            Some(Value::Str(kind)) if kind == "yarn" => {
                let original = original.ok_or_else(|| {
                    let key = reader.key("rope.scaling.original_context_length");
                    gguf.error(format!("`{key}` is missing; it is required for YaRN"))
                })?;
                let [fast, slow] = betas;
                rope.yarn(factor, original as f64, [fast?, slow?], &reader.family.yarn);
                rope.set_magnitude(factor, multiplier.map(f64::from), &reader.family.yarn);
            }
            Some(Value::Str(kind)) if kind == "longrope" => {
                let context = reader.needed("context_length")?;
                let is_long = original.is_some_and(|original| context > original);
                let name = LONG_FACTORS[usize::from(is_long)];
                rope.divide(&tensors::floats(gguf, name, &[n_rot / 2], tensors::plain)?);
            }
            Some(other) => {
                let found =
                    format!("its rotary scaling is {other:?}; expected none, linear, yarn or longrope");
                return Err(gguf.error(found));
            }
        }
        if let Some(attention) = float("scaling.attn_factor")? {
            rope.magnitude *= f64::from(attention);
        }
        Ok(rope)
    }

    /// Divides each frequency.
    fn divide(&mut self, factors: &[f32]) {
        self.frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= f64::from(*factor));
    }

    /// YaRN's factors of turned vectors and of scores (`mscale` and `mscale_all_dim` of its implementations).
    fn set_magnitude(&mut self, factor: f64, all: Option<f64>, family: &Yarn) {
        let of = |multiplier: f64| 1.0 + 0.1 * multiplier * log(factor).max(0.0);
        let all = all.map(|all| all / family.log_unit);
        self.magnitude = match all {
            None => of(1.0),
            Some(_) if family.equal_scales => 1.0,
            Some(all) => of(1.0) / of(all),
        };
        self.latent_factor = self.magnitude * all.map_or(1.0, of);
    }

    /// YaRN (Peng et al. 2023, section 3.2): slow pairs are interpolated, fast ones left, a ramp between.
    /// `turns` within the first training's positions above which a pair is fast, below which it is slow.
    fn yarn(&mut self, factor: f64, original: f64, turns: [f64; 2], family: &Yarn) {
        let n_rot = self.n_rot() as f64;
        let pair_of = |turns: f64| {
            n_rot * log(original / (turns * 2.0 * std::f64::consts::PI)) / (2.0 * log(self.base))
        };
        let [fast, slow] = turns.map(pair_of);
        let (fast, slow) = if family.rounded { (fast.floor(), slow.ceil()) } else { (fast, slow) };
        let (low, high) = (fast.max(0.0), slow.min(n_rot - 1.0));
        for (i, f) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *f = *f / factor * ramp + *f * (1.0 - ramp);
        }
    }

    /// Cosines, then sines, of a position: as many as elements turn.
    pub(crate) fn table(&self, position: usize) -> Vec<f32> {
        let angles = self.frequencies.iter().map(|f| position as f64 * f);
        let cosines = angles.clone().map(|a| (cos(a) * self.magnitude) as f32);
        cosines.chain(angles.map(|a| (sin(a) * self.magnitude) as f32)).collect()
    }
}

/// Turns within the first training's positions above which a pair is fast, below which it is slow: as the
/// paper has them.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_leaves_fast_pairs_and_slows_the_slow_ones() {
        let family = |rounded| Yarn { rounded, log_unit: 1.0, equal_scales: false };
        let scaled = |base, factor, rounded| {
            let (plain, mut rope) = (RopeSpec::plain(64, base), RopeSpec::plain(64, base));
            rope.yarn(factor, 4096.0, [BETA_FAST, BETA_SLOW], &family(rounded));
            (plain.frequencies, rope.frequencies)
        };
        let (plain, found) = scaled(10_000.0, 4.0, true);
        assert_eq!(found[0], plain[0]);
        assert!((found[31] - plain[31] / 4.0).abs() < 1e-12);
        assert!(found.windows(2).all(|w| w[0] > w[1]));
        // gpt-oss: the ramp runs from 8.0928 to 17.3980, as its authors' code has it.
        let (plain, found) = scaled(150_000.0, 32.0, false);
        let ramp = |i: usize| (i as f64 - 8.0928) / (17.3980 - 8.0928);
        let expected = plain[13] * (1.0 - ramp(13)) + plain[13] / 32.0 * ramp(13);
        assert!((found[13] / expected - 1.0).abs() < 1e-4, "{} is not {expected}", found[13]);
    }
}
