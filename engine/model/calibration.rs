//! Statistics of a model's queries, keys and values on a sample text: measured once for a model, for the
//! formats of its keys.
//!
//! 4-bit keys are coded for what scores feel of them: their elements are scaled, queries inversely, and what
//! rounding one element does to a score is made up for by the elements after it (the feedback of GPTQ, with
//! the second moment of queries in the place of activations'). Both need two numbers for each pair of
//! elements of a KV head, the energy of queries and the variance of keys. These are constants of the model,
//! measured on the first 512 tokens of a built-in text when it is opened for the first time and kept in the
//! cache folder; without a folder they are measured again, and are the same to the bit. A cache's identity
//! holds their hash. The second moment is diagonal where positions turn keys: taking all of it was no better
//! (on SmolLM2's F32 copy, divergence by keys alone 0.0018 both ways). The feedback takes dim² floats a KV
//! head in memory: 16 MiB for Llama 3.1 8B, 96 MiB for Gemma 3 12B. 8-bit keys need none of this.

use super::family::RopeLayout;
use super::spec::{AttentionSpec, DecoderSpec, sensitive};
use greenroom_kernels::quant::{EXACT, Scale};
use greenroom_kernels::shaping::noise;
use greenroom_kernels::threads;
use libm::exp;

/// Maximum number of tokens that are read.
pub(crate) const MAX_TOKENS: usize = 512;

/// Sampling interval of the rows measured for effects of key errors.
const STRIDE: usize = 8;

/// Standard deviation of simulated errors, in those of real ones: large enough that rounding of activations
/// is negligible.
const LOUDER: f64 = 4.0;

/// The rows that are looked at, of all.
fn sampled<T>(rows: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    rows.skip(EXACT).step_by(STRIDE)
}

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
    /// Change in the residual stream caused by 4-bit keys: mean square, over that of the stream itself.
    sensitivity: f32,
}

/// A calibration in the making, layer by layer: [`Measured::add`], then [`Measured::felt`].
#[derive(Default)]
pub(crate) struct Measured {
    layers: Vec<KeyStatistics>,
    /// Change in each head's context caused by errors in the last layer's keys, `[n_rows, n_heads, v_dim]`.
    noise: Vec<f32>,
}

/// Statistics of one KV head.
struct HeadStatistics {
    queries: Vec<f64>,
    keys: Vec<f64>,
    /// `[n_rows, group, v_dim]`.
    noise: Vec<f64>,
}

/// Rows of one head, `[n_rows, dim]`.
struct HeadRows {
    dim: usize,
    x: Vec<f64>,
}

impl HeadRows {
    /// A head's part of `x: [n_rows, n_heads, dim]`.
    fn of(x: &[f32], n_heads: usize, dim: usize, head: usize) -> Self {
        let rows = x.chunks_exact(n_heads * dim).flat_map(|row| &row[head * dim..][..dim]);
        Self { dim, x: rows.map(|x| f64::from(*x)).collect() }
    }

    fn n(&self) -> usize {
        self.x.len() / self.dim
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.x[i * self.dim..][..self.dim]
    }
}

