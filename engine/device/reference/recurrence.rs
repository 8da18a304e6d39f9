//! Recurrent layers, token by token as their papers have them.

use super::cache::ReferenceCache;
use super::{HERE, Linear, Reference};
use crate::device::states::LiveState;
use crate::device::{Pass, StateSpan};
use crate::model::family::RecurrentMixer;
use crate::model::spec::RecurrenceSpec;
use crate::model::weights::{RecurrenceWeights, StateHeads};
use candle_core::{Result, Tensor};
use greenroom_kernels::recurrence::Sealed;
use greenroom_kernels::{Isa, LANES};
use half::f16;

fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_vec1()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// What a layer's input gives, token by token.
struct Inputs {
    /// Of the convolution, `[n, channels]`.
    mixed: Vec<f32>,
    /// Gates of what comes out, `[n, width]`.
    outer: Vec<f32>,
    /// Decays and strengths, `[n, n_heads, 2]`.
    gates: Vec<f32>,
}

impl Reference {
    /// `x: [n, d_model]` → what the last matrix is multiplied with, `[n, width]`.
    pub(super) fn recurrence(
        &self,
        x: &Tensor,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Linear>,
        pass: &Pass,
        cache: &mut ReferenceCache,
    ) -> Result<Tensor> {
        let Inputs { mixed, outer, gates } = self.inputs_of(x, own, weights)?;
        let mixed: Vec<f16> = mixed.into_iter().map(f16::from_f32).collect();
        let width = if own.n_heads > 0 { own.inner() } else { own.channels };
        let (mut out, mut first) = (Vec::new(), 0);
        for span in &pass.spans {
            let state = span.state.as_ref().expect("a span of a model with recurrent layers has a state");
            let mut live = cache.states.take(state.id);
            let rows = first..first + span.n;
            let of = |width: usize| rows.start * width..rows.end * width;
            live.append(own.state, &mixed[of(own.channels)], &gates[of(2 * own.n_heads)]);
            let read = self.advance(&mut live, own, weights, state, cache);
            out.extend_from_slice(&read[read.len() - span.n * width..]);
            cache.states.put(state.id, live);
            first += span.n;
        }
        out.iter_mut().zip(outer.chunks_exact(width).flatten()).for_each(|(y, gate)| {
            *y *= if own.n_heads > 0 && own.mixer == RecurrentMixer::Mamba2 {
                gate * sigmoid(*gate)
            } else {
                1.0
            };
        });
        let norm = weights.heads.as_ref().and_then(|heads| heads.norm.as_ref());
        if let Some(norm) = norm {
            let group =
                if own.mixer == RecurrentMixer::Mamba2 { own.inner() / own.n_key_heads } else { own.v_dim };
            for (i, part) in out.chunks_exact_mut(group).enumerate() {
                let square = part.iter().map(|x| x * x).sum::<f32>() / group as f32;
                let scale = 1.0 / (square + self.spec.norm_eps).sqrt();
                let norm = &norm[i * group % norm.len()..][..group];
                part.iter_mut().zip(norm).for_each(|(x, weight)| *x *= scale * weight);
            }
        }
        if own.mixer != RecurrentMixer::Mamba2 {
            let gated = |gate: f32| if own.n_heads > 0 { gate * sigmoid(gate) } else { gate };
            out.iter_mut().zip(&outer).for_each(|(y, gate)| *y *= gated(*gate));
        }
        Tensor::from_vec(out, (pass.ids.len(), width), &HERE)
    }

    /// Advances a state to its last seal.
    pub(super) fn seal_state(&self, span: &StateSpan, cache: &mut ReferenceCache) {
        for (layer, weights) in self.spec.layers.iter().zip(&self.weights.layers) {
            let (Some(own), Some(weights)) = (&layer.recurrence, &weights.recurrence) else { continue };
            let mut live = cache.states.take(span.id);
            self.advance(&mut live, own, weights, span, cache);
            cache.states.put(span.id, live);
        }
        cache.states.finish(span);
    }

    fn inputs_of(
        &self,
        x: &Tensor,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Linear>,
    ) -> Result<Inputs> {
        let products = weights.input.iter().map(|matrix| numbers(&matrix.forward(x)?));
        let products = products.collect::<Result<Vec<_>>>()?;
        let by_head = |x: &[f32], of: &dyn Fn(usize, usize, f32) -> [f32; 2]| -> Vec<f32> {
            x.iter().enumerate().flat_map(|(i, x)| of(i, i % own.n_heads, *x)).collect()
        };
        let heads = weights.heads.as_ref();
        Ok(match (own.mixer, heads) {
            (RecurrentMixer::Mamba2, Some(StateHeads { bias, slope, .. })) => Inputs {
                mixed: products[1].clone(),
                outer: products[0].clone(),
                gates: by_head(&products[2], &|_, head, x| {
                    let step = softplus(x + bias[head]);
                    [(step * slope[head]).exp(), step]
                }),
            },
            (RecurrentMixer::Delta { .. }, Some(StateHeads { bias, slope, .. })) => Inputs {
                mixed: products[0].clone(),
                outer: products[1].clone(),
                gates: by_head(&products[3], &|i, head, x| {
                    [(softplus(x + bias[head]) * slope[head]).exp(), sigmoid(products[2][i])]
                }),
            },
            _ => Inputs {
                mixed: products[0].iter().zip(&products[2]).map(|(gate, x)| gate * x).collect(),
                outer: products[1].clone(),
                gates: Vec::new(),
            },
        })
    }

