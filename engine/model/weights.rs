//! A model's tensors: which there are, by what name and of what shape. What becomes of a matrix is a device's
//! business.

use super::family::{RecurrentLayers, RecurrentMixer};
use super::rope;
use super::spec::{AttentionSpec, DecoderSpec, ExpertSpec, FeedForwardSpec, LatentSpec, RecurrenceSpec};
use crate::model::gguf::{Gguf, TensorType};
use crate::model::tensors::{Numbers, TokenEmbedding, floats};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Converts a file's matrices to a device's form.
pub(crate) trait Pack {
    /// A matrix as the device has it.
    type Matrix;

    /// A matrix from its bytes in the file; also what was made of it, for the log.
    ///
    /// # Errors
    /// There is no conversion from its type; memory runs out.
    fn pack(&mut self, matrix: Matrix<'_>) -> Result<(Self::Matrix, String)>;

    /// The device's way to read numbers.
    fn numbers(&self) -> Numbers;
}

/// A matrix of the file, `[n_out, k]`.
pub(crate) struct Matrix<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) name: &'a str,
    pub(crate) kind: TensorType,
    pub(crate) n_out: usize,
    pub(crate) k: usize,
    pub(crate) bytes: &'a [u8],
    /// Bias that is added to its products, `[n_out]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// Which of the matrices of its tensor it is, and how many there are: some devices keep them side by
    /// side.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) index: usize,
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) of: usize,
}

/// All tensors of a model. `M` is a matrix.
pub(crate) struct Weights<M> {
    pub(crate) embedding: TokenEmbedding,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) output_norm: Vec<f32>,
    /// `[n_vocab, d_model]`.
    pub(crate) output: M,
    /// Rows of `output`.
    pub(crate) n_vocab: usize,
    pub(crate) per_layer: Option<PerLayerInputs<M>>,
}

/// Where each layer's own input comes from (`d_per_layer`): a table, and a projection of the embedding.
pub(crate) struct PerLayerInputs<M> {
    /// `[n_vocab, n_layers * d_per_layer]`.
    pub(crate) embedding: TokenEmbedding,
    /// `[n_layers * d_per_layer, d_model]`.
    pub(crate) projection: M,
    /// Norm of what is projected, `[d_per_layer]`.
    pub(crate) norm: Vec<f32>,
}

/// One layer.
pub(crate) struct Layer<M> {
    /// Norms before the mixers and before the feed-forward (`pre_norms`), where it has these.
    pub(crate) norms: [Option<Vec<f32>>; 2],
    pub(crate) attention: Option<AttentionWeights<M>>,
    pub(crate) recurrence: Option<RecurrenceWeights<M>>,
    pub(crate) feed_forward: Option<FeedForward<M>>,
    /// Norms of what comes out of mixers and feed-forward (`post_norms`).
    pub(crate) post_norms: [Option<Vec<f32>>; 2],
    pub(crate) input: Option<LayerInput<M>>,
    /// What the stream is multiplied by in the end.
    pub(crate) scale: f32,
}

/// How a layer's own input is mixed into the stream: `x + norm(projection (act(gate x) · input))`.
pub(crate) struct LayerInput<M> {
    /// `[d_per_layer, d_model]`.
    pub(crate) gate: M,
    /// `[d_model, d_per_layer]`.
    pub(crate) projection: M,
    /// `[d_model]`.
    pub(crate) norm: Vec<f32>,
}

/// Attention of one layer.
pub(crate) struct AttentionWeights<M> {
    /// Matrices that produce queries, keys and values; without the last where values are made of what keys
    /// are, and queries alone where a layer reads another's. Or (the latent of) queries and the latent.
    pub(crate) input: Vec<M>,
    pub(crate) heads: Heads<M>,
    /// `[n_heads]`.
    pub(crate) sinks: Option<Vec<f32>>,
    /// What contexts' gates come from, `[n_heads * v_dim, d_model]` (`gated_attention`).
    pub(crate) gate: Option<M>,
    pub(crate) output: M,
}

