//! The forward pass, family by family as its authors have it, over a cache whose blocks are sealed.

use super::cache::{ReferenceCache, hadamard};
use super::{HERE, Linear, Reference};
use crate::device::{Output, Pass, PassSpan};
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::model::calibration::Measured;
use crate::model::spec::{Activation, Gating, LatentSpec, RopeLayout};
use crate::model::weights::{FeedForward, Heads, Layer, Mlp};
use candle_core::{D, Result, Tensor};

impl Linear {
    /// `x: [n, k]` → `x Wᵀ + b`, `[n, n_out]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
    }
}

/// `x / rms(x) · w` over the last dimension (Zhang & Sennrich 2019).
fn rms_norm(x: &Tensor, weight: &[f32], eps: f32) -> Result<Tensor> {
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    let x = x.broadcast_div(&(square + f64::from(eps))?.sqrt()?)?;
    x.broadcast_mul(&Tensor::new(weight, &HERE)?)
}

/// Rotary embedding (Su et al. 2021) of elements `first ..` of the heads `x: [n, n_heads, dim]`; `tables[r]`:
/// row r's cosines, then sines.
fn apply_rope(x: &Tensor, first: usize, pairs: RopeLayout, tables: &[Vec<f32>]) -> Result<Tensor> {
    let (n, heads, dim) = x.dims3()?;
    let n_rot = tables[0].len();
    let half = n_rot / 2;
    let part = |start: usize| {
        let rows: Vec<f32> = tables.iter().flat_map(|table| &table[start..start + half]).copied().collect();
        Tensor::from_vec(rows, (n, 1, half), &HERE)
    };
    let (cos, sin) = (part(0)?, part(half)?);
    let turned = x.narrow(2, first, n_rot)?;
    // [n, heads, half] twice, and where they come from.
    let (a, b) = match pairs {
        RopeLayout::NeoX => (turned.narrow(2, 0, half)?, turned.narrow(2, half, half)?),
        RopeLayout::Interleaved => {
            let both = turned.reshape((n, heads, half, 2))?;
            (both.narrow(3, 0, 1)?.squeeze(3)?, both.narrow(3, 1, 1)?.squeeze(3)?)
        }
    };
    let left = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let right = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    let turned = match pairs {
        RopeLayout::NeoX => Tensor::cat(&[left, right], 2)?,
        RopeLayout::Interleaved => Tensor::stack(&[left, right], 3)?.reshape((n, heads, n_rot))?,
    };
    let rest = first + n_rot;
    Tensor::cat(&[x.narrow(2, 0, first)?, turned, x.narrow(2, rest, dim - rest)?], 2)
}

/// Queries, keys and values of a layer, `[n, n_heads, dim]` each; no values where they are a view of the
/// keys.
struct ProjectedTensors {
    q: Tensor,
    k: Tensor,
    v: Option<Tensor>,
}

impl Reference {
    /// See [`Device::run`](crate::device::Device::run); `watch` records queries, keys and values.
    pub(super) fn pass(
        &self,
        pass: &Pass,
        cache: &mut ReferenceCache,
        mut watch: Option<&mut Measured>,
    ) -> Result<Output> {
        let (spec, n) = (&self.spec, pass.ids.len());
        let embedded = self.weights.embedding.rows(&pass.ids).map_err(candle_core::Error::wrap)?;
        let mut x = Tensor::from_vec(embedded, (n, spec.d_model), &HERE)?;
        if spec.family.scaled_embedding {
            x = (x * (spec.d_model as f64).sqrt())?;
        }
        for (l, weights) in self.weights.layers.iter().enumerate() {
            x = self.layer(&x, l, weights, pass, cache, watch.as_deref_mut())?;
        }
        let Some(_) = pass.wanted.first() else { return Ok(Output::Logits(Vec::new())) };
        let wanted: Vec<u32> = pass.wanted.iter().map(|row| *row as u32).collect();
        let x = x.index_select(&Tensor::new(wanted, &HERE)?, 0)?;
        let x = rms_norm(&x, &self.weights.output_norm, spec.norm_eps)?;
        if pass.hidden {
            return x.flatten_all()?.to_vec1().map(Output::Hidden);
        }
        self.weights.output.forward(&x)?.flatten_all()?.to_vec1().map(Output::Logits)
    }

