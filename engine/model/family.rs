//! Families as rows of data: what their files don't state.

pub(crate) use greenroom_kernels::pointwise::{Activation, RopeLayout};

/// Properties of a family that its files don't state.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name in `general.architecture`.
    pub(crate) name: &'static str,
    /// Pairs of a head's elements that turn together.
    pub(crate) pairs: RopeLayout,
    pub(crate) activation: Activation,
    /// Inputs of attention and feed-forward are normed.
    pub(crate) pre_norms: bool,
    /// Outputs of attention and feed-forward are normed.
    pub(crate) post_norms: bool,
    /// Mixers and feed-forward read the same rows: the stream's, normed around their mean, before either adds to
    /// it. So is the last norm.
    pub(crate) parallel: bool,
    /// `logit_scale` is a factor of logits, else what they are divided by.
    pub(crate) logit_factor: bool,
    /// Tensor of the norm before the feed-forward.
    pub(crate) ffn_norm: &'static str,
    /// Values are normed, by no weights; where a layer has no matrix for them, they are its keys' products.
    pub(crate) normed_values: bool,
    /// A layer may scale the stream in the end.
    pub(crate) scaled_layers: bool,
    /// Norms of queries and keys.
    pub(crate) head_norms: Option<HeadNorms>,
    /// Embeddings are multiplied by the root of their width.
    pub(crate) scaled_embedding: bool,
    /// `ffn_up` holds the gate too, in its first half.
    pub(crate) fused_gate: bool,
    /// A score for each head that takes weight and gives nothing.
    pub(crate) sinks: bool,
    /// Keys and values are cached as one latent.
    pub(crate) latent: bool,
    pub(crate) windows: Option<Windows>,
    /// Layers in which positions turn nothing.
    pub(crate) without_rope: WithoutRope,
    /// Queries are scaled by their position where the file says so (`attention.temperature_scale`).
    pub(crate) temperature: bool,
    /// Factor of the scores, where the file has none.
    pub(crate) score_scale: ScoreScale,
    /// Soft caps of scores and of logits, where the file has none.
    pub(crate) soft_caps: [Option<f32>; 2],
    /// Routing of experts; `None`: there are none.
    pub(crate) routing: Option<Routing>,
    pub(crate) yarn: Yarn,
    /// Contexts are multiplied by the sigmoid of gates that come with the queries, head by head.
    pub(crate) gated_attention: bool,
    /// Feed-forwards have no gate: the activation is that of `up`.
    pub(crate) ungated: bool,
    /// Tensor of the last norm.
    pub(crate) output_norm: &'static str,
    /// Recurrent layers; `None`: there are none.
    pub(crate) recurrence: Option<Recurrent>,
}

/// Recurrent layers of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrent {
    pub(crate) mixer: RecurrentMixer,
    pub(crate) layers: RecurrentLayers,
}

/// What a recurrent layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentMixer {
    /// The gated delta rule (Yang, Kautz & Hatamizadeh 2025). Consecutive heads of values share a head of keys
    /// (`grouped`), or every n-th.
    Delta { grouped: bool },
    /// Mamba-2 (Dao & Gu 2024).
    Mamba2,
    /// A gated convolution alone (LFM2).
    ShortConvolution,
}

/// Which layers are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentLayers {
    /// Those that `attention.recurrent_layers` names, else all but every `full_attention_interval`-th.
    Pattern,
    /// Those without KV heads.
    WithoutKvHeads,
    /// A layer is attention, recurrent or a feed-forward, one of these alone: by its KV heads and its width.
    OneOfThree,
    /// All, beside their attention.
    All,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadNorms {
    /// One norm over all heads of a row, instead of one over each.
    pub(crate) whole_row: bool,
    /// They follow the rotary embedding.
    pub(crate) after_rope: bool,
    /// A file may lack them.
    pub(crate) optional: bool,
}

const EACH_HEAD: Option<HeadNorms> = Some(HeadNorms { whole_row: false, after_rope: false, optional: false });
const WHOLE_ROW: Option<HeadNorms> = Some(HeadNorms { whole_row: true, after_rope: false, optional: false });

/// Layers with a sliding window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// Of this many layers all but the last have one, if the file says nothing else; 0: all have one.
    pub(crate) period: usize,
    /// Number of tokens that they see, if the file says nothing; `None`: then there are no such layers.
    pub(crate) size: Option<usize>,
    pub(crate) rope: WindowRope,
}

/// Rotary embedding of layers with a window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowRope {
    /// That of the other layers.
    Same,
    /// Of the same base, but never scaled.
    Unscaled,
    /// Of a base of its own (`rope.freq_base_swa`, else this one), never scaled; `rope.dimension_count_swa`
    /// says how many elements turn, if not as many as elsewhere.
    Base(f64),
}

/// Layers in which positions turn nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutRope {
    None,
    /// The last of every so many.
    Every(usize),
    /// Those without a window, where others have one.
    Global,
    /// All, if `rope.scaling.finetuned` is false.
    Untrained,
    All,
}