    /// Takes a layer's state through its logged tokens; returns what they read, `[tokens, width]`.
    fn advance(
        &self,
        live: &mut LiveState,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Linear>,
        span: &StateSpan,
        cache: &mut ReferenceCache,
    ) -> Vec<f32> {
        let (at, format) = (live.at, cache.states.format.clone());
        let (_, inputs, gates) = live.walked(own.state);
        let inputs: Vec<f32> = inputs.iter().map(|x| x.to_f32()).collect();
        let (gates, channels) = (gates.to_vec(), own.channels);
        let n = inputs.len() / channels - (own.taps - 1);
        let (mut read, mut certain) = (Vec::new(), None);
        for t in 0..=n {
            let position = at + t;
            if let Some(seal) = span.seals.iter().find(|seal| seal.at == position && own.n_heads > 0) {
                let matrices = live.walked(own.state).0;
                let mut sealed = vec![0; matrices.len() * format.sealed.element()];
                let mut scales = vec![0.0; format.sealed.n_scales(own.n_heads * own.v_dim)];
                seal_all(format.sealed, own, matrices, &mut sealed, &mut scales);
                if let (Some(id), true) = (seal.to, seal.at <= span.certain) {
                    cache.put_state(id, own.state, &sealed, &scales);
                }
            }
            if position == span.certain {
                certain = Some(live.walked(own.state).0.to_vec());
            }
            if t == n {
                break;
            }
            let mixed: Vec<f32> = (0..channels)
                .map(|c| {
                    let tap = |tap: usize| {
                        weights.convolution[tap * channels + c] * inputs[(t + tap) * channels + c]
                    };
                    let bias = weights.convolution_bias.as_ref().map_or(0.0, |bias| bias[c]);
                    let sum = bias + (0..own.taps).map(tap).sum::<f32>();
                    if own.n_heads > 0 { sum * sigmoid(sum) } else { sum }
                })
                .collect();
            let Some(heads) = &weights.heads else {
                read.extend(mixed);
                continue;
            };
            let matrices = live.walked(own.state).0;
            for head in 0..own.n_heads {
                let matrix = &mut matrices[head * own.k_dim * own.v_dim..][..own.k_dim * own.v_dim];
                read.extend(self.step(
                    own,
                    heads,
                    &mixed,
                    (head, &gates[(t * own.n_heads + head) * 2..][..2]),
                    matrix,
                ));
            }
        }
        for seal in span.seals.iter().filter(|seal| seal.at <= span.certain) {
            if let Some(id) = seal.to {
                cache.put_inputs(id, own.state, *seal, live);
            }
        }
        live.walked(own.state).0.copy_from_slice(&certain.expect("a state stands where tokens are certain"));
        read
    }

    /// One token and one head: its matrix changes, and is read.
    fn step(
        &self,
        own: &RecurrenceSpec,
        heads: &StateHeads,
        mixed: &[f32],
        (head, gates): (usize, &[f32]),
        matrix: &mut [f32],
    ) -> Vec<f32> {
        let (k_dim, width, inner) = (own.k_dim, own.key_width(), own.inner());
        let of = |part: usize| mixed[part + own.key_head(head) * k_dim..][..k_dim].to_vec();
        let values = &mixed[own.values().start + head * own.v_dim..][..own.v_dim];
        let is_delta = matches!(own.mixer, RecurrentMixer::Delta { .. });
        let (mut query, mut key) = if is_delta { (of(0), of(width)) } else { (of(inner + width), of(inner)) };
        if is_delta {
            let unit = |x: &mut Vec<f32>, root: f32| {
                let length = (x.iter().map(|x| x * x).sum::<f32>() + self.spec.norm_eps).sqrt();
                x.iter_mut().for_each(|x| *x /= length * root);
            };
            unit(&mut query, (k_dim as f32).sqrt());
            unit(&mut key, 1.0);
        }
        let place = |i: usize, j: usize| (j / LANES * k_dim + i) * LANES + j % LANES;
        let column = |j: usize| {
            (0..k_dim).for_each(|i| matrix[place(i, j)] *= gates[0]);
            let has = if is_delta { (0..k_dim).map(|i| matrix[place(i, j)] * key[i]).sum() } else { 0.0 };
            let change = gates[1] * (values[j] - has);
            (0..k_dim).for_each(|i| matrix[place(i, j)] += key[i] * change);
            let read: f32 = (0..k_dim).map(|i| matrix[place(i, j)] * query[i]).sum();
            read + heads.skip.as_ref().map_or(0.0, |skip| skip[head] * values[j])
        };
        (0..own.v_dim).map(column).collect()
    }
}

/// Rounds all matrices to what they are sealed as.
fn seal_all(
    format: Sealed,
    own: &RecurrenceSpec,
    matrices: &mut [f32],
    bytes: &mut [u8],
    scales: &mut [f32],
) {
    let (matrix, n_scales) = (own.k_dim * own.v_dim, format.n_scales(own.v_dim));
    for head in 0..own.n_heads {
        let size = matrix * format.element();
        let bytes = &mut bytes[head * size..][..size];
        let scales = &mut scales[head * n_scales..][..n_scales];
        format.seal(Isa::SCALAR, &mut matrices[head * matrix..][..matrix], own.k_dim, bytes, scales);
    }
}