impl Measured {
    /// Adds the next layer's queries `[n_rows, n_heads, k_dim]`, keys `[n_rows, n_kv_heads, k_dim]`,
    /// positions turned in, and values `[n_rows, n_kv_heads, v_dim]`. The first rows are left out, as they
    /// are in the cache.
    pub(crate) fn add(
        &mut self,
        spec: &AttentionSpec,
        pairs: RopeLayout,
        n_rot: usize,
        [q, k, v]: [&[f32]; 3],
    ) {
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, window, .. } = *spec;
        let group = spec.group();
        let heads = threads::map(n_kv_heads, |head| {
            let queries =
                (head * group..(head + 1) * group).map(|head| HeadRows::of(q, n_heads, k_dim, head));
            let queries: Vec<HeadRows> = queries.collect();
            let (keys, values) =
                (HeadRows::of(k, n_kv_heads, k_dim, head), HeadRows::of(v, n_kv_heads, v_dim, head));
            let mut energies = mean(k_dim, &queries, |_, x| x * x);
            let center = mean(k_dim, [&keys], |_, x| x);
            let mut variances = mean(k_dim, [&keys], |i, x| (x - center[i]) * (x - center[i]));
            for squares in [&mut energies, &mut variances] {
                level_pairs(&mut squares[..n_rot], pairs);
            }
            let error = LOUDER * f64::from(spec.score_scale) * noise(&energies, &variances).sqrt();
            let seen =
                AttendedRows { keys: &keys, values: &values, window, scale: f64::from(spec.score_scale) };
            let mut noise = vec![0.0; keys.n() * group * v_dim];
            let mut signs = head as u64;
            for (row, noise) in noise.chunks_exact_mut(group * v_dim).enumerate().skip(EXACT).step_by(STRIDE)
            {
                for (queries, noise) in queries.iter().zip(noise.chunks_exact_mut(v_dim)) {
                    noise.copy_from_slice(&seen.noise(queries.row(row), row, error, &mut signs));
                }
            }
            HeadStatistics { noise, queries: energies, keys: variances }
        });
        let relative = |of: fn(&HeadStatistics) -> &[f64]| -> Vec<Scale> {
            let of_head = |head| {
                let squares = of(head);
                let all = squares.iter().sum::<f64>() / k_dim as f64;
                squares.iter().map(move |x| Scale::nearest((x / all) as f32))
            };
            heads.iter().flat_map(of_head).collect()
        };
        let (queries, keys) = (relative(|head| &head.queries), relative(|head| &head.keys));
        self.layers.push(KeyStatistics { queries, keys, sensitivity: 0.0 });
        let rows = (0..q.len() / (n_heads * k_dim)).flat_map(|row| {
            let width = group * v_dim;
            heads.iter().flat_map(move |head| &head.noise[row * width..][..width])
        });
        self.noise = rows.map(|x| *x as f32).collect();
    }

    /// Change in each head's context caused by errors in the last layer's keys, `[n_rows, n_heads, v_dim]`.
    pub(crate) fn noise(&self) -> &[f32] {
        &self.noise
    }

    /// Records the residual stream after the last layer's attention, `[n_rows, d_model]`, as it is and with
    /// those errors.
    pub(crate) fn felt(&mut self, x: &[f32], changed: &[f32], d_model: usize) {
        let (mut off, mut all) = (0.0, 0.0);
        let rows = x.chunks_exact(d_model).zip(changed.chunks_exact(d_model));
        for (x, changed) in sampled(rows) {
            let square = |x: f32| f64::from(x) * f64::from(x);
            off += x.iter().zip(changed).map(|(x, y)| square(x - y)).sum::<f64>();
            all += x.iter().map(|x| square(*x)).sum::<f64>();
        }
        let sensitivity = if all > 0.0 { (off / all) as f32 } else { 0.0 };
        self.layers.iter_mut().last().into_iter().for_each(|layer| layer.sensitivity = sensitivity);
    }

    /// All layers.
    pub(crate) fn finish(self) -> Calibration {
        Calibration { layers: self.layers }
    }
}

impl DecoderSpec {
    /// Takes a calibration: [`KvChoice::Mixture`] then has 8-bit keys in the layers that it shows to be
    /// sensitive.
    pub(crate) fn calibrate(&mut self, calibration: &Calibration) {
        if !self.is_latent() {
            let layers: Vec<AttentionSpec> = self.cached().copied().collect();
            self.sensitive = sensitive(&layers, |l| calibration.sensitivity(l));
        }
    }
}

impl Calibration {
    /// Sensitivity of a layer to 4-bit keys; 0 where that is not known.
    fn sensitivity(&self, layer: usize) -> f32 {
        self.layers.get(layer).map_or(0.0, |layer| layer.sensitivity)
    }

    /// The energy of queries (mean squares) and the variance of keys of a layer, `[n_kv_heads, k_dim]` each,
    /// in arbitrary units; `None` where that is not known.
    pub(crate) fn of_layer(&self, layer: usize) -> Option<[Vec<f32>; 2]> {
        let layer = self.layers.get(layer)?;
        Some([&layer.queries, &layer.keys].map(|scales| scales.iter().map(|scale| scale.to_f32()).collect()))
    }

