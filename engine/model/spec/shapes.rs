//! Shapes of a model's layers, read from the metadata of its file.

use super::{
    AttentionSpec, ExpertSpec, FeedForwardSpec, LatentSpec, MAX_HEAD_DIM, RecurrenceSpec, Temperature,
};
use crate::model::family::{Gating, RecurrentLayers, RecurrentMixer, ScoreScale, WindowRope, WithoutRope};
use crate::model::gguf::{Texts, Value};
use crate::model::metadata::MetadataReader;
use crate::model::rope::RopeSpec;
use crate::{Error, Result};
use greenroom_kernels::LANES;

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
    pub(super) fn mixers(&self, n_layers: usize) -> Result<Vec<[bool; 2]>> {
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
    pub(super) fn recurrence(&self, d_model: usize) -> Result<Option<RecurrenceSpec>> {
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
    pub(super) fn attention(
        &self,
        mixers: &[[bool; 2]],
        d_model: usize,
    ) -> Result<Vec<Option<AttentionSpec>>> {
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
    pub(super) fn cap(&self, name: &str, missing: Option<f32>) -> Result<Option<f32>> {
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
    pub(super) fn positions(&self, layers: &mut [Option<AttentionSpec>]) -> Result<Vec<RopeSpec>> {
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
    pub(super) fn feed_forwards(&self, mixers: &[[bool; 2]]) -> Result<Vec<Option<FeedForwardSpec>>> {
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
        self.gguf.texts("tokenizer.ggml.tokens").map_or(0, Texts::len)
    }
}