/// Recurrence of one layer.
pub(crate) struct RecurrenceWeights<M> {
    /// Matrices that produce
    /// - of the delta rule: queries, keys and values side by side; gates of the output; strengths; decays;
    /// - of Mamba-2: gates of the output; values, keys and queries side by side; steps;
    /// - of a convolution: gates of its inputs; gates of its outputs; its inputs.
    pub(crate) input: Vec<M>,
    /// Of the convolution, `[taps, channels]`.
    pub(crate) convolution: Vec<f32>,
    /// `[channels]`.
    pub(crate) convolution_bias: Option<Vec<f32>>,
    pub(crate) heads: Option<StateHeads>,
    pub(crate) output: M,
}

/// Numbers of a recurrence's heads.
pub(crate) struct StateHeads {
    /// What is added to steps or decays, `[n_heads]`.
    pub(crate) bias: Vec<f32>,
    /// Logarithm of the decay of a step of 1, `[n_heads]`.
    pub(crate) slope: Vec<f32>,
    /// Factor of the values that are added to what is read (Mamba-2), `[n_heads]`.
    pub(crate) skip: Option<Vec<f32>>,
    /// Norm of what is read: of each head, `[v_dim]`, or of the heads that share keys, `[n_key_heads, width]`.
    pub(crate) norm: Option<Vec<f32>>,
}

/// Derivation of queries, keys and values from the products of [`AttentionWeights::input`].
pub(crate) enum Heads<M> {
    /// The products as they are, after norms of queries, keys and values where there are some.
    Plain { norms: Option<[Vec<f32>; 2]>, value_norm: Option<Vec<f32>> },
    /// MLA with its up-projections absorbed: queries meet the latent itself (DeepSeek-V2, appendix C). `k_b`:
    /// for each head `[rank, nope]`, `v_b`: `[value, rank]`. `queries`: norm and matrix that queries come
    /// from, where they are a latent too.
    Latent { spec: LatentSpec, queries: Option<(Vec<f32>, M)>, norm: Vec<f32>, k_b: Vec<M>, v_b: Vec<M> },
}

/// The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.
pub(crate) enum FeedForward<M> {
    Dense(Mlp<M>),
    Experts(Mixture<M>),
    Both(Box<DenseAndExperts<M>>),
}

/// A dense feed-forward beside a mixture of experts; what comes out of each is normed and added up.
pub(crate) struct DenseAndExperts<M> {
    pub(crate) dense: Mlp<M>,
    pub(crate) experts: Mixture<M>,
    /// Norms of the rows that the router and the experts read, `[d_model]`; the dense one has the layer's.
    pub(crate) router_norm: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    /// Norms of what the dense one and the experts give.
    pub(crate) post_norms: [Vec<f32>; 2],
}

/// A mixture of experts.
pub(crate) struct Mixture<M> {
    pub(crate) spec: ExpertSpec,
    pub(crate) router: M,
    /// What is added to scores where experts are selected, `[n]`; weights come from the scores alone.
    pub(crate) bias: Option<Vec<f32>>,
    /// Factors of the experts' weights, `[n]`.
    pub(crate) scales: Option<Vec<f32>>,
    pub(crate) experts: Vec<Mlp<M>>,
    pub(crate) shared: Option<Mlp<M>>,
    /// The score of the shared experts, `[1, d_model]` (`gated_shared`).
    pub(crate) shared_gate: Option<M>,
    /// What experts read and give instead of rows of the stream: `[latent, d_model]`, `[d_model, latent]`.
    pub(crate) latent: Option<[M; 2]>,
}

/// `down (act(gate x) · up x)`; without a gate `down act(up x)`.
pub(crate) struct Mlp<M> {
    pub(crate) gate: Option<M>,
    pub(crate) up: M,
    pub(crate) down: M,
}

impl<M> Mlp<M> {
    /// The matrices that read a row.
    pub(crate) fn inputs(&self) -> Vec<&M> {
        self.gate.iter().chain([&self.up]).collect()
    }
}