    /// Writes it as text: for each layer two hexadecimal digits a number, and eight for its sensitivity.
    pub(crate) fn text(&self) -> String {
        let of_layer = |layer: &KeyStatistics| {
            let scales = layer.queries.iter().chain(&layer.keys).map(|scale| format!("{:02x}", scale.0));
            scales.chain([format!("{:08x}", layer.sensitivity.to_bits())]).collect::<String>()
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// Reads [`Calibration::text`]; `None` if it is not of such a model.
    pub(crate) fn from_text(text: &str, spec: &DecoderSpec) -> Option<Self> {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<_>>()?;
        let mut rest = bytes.as_slice();
        let mut take = |n: usize| {
            let (taken, after) = rest.split_at_checked(n)?;
            rest = after;
            Some(taken)
        };
        let mut layers = Vec::new();
        for layer in spec.cached() {
            let row = layer.n_kv_heads * layer.k_dim;
            let mut scales = || Some(take(row)?.iter().map(|byte| Scale(*byte)).collect::<Vec<Scale>>());
            let (queries, keys) = (scales()?, scales()?);
            let sensitivity = f32::from_bits(u32::from_be_bytes(take(4)?.try_into().ok()?));
            layers.push(KeyStatistics { queries, keys, sensitivity });
        }
        rest.is_empty().then_some(Self { layers })
    }
}

/// The mean over rows, but the first, of what `of` makes of each element; 0 where there are no rows.
fn mean<'a>(
    dim: usize,
    heads: impl IntoIterator<Item = &'a HeadRows>,
    of: impl Fn(usize, f64) -> f64,
) -> Vec<f64> {
    let (mut sums, mut n) = (vec![0.0; dim], 0);
    for head in heads {
        for row in EXACT..head.n() {
            sums.iter_mut().zip(head.row(row)).enumerate().for_each(|(i, (sum, x))| *sum += of(i, *x));
            n += 1;
        }
    }
    sums.iter().map(|sum| sum / n.max(1) as f64).collect()
}

/// Keys and values that the queries of one KV head attend to.
struct AttendedRows<'a> {
    keys: &'a HeadRows,
    values: &'a HeadRows,
    window: Option<usize>,
    /// Factor of the scores.
    scale: f64,
}

impl AttendedRows<'_> {
    /// Change in the context of a row's query when the scores of coded keys are off by `error`, with either
    /// sign: the context weighs values v by p to their mean o, so an error e of a score adds p e (v - o).
    /// Exact keys are left out: a head that rests on them now, and would seem insensitive, may be active in
    /// another text.
    fn noise(&self, query: &[f64], row: usize, error: f64, signs: &mut u64) -> Vec<f64> {
        let Self { keys, values, window, scale } = *self;
        let first = window.map_or(0, |window| (row + 1).saturating_sub(window)).max(EXACT);
        let score = |i| scale * keys.row(i).iter().zip(query).map(|(k, q)| k * q).sum::<f64>();
        let mut weights: Vec<f64> = (first..=row).map(score).collect();
        let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        weights.iter_mut().for_each(|weight| *weight = exp(*weight - most));
        let total = weights.iter().sum::<f64>();
        let (mut o, mut noise, mut sum) = (vec![0.0; values.dim], vec![0.0; values.dim], 0.0);
        for (i, weight) in (first..).zip(&weights) {
            let weight = weight / total;
            let e = sign(signs) * weight * error;
            for ((o, noise), v) in o.iter_mut().zip(&mut noise).zip(values.row(i)) {
                *o += weight * v;
                *noise += e * v;
            }
            sum += e;
        }
        noise.iter_mut().zip(&o).for_each(|(noise, o)| *noise -= sum * o);
        noise
    }
}

/// 1 or −1, by a linear congruential generator (Knuth, MMIX).
fn sign(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    if *state >> 63 == 0 { 1.0 } else { -1.0 }
}

