//! A family as data: what the decoder needs to know about a model, read from the file's metadata.
//!
//! A family is a row of data: which pairs turn, which norms there are, the activation, windows, sinks, how
//! experts are chosen. Biases and rotary factors are taken where the file has them; an unexpected tensor is
//! rejected by name.
//!
//! Formats are chosen by layer and side ([`KvChoice`]) and are part of the cache's identity. The default,
//! `q4-m`, is q4 with q8 keys in one layer of six (4.49 bits a number), those most sensitive to 4 bits;
//! layers with full attention and layers with a window are ranked separately. Sensitivity is measured
//! together with the constants of keys: errors of the size that 4 bits cause are drawn for the scores of 63
//! rows, and their change to the residual stream after the layer's attention, relative to the stream, is the
//! layer's sensitivity. Exact keys are left out: a head that rests on them in one text is active in another.
//! On SmolLM2's F32 copy the divergence falls from 0.0023 to 0.0015; by 8-bit keys in every sixth layer it
//! would fall by a tenth, by the best five layers, each tried alone, a little further. But keys with a bias
//! (qwen2, gpt-oss) are q8, and so is a latent: all heads share it, and in 8 bits it is a fifth of the
//! papers' expanded 4-bit cache.

use super::rope::RopeSpec;
use crate::kv::layout::{KvLayout, LayerLayout, TensorLayout};
use crate::model::gguf::{Gguf, Value};
use crate::{KvChoice, KvFormat, KvLayer, Remedy, Result};
use greenroom_kernels::LANES;
pub(crate) use greenroom_kernels::pointwise::{Activation, RopeLayout};

/// Properties of a family that its files don't state.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name in `general.architecture`.
    pub(crate) name: &'static str,
    /// Pairs of a head's elements that turn together.
    pub(crate) pairs: RopeLayout,
    pub(crate) activation: Activation,
    /// Each head of queries and keys is normed.
    pub(crate) head_norms: bool,
    /// True if outputs of attention and feed-forward are normed too.
    pub(crate) post_norms: bool,
    /// Tensor of the norm before the feed-forward.
    pub(crate) ffn_norm: &'static str,
    /// Embeddings are multiplied by the root of their width.
    pub(crate) scaled_embedding: bool,
    /// A score for each head that takes weight and gives nothing.
    pub(crate) sinks: bool,
    /// Keys and values are cached as one latent.
    pub(crate) latent: bool,
    /// Period of layers, all but the last of which have a sliding window; 0: no layer has one.
    sliding_window_period: usize,
    /// Rotary base of layers with a window, which are not scaled then; else as the others.
    window_base: Option<f64>,
    /// Gating of experts; `None`: there are none.
    gating: Option<Gating>,
    /// The ramp of YaRN begins and ends at whole pairs.
    rounded_yarn: bool,
}

/// Conversion of experts' scores to weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gating {
    /// Softmax over all, then the best.
    SoftmaxThenTop,
    /// The best, then softmax over them.
    TopThenSoftmax,
}

const LLAMA: Family = Family {
    name: "llama",
    pairs: RopeLayout::Interleaved,
    activation: Activation::Silu,
    head_norms: false,
    post_norms: false,
    ffn_norm: "ffn_norm",
    scaled_embedding: false,
    sinks: false,
    latent: false,
    sliding_window_period: 0,
    window_base: None,
    gating: None,
    rounded_yarn: true,
};

/// Families that are served.
static FAMILIES: [Family; 6] = [
    LLAMA,
    Family { name: "qwen2", pairs: RopeLayout::NeoX, ..LLAMA },
    Family { name: "qwen3", pairs: RopeLayout::NeoX, head_norms: true, ..LLAMA },
    Family {
        name: "gemma3",
        pairs: RopeLayout::NeoX,
        activation: Activation::Gelu,
        head_norms: true,
        post_norms: true,
        scaled_embedding: true,
        sliding_window_period: 6,
        window_base: Some(10_000.0),
        ..LLAMA
    },
    Family { name: "deepseek2", latent: true, gating: Some(Gating::SoftmaxThenTop), ..LLAMA },
    Family {
        name: "gpt-oss",
        pairs: RopeLayout::NeoX,
        activation: Activation::Clamped,
        ffn_norm: "post_attention_norm",
        sinks: true,
        sliding_window_period: 2,
        gating: Some(Gating::TopThenSoftmax),
        rounded_yarn: false,
        ..LLAMA
    },
];