impl<M> Weights<M> {
    /// Loads all tensors. `on_progress` gets the bytes of the file read so far, and the total.
    ///
    /// # Errors
    /// A tensor is missing, has another shape or a type for which there is no conversion; one has no place;
    /// memory runs out.
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        spec: &DecoderSpec,
        pack: &mut dyn Pack<Matrix = M>,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let d = spec.d_model;
        let embedding = TokenEmbedding::open(gguf, "token_embd.weight", d, pack.numbers())?;
        let rope_factors = rope::LONG_FACTORS.into_iter().chain([rope::FACTORS]);
        let taken = rope_factors.chain(["token_embd.weight"]).map(str::to_owned).collect();
        let mut loader = WeightLoader { gguf, pack, on_progress, done: 0, made: BTreeMap::new(), taken };
        let layers = (0..spec.layers.len()).map(|l| loader.layer(spec, l)).collect::<Result<_>>()?;
        let output = if gguf.has_tensor("output.weight") { "output" } else { "token_embd" };
        let n_vocab = embedding.n_vocab;
        let output = loader.matrix(output, n_vocab, d)?;
        let output_norm = loader.vector(spec.family.output_norm, d)?;
        let per_layer = loader.per_layer(gguf, spec)?;
        loader.leave_out(spec.layers.len(), spec.n_predicting);
        loader.finish(spec.family.name)?;
        Ok(Self { embedding, layers, output_norm, output, n_vocab, per_layer })
    }
}

/// Takes a model's tensors one after another. The pages of the file that a matrix came from are given back,
/// so that the weights are never in memory twice.
struct WeightLoader<'a, M> {
    gguf: &'a Gguf,
    pack: &'a mut dyn Pack<Matrix = M>,
    on_progress: &'a mut (dyn FnMut(u64, u64) + Send),
    done: u64,
    /// Matrices by what was made of them, for the log.
    made: BTreeMap<String, usize>,
    /// Tensors that were requested.
    taken: HashSet<String>,
}

