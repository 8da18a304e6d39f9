//! A sealed block as a safetensors file: one tensor each for codes, scales, means and exact rows of a layer's K and V.
//!
//! Names after the paper's appendix A: `L{layer}_B{block}_K.weights` (u32), `.scales` (u8), in a session's first block
//! `.exact`, and of keys `.means` (f16), each in the order in which the kernels read it (see [`Coded`]); with an f16 cache one
//! tensor `L{layer}_B{block}_K`. The metadata hold the block's address and a blake3 over names, types, sizes and data.

use super::files::{self, Source};
use super::found::Failure;
use crate::kernels::LANES;
use crate::kv::blocks::{Coded, LayerBlock, Packed, SealedBlock};
use crate::kv::layout::{BLOCK, KvLayout, LayerLayout, Part, TensorLayout};
use crate::kv::table::BlockHash;
use crate::quant::EXACT;
use crate::{Error, Result};
use bytemuck::Pod;
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read as _, SeekFrom};

/// The tensors of one K or V: suffix, type, shape, bytes. Also says what a file must hold.
fn parts(packed: &Packed, layout: TensorLayout, keys: bool) -> Vec<(&'static str, Dtype, Vec<usize>, &[u8])> {
    let TensorLayout { n_heads, dim, .. } = layout;
    let by_token = |words: usize| match keys {
        true => vec![n_heads, BLOCK / LANES, words, LANES],
        false => vec![n_heads, BLOCK, words],
    };
    match packed {
        Packed::F16(rows) => {
            let shape =
                if keys { vec![BLOCK / LANES, n_heads, dim, LANES] } else { vec![BLOCK, n_heads, dim] };
            vec![("", Dtype::F16, shape, bytemuck::cast_slice(rows))]
        }
        Packed::Coded(Coded { bits, codes, scales, means, exact }) => {
            let mut parts = vec![
                (".weights", Dtype::U32, by_token(words(layout, *bits, keys)), bytemuck::cast_slice(codes)),
                (".scales", Dtype::U8, vec![n_heads, layout.n_groups(), BLOCK], bytemuck::cast_slice(scales)),
            ];
            if !means.is_empty() {
                parts.push((".means", Dtype::F16, vec![n_heads, dim], bytemuck::cast_slice(means)));
            }
            if !exact.is_empty() {
                parts.push((".exact", Dtype::F16, vec![n_heads, EXACT, dim], bytemuck::cast_slice(exact)));
            }
            parts
        }
    }
}

fn words(layout: TensorLayout, bits: u32, keys: bool) -> usize {
    if keys { layout.key_words(bits) } else { layout.value_words(bits) }
}

/// Keys, and values where they are stored, of a layer.
fn sides(
    layer: &LayerBlock,
    layout: LayerLayout,
) -> impl Iterator<Item = (&'static str, &Packed, TensorLayout)> {
    let values = layer.v.as_ref().map(|v| ("V", v, layout.v));
    std::iter::once(("K", &layer.k, layout.k)).chain(values)
}

/// The file of a part of a block.
pub(crate) fn encode(
    (hash, part): (BlockHash, Part),
    index: usize,
    block: &SealedBlock,
    layout: &KvLayout,
) -> Result<Vec<u8>> {
    let wrong = |e: safetensors::SafeTensorError| Error::store(format!("a block can't be encoded: {e}"));
    let mut tensors = Vec::new();
    for (l, layer) in layout.layers_of(part).zip(&block.layers) {
        for (name, packed, shape) in sides(layer, layout.layers[l]) {
            for (suffix, dtype, shape, bytes) in parts(packed, shape, name == "K") {
                let view = TensorView::new(dtype, shape, bytes).map_err(wrong)?;
                tensors.push((format!("L{l}_B{index}_{name}{suffix}"), view));
            }
        }
    }
    let metadata = HashMap::from([
        ("block".to_owned(), hash.hex()),
        ("blake3".to_owned(), checksum(hash, tensors.iter().map(|(n, v)| (n.as_str(), v.data())))),
    ]);
    let image = safetensors::serialize(tensors, Some(metadata)).map_err(wrong)?;
    if image.len() as u64 > MOST {
        return Err(Error::store(format!("a block of {} bytes is too large to be stored", image.len())));
    }
    Ok(image)
}

