//! A model as data: its layers, each made of mixers and a feed-forward with shapes of their own, read from the
//! file's metadata and from what is known of its [`Family`].
//!
//! Biases, fused matrices and rotary factors are taken where the file has them; an unexpected tensor or key
//! is rejected by name.
//!
//! Formats are chosen by layer and side ([`KvChoice`]) and are part of the cache's identity. The default,
//! `q4-m`, is q4 with q8 keys in one layer of six (4.49 bits a number), those most sensitive to 4 bits;
//! layers with full attention and layers with a window are ranked separately. Sensitivity is measured
//! together with the constants of keys: errors of the size that 4 bits cause are drawn for the scores of 63
//! rows, and their change to the residual stream after the layer's attention, relative to the stream, is the
//! layer's sensitivity. Exact keys are left out: a head that rests on them in one text is active in another.
//! On SmolLM2's F32 copy the divergence falls from 0.0023 to 0.0015; by 8-bit keys in every sixth layer it
//! would fall by a tenth, by the best five layers, each tried alone, a little further. But keys with a bias
//! (qwen2, gpt-oss) are q8 until the self-check has measured them, and so is a latent: all heads share it, and
//! in 8 bits it is a fifth of the papers' expanded 4-bit cache. States of recurrent layers are sealed in 8 bits
//! (docs/figures.md), or in f16 where keys and values are.

use super::family::{
    FAMILIES, Family, Gating, RecurrentLayers, RecurrentMixer, ScoreScale, WindowRope, WithoutRope,
};
use super::metadata::MetadataReader;
use super::rope::RopeSpec;
use crate::kv::layout::{KvLayout, LayerLayout, StateLayout, TensorLayout};
use crate::model::gguf::{Gguf, Value};
use crate::{Error, KvChoice, KvFormat, KvLayer, Remedy, Result};
use greenroom_kernels::LANES;
use greenroom_kernels::recurrence::Sealed;
use libm::{floor, log};
use std::ops::Range;

const MAX_LAYERS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;

/// Shape and constants of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct DecoderSpec {
    pub(crate) family: &'static Family,
    pub(crate) d_model: usize,
    pub(crate) norm_eps: f32,
    pub(crate) context_length: usize,
    /// Factor of embeddings.
    pub(crate) embedding_scale: f32,
    /// Factor of what a mixer or a feed-forward adds to the stream.
    pub(crate) residual_scale: f32,
    /// Factor of logits.
    pub(crate) logit_scale: f32,
    /// Logits x become `cap * tanh(x / cap)`.
    pub(crate) logit_cap: Option<f32>,
    /// Rotary embeddings; each layer names its own.
    pub(crate) ropes: Vec<RopeSpec>,
    pub(crate) layers: Vec<LayerSpec>,
    /// Width of a token's embedding for each layer, which is mixed into the stream at its end; 0: there are
    /// none (Gemma 3n, Gemma 4).
    pub(crate) d_per_layer: usize,
    /// Layers of the file after these, which predict further tokens: they are left out.
    pub(crate) n_predicting: usize,
    /// Layers of the cache whose keys [`KvChoice::Mixture`] keeps in 8 bits: those that calibration found,
    /// until then the first ones.
    pub(crate) sensitive: Vec<usize>,
}

/// [`KvChoice::Mixture`] keeps the keys of every n-th layer in 8 bits: 4.16 bits a number become 4.49.
const LAYERS_PER_SENSITIVE: usize = 6;

/// A layer: what mixes tokens (attention, a recurrence, both side by side, or neither), and what transforms
/// each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerSpec {
    pub(crate) attention: Option<AttentionSpec>,
    pub(crate) recurrence: Option<RecurrenceSpec>,
    pub(crate) feed_forward: Option<FeedForwardSpec>,
}

/// Recurrence of a layer: what it keeps of a sequence does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrenceSpec {
    pub(crate) mixer: RecurrentMixer,
    /// Inputs that its convolution sees of a channel, and its channels: those of values, keys and queries.
    pub(crate) taps: usize,
    pub(crate) channels: usize,
    /// Heads of values, each with a matrix; 0: there is a convolution alone.
    pub(crate) n_heads: usize,
    /// Heads of keys and queries.
    pub(crate) n_key_heads: usize,
    /// Rows and columns of a head's matrix.
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// Which of the recurrent layers it is.
    pub(crate) state: usize,
}

/// Attention of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionSpec {
    pub(crate) n_heads: usize,
    /// Heads of cached keys: one, where a latent is cached.
    pub(crate) n_kv_heads: usize,
    /// Width of a head of queries and cached keys.
    pub(crate) k_dim: usize,
    /// Width of a head of values as they are cached.
    pub(crate) v_dim: usize,
    /// Number of tokens that a row attends to, itself included; `None`: all before it.
    pub(crate) window: Option<usize>,
    /// Index of its rotary embedding; `None`: positions turn nothing.
    pub(crate) rope: Option<usize>,
    /// Factor of the scores.
    pub(crate) score_scale: f32,
    /// Scores s become `cap * tanh(s / cap)`.
    pub(crate) soft_cap: Option<f32>,
    pub(crate) temperature: Option<Temperature>,
    /// Queries and keys are normed.
    pub(crate) head_norms: bool,
    /// Keys have a bias.
    pub(crate) key_bias: bool,
    pub(crate) latent: Option<LatentSpec>,
    /// The layer of the cache that it reads.
    pub(crate) cache: usize,
    /// Its keys and values are those: else it reads what an earlier layer wrote.
    pub(crate) writes: bool,
}

