//! A family as data: what the decoder needs to know about a model, read from the file's metadata.

use super::rope::RopeSpec;
use crate::gguf::Gguf;
use crate::kernels::LANES;
use crate::kv::layout::KvLayout;
use crate::{KvFormat, Result};

/// Families that are served, by their name in `general.architecture`.
const FAMILIES: [&str; 1] = ["llama"];

/// Counts above these are no model's; what is allocated by them stays small.
const MAX_COUNT: u32 = 1 << 28;
const MAX_LAYERS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;

/// Shape and constants of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct DecoderSpec {
    pub(crate) family: &'static str,
    pub(crate) n_layers: usize,
    pub(crate) d_model: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) d_ff: usize,
    pub(crate) norm_eps: f32,
    pub(crate) context_length: usize,
    pub(crate) rope: RopeSpec,
}

impl DecoderSpec {
    /// Reads the spec of a model file.
    ///
    /// # Errors
    /// An unknown family, a missing or impossible value.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let family = gguf.text("general.architecture").unwrap_or("(none)");
        let Some(&family) = FAMILIES.iter().find(|name| **name == family) else {
            let served = FAMILIES.join(", ");
            return Err(gguf.error(format!("it is of the family `{family}`; this engine serves {served}")));
        };
        let count = |name: &str| -> Result<Option<usize>> {
            let key = format!("{family}.{name}");
            match gguf.int::<u32>(&key)? {
                Some(n) if n == 0 || n > MAX_COUNT => {
                    Err(gguf.error(format!("`{key}` is {n}; 1 to {MAX_COUNT} are possible")))
                }
                n => Ok(n.map(|n| n as usize)),
            }
        };
        let needed = |name: &str| {
            count(name)?.ok_or_else(|| gguf.error(format!("`{family}.{name}` is missing from its metadata")))
        };
        let (d_model, n_heads) = (needed("embedding_length")?, needed("attention.head_count")?);
        let n_kv_heads = count("attention.head_count_kv")?.unwrap_or(n_heads);
        let head_dim = count("attention.key_length")?.unwrap_or(d_model / n_heads);
        let value_dim = count("attention.value_length")?.unwrap_or(head_dim);
        let n_layers = needed("block_count")?;
        if n_layers > MAX_LAYERS || head_dim > MAX_HEAD_DIM {
            return Err(gguf.error(format!("{n_layers} layers with heads of {head_dim} are no model's")));
        }
        if n_heads % n_kv_heads != 0 {
            return Err(gguf.error(format!("{n_heads} heads can't share {n_kv_heads} KV heads evenly")));
        }
        if head_dim != value_dim || head_dim % LANES != 0 || head_dim == 0 {
            return Err(gguf.error(format!(
                "its heads are {head_dim} (keys) and {value_dim} (values) wide; equal multiples of {LANES} are served"
            )));
        }
        let eps_key = format!("{family}.attention.layer_norm_rms_epsilon");
        let norm_eps = gguf.float(&eps_key)?.ok_or_else(|| gguf.error(format!("`{eps_key}` is missing")))?;
        let n_rot = count("rope.dimension_count")?.unwrap_or(head_dim);
        Ok(Self {
            family,
            n_layers,
            d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: needed("feed_forward_length")?,
            norm_eps,
            context_length: needed("context_length")?,
            rope: RopeSpec::from_gguf(gguf, family, n_rot, head_dim)?,
        })
    }

    /// What is cached, in the given format.
    pub(crate) fn kv_layout(&self, format: KvFormat) -> KvLayout {
        KvLayout::uniform(self.n_layers, self.n_kv_heads, self.head_dim, format)
    }
}