/// Counts above these are no model's; what is allocated by them stays small.
const MAX_COUNT: u32 = 1 << 28;
const MAX_LAYERS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;

/// Shape and constants of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct DecoderSpec {
    pub(crate) family: &'static Family,
    pub(crate) d_model: usize,
    pub(crate) n_heads: usize,
    /// Heads of cached keys: one, where a latent is cached.
    pub(crate) n_kv_heads: usize,
    /// Width of a head of queries and cached keys.
    pub(crate) k_dim: usize,
    /// Width of a head of values as they are cached.
    pub(crate) v_dim: usize,
    pub(crate) d_ff: usize,
    pub(crate) norm_eps: f32,
    pub(crate) context_length: usize,
    /// Factor of the scores.
    pub(crate) score_scale: f32,
    /// Keys have a bias.
    pub(crate) key_bias: bool,
    /// Rotary embeddings; each layer names its own.
    pub(crate) ropes: Vec<RopeSpec>,
    pub(crate) layers: Vec<LayerSpec>,
    /// Layers whose keys [`KvChoice::Mixture`] keeps in 8 bits: those that calibration found, until then the
    /// first ones.
    pub(crate) sensitive: Vec<usize>,
    pub(crate) latent: Option<LatentSpec>,
    pub(crate) experts: Option<ExpertSpec>,
}

/// [`KvChoice::Mixture`] keeps the keys of every n-th layer in 8 bits: 4.16 bits a number become 4.49.
const LAYERS_PER_SENSITIVE: usize = 6;

/// The most sensitive layers, a sixth of those that see everything and a sixth of those with a window:
/// neither part of a cache takes more than 4.5 bits a number.
pub(super) fn sensitive(layers: &[LayerSpec], sensitivity: impl Fn(usize) -> f32) -> Vec<usize> {
    let of_part = |is_windowed: bool| {
        let layers = (0..layers.len()).filter(move |l| layers[*l].window.is_some() == is_windowed);
        let mut layers: Vec<usize> = layers.collect();
        layers.sort_by(|a, b| sensitivity(*b).total_cmp(&sensitivity(*a)));
        layers.truncate(layers.len() / LAYERS_PER_SENSITIVE);
        layers
    };
    [false, true].into_iter().flat_map(of_part).collect()
}

/// Properties that differ from layer to layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerSpec {
    /// Number of tokens that a row attends to, itself included; `None`: all before it.
    pub(crate) window: Option<usize>,
    /// Index of its rotary embedding.
    pub(crate) rope: usize,
    /// True if its feed-forward is made of experts.
    pub(crate) experts: bool,
}

/// Multi-head latent attention (DeepSeek-V2, section 2.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentSpec {
    /// Width of the latent.
    pub(crate) rank: usize,
    /// Elements of a head's query that meet the latent.
    pub(crate) nope: usize,
    /// Elements that turn with the position.
    pub(crate) rope: usize,
    /// Width of a head's values.
    pub(crate) value: usize,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertSpec {
    pub(crate) n: usize,
    /// Experts selected for a row.
    pub(crate) used: usize,
    /// Width of the shared experts together; 0: there are none.
    pub(crate) shared_ff: usize,
    pub(crate) d_ff: usize,
    pub(crate) gating: Gating,
    /// Weights are divided by their sum.
    pub(crate) normed: bool,
    /// Factor of the weights.
    pub(crate) scale: f32,
}

/// Reads a family's metadata.
struct MetadataReader<'a> {
    gguf: &'a Gguf,
    family: &'static Family,
}