/// Scaling of queries by their position, so that attention stays sharp over long contexts: in blocks of
/// `length` tokens, `1 + scale * ln(1 + block)` (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temperature {
    scale: f64,
    length: usize,
}

/// Multi-head latent attention (DeepSeek-V2, section 2.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentSpec {
    /// Width of the latent of keys and values.
    pub(crate) rank: usize,
    /// Width of the latent of queries; 0: they have none.
    pub(crate) q_rank: usize,
    /// Elements of a head's query that meet the latent.
    pub(crate) nope: usize,
    /// Elements that turn with the position.
    pub(crate) rope: usize,
    /// Width of a head's values.
    pub(crate) value: usize,
}

/// The feed-forward of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FeedForwardSpec {
    /// One gated pair of matrices, this wide.
    Dense(usize),
    Experts(ExpertSpec),
    /// Both, side by side, each with norms of its own (Gemma 4).
    Both(usize, ExpertSpec),
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertSpec {
    pub(crate) n: usize,
    /// Experts selected for a row.
    pub(crate) used: usize,
    /// Groups of experts, and how many of them a row may use: those with the greatest sums of their two best
    /// scores (DeepSeek-V3, section 2.1.2).
    pub(crate) groups: (usize, usize),
    pub(crate) d_ff: usize,
    pub(crate) gating: Gating,
    /// Weights are divided by their sum.
    pub(crate) normed: bool,
    /// Factor of the weights.
    pub(crate) scale: f32,
    /// Width of the shared experts together; 0: there are none.
    pub(crate) shared_ff: usize,
    /// Width of the rows that experts read and give; 0: rows of the stream.
    pub(crate) d_latent: usize,
    /// What the shared experts give is multiplied by the sigmoid of a score.
    pub(crate) gated_shared: bool,
}

/// The most sensitive layers of a cache, a sixth of those that see everything and a sixth of those with a
/// window: neither part takes more than 4.5 bits a number.
pub(super) fn sensitive(layers: &[AttentionSpec], sensitivity: impl Fn(usize) -> f32) -> Vec<usize> {
    let of_part = |is_windowed: bool| {
        let layers = (0..layers.len()).filter(move |l| layers[*l].window.is_some() == is_windowed);
        let mut layers: Vec<usize> = layers.collect();
        layers.sort_by(|a, b| sensitivity(*b).total_cmp(&sensitivity(*a)));
        layers.truncate(layers.len() / LAYERS_PER_SENSITIVE);
        layers
    };
    [false, true].into_iter().flat_map(of_part).collect()
}

impl Temperature {
    /// The factor of a position's queries.
    pub(crate) fn factor(self, position: usize) -> f32 {
        let block = floor(position as f64 / self.length as f64);
        (log(block + 1.0) * self.scale + 1.0) as f32
    }
}

impl AttentionSpec {
    /// Query heads that read a KV head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }
}

impl ExpertSpec {
    /// Scores of a row: of each expert, and of the shared ones where these have one.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) fn n_scores(&self) -> usize {
        self.n + usize::from(self.gated_shared)
    }

    /// The experts of the groups that a row may use, in order, by its ranks of all; of equal groups the first
    /// ones win.
    pub(crate) fn of_best_groups(&self, ranks: &[f32]) -> Vec<usize> {
        let (n_groups, n_used) = self.groups;
        if n_used >= n_groups {
            return (0..self.n).collect();
        }
        let size = self.n / n_groups;
        let sum_of_two_best = |group: &[f32]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group[0] + group[1]
        };
        let sums: Vec<f32> = ranks.chunks_exact(size).map(sum_of_two_best).collect();
        let mut groups: Vec<usize> = (0..n_groups).collect();
        groups.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
        groups.truncate(n_used);
        groups.sort_unstable();
        groups.into_iter().flat_map(|group| group * size..(group + 1) * size).collect()
    }
}

#[cfg(feature = "gpu")]
impl LayerSpec {
    /// Its attention, as [`Layer::its_attention`](super::weights::Layer::its_attention).
    pub(crate) fn its_attention(&self) -> &AttentionSpec {
        self.attention.as_ref().expect("all layers have attention")
    }
}

impl RecurrenceSpec {
    /// Width of all heads' values.
    pub(crate) fn inner(&self) -> usize {
        self.n_heads * self.v_dim
    }

    /// Width of all heads' keys.
    pub(crate) fn key_width(&self) -> usize {
        self.n_key_heads * self.k_dim
    }

    /// The values among its channels.
    pub(crate) fn values(&self) -> Range<usize> {
        match self.mixer {
            RecurrentMixer::Delta { .. } => 2 * self.key_width()..self.channels,
            RecurrentMixer::Mamba2 => 0..self.inner(),
            RecurrentMixer::ShortConvolution => 0..self.channels,
        }
    }