impl<M> WeightLoader<'_, M> {
    fn layer(&mut self, spec: &DecoderSpec, l: usize) -> Result<Layer<M>> {
        let family = spec.family;
        let own = &spec.layers[l];
        let has = [own.attention.is_some() || own.recurrence.is_some(), own.feed_forward.is_some()];
        let is_alone = family.recurrence.is_some_and(|it| it.layers == RecurrentLayers::OneOfThree);
        let ffn_norm = if is_alone { "attn_norm" } else { family.ffn_norm };
        let mut norms = |wanted: bool, names: [&str; 2]| {
            let mut norm = |i: usize| {
                let of = |name: &str| format!("blk.{l}.{name}");
                (wanted && has[i]).then(|| self.norm(&of(names[i]), spec.d_model)).transpose()
            };
            Ok::<_, Error>([norm(0)?, norm(1)?])
        };
        let before = norms(family.pre_norms, ["attn_norm", ffn_norm])?;
        let after = norms(family.post_norms, ["post_attention_norm", "post_ffw_norm"])?;
        let attention = own.attention.as_ref().map(|own| self.attention(spec, l, own)).transpose()?;
        let recurrence = own.recurrence.as_ref().map(|own| self.recurrence(spec, l, own)).transpose()?;
        let feed_forward = match own.feed_forward {
            None => None,
            Some(FeedForwardSpec::Dense(d_ff)) => Some(FeedForward::Dense(self.dense(spec, l, d_ff)?)),
            Some(FeedForwardSpec::Experts(experts)) => {
                Some(FeedForward::Experts(self.mixture(spec, l, experts)?))
            }
            Some(FeedForwardSpec::Both(d_ff, experts)) => {
                Some(FeedForward::Both(Box::new(self.dense_and_experts(spec, l, d_ff, experts)?)))
            }
        };
        let input = (spec.d_per_layer > 0).then(|| self.layer_input(spec, l)).transpose()?;
        let scale = match family.scaled_layers {
            true => self.optional(&format!("blk.{l}.layer_output_scale.weight"), &[1])?,
            false => None,
        };
        let scale = scale.map_or(1.0, |scale| scale[0]);
        Ok(Layer { norms: before, attention, recurrence, feed_forward, post_norms: after, input, scale })
    }

    /// A norm, whose name may lack the suffix (Falcon-H1).
    fn norm(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        match self.optional(name, &[n])? {
            Some(norm) => Ok(norm),
            None => self.vector(name, n),
        }
    }

    fn recurrence(
        &mut self,
        spec: &DecoderSpec,
        l: usize,
        own: &RecurrenceSpec,
    ) -> Result<RecurrenceWeights<M>> {
        let RecurrenceSpec { mixer, taps, channels, n_heads, n_key_heads, v_dim, .. } = *own;
        let (d, inner) = (spec.d_model, own.inner());
        let name = |part: &str| format!("blk.{l}.{part}");
        let is_convolution = mixer == RecurrentMixer::ShortConvolution;
        let input = match mixer {
            RecurrentMixer::ShortConvolution => self.rows(&name("shortconv.in_proj"), &[d; 3], d)?,
            RecurrentMixer::Mamba2 => self.rows(&name("ssm_in"), &[inner, channels, n_heads], d)?,
            RecurrentMixer::Delta { grouped } => {
                let mut input = vec![
                    self.matrix(&name("attn_qkv"), channels, d)?,
                    self.matrix(&name("attn_gate"), inner, d)?,
                ];
                if grouped {
                    // Each head of keys has the strengths, then the decays, of the heads that share it.
                    let group = n_heads / n_key_heads;
                    let place = |row: usize| {
                        let (kind, head) = (row / n_heads, row % n_heads);
                        head / group * 2 * group + kind * group + head % group
                    };
                    input.extend(self.rows_in_order(&name("ssm_ba"), &[n_heads; 2], d, place)?);
                } else {
                    input.push(self.matrix(&name("ssm_beta"), n_heads, d)?);
                    input.push(self.matrix(&name("ssm_alpha"), n_heads, d)?);
                }
                input
            }
        };
        let of = |part: &str| if is_convolution { name("shortconv.conv") } else { name(part) };
        let convolution = format!("{}.weight", of("ssm_conv1d"));
        let gguf = self.gguf;
        let missing = |name: &str| gguf.error(format!("tensor `{name}` is missing"));
        let by_channel =
            self.optional(&convolution, &[channels, taps])?.ok_or_else(|| missing(&convolution))?;
        let tap = |tap: usize| (0..channels).map(move |channel| channel * taps + tap);
        let by_tap = (0..taps).flat_map(tap).map(|at| by_channel[at]).collect();
        let convolution_bias = self.optional(&format!("{}.bias", of("ssm_conv1d")), &[channels])?;
        let heads = if is_convolution {
            None
        } else {
            let is_mamba = mixer == RecurrentMixer::Mamba2;
            let each: &[usize] = if is_mamba { &[n_heads, 1] } else { &[n_heads] };
            let norm: &[usize] = if is_mamba { &[n_key_heads, inner / n_key_heads] } else { &[v_dim] };
            let mut needed = |name: String, shape: &[usize]| {
                let found = self.optional(&name, shape)?;
                found.ok_or_else(|| missing(&name))
            };
            let (bias, slope) = (needed(name("ssm_dt.bias"), &[n_heads])?, needed(name("ssm_a"), each)?);
            let skip = is_mamba.then(|| needed(name("ssm_d"), each)).transpose()?;
            let normed = self.optional(&name("ssm_norm.weight"), norm)?;
            if normed.is_none() && !is_mamba {
                return Err(missing(&name("ssm_norm.weight")));
            }
            Some(StateHeads { bias, slope, skip, norm: normed })
        };
        let output = if is_convolution {
            self.matrix(&name("shortconv.out_proj"), d, d)?
        } else {
            self.matrix(&name("ssm_out"), d, inner)?
        };
        Ok(RecurrenceWeights { input, convolution: by_tap, convolution_bias, heads, output })
    }

    fn layer_input(&mut self, spec: &DecoderSpec, l: usize) -> Result<LayerInput<M>> {
        let (d, own) = (spec.d_model, spec.d_per_layer);
        let name = |part: &str| format!("blk.{l}.{part}");
        Ok(LayerInput {
            gate: self.matrix(&name("inp_gate"), own, d)?,
            projection: self.matrix(&name("proj"), d, own)?,
            norm: self.vector(&name("post_norm"), d)?,
        })
    }

    fn per_layer(&mut self, gguf: &Arc<Gguf>, spec: &DecoderSpec) -> Result<Option<PerLayerInputs<M>>> {
        const TABLE: &str = "per_layer_token_embd.weight";
        if spec.d_per_layer == 0 {
            return Ok(None);
        }
        let width = spec.layers.len().saturating_mul(spec.d_per_layer);
        let embedding = TokenEmbedding::open(gguf, TABLE, width, self.pack.numbers())?;
        self.taken.insert(TABLE.to_owned());
        let projection = self.matrix("per_layer_model_proj", width, spec.d_model)?;
        let norm = self.vector("per_layer_proj_norm", spec.d_per_layer)?;
        Ok(Some(PerLayerInputs { embedding, projection, norm }))
    }

    fn dense_and_experts(
        &mut self,
        spec: &DecoderSpec,
        l: usize,
        d_ff: usize,
        experts: ExpertSpec,
    ) -> Result<DenseAndExperts<M>> {
        let d = spec.d_model;
        let name = |part: &str| format!("blk.{l}.{part}");
        let router = format!("{}.scale", name("ffn_gate_inp"));
        let router_norm = self.optional(&router, &[d])?;
        let missing = || self.gguf.error(format!("tensor `{router}` is missing"));
        let mut router_norm = router_norm.ok_or_else(missing)?;
        let root = (d as f64).sqrt() as f32;
        router_norm.iter_mut().for_each(|x| *x /= root);
        Ok(DenseAndExperts {
            dense: self.dense(spec, l, d_ff)?,
            experts: self.mixture(spec, l, experts)?,
            router_norm,
            norm: self.vector(&name("pre_ffw_norm_2"), d)?,
            post_norms: [
                self.vector(&name("post_ffw_norm_1"), d)?,
                self.vector(&name("post_ffw_norm_2"), d)?,
            ],
        })
    }

    fn attention(
        &mut self,
        spec: &DecoderSpec,
        l: usize,
        layer: &AttentionSpec,
    ) -> Result<AttentionWeights<M>> {
        let name = |part: &str| format!("blk.{l}.{part}");
        let (d, n) = (spec.d_model, layer.n_heads);
        let mut gate = None;
        let (input, heads, out_width) = match layer.latent {
            None => {
                let (q, kv) = (n * layer.k_dim, layer.n_kv_heads * layer.k_dim);
                let names = ["attn_q", "attn_k", "attn_v"].map(name);
                if !layer.writes {
                    // The file may have them nevertheless.
                    self.taken.extend(["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].map(name));
                }
                let has_values = !spec.family.normed_values
                    || ["attn_v", "attn_qkv"]
                        .iter()
                        .any(|part| self.gguf.has_tensor(&name(&format!("{part}.weight"))));
                let n_inputs = if !layer.writes {
                    1
                } else if has_values {
                    3
                } else {
                    2
                };
                let widths = &[q, kv, kv][..n_inputs];
                let input = if spec.family.gated_attention {
                    // Each head's query is followed by its gate.
                    let place = |row: usize| {
                        let (kind, head, column) = (row / q, row % q / layer.k_dim, row % layer.k_dim);
                        (2 * head + kind) * layer.k_dim + column
                    };
                    let mut rows = self.rows_in_order(&names[0], &[q; 2], d, place)?;
                    gate = rows.pop();
                    rows.push(self.matrix(&names[1], kv, d)?);
                    rows.push(self.matrix(&names[2], kv, d)?);
                    rows
                } else {
                    self.joined(&name("attn_qkv"), &names[..n_inputs], widths, d)?
                };
                let norms = if let Some(norms) = spec.family.head_norms.filter(|_| layer.head_norms) {
                    let widths = if norms.whole_row { [q, kv] } else { [layer.k_dim; 2] };
                    let mut norm = |part, width| self.vector(&name(part), width);
                    let queries = norm("attn_q_norm", widths[0])?;
                    let keys = if layer.writes { norm("attn_k_norm", widths[1])? } else { vec![] };
                    Some([queries, keys])
                } else {
                    None
                };
                let value_norm = (spec.family.normed_values && layer.writes).then(|| vec![1.0; layer.v_dim]);
                (input, Heads::Plain { norms, value_norm }, q)
            }
            Some(latent) => {
                let LatentSpec { rank, q_rank, nope, rope, value } = latent;
                let q_width = n * (nope + rope);
                let (q, queries) = if q_rank > 0 {
                    let norm = self.vector(&name("attn_q_a_norm"), q_rank)?;
                    let queries = self.matrix(&name("attn_q_b"), q_width, q_rank)?;
                    (self.matrix(&name("attn_q_a"), q_rank, d)?, Some((norm, queries)))
                } else {
                    (self.matrix(&name("attn_q"), q_width, d)?, None)
                };
                let kv = self.matrix(&name("attn_kv_a_mqa"), rank + rope, d)?;
                let norm = self.vector(&name("attn_kv_a_norm"), rank)?;
                let k_b = self.matrices(&name("attn_k_b"), n, rank, nope)?;
                let v_b = self.matrices(&name("attn_v_b"), n, value, rank)?;
                (vec![q, kv], Heads::Latent { spec: latent, queries, norm, k_b, v_b }, n * value)
            }
        };
        let sinks = spec.family.sinks.then(|| self.vector(&name("attn_sinks"), n)).transpose()?;
        let output = self.matrix(&name("attn_output"), d, out_width)?;
        Ok(AttentionWeights { input, heads, sinks, gate, output })
    }

    fn dense(&mut self, spec: &DecoderSpec, l: usize, d_ff: usize) -> Result<Mlp<M>> {
        let d = spec.d_model;
        let name = |part: &str| format!("blk.{l}.ffn_{part}");
        if !spec.family.fused_gate {
            return self.mlp(spec, &name(""), "", d_ff);
        }
        let gate_up = self.rows(&name("up"), &[d_ff, d_ff], d)?;
        let [gate, up] = self.exactly(gate_up)?;
        Ok(Mlp { gate: Some(gate), up, down: self.matrix(&name("down"), d, d_ff)? })
    }

    fn mlp(&mut self, spec: &DecoderSpec, prefix: &str, suffix: &str, d_ff: usize) -> Result<Mlp<M>> {
        let (d, name) = (spec.d_model, |part: &str| format!("{prefix}{part}{suffix}"));
        let is_gated = !spec.family.ungated;
        Ok(Mlp {
            gate: is_gated.then(|| self.matrix(&name("gate"), d_ff, d)).transpose()?,
            up: self.matrix(&name("up"), d_ff, d)?,
            down: self.matrix(&name("down"), d, d_ff)?,
        })
    }

    fn mixture(&mut self, decoder: &DecoderSpec, l: usize, spec: ExpertSpec) -> Result<Mixture<M>> {
        let ExpertSpec { n, d_ff, shared_ff, d_latent, .. } = spec;
        let d = decoder.d_model;
        let name = |part: &str| format!("blk.{l}.ffn_{part}");
        let shared =
            (shared_ff > 0).then(|| self.mlp(decoder, &name(""), "_shexp", shared_ff)).transpose()?;
        let shared_gate = spec.gated_shared.then(|| self.row(&name("gate_inp_shexp"), d)).transpose()?;
        let router = self.matrix(&name("gate_inp"), n, d)?;
        let bias = self.optional(&format!("blk.{l}.exp_probs_b.bias"), &[n])?;
        let scales = self.optional(&format!("{}.scale", name("down_exps")), &[n])?;
        let latent = match d_latent {
            0 => None,
            width => Some([
                self.matrix(&name("latent_down"), width, d)?,
                self.matrix(&name("latent_up"), d, width)?,
            ]),
        };
        let d = if d_latent > 0 { d_latent } else { d };
        let fused = name("gate_up_exps");
        let (gates, ups) = if self.gguf.has_tensor(&format!("{fused}.weight")) {
            let mut both = self.paired(&fused, n, d_ff, d)?;
            let ups = both.split_off(n);
            (both, ups)
        } else if decoder.family.ungated {
            (Vec::new(), self.matrices(&name("up_exps"), n, d_ff, d)?)
        } else {
            (self.matrices(&name("gate_exps"), n, d_ff, d)?, self.matrices(&name("up_exps"), n, d_ff, d)?)
        };
        let downs = self.matrices(&name("down_exps"), n, d, d_ff)?;
        let mut gates = gates.into_iter();
        let expert = |(up, down)| Mlp { gate: gates.next(), up, down };
        let experts = ups.into_iter().zip(downs).map(expert).collect();
        Ok(Mixture { spec, router, bias, scales, experts, shared, shared_gate, latent })
    }

    /// Matrices `[n_out, k]`, for each of `widths`: one tensor below another in the tensor `fused`, if there
    /// is such a tensor, else each by its name.
    fn joined(&mut self, fused: &str, names: &[String], widths: &[usize], k: usize) -> Result<Vec<M>> {
        if self.gguf.has_tensor(&format!("{fused}.weight")) {
            return self.rows(fused, widths, k);
        }
        names.iter().zip(widths).map(|(name, width)| self.matrix(name, *width, k)).collect()
    }

    /// The matrix `name.weight`, whose shape must be `[n_out, k]`, with `name.bias` if there is one.
    fn matrix(&mut self, name: &str, n_out: usize, k: usize) -> Result<M> {
        let matrix = self.rows(name, &[n_out], k)?;
        let [matrix] = self.exactly(matrix)?;
        Ok(matrix)
    }

    /// The vector `name.weight`, `[k]`, as a matrix of one row.
    fn row(&mut self, name: &str, k: usize) -> Result<M> {
        let row = self.pack(name, &[k], &[(1, None)])?;
        let [row] = self.exactly(row)?;
        Ok(row)
    }

    /// Matrices of so many rows each, one below another in the tensor `name.weight`, `[Σ n_out, k]`, with
    /// `name.bias` if there is one.
    fn rows(&mut self, name: &str, n_out: &[usize], k: usize) -> Result<Vec<M>> {
        let all = n_out.iter().sum();
        let mut bias = self.optional(&format!("{name}.bias"), &[all])?;
        let parts: Vec<(usize, Option<Vec<f32>>)> =
            n_out.iter().map(|n| (*n, bias.as_mut().map(|bias| bias.drain(..n).collect()))).collect();
        self.pack(name, &[all, k], &parts)
    }

    /// As [`WeightLoader::rows`], but row i of all matrices together is the tensor's row `place(i)`.
    fn rows_in_order(
        &mut self,
        name: &str,
        n_out: &[usize],
        k: usize,
        place: impl Fn(usize) -> usize,
    ) -> Result<Vec<M>> {
        let (gguf, all) = (self.gguf, n_out.iter().sum::<usize>());
        let name = format!("{name}.weight");
        let (info, bytes) = gguf.tensor(&name)?;
        if info.shape != [all, k] {
            let found = format!("tensor `{name}` has the shape {:?}; expected {:?}", info.shape, [all, k]);
            return Err(gguf.error(found));
        }
        let width = bytes.len() / all;
        let ordered: Vec<u8> =
            (0..all).flat_map(|row| &bytes[place(row) * width..][..width]).copied().collect();
        let mut rest = &ordered[..];
        let mut matrices = Vec::with_capacity(n_out.len());
        for n_out in n_out.iter().copied() {
            let (bytes, after) = rest.split_at(n_out * width);
            rest = after;
            let bias = None;
            let matrix =
                Matrix { gguf, name: &name, kind: info.kind, n_out, k, bytes, bias, index: 0, of: 1 };
            let (matrix, made) = self.pack.pack(matrix)?;
            *self.made.entry(made).or_default() += 1;
            matrices.push(matrix);
        }
        self.is_taken(name, bytes);
        Ok(matrices)
    }

    /// Notes that a tensor's matrices are packed.
    fn is_taken(&mut self, name: String, bytes: &[u8]) {
        self.gguf.release(bytes);
        self.done += bytes.len() as u64;
        self.taken.insert(name);
        (self.on_progress)(self.done, self.gguf.n_bytes());
    }

    /// `n` equal matrices in the tensor `name.weight`, `[n, n_out, k]`, with `name.bias`, `[n, n_out]`, if
    /// there is one.
    fn matrices(&mut self, name: &str, n: usize, n_out: usize, k: usize) -> Result<Vec<M>> {
        let biases = self.optional(&format!("{name}.bias"), &[n, n_out])?;
        let bias = |i: usize| biases.as_ref().map(|biases| biases[i * n_out..][..n_out].to_vec());
        let parts: Vec<(usize, Option<Vec<f32>>)> = (0..n).map(|i| (n_out, bias(i))).collect();
        self.pack(name, &[n, n_out, k], &parts)
    }

    /// `n` pairs of matrices, `[n_out, k]` each, one pair below another in the tensor `name.weight`,
    /// `[n, 2 * n_out, k]`: all first ones, then all second ones.
    fn paired(&mut self, name: &str, n: usize, n_out: usize, k: usize) -> Result<Vec<M>> {
        let parts = vec![(n_out, None); 2 * n];
        self.pack_in_order(name, &[n, 2 * n_out, k], &parts, |i| (i % n * 2 + i / n, i % n, n))
    }

    /// The tensor `name.weight` of this shape as matrices of so many rows, each with its bias.
    fn pack(&mut self, name: &str, shape: &[usize], parts: &[(usize, Option<Vec<f32>>)]) -> Result<Vec<M>> {
        // Equal matrices may be kept side by side.
        let n = parts.len();
        let is_even = shape.len() == 3;
        self.pack_in_order(name, shape, parts, |i| if is_even { (i, i, n) } else { (i, 0, 1) })
    }

    /// As [`WeightLoader::pack`]: the i-th matrix to be packed is part `order(i).0`; it is the `.1`th of `.2`
    /// that may be kept side by side.
    fn pack_in_order(
        &mut self,
        name: &str,
        shape: &[usize],
        parts: &[(usize, Option<Vec<f32>>)],
        order: impl Fn(usize) -> (usize, usize, usize),
    ) -> Result<Vec<M>> {
        let gguf = self.gguf;
        let name = format!("{name}.weight");
        let (info, bytes) = gguf.tensor(&name)?;
        if info.shape != shape {
            let found = format!("tensor `{name}` has the shape {:?}; expected {shape:?}", info.shape);
            return Err(gguf.error(found));
        }
        let (n_rows, k) = (parts.iter().map(|part| part.0).sum::<usize>(), shape[shape.len() - 1]);
        let row_bytes = bytes.len() / n_rows.max(1);
        let first_rows = parts.iter().scan(0, |row, part| {
            *row += part.0;
            Some(*row - part.0)
        });
        let first_rows: Vec<usize> = first_rows.collect();
        let mut matrices = Vec::with_capacity(parts.len());
        for i in 0..parts.len() {
            let (part, index, of) = order(i);
            let (n_out, bias) = parts[part].clone();
            let bytes = &bytes[first_rows[part] * row_bytes..][..n_out * row_bytes];
            let matrix = Matrix { gguf, name: &name, kind: info.kind, n_out, k, bytes, bias, index, of };
            let (matrix, made) = self.pack.pack(matrix)?;
            *self.made.entry(made).or_default() += 1;
            matrices.push(matrix);
        }
        self.is_taken(name, bytes);
        Ok(matrices)
    }

    /// As many matrices as were asked for.
    fn exactly<const N: usize>(&self, matrices: Vec<M>) -> Result<[M; N]> {
        matrices.try_into().map_err(|_| self.gguf.error("another number of matrices was packed"))
    }

    /// Leaves out layers after the last one, which predict further tokens.
    fn leave_out(&mut self, first: usize, n: usize) {
        let layers: Vec<String> = (first..first + n).map(|l| format!("blk.{l}.")).collect();
        let names = self.gguf.tensors().map(|(name, _)| name);
        let left_out = names.filter(|name| layers.iter().any(|layer| name.starts_with(layer)));
        self.taken.extend(left_out.map(str::to_owned));
    }

    /// The floats `name.weight`, `n` of them.
    fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let name = format!("{name}.weight");
        let vector = floats(self.gguf, &name, &[n], self.pack.numbers())?;
        self.taken.insert(name);
        Ok(vector)
    }

    fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if !self.gguf.has_tensor(name) {
            return Ok(None);
        }
        self.taken.insert(name.to_owned());
        floats(self.gguf, name, shape, self.pack.numbers()).map(Some)
    }

    /// All is loaded: says what the matrices are.
    ///
    /// # Errors
    /// The file has an unexpected tensor: ignoring it would mean wrong answers.
    fn finish(self, family: &str) -> Result<()> {
        let all = self.gguf.tensors().map(|(name, _)| name);
        let mut unknown: Vec<&str> = all.filter(|name| !self.taken.contains(*name)).collect();
        unknown.sort_unstable();
        if let Some(first) = unknown.first() {
            return Err(self.gguf.error(format!(
                "tensor `{first}` (one of {}) is unknown in a {family} decoder; without it the model would \
                 give wrong answers",
                unknown.len()
            )));
        }
        let total = self.gguf.n_bytes();
        (self.on_progress)(total, total);
        for (what, n) in self.made.iter().filter(|(what, _)| what.contains(" as ")) {
            tracing::warn!(
                "{}: {n} matrices of {what}, because their rows are not whole blocks of the file's type",
                self.gguf.name
            );
        }
        let made = self.made.iter().map(|(what, n)| format!("{n} × {what}")).collect::<Vec<_>>().join(", ");
        tracing::info!("matrices: {made}");
        Ok(())
    }
}