/// Gives both elements of each pair that positions turn together their mean.
fn level_pairs(x: &mut [f64], pairs: RopeLayout) {
    let half = x.len() / 2;
    for i in 0..half {
        let (a, b) = match pairs {
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            RopeLayout::NeoX => (i, i + half),
        };
        let mean = 0.5 * (x[a] + x[b]);
        (x[a], x[b]) = (mean, mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::Cpu;
    use crate::device::{Device, measure};
    use crate::fixtures::RandomModel;
    use crate::model::gguf::Gguf;
    use crate::{KvChoice, KvFormat, ModelSource};
    use greenroom_kernels::Isa;
    use std::sync::Arc;

    /// A model of six layers, whose values are `size` times as large in layer 4.
    fn device(size: f32) -> Cpu {
        let larger = |name: &str, x: &mut [f32]| {
            if name == "blk.4.attn_v.weight" {
                x.iter_mut().for_each(|x| *x *= size);
            }
        };
        let model = RandomModel { n_layers: 6, ..RandomModel::tiny(5) };
        let bytes: &'static [u8] = model.bytes_with(&larger).leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device")
    }

    #[test]
    fn a_calibration_is_found_and_kept_whole() {
        let device = device(1.0);
        let ids: Vec<u32> = (0..700).map(|i| i * i % 200).collect();
        let found = measure(&device, &ids).expect("a calibration");
        assert_eq!(found, measure(&device, &ids[..MAX_TOKENS]).expect("a calibration"), "it reads no more");
        assert_ne!(found, measure(&device, &ids[..100]).expect("a calibration"));
        let text = found.text();
        assert_eq!(Calibration::from_text(&text, device.spec()), Some(found));
        for broken in ["", "zz", &text[2..], &text[..text.len() - 2], &format!("{text}00"), "\u{e9}\u{e9}"] {
            assert_eq!(Calibration::from_text(broken, device.spec()), None);
        }
    }

    #[test]
    fn a_text_of_any_length_will_do() {
        let mut device = device(1.0);
        for n in [1, EXACT, EXACT + 1] {
            let found = measure(&device, &(0..n as u32).collect::<Vec<_>>()).expect("a calibration");
            device.calibrate(&found);
        }
    }

    #[test]
    fn the_mixture_has_eight_bits_where_errors_of_keys_change_most() {
        let ids: Vec<u32> = (0..300).map(|i| i * i % 200).collect();
        let mut device = device(20.0);
        let formats = |device: &Cpu| {
            let layout = device.spec().kv_layout(&KvChoice::Mixture).expect("a layout");
            assert_eq!(device.spec().kv_name(&layout), "q4-m");
            layout.layers.iter().map(|layer| layer.k.format).collect::<Vec<_>>()
        };
        let at = |finer: usize| {
            (0..6).map(|l| if l == finer { KvFormat::Q8 } else { KvFormat::Q4 }).collect::<Vec<_>>()
        };
        assert_eq!(formats(&device), at(0));
        let found = measure(&device, &ids).expect("a calibration");
        device.calibrate(&found);
        assert_eq!(formats(&device), at(4));
    }

    #[test]
    fn noise_is_what_changes_of_scores_change() {
        let n = EXACT + 20;
        let rows = |f: fn(f64) -> f64| HeadRows { dim: 1, x: (0..n).map(|i| f(i as f64)).collect() };
        let (keys, values) = (rows(libm::sin), rows(|i| libm::cos(2.0 * i)));
        for window in [None, Some(9)] {
            let seen = AttendedRows { keys: &keys, values: &values, window, scale: 0.5 };
            let put_out = |changed: Option<usize>| {
                let (mut sum, mut total) = (0.0, 0.0);
                for i in window.map_or(EXACT, |window| n - window)..n {
                    let by = if Some(i) == changed { 1e-6 } else { 0.0 };
                    let weight = exp(0.5 * 3.0 * keys.x[i] + by);
                    (sum, total) = (sum + weight * values.x[i], total + weight);
                }
                sum / total
            };
            let changes: Vec<f64> = (EXACT..n).map(|i| (put_out(Some(i)) - put_out(None)) / 1e-6).collect();
            let [noise] = seen.noise(&[3.0], n - 1, 1.0, &mut 7)[..] else { panic!("one element") };
            let most: f64 = changes.iter().map(|change| change.abs()).sum();
            assert!(noise != 0.0 && noise.abs() < most, "{noise} of {most}");
            // Some signs give it.
            let mut sums = vec![0.0];
            for change in changes.iter().filter(|change| change.abs() > 1e-9) {
                sums = sums.iter().flat_map(|sum| [sum - change, sum + change]).collect();
            }
            assert!(sums.iter().any(|sum| (sum - noise).abs() < 1e-6), "no signs give {noise}");
        }
    }

    #[test]
    fn pairs_share_their_energy() {
        let mut x = [1.0, 3.0, 5.0, 7.0];
        level_pairs(&mut x, RopeLayout::Interleaved);
        assert_eq!(x, [2.0, 2.0, 6.0, 6.0]);
        level_pairs(&mut x, RopeLayout::NeoX);
        assert_eq!(x, [4.0; 4]);
    }
}
