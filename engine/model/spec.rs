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

use super::family::{FAMILIES, Family, Gating, RecurrentMixer};
use super::metadata::MetadataReader;
use super::rope::RopeSpec;
use crate::kv::layout::{KvLayout, LayerLayout, StateLayout, TensorLayout};
use crate::model::gguf::{Gguf, Value};
use crate::{KvChoice, KvFormat, KvLayer, Remedy, Result};
use greenroom_kernels::recurrence::Sealed;
use libm::{floor, log};
use std::ops::Range;

mod shapes;

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
        let keys = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
        let keys = if family.parallel { [keys[1], keys[0]] } else { keys };
        let norm_eps = reader.float(keys[0])?;
        // Nemotron's files may have the one of another norm, which they don't use, alone.
        let has_other = family.ungated || family.parallel;
        let other_eps = if has_other { reader.float(keys[1])? } else { None };
        let key = reader.key(keys[0]);
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
            logit_scale: reader.factor("logit_scale")?.map_or(1.0, |scale| match family.logit_factor {
                true => scale,
                false => 1.0 / scale,
            }),
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