    /// `x: [n, d_model]` through attention and feed-forward, each with its norm before and its residual.
    fn layer(
        &self,
        x: &Tensor,
        l: usize,
        weights: &Layer<Linear>,
        pass: &Pass,
        cache: &mut ReferenceCache,
        mut watch: Option<&mut Measured>,
    ) -> Result<Tensor> {
        let eps = self.spec.norm_eps;
        let normed = rms_norm(x, &weights.attn_norm, eps)?;
        let context = self.attention(&normed, l, weights, pass, cache, watch.as_deref_mut())?;
        let attended = |context: &Tensor| {
            let out = weights.attention.output.forward(context)?;
            match &weights.post_norms {
                None => out + x,
                Some([norm, _]) => rms_norm(&out, norm, eps)? + x,
            }
        };
        let after = attended(&context)?;
        if let Some(watch) = watch {
            let noisy = attended(&(&context + Tensor::from_slice(watch.noise(), context.dims(), &HERE)?)?)?;
            let [after, noisy] = [&after, &noisy].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
            watch.felt(&after?, &noisy?, self.spec.d_model);
        }
        let normed = rms_norm(&after, &weights.ffn_norm, eps)?;
        let out = self.feed_forward(&normed, &weights.feed_forward)?;
        match &weights.post_norms {
            None => out + after,
            Some([_, norm]) => rms_norm(&out, norm, eps)? + after,
        }
    }

    /// `x: [n, d_model]` → contexts, `[n, n_heads · width of a head's values]`.
    fn attention(
        &self,
        x: &Tensor,
        l: usize,
        weights: &Layer<Linear>,
        pass: &Pass,
        cache: &mut ReferenceCache,
        watch: Option<&mut Measured>,
    ) -> Result<Tensor> {
        let (spec, layout) = (&self.spec, cache.layout.layers[l]);
        let rope = &spec.ropes[spec.layers[l].rope];
        let tables: Vec<Vec<f32>> = pass.positions().map(|position| rope.table(position)).collect();
        let ProjectedTensors { mut q, mut k, mut v } = match &weights.attention.heads {
            Heads::Plain { norms } => self.plain(x, weights, norms.as_ref(), &tables)?,
            Heads::Latent { spec: latent, norm, k_b, .. } => {
                self.latent(x, weights, *latent, norm, k_b, &tables)?
            }
        };
        if let (Some(watch), Some(v)) = (watch, &v) {
            let [q, k, v] = [&q, &k, v].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
            watch.add(spec, tables[0].len(), layout.window, [&q?, &k?, &v?]);
        }
        let shaping = self.shapings[l].as_ref().filter(|_| layout.k.shaped());
        if let Some(shaping) = shaping {
            k = k.broadcast_mul(&shaping.of_keys()?)?;
            q = q.broadcast_mul(&shaping.of_queries(spec.n_heads / spec.n_kv_heads)?)?;
        }
        if layout.k.rotated {
            (q, k) = (hadamard(&q, &layout.key_parts())?, hadamard(&k, &layout.key_parts())?);
        }
        if let Some(values) = v.take_if(|_| layout.v.rotated) {
            v = Some(hadamard(&values, &[layout.v.dim])?);
        }
        let (mut contexts, mut first) = (Vec::new(), 0);
        for span in &pass.spans {
            let of_span = |x: &Tensor| x.narrow(0, first, span.n);
            cache.write(l, span, &of_span(&k)?, v.as_ref().map(of_span).transpose()?.as_ref(), shaping)?;
            contexts.push(self.attend(&of_span(&q)?, l, span, weights.attention.sinks.as_deref(), cache)?);
            first += span.n;
        }
        let mut out = Tensor::cat(&contexts, 0)?;
        if layout.v.rotated {
            out = hadamard(&out, &[layout.v.dim])?;
        }
        if let Heads::Latent { v_b, .. } = &weights.attention.heads {
            let head = |(h, v_b): (usize, &Linear)| v_b.forward(&out.narrow(1, h, 1)?.squeeze(1)?);
            out = Tensor::stack(&v_b.iter().enumerate().map(head).collect::<Result<Vec<_>>>()?, 1)?;
        }
        out.flatten_from(1)
    }

