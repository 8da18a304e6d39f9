//! A model's vectors and embedding rows in f32, and any tensor of a file as numbers.

use crate::model::gguf::{Gguf, TensorType};
use crate::{Error, Result};
use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::{bf16, f16};
use std::borrow::Cow;
use std::sync::Arc;

/// The table of token embeddings: rows are read from the file as they are needed.
pub(crate) struct Embedding {
    gguf: Arc<Gguf>,
    name: &'static str,
    /// Tokens that have a row.
    pub(crate) n_vocab: usize,
    d_model: usize,
}

impl Embedding {
    /// The tensor `name`, `[n_vocab, d_model]`.
    ///
    /// # Errors
    /// It is missing, has another shape or a type for which there is no conversion.
    pub(crate) fn open(gguf: &Arc<Gguf>, name: &'static str, d_model: usize) -> Result<Self> {
        let (info, _) = gguf.tensor(name)?;
        let &[n_vocab, width] = info.shape.as_slice() else {
            return Err(
                gguf.error(format!("tensor `{name}` has the shape {:?}, a matrix was expected", info.shape))
            );
        };
        if width != d_model || n_vocab == 0 {
            let found =
                format!("tensor `{name}` has the shape [{n_vocab}, {width}], [_, {d_model}] was expected");
            return Err(gguf.error(found));
        }
        let embedding = Self { gguf: gguf.clone(), name, n_vocab, d_model };
        embedding.rows(&[0])?;
        Ok(embedding)
    }

    /// Rows of tokens below `n_vocab`: `[ids, d_model]`.
    ///
    /// # Errors
    /// As [`Embedding::open`], where that succeeded: none.
    pub(crate) fn rows(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let (info, bytes) = self.gguf.tensor(self.name)?;
        let row_bytes = bytes.len() / self.n_vocab;
        let mut out = Vec::with_capacity(ids.len() * self.d_model);
        for id in ids {
            let row = &bytes[*id as usize * row_bytes..][..row_bytes];
            out.extend(dequantize(&self.gguf, self.name, info.kind, &[self.d_model], row)?);
        }
        Ok(out)
    }
}

/// All numbers of a tensor of this shape.
pub(crate) fn floats(gguf: &Gguf, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let (info, bytes) = gguf.tensor(name)?;
    if info.shape != shape {
        let found = format!("tensor `{name}` has the shape {:?}, {shape:?} was expected", info.shape);
        return Err(gguf.error(found));
    }
    dequantize(gguf, name, info.kind, shape, bytes)
}

/// All numbers of (a part of) a tensor in f32.
pub(crate) fn dequantize(
    gguf: &Gguf,
    name: &str,
    kind: TensorType,
    shape: &[usize],
    bytes: &[u8],
) -> Result<Vec<f32>> {
    let wrong = |e: candle_core::Error| {
        Error::model(format!("{}: tensor `{name}` of type {kind} can't be converted: {e}", gguf.name))
    };
    let four = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let dtype = match kind.0 {
        0 => return Ok(bytes.chunks_exact(4).map(four).collect()),
        1 => return Ok(bytes.chunks_exact(2).map(|b| f16::from_bits(two(b)).to_f32()).collect()),
        30 => return Ok(bytes.chunks_exact(2).map(|b| bf16::from_bits(two(b)).to_f32()).collect()),
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        20 => return Ok(iq4_nl(bytes)),
        23 => return Ok(iq4_xs(bytes)),
        39 => return Ok(mxfp4(bytes)),
        _ => {
            let found = format!("tensor `{name}` is of type {kind}, for which there is no conversion");
            let advice = "quantize the model anew, to Q8_0 or a k-quant such as Q4_K_M";
            return Err(gguf.error(format!("{found}; {advice}")));
        }
    };
    // candle reads blocks in place and wants them aligned; a row in a file or in the program may stand anywhere.
    let bytes = Cow::Owned(bytes.to_vec());
    let storage = QStorage::from_data(bytes, &Device::Cpu, dtype).map_err(wrong)?;
    let tensor = QTensor::new(storage, shape).map_err(wrong)?;
    let floats = tensor.dequantize(&Device::Cpu).and_then(|t| t.flatten_all()).map_err(wrong)?;
    floats.to_vec1().map_err(wrong)
}

/// Numbers that codes of IQ4_NL and IQ4_XS stand for.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Numbers that codes of MXFP4 stand for, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 codes in 16 bytes: the first half in the low bits.
fn halves<'a>(codes: &'a [u8], table: &'a [i8; 16], scale: f32) -> impl Iterator<Item = f32> + 'a {
    let (low, high) = (codes.iter().map(|byte| byte & 15), codes.iter().map(|byte| byte >> 4));
    low.chain(high).map(move |code| scale * f32::from(table[usize::from(code)]))
}

fn half_at(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Blocks of 32: a scale (f16), codes.
fn iq4_nl(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(18).flat_map(|block| halves(&block[2..], &IQ4, half_at(block))).collect()
}

/// Blocks of 256: a scale (f16), for each 32 codes the two high bits of their own (u16), the four low ones, codes.
fn iq4_xs(bytes: &[u8]) -> Vec<f32> {
    let block = |block: &[u8]| {
        let (d, high) = (half_at(block), u16::from_le_bytes([block[2], block[3]]));
        let scale = |i: usize| {
            let (low, high) = (block[4 + i / 2] >> (4 * (i % 2)) & 15, (high >> (2 * i) & 3) as u8);
            d * (f32::from(low | high << 4) - 32.0)
        };
        let codes = block[8..].chunks_exact(16).enumerate();
        codes.flat_map(|(i, codes)| halves(codes, &IQ4, scale(i))).collect::<Vec<f32>>()
    };
    bytes.chunks_exact(136).flat_map(block).collect()
}

/// Blocks of 32: an exponent, codes of doubled numbers, so that the scale is half of what the exponent says.
fn mxfp4(bytes: &[u8]) -> Vec<f32> {
    let scale = |e: u8| f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 });
    bytes.chunks_exact(17).flat_map(|block| halves(&block[1..], &E2M1, scale(block[0]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::fixtures::{Dtype, RandomModel};

    /// Models compiled into the program have no guaranteed alignment.
    #[test]
    fn a_model_may_stand_at_any_address() {
        let model = RandomModel { dtype: Dtype::Q8_0, ..RandomModel::tiny(3) }.bytes();
        let rows = [0, 1, 3].map(|offset| {
            let bytes: &'static [u8] = [vec![0; offset], model.clone()].concat().leak();
            let source = ModelSource::Bundled("random", &bytes[offset..]);
            let gguf = Arc::new(Gguf::open(&source).expect("a model"));
            let embedding = Embedding::open(&gguf, "token_embd.weight", 128).expect("a table");
            embedding.rows(&[5, 9]).expect("rows")
        });
        assert!(rows[0] == rows[1] && rows[1] == rows[2]);
        assert!(rows[0].iter().any(|x| *x != 0.0));
    }
}