impl MetadataReader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.int::<u32>(&key)? {
            Some(n) if n == 0 || n > MAX_COUNT => {
                Err(self.gguf.error(format!("`{key}` is {n}; expected 1 to {MAX_COUNT}")))
            }
            n => Ok(n.map(|n| n as usize)),
        }
    }

    fn needed(&self, name: &str) -> Result<usize> {
        let missing = || self.gguf.error(format!("`{}` is missing from its metadata", self.key(name)));
        self.count(name)?.ok_or_else(missing)
    }

    fn float(&self, name: &str) -> Result<Option<f32>> {
        self.gguf.float(&self.key(name))
    }

    /// Refuses a key that would change what the model computes and is not served.
    fn refuse(&self, name: &str, harmless: &[Value]) -> Result<()> {
        match self.gguf.get(&self.key(name)) {
            Some(value) if !harmless.contains(value) => {
                Err(self.gguf.error(format!("`{}` is {value:?}, which is not supported", self.key(name))))
            }
            _ => Ok(()),
        }
    }

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
        self.refuse("attention.q_lora_rank", &[Value::Int(0)])?;
        self.refuse("expert_group_count", &[Value::Int(0), Value::Int(1)])?;
        Ok(LatentSpec { rank, nope: key - rope, rope, value })
    }

    fn experts(&self, n_layers: usize) -> Result<Option<(ExpertSpec, usize)>> {
        let key = self.key("expert_count");
        if matches!(self.gguf.int::<u32>(&key)?, None | Some(0)) {
            return Ok(None);
        }
        let (n, used) = (self.needed("expert_count")?, self.needed("expert_used_count")?);
        if used > n {
            return Err(self.gguf.error(format!("{used} of {n} experts can't be used")));
        }
        let Some(gating) = self.family.gating else {
            let found =
                format!("it has {n} experts; experts of the family `{}` are not supported", self.family.name);
            return Err(self.gguf.error(found));
        };
        let gating = match (gating, self.gguf.int::<u32>(&self.key("expert_gating_func"))?) {
            (Gating::TopThenSoftmax, _) => Gating::TopThenSoftmax,
            (gating, None | Some(0 | 1)) => gating,
            (_, Some(other)) => {
                let found = format!("`expert_gating_func` is {other}; expected 1 (softmax)");
                return Err(self.gguf.error(found));
            }
        };
        let dense = self.gguf.int::<u32>(&self.key("leading_dense_block_count"))?.unwrap_or(0) as usize;
        let d_ff = self.needed("expert_feed_forward_length")?;
        let n_shared = self.gguf.int::<u32>(&self.key("expert_shared_count"))?.unwrap_or(0) as usize;
        let normed = self.gguf.get(&self.key("expert_weights_norm")) == Some(&Value::Bool(true));
        let scale = self.float("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
        let spec =
            ExpertSpec { n, used, shared_ff: n_shared.saturating_mul(d_ff), d_ff, gating, normed, scale };
        Ok(Some((spec, dense.min(n_layers))))
    }

    /// The window of each layer.
    fn window_by_layer(&self, n_layers: usize) -> Result<Vec<Option<usize>>> {
        let every = self.family.sliding_window_period;
        let window = if every == 0 { None } else { self.count("attention.sliding_window")? };
        let key = self.key("attention.sliding_window_pattern");
        let windowed: Vec<bool> = match self.gguf.get(&key) {
            Some(Value::Array(flags)) if flags.len() >= n_layers => {
                flags.iter().map(|flag| matches!(flag, Value::Bool(true) | Value::Int(1))).collect()
            }
            None | Some(Value::Int(_)) => {
                let every = self.gguf.int::<u32>(&key)?.map_or(every, |n| n as usize);
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
}

impl DecoderSpec {
    /// Reads the spec of a model file.
    ///
    /// # Errors
    /// An unknown family, a missing or impossible value.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let name = gguf.text("general.architecture").unwrap_or("(none)");
        let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
            let served = FAMILIES.each_ref().map(|family| family.name).join(", ");
            return Err(gguf.error(format!("unknown family `{name}`; expected one of {served}")));
        };
        let reader = MetadataReader { gguf, family };
        let (d_model, n_heads) = (reader.needed("embedding_length")?, reader.needed("attention.head_count")?);
        let n_layers = reader.needed("block_count")?;
        let latent = if family.latent { Some(reader.latent()?) } else { None };
        let (n_kv_heads, k_dim, v_dim, n_rot) = match latent {
            Some(LatentSpec { rank, rope, .. }) => (1, rank.saturating_add(rope), rank, rope),
            None => {
                let dim = reader.count("attention.key_length")?.unwrap_or(d_model / n_heads);
                let value_dim = reader.count("attention.value_length")?.unwrap_or(dim);
                let n_kv_heads = reader.count("attention.head_count_kv")?.unwrap_or(n_heads);
                (n_kv_heads, dim, value_dim, reader.count("rope.dimension_count")?.unwrap_or(dim))
            }
        };
        if n_layers > MAX_LAYERS || k_dim > MAX_HEAD_DIM {
            return Err(gguf.error(format!("{n_layers} layers with heads of {k_dim} are not a known model")));
        }
        if n_heads % n_kv_heads != 0 {
            return Err(gguf.error(format!("{n_heads} heads can't share {n_kv_heads} KV heads evenly")));
        }
        let odd = |dim: usize| dim == 0 || dim % LANES != 0;
        if odd(k_dim) || odd(v_dim) || latent.is_none() && k_dim != v_dim {
            return Err(gguf.error(format!(
                "its heads are {k_dim} (keys) and {v_dim} (values) wide; expected equal multiples of {LANES}"
            )));
        }
        reader.refuse("final_logit_softcapping", &[Value::Float(0.0)])?;
        reader.refuse("attn_logit_softcapping", &[Value::Float(0.0)])?;
        let norm_eps = reader.float("attention.layer_norm_rms_epsilon")?;
        let key = reader.key("attention.layer_norm_rms_epsilon");
        let norm_eps = norm_eps.ok_or_else(|| gguf.error(format!("`{key}` is missing")))?;
        let rope = RopeSpec::from_gguf(gguf, family.name, n_rot, k_dim, family.rounded_yarn)?;
        let head = match latent {
            Some(LatentSpec { nope, rope, .. }) => nope + rope,
            // As Gemma's own code has it for its largest model (`query_pre_attn_scalar`).
            None if family.name == "gemma3" && n_layers == 62 => d_model / n_heads,
            None => k_dim,
        };
        let latent_factor = if family.latent { rope.latent_factor * rope.latent_factor } else { 1.0 };
        let score_scale = (latent_factor / (head as f64).sqrt()) as f32;
        let mut ropes = vec![rope];
        if let Some(base) = family.window_base {
            let base = reader.float("rope.freq_base_swa")?.map_or(base, f64::from);
            ropes.push(RopeSpec::plain(n_rot, base));
        }
        let windows = reader.window_by_layer(n_layers)?;
        let experts = reader.experts(n_layers)?;
        let first_expert = experts.map_or(usize::MAX, |(_, dense)| dense);
        let layer = |(l, window): (usize, Option<usize>)| {
            let rope = if window.is_some() { ropes.len() - 1 } else { 0 };
            LayerSpec { window, rope, experts: l >= first_expert }
        };
        let layers: Vec<LayerSpec> = windows.into_iter().enumerate().map(layer).collect();
        let sensitive = if latent.is_some() { vec![] } else { sensitive(&layers, |_| 0.0) };
        let d_ff = if layers.iter().all(|l| l.experts) { 0 } else { reader.needed("feed_forward_length")? };
        Ok(Self {
            family,
            d_model,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            d_ff,
            norm_eps,
            context_length: reader.needed("context_length")?,
            score_scale,
            key_bias: gguf.has_tensor("blk.0.attn_k.bias"),
            ropes,
            sensitive,
            layers,
            latent,
            experts: experts.map(|(spec, _)| spec),
        })
    }

    /// Layout of the cache, in the chosen formats.
    ///
    /// # Errors
    /// The choice is for another number of layers.
    pub(crate) fn kv_layout(&self, choice: &KvChoice) -> Result<KvLayout> {
        let (n, shared) = (self.layers.len(), self.latent.is_some());
        let same = |format| vec![KvLayer { k: format, v: format }; n];
        let formats = match choice {
            KvChoice::Auto if self.key_bias || shared => {
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
        let tensor = |dim, format, centered| {
            let coded = format != KvFormat::F16;
            let (rotated, exact, centered) = (rotate && coded, coded && !shared, centered && coded);
            TensorLayout { n_heads: self.n_kv_heads, dim, format, rotated, exact, centered }
        };
        let layer = |(spec, format): (&LayerSpec, KvLayer)| {
            let v = tensor(self.v_dim, if shared { format.k } else { format.v }, false);
            LayerLayout { k: tensor(self.k_dim, format.k, !shared), v, shared, window: spec.window }
        };
        Ok(KvLayout { layers: self.layers.iter().zip(formats).map(layer).collect() })
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