    /// The head of keys and queries that a head of values meets.
    pub(crate) fn key_head(&self, head: usize) -> usize {
        match self.mixer {
            RecurrentMixer::Delta { grouped: false } => head % self.n_key_heads,
            _ => head / (self.n_heads / self.n_key_heads),
        }
    }

    /// What it keeps of a sequence.
    pub(crate) fn layout(&self) -> StateLayout {
        let Self { taps, channels, n_heads, k_dim, v_dim, .. } = *self;
        StateLayout { n_inputs: taps - 1, channels, n_heads, k_dim, v_dim }
    }
}

impl FeedForwardSpec {
    /// Its experts, if it is made of such.
    #[cfg(feature = "gpu")]
    pub(crate) fn experts(&self) -> Option<ExpertSpec> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(experts) | Self::Both(_, experts) => Some(*experts),
        }
    }
}

impl MetadataReader<'_> {
    fn latent(&self) -> Result<LatentSpec> {
        let (rank, rope) = (self.needed("attention.kv_lora_rank")?, self.needed("rope.dimension_count")?);
        let key = self.count("attention.key_length_mla")?;
        let key = key.ok_or_else(|| {
            let key = self.key("attention.key_length_mla");
            self.gguf.error(format!(
                "`{key}` is missing because the model was converted by an old tool; convert it again"
            ))
        })?;
        let value = self.needed("attention.value_length_mla")?;
        if key <= rope {
            return Err(self
                .gguf
                .error(format!("heads of {key} elements can't have {rope} rotary elements")));
        }
        let q_rank = self.positive("attention.q_lora_rank")?.unwrap_or(0);
        Ok(LatentSpec { rank, q_rank, nope: key - rope, rope, value })
    }

    /// Which layers have attention, and which are recurrent.
    fn mixers(&self, n_layers: usize) -> Result<Vec<[bool; 2]>> {
        let Some(recurrent) = self.family.recurrence else { return Ok(vec![[true, false]; n_layers]) };
        let n_kv_heads = self.by_layer("attention.head_count_kv", n_layers)?;
        let has_keys = |l: usize| n_kv_heads.as_ref().is_none_or(|heads| heads[l] > 0);
        let one_of = |is_recurrent: bool| [!is_recurrent, is_recurrent];
        let mixers: Vec<[bool; 2]> = match recurrent.layers {
            RecurrentLayers::All => vec![[true; 2]; n_layers],
            RecurrentLayers::WithoutKvHeads => (0..n_layers).map(|l| one_of(!has_keys(l))).collect(),
            RecurrentLayers::OneOfThree => {
                let widths = self.by_layer("feed_forward_length", n_layers)?;
                let has_width = |l: usize| widths.as_ref().is_some_and(|widths| widths[l] > 0);
                let of = |l: usize| if has_width(l) { [false; 2] } else { one_of(!has_keys(l)) };
                (0..n_layers).map(of).collect()
            }
            RecurrentLayers::Pattern => {
                let every = self.positive("full_attention_interval")?.unwrap_or(4);
                let key = self.key("attention.recurrent_layers");
                match self.gguf.get(&key) {
                    None => (0..n_layers).map(|l| one_of((l + 1) % every != 0)).collect(),
                    Some(Value::Array(flags)) if flags.len() >= n_layers => {
                        let is_set = |flag: &Value| matches!(flag, Value::Bool(true) | Value::Int(1));
                        flags.iter().take(n_layers).map(|flag| one_of(is_set(flag))).collect()
                    }
                    Some(other) => {
                        let found =
                            format!("`{key}` is {other:?}; expected a flag for each of {n_layers} layers");
                        return Err(self.gguf.error(found));
                    }
                }
            }
        };
        if !mixers.iter().any(|[has_attention, _]| *has_attention) {
            return Err(self.gguf.error("none of its layers has attention, which is not supported"));
        }
        Ok(mixers)
    }

    /// The recurrence of a family's recurrent layers, all of which are alike.
    fn recurrence(&self, d_model: usize) -> Result<Option<RecurrenceSpec>> {
        let Some(recurrent) = self.family.recurrence else { return Ok(None) };
        let mixer = recurrent.mixer;
        let spec = if mixer == RecurrentMixer::ShortConvolution {
            let taps = self.needed("shortconv.l_cache")?;
            RecurrenceSpec {
                mixer,
                taps,
                channels: d_model,
                n_heads: 0,
                n_key_heads: 0,
                k_dim: 0,
                v_dim: 0,
                state: 0,
            }
        } else {
            let (taps, inner) = (self.needed("ssm.conv_kernel")?, self.needed("ssm.inner_size")?);
            let (n_heads, n_key_heads) =
                (self.needed("ssm.time_step_rank")?, self.needed("ssm.group_count")?);
            let k_dim = self.needed("ssm.state_size")?;
            if inner % n_heads != 0 || n_heads % n_key_heads != 0 {
                return Err(self.gguf.error(format!(
                    "its recurrent layers have {n_heads} heads for {inner} values and {n_key_heads} groups; \
                     expected whole shares"
                )));
            }
            let channels = n_key_heads.saturating_mul(k_dim).saturating_mul(2).saturating_add(inner);
            RecurrenceSpec {
                mixer,
                taps,
                channels,
                n_heads,
                n_key_heads,
                k_dim,
                v_dim: inner / n_heads,
                state: 0,
            }
        };
        let RecurrenceSpec { taps, channels, k_dim, v_dim, .. } = spec;
        if !(2..=64).contains(&taps) || channels % LANES != 0 || k_dim % LANES != 0 || v_dim % LANES != 0 {
            return Err(self.gguf.error(format!(
                "its recurrent layers have heads of {k_dim} and {v_dim} and a convolution of {taps} inputs of \
                 {channels} channels; expected multiples of {LANES}, and 2 to 64 inputs"
            )));
        }
        Ok(Some(spec))
    }

    /// Attention of the layers that have it, but for what positions do.
    fn attention(&self, mixers: &[[bool; 2]], d_model: usize) -> Result<Vec<Option<AttentionSpec>>> {
        let (family, n_layers) = (self.family, mixers.len());
        let n_heads = self.by_layer("attention.head_count", n_layers)?;
        let key = self.key("attention.head_count");
        let n_heads =
            n_heads.ok_or_else(|| self.gguf.error(format!("`{key}` is missing from its metadata")))?;
        let n_kv_heads =
            self.by_layer("attention.head_count_kv", n_layers)?.unwrap_or_else(|| n_heads.clone());
        let windows = self.window_by_layer(n_layers)?;
        let latent = if family.latent { Some(self.latent()?) } else { None };
        let score_scale = self.factor("attention.scale")?;
        let soft_cap = self.cap("attn_logit_softcapping", family.soft_caps[0])?;
        let head_norms = family
            .head_norms
            .is_some_and(|norms| !norms.optional || self.gguf.has_tensor("blk.0.attn_q_norm.weight"));
        let lengths = |windowed: &str| {
            let key = self.count(&format!("attention.key_length{windowed}"))?;
            Ok::<_, Error>((key, self.count(&format!("attention.value_length{windowed}"))?))
        };
        let (everywhere, windowed) = (lengths("")?, lengths("_swa")?);
        let n_cached = n_layers.saturating_sub(self.positive("attention.shared_kv_layers")?.unwrap_or(0));
        let layer = |l: usize| {
            let n_heads = n_heads[l];
            if n_heads == 0 || n_kv_heads[l] == 0 {
                return Err(self.gguf.error(format!("layer {l} has attention without heads")));
            }
            let (n_kv_heads, k_dim, v_dim) = match latent {
                Some(LatentSpec { rank, rope, .. }) => (1, rank.saturating_add(rope), rank),
                None => {
                    let own = if windows[l].is_some() { windowed } else { (None, None) };
                    let k_dim = own.0.or(everywhere.0).unwrap_or(d_model / n_heads);
                    (n_kv_heads[l], k_dim, own.1.or(everywhere.1).unwrap_or(k_dim))
                }
            };
            let head = match family.score_scale {
                ScoreScale::One => 1,
                ScoreScale::HeadButFor(largest) if n_layers == largest => d_model / n_heads,
                _ => k_dim,
            };
            // Layers after the last one with keys of its own read those of the last one of their kind.
            let of_kind = |cached: &usize| windows[*cached].is_some() == windows[l].is_some();
            let cache = if l < n_cached { Some(l) } else { (0..n_cached).rev().find(of_kind) };
            let cache = cache.ok_or_else(|| {
                self.gguf
                    .error(format!("layer {l} has no keys and values, nor has one before it of its kind"))
            })?;
            let spec = AttentionSpec {
                n_heads,
                n_kv_heads,
                k_dim,
                v_dim,
                window: windows[l],
                rope: None,
                score_scale: score_scale.unwrap_or((1.0 / (head as f64).sqrt()) as f32),
                soft_cap,
                temperature: None,
                head_norms,
                cache,
                writes: l < n_cached,
                key_bias: ["attn_k", "attn_qkv"]
                    .iter()
                    .any(|name| self.gguf.has_tensor(&format!("blk.{l}.{name}.bias"))),
                latent,
            };
            self.check(&spec).map(|()| spec)
        };
        let of = |(l, mixers): (usize, &[bool; 2])| mixers[0].then(|| layer(l)).transpose();
        let mut layers: Vec<Option<AttentionSpec>> =
            mixers.iter().enumerate().map(of).collect::<Result<_>>()?;
        let shape = |layer: &AttentionSpec| (layer.n_kv_heads, layer.k_dim, layer.v_dim);
        let same = |l: usize, layer: &AttentionSpec| {
            let cached = layers[layer.cache].as_ref();
            cached.is_some_and(|cached| shape(cached) == shape(layer)).then_some(()).ok_or_else(|| {
                self.gguf.error(format!(
                    "layer {l} can't read the keys and values of layer {}, which have another shape",
                    layer.cache
                ))
            })
        };
        let attention = layers.iter().enumerate().filter_map(|(l, layer)| Some((l, layer.as_ref()?)));
        attention.map(|(l, layer)| same(l, layer)).collect::<Result<Vec<()>>>()?;
        // Their places in the cache, where recurrent layers have none.
        let place = |cached: usize| mixers[..cached].iter().filter(|mixers| mixers[0]).count();
        layers.iter_mut().flatten().for_each(|layer| layer.cache = place(layer.cache));
        Ok(layers)
    }

    /// A soft cap; 0: none.
    fn cap(&self, name: &str, missing: Option<f32>) -> Result<Option<f32>> {
        Ok(self.float(name)?.or(missing).filter(|cap| *cap > 0.0))
    }

    /// Refuses shapes that no kernel has.
    fn check(&self, spec: &AttentionSpec) -> Result<()> {
        let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = *spec;
        if k_dim > MAX_HEAD_DIM {
            return Err(self.gguf.error(format!("heads of {k_dim} are not a known model")));
        }
        if n_heads % n_kv_heads != 0 {
            return Err(self.gguf.error(format!("{n_heads} heads can't share {n_kv_heads} KV heads evenly")));
        }
        let odd = |dim: usize| dim == 0 || dim % LANES != 0;
        if odd(k_dim) || odd(v_dim) || spec.latent.is_none() && k_dim != v_dim {
            return Err(self.gguf.error(format!(
                "its heads are {k_dim} (keys) and {v_dim} (values) wide; expected equal multiples of {LANES}"
            )));
        }
        Ok(())
    }

    /// The window of each layer. One that reaches as far as the context is none.
    fn window_by_layer(&self, n_layers: usize) -> Result<Vec<Option<usize>>> {
        let Some(windows) = self.family.windows else { return Ok(vec![None; n_layers]) };
        let window = self.positive("attention.sliding_window")?.or(windows.size);
        let window =
            window.filter(|window| self.count("context_length").ok().flatten().is_none_or(|n| *window < n));
        let key = self.key("attention.sliding_window_pattern");
        let windowed: Vec<bool> = match self.gguf.get(&key) {
            Some(Value::Array(flags)) if flags.len() >= n_layers => {
                flags.iter().map(|flag| matches!(flag, Value::Bool(true) | Value::Int(1))).collect()
            }
            None | Some(Value::Int(_)) => {
                let every = self.gguf.int::<u32>(&key)?.map_or(windows.period, |n| n as usize);
                (0..n_layers).map(|layer| every == 0 || layer % every != every - 1).collect()
            }
            Some(other) => {
                let found = format!(
                    "`{key}` is {other:?}; expected a number or a flag for each of {n_layers} layers"
                );
                return Err(self.gguf.error(found));
            }
        };
        Ok((0..n_layers).map(|layer| window.filter(|_| windowed[layer])).collect())
    }

    /// What positions do: the rotary embeddings, and each layer's share.
    fn positions(&self, layers: &mut [Option<AttentionSpec>]) -> Result<Vec<RopeSpec>> {
        // A layer that sees everything, if there is one.
        let mut all = layers.iter().flatten();
        let global = all.clone().find(|layer| layer.window.is_none()).or_else(|| all.next());
        let global = global.ok_or_else(|| self.gguf.error("none of its layers has attention"))?;
        let (family, first) = (self.family, *global);
        let (n_rot, head) = match first.latent {
            Some(LatentSpec { rope, .. }) => (rope, first.k_dim),
            None => (self.count("rope.dimension_count")?.unwrap_or(first.k_dim), first.k_dim),
        };
        let rope = RopeSpec::read(self, n_rot, head)?;
        let latent_factor = rope.latent_factor * rope.latent_factor;
        let base = rope.base;
        let mut ropes = vec![rope];
        let windowed = match family.windows.map(|windows| windows.rope) {
            None | Some(WindowRope::Same) => None,
            Some(WindowRope::Unscaled) => Some(self.float("rope.freq_base_swa")?.map_or(base, f64::from)),
            Some(WindowRope::Base(own)) => Some(self.float("rope.freq_base_swa")?.map_or(own, f64::from)),
        };
        let n_windowed = self.positive("rope.dimension_count_swa")?.unwrap_or(n_rot);
        ropes.extend(windowed.map(|base| RopeSpec::plain(n_windowed, base)));
        let untrained = family.without_rope == WithoutRope::Untrained
            && self.get("rope.scaling.finetuned") == Some(&Value::Bool(false));
        let any_window = layers.iter().flatten().any(|layer| layer.window.is_some());
        let temperature = self.temperature()?;
        for (l, layer) in layers.iter_mut().enumerate() {
            let Some(layer) = layer else { continue };
            let is_turned = match family.without_rope {
                WithoutRope::None => true,
                WithoutRope::Every(n) => l % n != n - 1,
                WithoutRope::Global => layer.window.is_some() || !any_window,
                WithoutRope::Untrained => !untrained,
                WithoutRope::All => false,
            };
            layer.rope = is_turned.then_some(if layer.window.is_some() { ropes.len() - 1 } else { 0 });
            let n_turned = layer.rope.map_or(0, |rope| ropes[rope].n_rot());
            if n_turned > layer.k_dim {
                let found = format!("layer {l} has {n_turned} rotary elements in a head of {}", layer.k_dim);
                return Err(self.gguf.error(found));
            }
            if let Some(LatentSpec { nope, rope, .. }) = layer.latent {
                layer.score_scale = (latent_factor / ((nope + rope) as f64).sqrt()) as f32;
            }
            layer.temperature = temperature;
        }
        Ok(ropes)
    }

    fn temperature(&self) -> Result<Option<Temperature>> {
        if !self.family.temperature {
            return Ok(None);
        }
        let scale = self.factor("attention.temperature_scale")?;
        let length = self.positive("attention.temperature_length")?;
        let trained = self.positive("rope.scaling.original_context_length")?;
        let length = match length.or(trained) {
            Some(length) => length,
            None => self.needed("context_length")?,
        };
        Ok(scale.map(|scale| Temperature { scale: f64::from(scale), length }))
    }

    /// The feed-forward of each layer.
    fn feed_forwards(&self, mixers: &[[bool; 2]]) -> Result<Vec<Option<FeedForwardSpec>>> {
        let n_layers = mixers.len();
        let experts = self.experts()?;
        let n_dense = self.positive("leading_dense_block_count")?.unwrap_or(0);
        let step = self.positive("interleave_moe_layer_step")?.unwrap_or(1);
        let is_alone = self.family.recurrence.is_some_and(|it| it.layers == RecurrentLayers::OneOfThree);
        let is_there = |l: usize| !is_alone || mixers[l] == [false; 2];
        let is_mixture = |l: usize| is_there(l) && l >= n_dense && (l + 1) % step == 0;
        let mixtures = (0..n_layers).map(|l| experts.filter(|_| is_mixture(l))).collect::<Vec<_>>();
        let is_beside = |l: usize| self.gguf.has_tensor(&format!("blk.{l}.pre_ffw_norm_2.weight"));
        if mixtures.iter().enumerate().all(|(l, mixture)| mixture.is_some() && !is_beside(l)) {
            return Ok(mixtures.into_iter().map(|mixture| mixture.map(FeedForwardSpec::Experts)).collect());
        }
        let widths = self.by_layer("feed_forward_length", n_layers)?;
        let key = self.key("feed_forward_length");
        let widths =
            widths.ok_or_else(|| self.gguf.error(format!("`{key}` is missing from its metadata")))?;
        let of = |(l, (mixture, width)): (usize, (Option<ExpertSpec>, usize))| match mixture {
            _ if !is_there(l) => Ok(None),
            None if width == 0 => Err(self.gguf.error(format!("`{key}` is 0 for layer {l}"))),
            None => Ok(Some(FeedForwardSpec::Dense(width))),
            Some(mixture) if is_beside(l) => Ok(Some(FeedForwardSpec::Both(width, mixture))),
            Some(mixture) => Ok(Some(FeedForwardSpec::Experts(mixture))),
        };
        mixtures.into_iter().zip(widths).enumerate().map(of).collect()
    }

    fn experts(&self) -> Result<Option<ExpertSpec>> {
        let n = self.positive("expert_count")?;
        let used = self.positive("expert_used_count")?;
        let Some(n) = n else { return Ok(None) };
        let used = used.ok_or_else(|| {
            self.gguf.error(format!("`{}` is missing from its metadata", self.key("expert_used_count")))
        })?;
        if used > n {
            return Err(self.gguf.error(format!("{used} of {n} experts can't be used")));
        }
        let Some(routing) = self.family.routing else {
            let found =
                format!("it has {n} experts; experts of the family `{}` are not supported", self.family.name);
            return Err(self.gguf.error(found));
        };
        let gating = match (routing.gating, self.positive("expert_gating_func")?) {
            (Gating::TopThenSoftmax, _) => Gating::TopThenSoftmax,
            // As llama.cpp knows GLM-4.7-Flash, whose first files lack the key: by its vocabulary.
            (_, None) if self.family.name == "deepseek2" && self.n_vocab() == 154_880 => Gating::Sigmoid,
            (gating, None) => gating,
            (_, Some(1)) => Gating::SoftmaxThenTop,
            (_, Some(2)) => Gating::Sigmoid,
            (_, Some(other)) => {
                let found = format!("`expert_gating_func` is {other}; expected 1 (softmax) or 2 (sigmoid)");
                return Err(self.gguf.error(found));
            }
        };
        let groups = self.positive("expert_group_count")?.unwrap_or(1);
        let used_groups = self.positive("expert_group_used_count")?.unwrap_or(groups);
        let per_group = n / groups.min(n);
        if groups > 1
            && (n % groups != 0 || per_group < 2 || used_groups > groups || used > used_groups * per_group)
        {
            let found = format!("{used} of {n} experts can't come from {used_groups} of {groups} groups");
            return Err(self.gguf.error(found));
        }
        let d_ff = match self.count("expert_feed_forward_length")? {
            Some(d_ff) => d_ff,
            None => self.needed("feed_forward_length")?,
        };
        let n_shared = self.positive("expert_shared_count")?.unwrap_or(0);
        let shared_ff = self.positive("expert_shared_feed_forward_length")?;
        let shared_ff = shared_ff.unwrap_or(n_shared.saturating_mul(d_ff));
        let normed = self.get("expert_weights_norm") == Some(&Value::Bool(true));
        Ok(Some(ExpertSpec {
            n,
            used,
            groups: (groups, used_groups),
            d_ff,
            gating,
            normed: routing.normed.unwrap_or(normed),
            scale: self.factor("expert_weights_scale")?.unwrap_or(1.0),
            shared_ff,
            gated_shared: routing.gated_shared && shared_ff > 0,
            d_latent: self.positive("moe_latent_size")?.unwrap_or(0),
        }))
    }

    fn n_vocab(&self) -> usize {
        self.gguf.array("tokenizer.ggml.tokens").map_or(0, <[Value]>::len)
    }
}