fn checksum<'a>(hash: BlockHash, tensors: impl Iterator<Item = (impl AsRef<str>, &'a [u8])>) -> String {
    let mut hasher = blake3::Hasher::new_keyed(&hash.0);
    for (name, data) in tensors {
        hasher.update(name.as_ref().as_bytes());
        hasher.update(&(data.len() as u64).to_le_bytes());
        hasher.update(data);
    }
    hasher.finalize().to_hex().to_string()
}

/// Bytes of a block's image, at most, whatever its model.
pub(super) const MOST: u64 = 1 << 30;

/// Bytes of the image of a part of a block, at most.
pub(super) fn most(part: Part, layout: &KvLayout) -> u64 {
    layout.block_bytes(part) + layout.exact_bytes() + header_bytes(layout) as u64
}

/// Bytes of an image's header, at most: some hundred for each tensor.
fn header_bytes(layout: &KvLayout) -> usize {
    4096 + layout.layers.len() * 8 * 256
}

/// Reads a part of a block from an image of `len` bytes that begins at `start`, each tensor straight to its place; the
/// error is the reason why it can't be trusted.
pub(crate) fn read(
    source: &mut dyn Source,
    (start, len): (u64, u64),
    (hash, part): (BlockHash, Part),
    index: usize,
    layout: &KvLayout,
    verify: bool,
) -> Result<SealedBlock, Failure> {
    let mut reader = Reader::open(source, start, len, header_bytes(layout) as u64)?;
    if verify && reader.entry("block") != Some(hash.hex()) {
        return Err("it holds another block than its name says".into());
    }
    let mut layers = Vec::new();
    for l in layout.layers_of(part) {
        let layer = layout.layers[l];
        let mut packed = |name: &str, t: TensorLayout| {
            let name = format!("L{l}_B{index}_{name}");
            let tokens = t.n_heads * BLOCK;
            let Some(bits) = t.bits() else {
                return Ok::<Packed, Failure>(Packed::F16(reader.tensor(
                    &name,
                    Dtype::F16,
                    tokens * t.dim,
                )?));
            };
            let words = words(t, bits, name.ends_with('K'));
            let mut side = |suffix: &str, wanted: bool, n: usize| match wanted {
                true => reader.tensor(&format!("{name}{suffix}"), Dtype::F16, n),
                false => Ok(Vec::new()),
            };
            let means = side(".means", t.centered, t.row())?;
            let exact = side(".exact", t.exact && index == 0, EXACT * t.row())?;
            Ok(Packed::Coded(Coded {
                bits,
                codes: reader.tensor(&format!("{name}.weights"), Dtype::U32, tokens * words)?,
                scales: reader.tensor(&format!("{name}.scales"), Dtype::U8, tokens * t.n_groups())?,
                means,
                exact,
            }))
        };
        let k = packed("K", layer.k)?;
        layers.push(LayerBlock { k, v: layer.stored_v().map(|v| packed("V", v)).transpose()? });
    }
    if verify {
        let tensors = layout.layers_of(part).zip(&layers).flat_map(|(l, layer)| {
            sides(layer, layout.layers[l]).flat_map(move |(name, packed, shape)| {
                let parts = parts(packed, shape, name == "K").into_iter();
                parts.map(move |(suffix, _, _, bytes)| (format!("L{l}_B{index}_{name}{suffix}"), bytes))
            })
        });
        if reader.entry("blake3") != Some(checksum(hash, tensors)) {
            return Err("its checksum does not match".into());
        }
    }
    Ok(SealedBlock { layers })
}

/// A safetensors image, read tensor by tensor.
struct Reader<'a> {
    source: &'a mut dyn Source,
    metadata: Metadata,
    /// Where the tensors' bytes begin, and where the image ends.
    data: u64,
    end: u64,
}

