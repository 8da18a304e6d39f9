//! A sealed block as a safetensors file: one tensor each for codes, scales and biases of a layer's K and V.
//!
//! Names as in the paper's appendix A: `L{layer}_B{block}_K.weights` (u32), `.scales`, `.biases` (f16), each in the order in
//! which the kernels read it (see [`Packed`]); with an f16 cache one tensor `L{layer}_B{block}_K`. The metadata hold the
//! block's address and a blake3 over names, types, sizes and data.

use crate::kernels::LANES;
use crate::kv::blocks::{LayerBlock, Packed, SealedBlock};
use crate::kv::layout::{BLOCK, KvLayout, TensorLayout};
use crate::kv::table::BlockHash;
use crate::{Error, Result};
use half::f16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;

/// The tensors of one K or V: suffix, type, shape, bytes.
fn parts(packed: &Packed, layout: TensorLayout, keys: bool) -> Vec<(&'static str, Dtype, Vec<usize>, &[u8])> {
    let TensorLayout { n_heads, dim, .. } = layout;
    let by_token = |words: usize| match keys {
        true => vec![n_heads, BLOCK / LANES, words, LANES],
        false => vec![n_heads, BLOCK, words],
    };
    match packed {
        Packed::F16(rows) => {
            let shape = if keys { vec![BLOCK / LANES, n_heads, dim, LANES] } else { vec![BLOCK, n_heads, dim] };
            vec![("", Dtype::F16, shape, bytemuck::cast_slice(rows))]
        }
        Packed::Coded { bits, codes, scales, biases } => {
            let groups = vec![n_heads, layout.n_groups(), BLOCK];
            vec![
                (".weights", Dtype::U32, by_token(layout.words(*bits)), bytemuck::cast_slice(codes)),
                (".scales", Dtype::F16, groups.clone(), bytemuck::cast_slice(scales)),
                (".biases", Dtype::F16, groups, bytemuck::cast_slice(biases)),
            ]
        }
    }
}

/// The file of a block.
pub(crate) fn encode(
    hash: BlockHash,
    index: usize,
    block: &SealedBlock,
    layout: &KvLayout,
) -> Result<Vec<u8>> {
    let wrong = |e: safetensors::SafeTensorError| Error::store(format!("a block can't be encoded: {e}"));
    let mut tensors = Vec::new();
    for (l, (layer, shape)) in block.layers.iter().zip(&layout.layers).enumerate() {
        for (name, packed, shape) in [("K", &layer.k, shape.k), ("V", &layer.v, shape.v)] {
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
    safetensors::serialize(tensors, Some(metadata)).map_err(wrong)
}

fn checksum<'a>(hash: BlockHash, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hasher = blake3::Hasher::new_keyed(&hash.0);
    for (name, data) in tensors {
        hasher.update(name.as_bytes());
        hasher.update(&(data.len() as u64).to_le_bytes());
        hasher.update(data);
    }
    hasher.finalize().to_hex().to_string()
}

/// Reads a block; the error is the reason why it can't be trusted.
pub(crate) fn decode(
    bytes: &[u8],
    hash: BlockHash,
    index: usize,
    layout: &KvLayout,
    verify: bool,
) -> Result<SealedBlock, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let metadata = header.metadata().as_ref();
    let entry = |key: &str| metadata.and_then(|m| m.get(key)).cloned();
    if verify && entry("block") != Some(hash.hex()) {
        return Err("it holds another block than its name says".to_owned());
    }
    let mut layers = Vec::with_capacity(layout.layers.len());
    let mut seen = Vec::new();
    for (l, layer) in layout.layers.iter().enumerate() {
        let mut packed = |name: &str, t: TensorLayout| {
            let mut tensor = |suffix: &str, dtype: Dtype, n: usize| {
                let name = format!("L{l}_B{index}_{name}{suffix}");
                let view = tensors.tensor(&name).map_err(|e| format!("tensor {name}: {e}"))?;
                if view.dtype() != dtype || view.data().len() != n * dtype.bitsize() / 8 {
                    return Err(format!(
                        "tensor {name} is {:?} {:?}, not as the model has it",
                        view.dtype(),
                        view.shape()
                    ));
                }
                seen.push((name, view.data()));
                Ok(view.data())
            };
            let per_head = t.n_heads * BLOCK;
            let half = |data: &[u8]| -> Vec<f16> {
                data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect()
            };
            Ok::<Packed, String>(match t.bits() {
                None => Packed::F16(half(tensor("", Dtype::F16, per_head * t.dim)?)),
                Some(bits) => {
                    let codes = tensor(".weights", Dtype::U32, per_head * t.words(bits))?;
                    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                    Packed::Coded {
                        bits,
                        codes: codes.chunks_exact(4).map(word).collect(),
                        scales: half(tensor(".scales", Dtype::F16, per_head * t.n_groups())?),
                        biases: half(tensor(".biases", Dtype::F16, per_head * t.n_groups())?),
                    }
                }
            })
        };
        layers.push(LayerBlock { k: packed("K", layer.k)?, v: packed("V", layer.v)? });
    }
    let found = checksum(hash, seen.iter().map(|(n, d)| (n.as_str(), *d)));
    if verify && entry("blake3") != Some(found) {
        return Err("its checksum does not match".to_owned());
    }
    Ok(SealedBlock { layers })
}

/// Checks a block's file by itself: well-formed, and its checksum right for the address that it and its name give.
pub(crate) fn verify(bytes: &[u8], path: &std::path::Path) -> Result<(), String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let metadata = header.metadata().as_ref().ok_or("it has no metadata")?;
    let address =
        metadata.get("block").and_then(|hex| BlockHash::from_hex(hex)).ok_or("it names no block")?;
    if path.file_stem().unwrap_or_default().to_string_lossy() != address.hex() {
        return Err("it holds another block than its name says".to_owned());
    }
    let layers = tensors
        .names()
        .iter()
        .filter_map(|n| n.strip_prefix('L')?.split('_').next()?.parse::<usize>().ok())
        .max();
    let index = tensors.names().first().and_then(|n| n.split('_').nth(1)).unwrap_or_default().to_owned();
    let mut seen = Vec::new();
    for l in 0..=layers.unwrap_or(0).min(tensors.len()) {
        for side in ["K", "V"] {
            for suffix in ["", ".weights", ".scales", ".biases"] {
                let name = format!("L{l}_{index}_{side}{suffix}");
                if let Ok(view) = tensors.tensor(&name) {
                    seen.push((name, view.data()));
                }
            }
        }
    }
    let found = checksum(address, seen.iter().map(|(n, d)| (n.as_str(), *d)));
    if seen.len() != tensors.len() || metadata.get("blake3") != Some(&found) {
        return Err("its checksum does not match".to_owned());
    }
    Ok(())
}
