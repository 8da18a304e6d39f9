//! What a model's queries and keys are like on a sample text: measured once for a model, for the formats of its keys.

use super::spec::DecoderSpec;
use crate::kernels::Isa;
use crate::kernels::pointwise::Pairs;
use crate::kernels::shaping::Shaping;
use crate::quant::{EXACT, Scale};

/// Tokens that are read, at most.
pub(crate) const TOKENS: usize = 512;

/// Queries and keys of every layer; empty for a model whose keys are a latent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Calibration {
    layers: Vec<KeyStatistics>,
}

/// One layer, `[n_kv_heads, k_dim]` each; elements that positions turn together share a number.
#[derive(Clone, Debug, PartialEq)]
struct KeyStatistics {
    /// Mean squares of the queries that read a KV head, over all its elements' mean.
    queries: Vec<Scale>,
    /// Variances of its keys around their mean, over all its elements' mean.
    keys: Vec<Scale>,
}

impl Calibration {
    /// Adds the next layer's queries `[n_rows, n_heads, k_dim]` and keys `[n_rows, n_kv_heads, k_dim]`, positions turned in. The first
    /// rows are left out, as they are in the cache.
    pub(crate) fn add(&mut self, spec: &DecoderSpec, n_rot: usize, q: &[f32], k: &[f32]) {
        let DecoderSpec { n_heads, n_kv_heads, k_dim, .. } = *spec;
        let group = n_heads / n_kv_heads;
        let (mut queries, mut keys) = (Vec::new(), Vec::new());
        for head in 0..n_kv_heads {
            let rows = |x: &[f32], n_heads: usize, head: usize| -> Vec<Vec<f64>> {
                let rows = x.chunks_exact(n_heads * k_dim).skip(EXACT);
                rows.map(|row| row[head * k_dim..][..k_dim].iter().map(|x| f64::from(*x)).collect()).collect()
            };
            let of_group = (head * group..(head + 1) * group).flat_map(|head| rows(q, n_heads, head));
            let of_group: Vec<Vec<f64>> = of_group.collect();
            let mut of_head = rows(k, n_kv_heads, head);
            let mean = mean(k_dim, &of_head, |x| x);
            for row in &mut of_head {
                row.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean);
            }
            for (rows, of) in [(&of_group, &mut queries), (&of_head, &mut keys)] {
                let mut squares = self::mean(k_dim, rows, |x| x * x);
                level_pairs(&mut squares[..n_rot], spec.family.pairs);
                let all = squares.iter().sum::<f64>() / k_dim as f64;
                of.extend(squares.iter().map(|x| Scale::nearest((x / all) as f32)));
            }
        }
        self.layers.push(KeyStatistics { queries, keys });
    }

    /// How the keys of a layer are coded; `None` where that is not known.
    pub(crate) fn shaping(&self, isa: Isa, layer: usize, k_dim: usize) -> Option<Shaping> {
        let numbers = |scales: &[Scale]| -> Vec<f32> { scales.iter().map(|scale| scale.to_f32()).collect() };
        let layer = self.layers.get(layer)?;
        Some(Shaping::new(isa, &numbers(&layer.queries), &numbers(&layer.keys), k_dim))
    }

    /// As text: two hexadecimal digits a number.
    pub(crate) fn text(&self) -> String {
        let scales = self.layers.iter().flat_map(|layer| layer.queries.iter().chain(&layer.keys));
        scales.map(|scale| format!("{:02x}", scale.0)).collect()
    }

    /// From [`Calibration::text`]; `None` if it is not of such a model.
    pub(crate) fn from_text(text: &str, spec: &DecoderSpec) -> Option<Self> {
        let row = spec.n_kv_heads * spec.k_dim;
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let scales = digits.map(|pair| u8::from_str_radix(pair?, 16).ok().map(Scale));
        let scales: Vec<Scale> = scales.collect::<Option<_>>()?;
        let layers = scales.chunks(2 * row).map(|layer| {
            let (queries, keys) = layer.split_at_checked(row)?;
            (keys.len() == row).then(|| KeyStatistics { queries: queries.to_vec(), keys: keys.to_vec() })
        });
        let layers: Vec<KeyStatistics> = layers.collect::<Option<_>>()?;
        (layers.len() == spec.layers.len()).then_some(Self { layers })
    }
}

/// The mean over rows of what `of` makes of each element; 0 where there are no rows.
fn mean(dim: usize, rows: &[Vec<f64>], of: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; dim];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += of(*x));
    }
    sums.iter().map(|sum| sum / rows.len().max(1) as f64).collect()
}

/// Gives both elements of each pair that positions turn together their mean.
fn level_pairs(x: &mut [f64], pairs: Pairs) {
    let half = x.len() / 2;
    for i in 0..half {
        let (a, b) = match pairs {
            Pairs::Neighbours => (2 * i, 2 * i + 1),
            Pairs::Halves => (i, i + half),
        };
        let mean = 0.5 * (x[a] + x[b]);
        (x[a], x[b]) = (mean, mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::fixtures::RandomModel;
    use crate::gguf::Gguf;
    use crate::model::Decoder;
    use std::sync::Arc;

    fn decoder() -> Decoder {
        let bytes: &'static [u8] = RandomModel::tiny(5).bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        Decoder::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a decoder")
    }

    #[test]
    fn a_calibration_is_found_and_kept_whole() {
        let decoder = decoder();
        let ids: Vec<u32> = (0..700).map(|i| i * i % 200).collect();
        let found = decoder.calibration(&ids).expect("a calibration");
        assert_eq!(found, decoder.calibration(&ids[..TOKENS]).expect("a calibration"), "it reads no more");
        assert_ne!(found, decoder.calibration(&ids[..100]).expect("a calibration"));
        let text = found.text();
        assert_eq!(Calibration::from_text(&text, &decoder.spec), Some(found));
        for broken in ["", "zz", &text[2..], &text[..text.len() - 2], &format!("{text}00"), "\u{e9}\u{e9}"] {
            assert_eq!(Calibration::from_text(broken, &decoder.spec), None);
        }
    }

    #[test]
    fn a_text_of_any_length_will_do() {
        let mut decoder = decoder();
        for n in [1, EXACT, EXACT + 1] {
            let found = decoder.calibration(&(0..n as u32).collect::<Vec<_>>()).expect("a calibration");
            decoder.shape_keys(&found);
        }
    }

    #[test]
    fn pairs_share_their_energy() {
        let mut x = [1.0, 3.0, 5.0, 7.0];
        level_pairs(&mut x, Pairs::Neighbours);
        assert_eq!(x, [2.0, 2.0, 6.0, 6.0]);
        level_pairs(&mut x, Pairs::Halves);
        assert_eq!(x, [4.0; 4]);
    }
}