impl<'a> Reader<'a> {
    fn open(source: &'a mut dyn Source, start: u64, len: u64, most: u64) -> Result<Self, Failure> {
        let mut size = [0; 8];
        let wrong = |e: io::Error| Failure::io("its header", &e);
        source.seek(SeekFrom::Start(start)).map_err(wrong)?;
        source.read_exact(&mut size).map_err(wrong)?;
        let size = u64::from_le_bytes(size);
        if size > most.min(len.saturating_sub(8)) {
            return Err(format!("a header of {size} bytes is not possible in its {len} bytes").into());
        }
        let header = files::stretch(source, (start + 8, size))?;
        let metadata = serde_json::from_slice(&header).map_err(|e| format!("its header is broken: {e}"))?;
        Ok(Self { source, metadata, data: start + 8 + size, end: start.saturating_add(len) })
    }

    fn entry(&self, key: &str) -> Option<String> {
        self.metadata.metadata().as_ref()?.get(key).cloned()
    }

    /// The `n` numbers of a tensor.
    fn tensor<T: Pod>(&mut self, name: &str, dtype: Dtype, n: usize) -> Result<Vec<T>, Failure> {
        let info = self.metadata.info(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        let (first, last) = info.data_offsets;
        let n_bytes = n * size_of::<T>();
        let inside = self.data.checked_add(last as u64).is_some_and(|end| end <= self.end);
        if info.dtype != dtype || last.checked_sub(first) != Some(n_bytes) || !inside {
            return Err(format!(
                "tensor {name} is {:?} {:?}, not as the model has it",
                info.dtype, info.shape
            )
            .into());
        }
        let mut out = vec![T::zeroed(); n];
        let wrong = |e: io::Error| Failure::io(format_args!("tensor {name}"), &e);
        self.source.seek(SeekFrom::Start(self.data + first as u64)).map_err(wrong)?;
        self.source.read_exact(bytemuck::cast_slice_mut(&mut out)).map_err(wrong)?;
        Ok(out)
    }
}

/// Checks an image by itself, a piece at a time: well-formed, of the block `hash`, its checksum right.
pub(crate) fn verify(
    source: &mut dyn Source,
    (start, len): (u64, u64),
    hash: BlockHash,
) -> Result<(), Failure> {
    if len > MOST {
        return Err(format!("it has {len} bytes, at most {MOST} are possible").into());
    }
    let reader = Reader::open(source, start, len, 16 << 20)?;
    if reader.entry("block") != Some(hash.hex()) {
        return Err("it holds another block than its name says".into());
    }
    let tensors = reader.metadata.tensors();
    if reader.data.checked_add(reader.metadata.data_len() as u64) != Some(reader.end) {
        return Err("it does not end where its header says".into());
    }
    let layer_of = |name: &String| name.strip_prefix('L')?.split('_').next()?.parse::<usize>().ok();
    let layers: BTreeSet<usize> = tensors.keys().filter_map(layer_of).collect();
    let index = tensors.keys().next().and_then(|n| n.split('_').nth(1)).unwrap_or_default();
    let (mut hasher, mut seen) = (blake3::Hasher::new_keyed(&hash.0), 0);
    for l in layers {
        for (side, suffix) in ["K", "V"].into_iter().flat_map(|side| SUFFIXES.map(|suffix| (side, suffix))) {
            let name = format!("L{l}_{index}_{side}{suffix}");
            let Some(info) = tensors.get(&name) else { continue };
            let (first, last) = info.data_offsets;
            let n = last.saturating_sub(first) as u64;
            hasher.update(name.as_bytes()).update(&n.to_le_bytes());
            let wrong = |e: io::Error| Failure::io(format_args!("tensor {name}"), &e);
            reader.source.seek(SeekFrom::Start(reader.data + first as u64)).map_err(wrong)?;
            hasher.update_reader((&mut *reader.source).take(n)).map_err(wrong)?;
            seen += 1;
        }
    }
    let found = hasher.finalize().to_hex().to_string();
    if seen != tensors.len() || reader.entry("blake3") != Some(found) {
        return Err("its checksum does not match".into());
    }
    Ok(())
}

/// Of tensors' names, in the order of [`parts`]; biases were in blocks of earlier versions, which a folder may hold still.
const SUFFIXES: [&str; 6] = ["", ".weights", ".scales", ".biases", ".means", ".exact"];
