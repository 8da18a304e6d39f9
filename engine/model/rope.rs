//! Rotary embedding: the angles of each position, by the file's own parameters and scaling. Functions are
//! those of the libm crate, so that the tables are the same on every machine.
//!
//! gpt-oss's YaRN is not rounded to whole pairs, as OpenAI's code has it; llama.cpp rounds it. GGUF has no
//! key for that: it is a fact of the family.

use super::tensors;
use crate::model::gguf::Gguf;
use crate::{Error, Result};
use libm::{cos, log, pow, sin};

/// The tensor of per-pair factors.
pub(crate) const FACTORS: &str = "rope_freqs.weight";

/// Frequencies of the rotary embedding.
#[derive(Clone, Debug)]
pub(crate) struct RopeSpec {
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
        Self { frequencies, magnitude: 1.0, latent_factor: 1.0 }
    }

    /// Reads base, scaling (`none`, `linear`, `yarn`) and per-pair factors (`rope_freqs.weight`: Llama 3.x).
    ///
    /// `rounded`: whether YaRN's ramp begins and ends at whole pairs.
    pub(crate) fn from_gguf(
        gguf: &Gguf,
        family: &str,
        n_rot: usize,
        head_dim: usize,
        rounded: bool,
    ) -> Result<Self> {
        if n_rot % 2 != 0 || n_rot > head_dim {
            return Err(
                gguf.error(format!("`{family}.rope.dimension_count` is {n_rot} in a head of {head_dim}"))
            );
        }
        let float = |name: &str| gguf.float(&format!("{family}.rope.{name}"));
        let base = f64::from(float("freq_base")?.unwrap_or(10_000.0));
        let mut rope = Self::plain(n_rot, base);
        if gguf.has_tensor(FACTORS) {
            let factors = tensors::floats(gguf, FACTORS, &[n_rot / 2], tensors::plain)?;
            rope.frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= f64::from(factor));
        }
        let old_linear = float("scale_linear")?;
        let factor = f64::from(float("scaling.factor")?.or(old_linear).unwrap_or(1.0));
        let kind = gguf.text(&format!("{family}.rope.scaling.type"));
        match kind.unwrap_or(if old_linear.is_some() { "linear" } else { "none" }) {
            "none" => {}
            "linear" => rope.frequencies.iter_mut().for_each(|f| *f /= factor),
            "yarn" => {
                let key = format!("{family}.rope.scaling.original_context_length");
                let original = gguf.int::<u32>(&key)?;
                let original = original
                    .ok_or_else(|| gguf.error(format!("`{key}` is missing; it is required for YaRN")))?;
                for (name, served) in [("beta_fast", BETA_FAST), ("beta_slow", BETA_SLOW)] {
                    let found = float(&format!("scaling.yarn_{name}"))?.map_or(served, f64::from);
                    if found != served {
                        let what =
                            format!("`{family}.rope.scaling.yarn_{name}` is {found}; expected {served}");
                        return Err(gguf.error(what));
                    }
                }
                yarn(&mut rope.frequencies, base, n_rot, factor, f64::from(original), rounded);
                let longer = 0.1 * log(factor);
                (rope.magnitude, rope.latent_factor) = match float("scaling.yarn_log_multiplier")? {
                    None => (1.0 + longer, 1.0 + longer),
                    // The converter has multiplied it by 0.1: DeepSeek's `mscale_all_dim`, equal to its
                    // `mscale`.
                    Some(all) => (1.0, 1.0 + f64::from(all) * log(factor)),
                };
                if let Some(attention) = float("scaling.attn_factor")? {
                    rope.magnitude *= f64::from(attention);
                }
            }
            other => {
                let found = format!("its rotary scaling is `{other}`; expected none, linear or yarn");
                return Err(Error::model(format!("{}: {found}", gguf.name)));
            }
        }
        Ok(rope)
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

/// YaRN (Peng et al. 2023, section 3.2): slow pairs are interpolated, fast ones left, a ramp between.
fn yarn(frequencies: &mut [f64], base: f64, n_rot: usize, factor: f64, original: f64, rounded: bool) {
    let pair_of =
        |turns: f64| n_rot as f64 * log(original / (turns * 2.0 * std::f64::consts::PI)) / (2.0 * log(base));
    let (fast, slow) = (pair_of(BETA_FAST), pair_of(BETA_SLOW));
    let (fast, slow) = if rounded { (fast.floor(), slow.ceil()) } else { (fast, slow) };
    let (low, high) = (fast.max(0.0), slow.min(n_rot as f64 - 1.0));
    for (i, f) in frequencies.iter_mut().enumerate() {
        let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        *f = *f / factor * ramp + *f * (1.0 - ramp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_leaves_fast_pairs_and_slows_the_slow_ones() {
        let plain: Vec<f64> = (0..32).map(|i| 10_000f64.powf(-2.0 * f64::from(i) / 64.0)).collect();
        let mut scaled = plain.clone();
        yarn(&mut scaled, 10_000.0, 64, 4.0, 4096.0, true);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[31] - plain[31] / 4.0).abs() < 1e-12);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]));
        // gpt-oss: the ramp runs from 8.0928 to 17.3980, as its authors' code has it.
        let plain: Vec<f64> = (0..32).map(|i| 150_000f64.powf(-2.0 * f64::from(i) / 64.0)).collect();
        let mut scaled = plain.clone();
        yarn(&mut scaled, 150_000.0, 64, 32.0, 4096.0, false);
        let ramp = |i: usize| (i as f64 - 8.0928) / (17.3980 - 8.0928);
        let expected = plain[13] * (1.0 - ramp(13)) + plain[13] / 32.0 * ramp(13);
        assert!((scaled[13] / expected - 1.0).abs() < 1e-4, "{} is not {expected}", scaled[13]);
    }
}
