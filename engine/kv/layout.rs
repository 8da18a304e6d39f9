//! What is cached for each layer: heads, widths and formats. No bytes here.

use crate::KvFormat;
use crate::quant::GROUP;

/// Tokens of a block.
pub(crate) const BLOCK: usize = 256;

/// Keys or values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorLayout {
    /// KV heads.
    pub(crate) n_heads: usize,
    /// Width of a head.
    pub(crate) dim: usize,
    /// Format of sealed blocks.
    pub(crate) format: KvFormat,
}

impl TensorLayout {
    /// Bits of a code; `None` for f16.
    pub(crate) fn bits(self) -> Option<u32> {
        match self.format {
            KvFormat::F16 => None,
            KvFormat::Q8 => Some(8),
            KvFormat::Q4 => Some(4),
        }
    }

    /// Elements of a token, all heads.
    pub(crate) fn row(self) -> usize {
        self.n_heads * self.dim
    }

    /// Words of codes of one head's token.
    pub(crate) fn words(self, bits: u32) -> usize {
        self.dim * bits as usize / 32
    }

    /// Groups of one head's token.
    pub(crate) fn n_groups(self) -> usize {
        self.dim.div_ceil(GROUP)
    }

    /// Bytes of a sealed token, all heads.
    pub(crate) fn sealed_bytes(self) -> usize {
        self.n_heads * self.bits().map_or(2 * self.dim, |bits| 4 * self.words(bits) + 4 * self.n_groups())
    }
}

/// Keys and values of one layer; they may differ in width and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerLayout {
    pub(crate) k: TensorLayout,
    pub(crate) v: TensorLayout,
}

/// All layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvLayout {
    pub(crate) layers: Vec<LayerLayout>,
}

impl KvLayout {
    /// Equal layers.
    pub(crate) fn uniform(n_layers: usize, n_heads: usize, dim: usize, format: KvFormat) -> Self {
        let tensor = TensorLayout { n_heads, dim, format };
        Self { layers: vec![LayerLayout { k: tensor, v: tensor }; n_layers] }
    }

    /// Bytes of a sealed token in all layers.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.k.sealed_bytes() + l.v.sealed_bytes()).sum()
    }

    /// Bytes of a token's f16 rows in all layers.
    pub(crate) fn row_bytes(&self) -> usize {
        self.layers.iter().map(|l| 2 * (l.k.row() + l.v.row())).sum()
    }

    /// The layout in words: part of a cache's identity.
    pub(crate) fn describe(&self) -> String {
        let tensor = |t: TensorLayout| format!("{}x{}:{:?}", t.n_heads, t.dim, t.format);
        let layer = |l: &LayerLayout| format!("{}/{}", tensor(l.k), tensor(l.v));
        self.layers.iter().map(layer).collect::<Vec<_>>().join(",")
    }
}