/// Factor of the scores, where the file has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScoreScale {
    /// The inverse root of a head's width.
    Head,
    /// None.
    One,
    /// As `Head`, but in the family's largest model, known by its number of layers, by the width that a head
    /// has on average (`query_pre_attn_scalar` of Gemma's own code).
    HeadButFor(usize),
}

/// Routing of rows to experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routing {
    /// How scores become weights, if the file does not say.
    pub(crate) gating: Gating,
    /// Weights are divided by their sum; `None`: as the file says, else they are not.
    pub(crate) normed: Option<bool>,
    /// The shared expert is multiplied by the sigmoid of a score of its own.
    pub(crate) gated_shared: bool,
}

/// Conversion of experts' scores to weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gating {
    /// Softmax over all, then the best.
    SoftmaxThenTop,
    /// The best, then softmax over them.
    TopThenSoftmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// What differs between implementations of YaRN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yarn {
    /// The ramp begins and ends at whole pairs.
    pub(crate) rounded: bool,
    /// `rope.scaling.yarn_log_multiplier` is given times this.
    pub(crate) log_unit: f64,
    /// The multiplier holds for turned vectors as for scores (`mscale` is `mscale_all_dim`).
    pub(crate) equal_scales: bool,
}

const YARN: Yarn = Yarn { rounded: true, log_unit: 1.0, equal_scales: false };

const SOFTMAX: Routing = Routing { gating: Gating::SoftmaxThenTop, normed: Some(true), gated_shared: false };
/// Scores by sigmoid, and the file says whether weights are divided by their sum.
const SIGMOID: Routing = Routing { gating: Gating::Sigmoid, normed: None, gated_shared: false };

const LLAMA: Family = Family {
    name: "llama",
    pairs: RopeLayout::Interleaved,
    activation: Activation::Silu,
    pre_norms: true,
    post_norms: false,
    parallel: false,
    logit_factor: false,
    ffn_norm: "ffn_norm",
    normed_values: false,
    scaled_layers: false,
    head_norms: None,
    scaled_embedding: false,
    fused_gate: false,
    sinks: false,
    latent: false,
    windows: None,
    without_rope: WithoutRope::None,
    temperature: false,
    score_scale: ScoreScale::Head,
    soft_caps: [None; 2],
    routing: Some(SOFTMAX),
    yarn: YARN,
    gated_attention: false,
    ungated: false,
    output_norm: "output_norm",
    recurrence: None,
};

const NEOX: Family = Family { pairs: RopeLayout::NeoX, routing: None, ..LLAMA };

const QWEN3: Family = Family { name: "qwen3", head_norms: EACH_HEAD, ..NEOX };

const GEMMA: Family =
    Family { activation: Activation::Gelu, post_norms: true, scaled_embedding: true, ..NEOX };

const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    latent: true,
    temperature: true,
    routing: Some(Routing { gating: Gating::SoftmaxThenTop, normed: None, gated_shared: false }),
    yarn: Yarn { log_unit: 0.1, equal_scales: true, ..YARN },
    ..LLAMA
};

const QWEN35: Family = Family {
    name: "qwen35",
    ffn_norm: "post_attention_norm",
    gated_attention: true,
    recurrence: Some(Recurrent {
        mixer: RecurrentMixer::Delta { grouped: false },
        layers: RecurrentLayers::Pattern,
    }),
    ..QWEN3
};

const GATED_EXPERTS: Option<Routing> = Some(Routing { gated_shared: true, ..SOFTMAX });

const LFM2: Family = Family {
    name: "lfm2",
    head_norms: EACH_HEAD,
    output_norm: "token_embd_norm",
    windows: Some(Windows { period: 0, size: None, rope: WindowRope::Same }),
    recurrence: Some(Recurrent {
        mixer: RecurrentMixer::ShortConvolution,
        layers: RecurrentLayers::WithoutKvHeads,
    }),
    ..NEOX
};

const fn mamba2(layers: RecurrentLayers) -> Option<Recurrent> {
    Some(Recurrent { mixer: RecurrentMixer::Mamba2, layers })
}

const NEMOTRON_H: Family = Family {
    name: "nemotron_h",
    activation: Activation::SquaredRelu,
    ungated: true,
    without_rope: WithoutRope::All,
    routing: None,
    recurrence: mamba2(RecurrentLayers::OneOfThree),
    ..LLAMA
};

