//! What a model and an engine say of themselves: models and where they come from, formats of the cache,
//! memories and their state.

use crate::SessionKey;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Source of a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSource {
    /// A GGUF file, memory-mapped.
    Path(PathBuf),
    /// A GGUF compiled into the program; the name is used in messages.
    Bundled(&'static str, &'static [u8]),
}

/// Numeric format of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// IEEE half precision, unrotated.
    F16,
    /// 8-bit codes with a scale for 64 of them, rotated; keys around their block's mean.
    Q8,
    /// 4-bit codes with a scale for 64 of them, rotated; keys around their block's mean.
    #[default]
    Q4,
}

/// Formats of a model's keys and values once their block is sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvChoice {
    /// What the self-check finds the model to need
    /// ([`EngineConfig::self_check`](crate::EngineConfig::self_check)): [`KvChoice::Mixture`], if its cost is
    /// small, else 8 bits for keys, then for values. A latent has 8 bits (all heads share it, and it is small
    /// already), and so have keys with a bias where nothing is measured (their outliers may break 4 bits).
    #[default]
    Auto,
    /// Four bits, but eight for the keys of one layer in six, those whose keys are most sensitive to 4 bits:
    /// 4.5 bits a number. They are measured when a model is opened for the first time. Layers with full
    /// attention and layers with a window are counted separately; a model of fewer than six layers has none.
    Mixture,
    /// The same format for the keys and values of all layers.
    Uniform(KvFormat),
    /// The same formats in all layers, one for keys and one for values.
    Sides(KvLayer),
    /// The same format everywhere, with codes not rotated: to measure the effect of the rotation.
    Unrotated(KvFormat),
    /// Layer by layer.
    Mixed(Vec<KvLayer>),
}

/// Formats of one layer; where values are a view of the keys (a latent), `k` is for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Format of keys.
    pub k: KvFormat,
    /// Format of values.
    pub v: KvFormat,
}

/// Memory that one agent's cache takes between its turns.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let cost = engine.prompter().kv_cost(&KvChoice::Uniform(KvFormat::Q4))?;
/// let exact = engine.prompter().kv_cost(&KvChoice::Uniform(KvFormat::F16))?;
/// assert!(cost.most(2_048) < exact.most(2_048));
/// assert!(cost.most(cost.longest(1 << 20)) <= 1 << 20);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCost {
    /// Bytes of a sealed token in full-attention layers.
    pub global: u64,
    /// Bytes of a sealed token in layers with a window; 0: there are none.
    pub windowed: u64,
    /// Maximum number of tokens that such layers hold.
    pub window: u64,
    /// Bytes of the first tokens' exact keys and values, in addition to their codes.
    pub exact: u64,
    /// Bytes of one of the newest tokens, which are not sealed yet.
    pub open: u64,
    /// Maximum number of tokens that are not sealed yet.
    pub most_open: u64,
    /// Bytes of the state of recurrent layers, however many tokens it is of; 0: there are none.
    pub state: u64,
    /// Bytes of that state while a turn is computed, and what each of up to 512 tokens adds until it is certain
    /// that it stays.
    pub live: [u64; 2],
}

impl KvCost {
    /// Maximum bytes of `tokens` tokens.
    pub fn most(&self, tokens: u64) -> u64 {
        self.bytes(tokens, self.most_open.min(tokens))
    }

    /// Bytes of about `tokens` tokens, on average: half a block is not sealed yet.
    pub fn mean(&self, tokens: u64) -> u64 {
        self.bytes(tokens, self.most_open.div_ceil(2).min(tokens))
    }

    fn bytes(&self, tokens: u64, open: u64) -> u64 {
        let sealed = tokens - open;
        let windowed = self.windowed.saturating_mul(sealed.min(self.window));
        let open = self.open.saturating_mul(open).saturating_add(if sealed > 0 { self.exact } else { 0 });
        let state = if tokens > 0 { self.state } else { 0 };
        self.global.saturating_mul(sealed).saturating_add(windowed).saturating_add(open).saturating_add(state)
    }

