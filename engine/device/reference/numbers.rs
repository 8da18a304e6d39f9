//! Numbers of quantized tensors, as candle reads ggml's types, and of those that it does not know, by their
//! definitions.

use crate::model::gguf::TensorType;
use crate::model::tensors::plain;
use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::f16;
use std::borrow::Cow;

/// Numbers of whole blocks of a type; `None`: there is no conversion.
pub(crate) fn numbers(kind: TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    let dtype = match kind {
        TensorType::Q4_0 => GgmlDType::Q4_0,
        TensorType::Q4_1 => GgmlDType::Q4_1,
        TensorType::Q5_0 => GgmlDType::Q5_0,
        TensorType::Q5_1 => GgmlDType::Q5_1,
        TensorType::Q8_0 => GgmlDType::Q8_0,
        TensorType::Q2_K => GgmlDType::Q2K,
        TensorType::Q3_K => GgmlDType::Q3K,
        TensorType::Q4_K => GgmlDType::Q4K,
        TensorType::Q5_K => GgmlDType::Q5K,
        TensorType::Q6_K => GgmlDType::Q6K,
        TensorType::IQ4_NL => return Some(iq4_nl(bytes)),
        TensorType::IQ4_XS => return Some(iq4_xs(bytes)),
        TensorType::MXFP4 => return Some(mxfp4(bytes)),
        _ => return plain(kind, bytes),
    };
    let n = bytes.len() / dtype.type_size() * dtype.block_size();
    // candle reads blocks in place and needs them aligned; a row in a file or in the program may start
    // anywhere.
    let storage = QStorage::from_data(Cow::Owned(bytes.to_vec()), &Device::Cpu, dtype).ok()?;
    let floats = QTensor::new(storage, n).and_then(|tensor| tensor.dequantize(&Device::Cpu)).ok()?;
    floats.to_vec1().ok()
}

/// Values of the codes of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the codes of MXFP4, doubled.
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

/// Blocks of 256: a scale (f16), for each 32 codes the two high bits of their own (u16), the four low ones,
/// codes.
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