/// Families that are served.
pub(crate) static FAMILIES: [Family; 37] = [
    LLAMA,
    Family { name: "qwen2", ..NEOX },
    Family {
        name: "qwen2moe",
        routing: Some(Routing { normed: Some(false), gated_shared: true, ..SOFTMAX }),
        ..NEOX
    },
    QWEN3,
    Family { name: "qwen3moe", routing: Some(SOFTMAX), ..QWEN3 },
    Family { name: "qwen3vl", ..QWEN3 },
    Family { name: "qwen3vlmoe", routing: Some(SOFTMAX), ..QWEN3 },
    Family {
        name: "gemma2",
        windows: Some(Windows { period: 2, size: Some(4096), rope: WindowRope::Same }),
        score_scale: ScoreScale::HeadButFor(46),
        soft_caps: [Some(50.0), Some(30.0)],
        ..GEMMA
    },
    Family {
        name: "gemma3",
        head_norms: EACH_HEAD,
        windows: Some(Windows { period: 6, size: None, rope: WindowRope::Base(10_000.0) }),
        score_scale: ScoreScale::HeadButFor(62),
        ..GEMMA
    },
    Family {
        name: "gemma4",
        head_norms: EACH_HEAD,
        normed_values: true,
        scaled_layers: true,
        windows: Some(Windows { period: 6, size: None, rope: WindowRope::Base(10_000.0) }),
        score_scale: ScoreScale::One,
        routing: Some(SOFTMAX),
        ..GEMMA
    },
    DEEPSEEK2,
    Family { name: "mistral4", yarn: Yarn { equal_scales: false, ..DEEPSEEK2.yarn }, ..DEEPSEEK2 },
    Family {
        name: "gpt-oss",
        activation: Activation::Clamped,
        ffn_norm: "post_attention_norm",
        sinks: true,
        windows: Some(Windows { period: 2, size: None, rope: WindowRope::Same }),
        routing: Some(Routing { gating: Gating::TopThenSoftmax, ..SOFTMAX }),
        yarn: Yarn { rounded: false, ..YARN },
        ..NEOX
    },
    Family { name: "mistral3", temperature: true, ..LLAMA },
    Family { name: "granite", without_rope: WithoutRope::Untrained, ..LLAMA },
    Family { name: "granitemoe", ..LLAMA },
    Family { name: "smollm3", without_rope: WithoutRope::Every(4), routing: None, ..LLAMA },
    Family {
        name: "phi3",
        fused_gate: true,
        windows: Some(Windows { period: 0, size: None, rope: WindowRope::Same }),
        ..NEOX
    },
    Family { name: "glm4", post_norms: true, fused_gate: true, routing: None, ..LLAMA },
    Family {
        name: "glm4moe",
        ffn_norm: "post_attention_norm",
        head_norms: Some(HeadNorms { whole_row: false, after_rope: false, optional: true }),
        routing: Some(SIGMOID),
        ..NEOX
    },
    Family {
        name: "olmo2",
        pre_norms: false,
        post_norms: true,
        head_norms: WHOLE_ROW,
        windows: Some(Windows { period: 4, size: None, rope: WindowRope::Unscaled }),
        ..NEOX
    },
    Family {
        name: "exaone4",
        pre_norms: false,
        post_norms: true,
        head_norms: EACH_HEAD,
        windows: Some(Windows { period: 4, size: None, rope: WindowRope::Same }),
        without_rope: WithoutRope::Global,
        ..NEOX
    },
    Family {
        name: "cohere2",
        parallel: true,
        logit_factor: true,
        ffn_norm: "attn_norm",
        windows: Some(Windows { period: 4, size: None, rope: WindowRope::Same }),
        without_rope: WithoutRope::Global,
        routing: None,
        ..LLAMA
    },
    Family { name: "ernie4_5", routing: None, ..LLAMA },
    Family { name: "ernie4_5-moe", ..LLAMA },
    Family { name: "seed_oss", ffn_norm: "post_attention_norm", ..NEOX },
    Family {
        name: "hunyuan-dense",
        head_norms: Some(HeadNorms { whole_row: false, after_rope: true, optional: false }),
        ..NEOX
    },
    Family {
        name: "minimax-m2",
        head_norms: WHOLE_ROW,
        routing: Some(Routing { normed: Some(true), ..SIGMOID }),
        ..NEOX
    },
    Family {
        name: "qwen3next",
        routing: GATED_EXPERTS,
        recurrence: Some(Recurrent {
            mixer: RecurrentMixer::Delta { grouped: true },
            layers: RecurrentLayers::Pattern,
        }),
        ..QWEN35
    },
    QWEN35,
    Family { name: "qwen35moe", routing: GATED_EXPERTS, ..QWEN35 },
    Family {
        name: "granitehybrid",
        without_rope: WithoutRope::Untrained,
        recurrence: mamba2(RecurrentLayers::WithoutKvHeads),
        ..LLAMA
    },
    NEMOTRON_H,
    Family { name: "nemotron_h_moe", routing: Some(SIGMOID), ..NEMOTRON_H },
    Family { name: "falcon-h1", recurrence: mamba2(RecurrentLayers::All), ..NEOX },
    LFM2,
    Family { name: "lfm2moe", routing: Some(Routing { normed: Some(true), ..SIGMOID }), ..LFM2 },
];