    fn plain(
        &self,
        x: &Tensor,
        weights: &Layer<Linear>,
        norms: Option<&[Vec<f32>; 2]>,
        tables: &[Vec<f32>],
    ) -> Result<ProjectedTensors> {
        let spec = &self.spec;
        let heads =
            |i: usize, n: usize| weights.attention.input[i].forward(x)?.reshape((x.dim(0)?, n, spec.k_dim));
        let (mut q, mut k) = (heads(0, spec.n_heads)?, heads(1, spec.n_kv_heads)?);
        if let Some([q_norm, k_norm]) = norms {
            (q, k) = (rms_norm(&q, q_norm, spec.norm_eps)?, rms_norm(&k, k_norm, spec.norm_eps)?);
        }
        let turned = |x: &Tensor| apply_rope(x, 0, spec.family.pairs, tables);
        Ok(ProjectedTensors { q: turned(&q)?, k: turned(&k)?, v: Some(heads(2, spec.n_kv_heads)?) })
    }

    /// MLA (DeepSeek-V2, section 2.1, appendix C): all heads read one latent, to which their queries are
    /// brought.
    fn latent(
        &self,
        x: &Tensor,
        weights: &Layer<Linear>,
        latent: LatentSpec,
        norm: &[f32],
        k_b: &[Linear],
        tables: &[Vec<f32>],
    ) -> Result<ProjectedTensors> {
        let LatentSpec { rank, nope, rope, .. } = latent;
        let (n, heads, pairs) = (x.dim(0)?, self.spec.n_heads, self.spec.family.pairs);
        let q = weights.attention.input[0].forward(x)?.reshape((n, heads, nope + rope))?;
        let q = apply_rope(&q, nope, pairs, tables)?;
        let absorbed = |(h, k_b): (usize, &Linear)| {
            k_b.forward(&q.narrow(1, h, 1)?.narrow(2, 0, nope)?.squeeze(1)?.contiguous()?)
        };
        let absorbed = k_b.iter().enumerate().map(absorbed).collect::<Result<Vec<_>>>()?;
        let q = Tensor::cat(&[Tensor::stack(&absorbed, 1)?, q.narrow(2, nope, rope)?], 2)?;
        let kv = weights.attention.input[1].forward(x)?;
        let latents = rms_norm(&kv.narrow(1, 0, rank)?.contiguous()?, norm, self.spec.norm_eps)?;
        let k = Tensor::cat(&[latents, kv.narrow(1, rank, rope)?], 1)?.unsqueeze(1)?;
        Ok(ProjectedTensors { q, k: apply_rope(&k, rank, pairs, tables)?, v: None })
    }

