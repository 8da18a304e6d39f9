//! The forward pass, family by family as its authors have it, over a cache whose blocks are sealed.

use super::cache::{ReferenceCache, hadamard};
use super::{HERE, Linear, Reference};
use crate::device::{Output, Pass, PassSpan};
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::model::calibration::Measured;
use crate::model::family::{Activation, Gating, RopeLayout};
use crate::model::rope::RopeSpec;
use crate::model::spec::{AttentionSpec, LatentSpec};
use crate::model::weights::{AttentionWeights, FeedForward, Heads, Layer, Mixture, Mlp, PerLayerInputs};
use candle_core::{D, Result, Tensor};

impl Linear {
    /// `x: [n, k]` → `x Wᵀ + b`, `[n, n_out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
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

/// Rows less their mean.
fn centered(x: &Tensor) -> Result<Tensor> {
    x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)
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
        x = (x * f64::from(spec.embedding_scale))?;
        let inputs = self.weights.per_layer.as_ref().map(|per_layer| self.inputs(per_layer, &pass.ids, &x));
        let inputs = inputs.transpose()?;
        for (l, weights) in self.weights.layers.iter().enumerate() {
            x = self.layer(&x, l, weights, pass, cache, watch.as_deref_mut())?;
            if let (Some(own), Some(inputs)) = (&weights.input, &inputs) {
                let input = inputs.narrow(1, l, 1)?.squeeze(1)?;
                let gate = self.activated(&own.gate.forward(&x)?, &input)?;
                x = (rms_norm(&own.projection.forward(&gate)?, &own.norm, spec.norm_eps)? + x)?;
            }
            x = (x * f64::from(weights.scale))?;
        }
        pass.spans.iter().filter_map(|span| span.state.as_ref()).for_each(|state| cache.states.finish(state));
        let Some(_) = pass.wanted.first() else { return Ok(Output::Logits(Vec::new())) };
        let wanted: Vec<u32> = pass.wanted.iter().map(|row| *row as u32).collect();
        let x = x.index_select(&Tensor::new(wanted, &HERE)?, 0)?;
        let x = if spec.family.parallel { centered(&x)? } else { x };
        let x = rms_norm(&x, &self.weights.output_norm, spec.norm_eps)?;
        if pass.hidden {
            return x.flatten_all()?.to_vec1().map(Output::Hidden);
        }
        let logits = (self.weights.output.forward(&x)? * f64::from(spec.logit_scale))?;
        capped(&logits, spec.logit_cap)?.flatten_all()?.to_vec1().map(Output::Logits)
    }

    /// Each layer's own input, `[n, n_layers, d_per_layer]`, for tokens and their embeddings.
    fn inputs(&self, per_layer: &PerLayerInputs<Linear>, ids: &[u32], x: &Tensor) -> Result<Tensor> {
        let (spec, n) = (&self.spec, ids.len());
        let shape = (n, spec.layers.len(), spec.d_per_layer);
        let known = per_layer.embedding.rows(ids).map_err(candle_core::Error::wrap)?;
        let known = (Tensor::from_vec(known, shape, &HERE)? * (spec.d_per_layer as f64).sqrt())?;
        let projected = (per_layer.projection.forward(x)? / (spec.d_model as f64).sqrt())?.reshape(shape)?;
        (rms_norm(&projected, &per_layer.norm, spec.norm_eps)? + known)? / 2f64.sqrt()
    }

    /// `x: [n, d_model]` through mixers and feed-forward, each with its norm before and its residual.
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
        let spec = &self.spec.layers[l];
        let normed = |x: &Tensor, norm: &Option<Vec<f32>>| {
            norm.as_ref().map_or(Ok(x.clone()), |norm| rms_norm(x, norm, eps))
        };
        let added = |out: &Tensor, at: usize, x: &Tensor| {
            (normed(out, &weights.post_norms[at])? * f64::from(self.spec.residual_scale))? + x
        };
        let is_parallel = self.spec.family.parallel;
        let input = normed(&if is_parallel { centered(x)? } else { x.clone() }, &weights.norms[0])?;
        let mut after = x.clone();
        if let (Some(own), Some(weights)) = (&spec.attention, &weights.attention) {
            let context = self.attention(&input, own, weights, pass, cache, watch.as_deref_mut())?;
            let attended = |context: &Tensor| {
                let gated = match &weights.gate {
                    Some(gate) => (context * sigmoid(&gate.forward(&input)?)?)?,
                    None => context.clone(),
                };
                added(&weights.output.forward(&gated)?, 0, x)
            };
            after = attended(&context)?;
            if let Some(watch) = watch.filter(|_| own.writes) {
                let noisy =
                    attended(&(&context + Tensor::from_slice(watch.noise(), context.dims(), &HERE)?)?)?;
                let [after, noisy] =
                    [&after, &noisy].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
                watch.felt(&after?, &noisy?, self.spec.d_model);
            }
        }
        if let (Some(own), Some(weights)) = (&spec.recurrence, &weights.recurrence) {
            let read = self.recurrence(&input, own, weights, pass, cache)?;
            after = added(&weights.output.forward(&read)?, 0, &after)?;
        }
        let out = match &weights.feed_forward {
            None => return Ok(after),
            Some(FeedForward::Both(both)) => {
                let [dense_norm, experts_norm] = &both.post_norms;
                let dense = self.mlp(&normed(&after, &weights.norms[1])?, &both.dense)?;
                let scores = both.experts.router.forward(&rms_norm(&after, &both.router_norm, eps)?)?;
                let mixed = self.mixed(&rms_norm(&after, &both.norm, eps)?, &scores, &both.experts)?;
                (rms_norm(&dense, dense_norm, eps)? + rms_norm(&mixed, experts_norm, eps)?)?
            }
            Some(plain) if is_parallel => self.feed_forward(&input, plain)?,
            Some(plain) => self.feed_forward(&normed(&after, &weights.norms[1])?, plain)?,
        };
        added(&out, 1, &after)
    }

    /// `x: [n, d_model]` → contexts, `[n, n_heads · width of a head's values]`.
    fn attention(
        &self,
        x: &Tensor,
        own: &AttentionSpec,
        weights: &AttentionWeights<Linear>,
        pass: &Pass,
        cache: &mut ReferenceCache,
        watch: Option<&mut Measured>,
    ) -> Result<Tensor> {
        let spec = &self.spec;
        let layout = cache.layout.layers[own.cache];
        let rope = own.rope.map(|rope| &spec.ropes[rope]);
        let tables =
            rope.map(|rope| pass.positions().map(|position| rope.table(position)).collect::<Vec<_>>());
        let tables = tables.as_deref();
        let ProjectedTensors { mut q, mut k, mut v } = match &weights.heads {
            Heads::Plain { norms, value_norm } => {
                self.plain(x, own, weights, (norms.as_ref(), value_norm.as_ref()), tables)?
            }
            Heads::Latent { spec: latent, queries, norm, k_b, .. } => {
                self.latent(x, weights, (*latent, queries.as_ref()), norm, k_b, tables)?
            }
        };
        if let Some(temperature) = own.temperature {
            let factors: Vec<f32> = pass.positions().map(|position| temperature.factor(position)).collect();
            q = q.broadcast_mul(&Tensor::new(factors, &HERE)?.reshape(((), 1, 1))?)?;
        }
        if let (Some(watch), Some(v), true) = (watch, &v, own.writes) {
            let [q, k, v] = [&q, &k, v].map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
            watch.add(own, spec.family.pairs, rope.map_or(0, RopeSpec::n_rot), [&q?, &k?, &v?]);
        }
        let shaping = self.shapings[own.cache].as_ref().filter(|_| layout.k.shaped());
        if let Some(shaping) = shaping {
            if own.writes {
                k = k.broadcast_mul(&shaping.of_keys()?)?;
            }
            q = q.broadcast_mul(&shaping.of_queries(own.group())?)?;
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
            if own.writes {
                let v = v.as_ref().map(of_span).transpose()?;
                cache.write(own.cache, span, &of_span(&k)?, v.as_ref(), shaping)?;
            }
            contexts.push(self.attend(&of_span(&q)?, own, span, weights.sinks.as_deref(), cache)?);
            first += span.n;
        }
        let mut out = Tensor::cat(&contexts, 0)?;
        if layout.v.rotated {
            out = hadamard(&out, &[layout.v.dim])?;
        }
        if let Heads::Latent { v_b, .. } = &weights.heads {
            let head = |(h, v_b): (usize, &Linear)| v_b.forward(&out.narrow(1, h, 1)?.squeeze(1)?);
            out = Tensor::stack(&v_b.iter().enumerate().map(head).collect::<Result<Vec<_>>>()?, 1)?;
        }
        out.flatten_from(1)
    }

    fn plain(
        &self,
        x: &Tensor,
        own: &AttentionSpec,
        weights: &AttentionWeights<Linear>,
        (norms, value_norm): (Option<&[Vec<f32>; 2]>, Option<&Vec<f32>>),
        tables: Option<&[Vec<f32>]>,
    ) -> Result<ProjectedTensors> {
        let family = self.spec.family;
        let kinds = family.head_norms;
        let (whole_row, after_rope) =
            (kinds.is_some_and(|kinds| kinds.whole_row), kinds.is_some_and(|kinds| kinds.after_rope));
        let input = &weights.input;
        let heads = |i: usize, n: usize, norm: Option<&Vec<f32>>| {
            // Values may be made of what keys are.
            let y = input[i.min(input.len() - 1)].forward(x)?;
            let norm = |y: &Tensor, meant: bool| {
                norm.filter(|_| meant).map_or(Ok(y.clone()), |norm| rms_norm(y, norm, self.spec.norm_eps))
            };
            if i == 2 {
                return norm(&y.reshape((x.dim(0)?, n, own.v_dim))?, true);
            }
            let y = norm(&y, whole_row)?.reshape((x.dim(0)?, n, own.k_dim))?;
            let y = norm(&y, !whole_row && !after_rope)?;
            let y = tables.map_or(Ok(y.clone()), |tables| apply_rope(&y, 0, family.pairs, tables))?;
            norm(&y, after_rope)
        };
        let norm = |i: usize| norms.map(|norms| &norms[i]);
        let q = heads(0, own.n_heads, norm(0))?;
        if !own.writes {
            return Ok(ProjectedTensors { k: q.clone(), q, v: None });
        }
        let (k, v) = (heads(1, own.n_kv_heads, norm(1))?, heads(2, own.n_kv_heads, value_norm)?);
        Ok(ProjectedTensors { q, k, v: Some(v) })
    }

    /// MLA (DeepSeek-V2, section 2.1, appendix C): all heads read one latent, to which their queries are
    /// brought.
    fn latent(
        &self,
        x: &Tensor,
        weights: &AttentionWeights<Linear>,
        (latent, queries): (LatentSpec, Option<&(Vec<f32>, Linear)>),
        norm: &[f32],
        k_b: &[Linear],
        tables: Option<&[Vec<f32>]>,
    ) -> Result<ProjectedTensors> {
        let LatentSpec { rank, nope, rope, .. } = latent;
        let (n, heads, pairs) = (x.dim(0)?, k_b.len(), self.spec.family.pairs);
        let turned = |x: &Tensor, first: usize| {
            tables.map_or(Ok(x.clone()), |tables| apply_rope(x, first, pairs, tables))
        };
        let mut q = weights.input[0].forward(x)?;
        if let Some((norm, matrix)) = queries {
            q = matrix.forward(&rms_norm(&q, norm, self.spec.norm_eps)?)?;
        }
        let q = turned(&q.reshape((n, heads, nope + rope))?, nope)?;
        let absorbed = |(h, k_b): (usize, &Linear)| {
            k_b.forward(&q.narrow(1, h, 1)?.narrow(2, 0, nope)?.squeeze(1)?.contiguous()?)
        };
        let absorbed = k_b.iter().enumerate().map(absorbed).collect::<Result<Vec<_>>>()?;
        let q = Tensor::cat(&[Tensor::stack(&absorbed, 1)?, q.narrow(2, nope, rope)?], 2)?;
        let kv = weights.input[1].forward(x)?;
        let latents = rms_norm(&kv.narrow(1, 0, rank)?.contiguous()?, norm, self.spec.norm_eps)?;
        let k = Tensor::cat(&[latents, kv.narrow(1, rank, rope)?], 1)?.unsqueeze(1)?;
        Ok(ProjectedTensors { q, k: turned(&k, rank)?, v: None })
    }

    /// Softmax attention of a span's queries `[n, n_heads, k_dim]` → `[n, n_heads, v_dim]`: the rows of a
    /// block see all blocks before it sealed, and its own as they are.
    fn attend(
        &self,
        q: &Tensor,
        own: &AttentionSpec,
        span: &PassSpan,
        sinks: Option<&[f32]>,
        cache: &ReferenceCache,
    ) -> Result<Tensor> {
        let group = own.group();
        let LayerLayout { window, .. } = cache.layout.layers[own.cache];
        let (mut contexts, mut done) = (Vec::new(), 0);
        while done < span.n {
            let first = span.start + done;
            let n = (BLOCK - first % BLOCK).min(span.n - done);
            let oldest = window.map_or(0, |window| (first + 1).saturating_sub(window) / BLOCK);
            let (k, v) = cache.seen(own.cache, span, oldest, first / BLOCK, first % BLOCK + n)?;
            let every_head = |x: Tensor| {
                let (n, heads, dim) = x.dims3()?;
                let x = x.unsqueeze(2)?.expand((n, heads, group, dim))?;
                x.reshape((n, heads * group, dim))?.transpose(0, 1)?.contiguous()
            };
            let (k, v) = (every_head(k)?, every_head(v)?);
            let q = q.narrow(0, done, n)?.transpose(0, 1)?.contiguous()?;
            let scores = (q.matmul(&k.t()?)? * f64::from(own.score_scale))?;
            let scores = capped(&scores, own.soft_cap)?;
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
                let sinks = Tensor::new(sinks, &HERE)?.reshape((own.n_heads, 1, 1))?;
                scores = Tensor::cat(&[scores, sinks.expand((own.n_heads, n, 1))?], 2)?;
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
            FeedForward::Both(_) => Err(candle_core::Error::msg("a layer runs both by itself")),
            FeedForward::Experts(mixture) => {
                let scores = mixture.router.forward(x)?;
                let mixed = match &mixture.latent {
                    None => self.mixed(x, &scores, mixture)?,
                    Some([down, up]) => up.forward(&self.mixed(&down.forward(x)?, &scores, mixture)?)?,
                };
                let Some(shared) = &mixture.shared else { return Ok(mixed) };
                let mut out = self.mlp(x, shared)?;
                if let Some(gate) = &mixture.shared_gate {
                    out = out.broadcast_mul(&sigmoid(&gate.forward(x)?)?)?;
                }
                out + mixed
            }
        }
    }

    /// `down (act(gate x) · up x)`.
    fn mlp(&self, x: &Tensor, mlp: &Mlp<Linear>) -> Result<Tensor> {
        let up = mlp.up.forward(x)?;
        let hidden = match &mlp.gate {
            Some(gate) => self.activated(&gate.forward(x)?, &up)?,
            None => self.activated(&up, &up.ones_like()?)?,
        };
        mlp.down.forward(&hidden)
    }

    /// `act(gate) · up`.
    fn activated(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self.spec.family.activation {
            Activation::Silu => gate.silu()? * up,
            Activation::Gelu => gate.gelu()? * up,
            Activation::SquaredRelu => gate.relu()?.sqr()? * up,
            Activation::Clamped => {
                let (gate, up) = (gate.minimum(7.0)?, up.clamp(-7.0, 7.0)?);
                // x · sigmoid(1.702 x) is silu(1.702 x) / 1.702.
                ((&gate * 1.702)?.silu()? / 1.702)? * (up + 1.0)?
            }
        }
    }

    /// The weighted sums of the experts that rows are sent to by their scores.
    fn mixed(&self, x: &Tensor, scores: &Tensor, mixture: &Mixture<Linear>) -> Result<Tensor> {
        let row = |row| self.experts(&x.narrow(0, row, 1)?, &scores.narrow(0, row, 1)?, mixture);
        Tensor::cat(&(0..x.dim(0)?).map(row).collect::<Result<Vec<_>>>()?, 0)
    }

    /// The weighted sum of the experts that a row is sent to.
    fn experts(&self, x: &Tensor, scores: &Tensor, mixture: &Mixture<Linear>) -> Result<Tensor> {
        let spec = &mixture.spec;
        let scores = match spec.gating {
            Gating::SoftmaxThenTop => softmax(scores)?,
            Gating::Sigmoid => sigmoid(scores)?,
            Gating::TopThenSoftmax => scores.clone(),
        };
        let scores: Vec<f32> = scores.flatten_all()?.to_vec1()?;
        let bias = mixture.bias.clone().unwrap_or_else(|| vec![0.0; spec.n]);
        let ranks: Vec<f32> = scores.iter().zip(&bias).map(|(score, bias)| score + bias).collect();
        let mut best: Vec<usize> = (0..spec.n).collect();
        if spec.groups.1 < spec.groups.0 {
            let size = spec.n / spec.groups.0;
            let worth = |group: usize| {
                let mut of_group = ranks[group * size..][..size].to_vec();
                of_group.sort_by(f32::total_cmp);
                of_group[size - 1] + of_group[size - 2]
            };
            let mut groups: Vec<usize> = (0..spec.groups.0).collect();
            groups.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
            best.retain(|expert| groups[..spec.groups.1].contains(&(expert / size)));
        }
        best.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]));
        best.truncate(spec.used);
        let mut weights: Vec<f32> = best.iter().map(|expert| scores[*expert]).collect();
        if spec.gating == Gating::TopThenSoftmax {
            weights = softmax(&Tensor::new(weights, &HERE)?)?.to_vec1()?;
        }
        let sum: f32 = weights.iter().sum();
        let mut out = x.zeros_like()?;
        for (expert, weight) in best.into_iter().zip(weights) {
            let scale = spec.scale * mixture.scales.as_ref().map_or(1.0, |scales| scales[expert]);
            let weight = weight * scale / if spec.normed { sum } else { 1.0 };
            out = (out + (self.mlp(x, &mixture.experts[expert])? * f64::from(weight))?)?;
        }
        Ok(out)
    }
}

/// `cap · tanh(x / cap)`, if there is a cap.
fn capped(x: &Tensor, cap: Option<f32>) -> Result<Tensor> {
    let Some(cap) = cap.map(f64::from) else { return Ok(x.clone()) };
    (x / cap)?.tanh()? * cap
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// Over the last dimension.
fn softmax(x: &Tensor) -> Result<Tensor> {
    let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}