impl DecoderSpec {
    /// Reads the spec of a model file.
    ///
    /// # Errors
    /// An unknown family, a missing or impossible value, a key that is not known.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let name = gguf.text("general.architecture").unwrap_or("(none)");
        let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
            let served = FAMILIES.each_ref().map(|family| family.name).join(", ");
            return Err(gguf.error(format!("unknown family `{name}`; expected one of {served}")));
        };
        let reader = MetadataReader::new(gguf, family);
        let d_model = reader.needed("embedding_length")?;
        let n_predicting = reader.positive("nextn_predict_layers")?.unwrap_or(0);
        let n_layers = reader.needed("block_count")?;
        if n_layers > MAX_LAYERS || n_predicting >= n_layers {
            return Err(gguf.error(format!(
                "{n_layers} layers, {n_predicting} of which predict further tokens, are not a known model"
            )));
        }
        let n_layers = n_layers - n_predicting;
        reader.refuse("attention.causal", &[Value::Bool(true)])?;
        let norm_eps = reader.float("attention.layer_norm_rms_epsilon")?;
        // Nemotron's files may have the one of another norm, which they don't use, alone.
        let other_eps = if family.ungated { reader.float("attention.layer_norm_epsilon")? } else { None };
        let key = reader.key("attention.layer_norm_rms_epsilon");
        let norm_eps = norm_eps.or(other_eps).ok_or_else(|| gguf.error(format!("`{key}` is missing")))?;
        let mixers = reader.mixers(n_layers)?;
        let mut attention = reader.attention(&mixers, d_model)?;
        let ropes = reader.positions(&mut attention)?;
        let recurrence = reader.recurrence(d_model)?;
        let feed_forwards = reader.feed_forwards(&mixers)?;
        let n_recurrent = |l: usize| mixers[..l].iter().filter(|mixers| mixers[1]).count();
        let recurrence_of = |l: usize| {
            let recurrence = recurrence.filter(|_| mixers[l][1]);
            recurrence.map(|recurrence| RecurrenceSpec { state: n_recurrent(l), ..recurrence })
        };
        let cached: Vec<AttentionSpec> = attention.iter().flatten().filter(|it| it.writes).copied().collect();
        let root = if family.scaled_embedding { (d_model as f64).sqrt() as f32 } else { 1.0 };
        let spec = Self {
            family,
            d_model,
            norm_eps,
            context_length: reader.needed("context_length")?,
            embedding_scale: reader.factor("embedding_scale")?.unwrap_or(root),
            residual_scale: reader.factor("residual_scale")?.unwrap_or(1.0),
            logit_scale: reader.factor("logit_scale")?.map_or(1.0, |scale| 1.0 / scale),
            logit_cap: reader.cap("final_logit_softcapping", family.soft_caps[1])?,
            d_per_layer: reader.positive("embedding_length_per_layer_input")?.unwrap_or(0),
            ropes,
            n_predicting,
            sensitive: if family.latent { vec![] } else { sensitive(&cached, |_| 0.0) },
            layers: attention
                .into_iter()
                .zip(feed_forwards)
                .enumerate()
                .map(|(l, (attention, feed_forward))| LayerSpec {
                    attention,
                    recurrence: recurrence_of(l),
                    feed_forward,
                })
                .collect(),
        };
        reader.finish()?;
        Ok(spec)
    }

    /// Attention of all layers that have a share in the cache, in its order.
    pub(crate) fn cached(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(|layer| layer.attention.as_ref()).filter(|attention| attention.writes)
    }

    /// Recurrences of all layers that have one.
    pub(crate) fn recurrent(&self) -> impl Iterator<Item = &RecurrenceSpec> {
        self.layers.iter().filter_map(|layer| layer.recurrence.as_ref())
    }

    /// True if a latent is cached.
    pub(crate) fn is_latent(&self) -> bool {
        self.family.latent
    }

    /// Layout of the cache, in the chosen formats.
    ///
    /// # Errors
    /// The choice is for another number of layers.
    pub(crate) fn kv_layout(&self, choice: &KvChoice) -> Result<KvLayout> {
        let (n, shared) = (self.cached().count(), self.is_latent());
        let key_bias = self.cached().any(|attention| attention.key_bias);
        let same = |format| vec![KvLayer { k: format, v: format }; n];
        let formats = match choice {
            KvChoice::Auto if key_bias || shared => {
                vec![KvLayer { k: KvFormat::Q8, v: KvFormat::Q4 }; n]
            }
            KvChoice::Auto | KvChoice::Mixture => (0..n).map(|layer| self.mixture(layer)).collect(),
            KvChoice::Uniform(format) | KvChoice::Unrotated(format) => same(*format),
            KvChoice::Sides(sides) => vec![*sides; n],
            KvChoice::Mixed(layers) if layers.len() == n => layers.clone(),
            KvChoice::Mixed(layers) => {
                let found =
                    format!("the KV configuration is for {} layers, but the model has {n}", layers.len());
                return Err(crate::Error::request(found).with_remedy(Remedy::FormatsOfThisModel));
            }
        };
        let rotate = !matches!(choice, KvChoice::Unrotated(_));
        let tensor = |n_heads, dim, format, centered| {
            let coded = format != KvFormat::F16;
            let (rotated, exact, centered) = (rotate && coded, coded && !shared, centered && coded);
            TensorLayout { n_heads, dim, format, rotated, exact, centered }
        };
        let layer = |(spec, format): (&AttentionSpec, KvLayer)| {
            let n_heads = spec.n_kv_heads;
            let v = tensor(n_heads, spec.v_dim, if shared { format.k } else { format.v }, false);
            let k = tensor(n_heads, spec.k_dim, format.k, !shared);
            LayerLayout { k, v, shared, window: spec.window }
        };
        Ok(KvLayout {
            layers: self.cached().zip(formats).map(layer).collect(),
            states: self.recurrent().map(RecurrenceSpec::layout).collect(),
            sealed: match choice {
                KvChoice::Uniform(KvFormat::F16) | KvChoice::Unrotated(KvFormat::F16) => Sealed::F16,
                _ => Sealed::Q8,
            },
        })
    }

    /// The formats of a layer in [`KvChoice::Mixture`].
    fn mixture(&self, layer: usize) -> KvLayer {
        let k = if self.sensitive.contains(&layer) { KvFormat::Q8 } else { KvFormat::Q4 };
        KvLayer { k, v: KvFormat::Q4 }
    }

    /// The name of a layout of this model, as transcripts have it and the command line takes it.
    pub(crate) fn kv_name(&self, layout: &KvLayout) -> String {
        let is_mixture = || self.kv_layout(&KvChoice::Mixture).is_ok_and(|mixture| mixture == *layout);
        if !self.sensitive.is_empty() && is_mixture() { "q4-m".to_owned() } else { layout.name() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::device::cpu::Cpu;
    use crate::fixtures::{Fact, RandomModel};
    use greenroom_kernels::Isa;
    use std::sync::Arc;

    fn with(family: &str, n_layers: usize, name: &str, fact: Fact) -> Arc<Gguf> {
        let mut model = RandomModel { n_layers, ..RandomModel::tiny_of(family, 1) };
        model.facts.insert(name.to_owned(), fact);
        let bytes: &'static [u8] = model.bytes().leak();
        Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"))
    }

    fn refusal(gguf: &Gguf) -> String {
        DecoderSpec::from_gguf(gguf).expect_err("it is refused").to_string()
    }

    #[test]
    fn a_key_that_is_not_known_is_refused() {
        let found = refusal(&with("llama", 2, "attention.clamp_kqv", Fact::Float(8.0)));
        assert!(found.contains("`llama.attention.clamp_kqv` (one of 1) is unknown"), "{found}");
        // One that changes nothing is not.
        assert!(DecoderSpec::from_gguf(&with("llama", 2, "vocab_size", Fact::Whole(270))).is_ok());
    }

    #[test]
    fn layers_that_predict_further_tokens_are_left_out() {
        let gguf = with("llama", 3, "nextn_predict_layers", Fact::Whole(1));
        assert_eq!(DecoderSpec::from_gguf(&gguf).expect("a spec").layers.len(), 2);
        Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        let found = refusal(&with("llama", 3, "nextn_predict_layers", Fact::Whole(3)));
        assert!(found.contains("3 layers, 3 of which predict further tokens"), "{found}");
    }

    #[test]
    fn a_layer_reads_keys_of_its_own_shape_only() {
        let spec = |heads: [u32; 9]| {
            let gguf = with("gemma4", 9, "attention.head_count_kv", Fact::Wholes(heads.into()));
            DecoderSpec::from_gguf(&gguf)
        };
        // The last three read layers 4, 4 and 5.
        let layers = spec([2, 2, 1, 2, 2, 1, 2, 2, 1]).expect("a spec").layers;
        let cached = layers.iter().flat_map(|layer| &layer.attention).map(|it| it.cache).collect::<Vec<_>>();
        assert_eq!(cached, [0, 1, 2, 3, 4, 5, 4, 4, 5]);
        let found = spec([2, 2, 1, 2, 2, 1, 2, 1, 1]).expect_err("another shape").to_string();
        assert!(found.contains("layer 7 can't read the keys and values of layer 4"), "{found}");
    }
}