    /// Softmax attention of a span's queries `[n, n_heads, k_dim]` → `[n, n_heads, v_dim]`: the rows of a
    /// block see all blocks before it sealed, and its own as they are.
    fn attend(
        &self,
        q: &Tensor,
        l: usize,
        span: &PassSpan,
        sinks: Option<&[f32]>,
        cache: &ReferenceCache,
    ) -> Result<Tensor> {
        let spec = &self.spec;
        let group = spec.n_heads / spec.n_kv_heads;
        let LayerLayout { window, .. } = cache.layout.layers[l];
        let (mut contexts, mut done) = (Vec::new(), 0);
        while done < span.n {
            let first = span.start + done;
            let n = (BLOCK - first % BLOCK).min(span.n - done);
            let oldest = window.map_or(0, |window| (first + 1).saturating_sub(window) / BLOCK);
            let (k, v) = cache.seen(l, span, oldest, first / BLOCK, first % BLOCK + n)?;
            let every_head = |x: Tensor| {
                let (n, heads, dim) = x.dims3()?;
                let x = x.unsqueeze(2)?.expand((n, heads, group, dim))?;
                x.reshape((n, heads * group, dim))?.transpose(0, 1)?.contiguous()
            };
            let (k, v) = (every_head(k)?, every_head(v)?);
            let q = q.narrow(0, done, n)?.transpose(0, 1)?.contiguous()?;
            let scores = (q.matmul(&k.t()?)? * f64::from(spec.score_scale))?;
            let n_seen = k.dim(1)?;
            let mask = (first..first + n).flat_map(|row| {
                (oldest * BLOCK..oldest * BLOCK + n_seen).map(move |token| {
                    let sees = token <= row && window.is_none_or(|window| row < token + window);
                    if sees { 0.0f32 } else { f32::NEG_INFINITY }
                })
            });
            let mask = Tensor::from_vec(mask.collect(), (1, n, n_seen), &HERE)?;
            let mut scores = scores.broadcast_add(&mask)?;
            if let Some(sinks) = sinks {
                let sinks = Tensor::new(sinks, &HERE)?.reshape((spec.n_heads, 1, 1))?;
                scores = Tensor::cat(&[scores, sinks.expand((spec.n_heads, n, 1))?], 2)?;
            }
            let weights = softmax(&scores)?.narrow(2, 0, n_seen)?.contiguous()?;
            contexts.push(weights.matmul(&v)?.transpose(0, 1)?);
            done += n;
        }
        Tensor::cat(&contexts, 0)
    }

    fn feed_forward(&self, x: &Tensor, weights: &FeedForward<Linear>) -> Result<Tensor> {
        match weights {
            FeedForward::Dense(mlp) => self.mlp(x, mlp),
            FeedForward::Experts { router, experts, shared } => {
                let rows = (0..x.dim(0)?).map(|row| self.experts(&x.narrow(0, row, 1)?, router, experts));
                let mixed = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?;
                shared.as_ref().map_or(Ok(mixed.clone()), |shared| self.mlp(x, shared)? + mixed)
            }
        }
    }

    /// `down (act(gate x) · up x)`.
    fn mlp(&self, x: &Tensor, mlp: &Mlp<Linear>) -> Result<Tensor> {
        let (gate, up) = (mlp.gate.forward(x)?, mlp.up.forward(x)?);
        let hidden = match self.spec.family.activation {
            Activation::Silu => (gate.silu()? * up)?,
            Activation::Gelu => (gate.gelu()? * up)?,
            Activation::Clamped => {
                let (gate, up) = (gate.minimum(7.0)?, up.clamp(-7.0, 7.0)?);
                // x · sigmoid(1.702 x) is silu(1.702 x) / 1.702.
                (((&gate * 1.702)?.silu()? / 1.702)? * (up + 1.0)?)?
            }
        };
        mlp.down.forward(&hidden)
    }

    /// The weighted sum of the experts that a row is sent to.
    fn experts(&self, x: &Tensor, router: &Linear, experts: &[Mlp<Linear>]) -> Result<Tensor> {
        let spec = self.spec.experts.ok_or_else(|| candle_core::Error::msg("experts without a shape"))?;
        let mut scores = router.forward(x)?;
        if spec.gating == Gating::SoftmaxThenTop {
            scores = softmax(&scores)?;
        }
        let scores: Vec<f32> = scores.flatten_all()?.to_vec1()?;
        let mut best: Vec<usize> = (0..experts.len()).collect();
        best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        best.truncate(spec.used);
        let mut weights: Vec<f32> = best.iter().map(|expert| scores[*expert]).collect();
        if spec.gating == Gating::TopThenSoftmax {
            weights = softmax(&Tensor::new(weights, &HERE)?)?.to_vec1()?;
        }
        let sum: f32 = weights.iter().sum();
        let mut out = x.zeros_like()?;
        for (expert, weight) in best.into_iter().zip(weights) {
            let weight = weight * spec.scale / if spec.normed { sum } else { 1.0 };
            out = (out + (self.mlp(x, &experts[expert])? * f64::from(weight))?)?;
        }
        Ok(out)
    }
}

/// Over the last dimension.
fn softmax(x: &Tensor) -> Result<Tensor> {
    let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}