    /// The longest context that takes at most `bytes`.
    pub fn longest(&self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.checked_sub(self.state) else { return 0 };
        let Some(rest) = bytes.checked_sub(self.open.saturating_mul(self.most_open)) else {
            return bytes / self.open.max(1);
        };
        let rest = rest.saturating_sub(self.exact);
        let sealed = match rest.checked_sub(self.windowed.saturating_mul(self.window)) {
            // The window is full: the rest of the budget goes to the layers with full attention.
            Some(rest) if rest / self.global.max(1) >= self.window => rest / self.global.max(1),
            _ => rest / self.global.saturating_add(self.windowed).max(1),
        };
        sealed + self.most_open
    }
}

/// Description of a model, as plain data.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `general.name` of the file, else the file's name.
    pub name: String,
    /// `general.architecture`.
    pub family: String,
    /// blake3 (hex) over weights, tokenizer and chat template: what transcripts and caches name.
    pub identity: String,
    /// Kernel contract and its version, as recorded in caches and transcripts.
    pub numerics: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Most positions that the file promises.
    pub context_length: usize,
    /// Number of parameters.
    pub n_params: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Effects of the chat template on history (and what was done about them), a line each.
    pub template_audit: Vec<String>,
    /// Sampling that the model's makers suggest.
    pub sampling: SuggestedSampling,
}

/// Sampling that a model's file suggests (`general.sampling.*`): nothing applies it by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuggestedSampling {
    /// [`Sampling::temperature`](crate::Sampling::temperature).
    pub temperature: Option<f32>,
    /// [`Sampling::top_k`](crate::Sampling::top_k).
    pub top_k: Option<usize>,
    /// [`Sampling::top_p`](crate::Sampling::top_p).
    pub top_p: Option<f32>,
    /// [`Sampling::min_p`](crate::Sampling::min_p).
    pub min_p: Option<f32>,
    /// [`Sampling::repetition_penalty`](crate::Sampling::repetition_penalty).
    pub repetition_penalty: Option<f32>,
    /// [`Sampling::repetition_window`](crate::Sampling::repetition_window).
    pub repetition_window: Option<usize>,
}

/// State of an engine, from [`crate::Engine::status`].
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let mut ada = engine.agent("demo", "ada").max_tokens(8);
/// ada.extend("Rolf: Who are you?")?.blocking_finish()?;
/// let status = engine.blocking_status()?;
/// assert_eq!((status.active, status.waiting), (0, 0));
/// assert_eq!(status.sessions[0].key, *ada.key());
/// assert!(status.memory_bytes <= status.budget_bytes);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStatus {
    /// Active turns, including those that are being saved.
    pub active: usize,
    /// Requests that wait for their session, or for room in memory.
    pub waiting: usize,
    /// Bytes that cached keys and values take in memory, with what is known of sessions: of all engines that
    /// share the budget.
    pub memory_bytes: u64,
    /// Bytes that these may take.
    pub budget_bytes: u64,
    /// Milliseconds that a token of a prompt takes, by the latest measure; 0: none was read yet.
    pub token_ms: f64,
    /// The sessions that are known in memory, by tenant, run and agent. (On disk there may be others:
    /// [`crate::Engine::stored`].)
    pub sessions: Vec<SessionStatus>,
}

/// Result of importing a session's memory ([`crate::Engine::import`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Tokens that the session holds.
    pub tokens: usize,
    /// True if keys and values are those of the file; false if the engine has read the texts again.
    pub is_verbatim: bool,
    /// Reason why it had to read them, or why the session is not saved.
    pub reason: Option<String>,
}

/// State of one session in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session.
    pub key: SessionKey,
    /// Tokens that it has read and said; if a turn is active, those of the prompt and of the reply so far.
    pub tokens: usize,
    /// Bytes of its keys and values in memory, and of its ids, texts and addresses. A block that sessions
    /// share counts in each of them.
    pub bytes_in_memory: u64,
    /// Tokens whose keys and values are in memory, in the layers that see everything; the others are on disk,
    /// or will be computed again.
    pub tokens_in_memory: usize,
    /// True if a turn of it is active, or being saved.
    pub is_at_work: bool,
    /// Time of its next turn, as it was given last ([`Request::next_use`](crate::Request::next_use)).
    pub next_use: Option<u64>,
    /// True if all of it is on disk.
    pub is_saved: bool,
}
