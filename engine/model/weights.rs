//! A model's tensors: matrices in a format that the kernels take, used in place where the file has it so.

use crate::gguf::{Gguf, TensorInfo, TensorType};
use crate::kernels::linear::Matrix;
use crate::quant::{BlockQ8_0, q8_0};
use crate::{Error, Result};
use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::f16;
use std::borrow::Cow;
use std::sync::Arc;

/// A weight matrix `[n_out, k]`: a view into the file, or converted at load.
#[derive(Clone)]
pub(crate) struct Weights {
    gguf: Arc<Gguf>,
    name: String,
    pub(crate) n_out: usize,
    pub(crate) k: usize,
    converted: Option<Arc<Converted>>,
}

enum Converted {
    F32(Vec<f32>),
    Q8_0(Vec<BlockQ8_0>),
}

impl Weights {
    /// The matrix `name`, whose shape must be `[n_out, k]`.
    pub(crate) fn load(gguf: &Arc<Gguf>, name: &str, n_out: usize, k: usize) -> Result<Self> {
        let (info, bytes) = gguf.tensor(name)?;
        if info.shape != [n_out, k] {
            let found =
                format!("tensor `{name}` has the shape {:?}, [{n_out}, {k}] was expected", info.shape);
            return Err(gguf.error(found));
        }
        let aligned = match info.kind {
            TensorType::F32 => bytemuck::try_cast_slice::<u8, f32>(bytes).is_ok(),
            TensorType::F16 => bytemuck::try_cast_slice::<u8, f16>(bytes).is_ok(),
            TensorType::Q8_0 => bytemuck::try_cast_slice::<u8, BlockQ8_0>(bytes).is_ok(),
            _ => false,
        };
        let converted = if aligned { None } else { Some(Arc::new(convert(gguf, name, info, bytes)?)) };
        Ok(Self { gguf: gguf.clone(), name: name.to_owned(), n_out, k, converted })
    }

    /// The numbers, for a kernel.
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        if let Some(converted) = &self.converted {
            return match &**converted {
                Converted::F32(w) => Matrix::F32(w),
                Converted::Q8_0(w) => Matrix::Q8_0(w),
            };
        }
        let (info, bytes) = self.gguf.tensor(&self.name).expect("the tensor was checked at load");
        match info.kind {
            TensorType::F32 => Matrix::F32(bytemuck::cast_slice(bytes)),
            TensorType::F16 => Matrix::F16(bytemuck::cast_slice(bytes)),
            _ => Matrix::Q8_0(bytemuck::cast_slice(bytes)),
        }
    }

    /// Bytes that were allocated for it beside the file.
    pub(crate) fn converted_bytes(&self) -> u64 {
        self.converted.as_ref().map_or(0, |c| match &**c {
            Converted::F32(w) => size_of_val(w.as_slice()) as u64,
            Converted::Q8_0(w) => size_of_val(w.as_slice()) as u64,
        })
    }
}

/// A vector of `n` floats (norms, factors); F32 or F16 in the file.
pub(crate) fn vector(gguf: &Gguf, name: &str, n: usize) -> Result<Vec<f32>> {
    let (info, bytes) = gguf.tensor(name)?;
    if info.shape != [n] {
        return Err(gguf.error(format!("tensor `{name}` has the shape {:?}, [{n}] was expected", info.shape)));
    }
    dequantize(gguf, name, info, bytes)
}

/// A type that has no kernel of its own becomes Q8_0 (k-quants and the like lose nothing to speak of) or, where its rows
/// are no multiple of 32 or its numbers are wider than 8 bits, F32.
fn convert(gguf: &Gguf, name: &str, info: &TensorInfo, bytes: &[u8]) -> Result<Converted> {
    let floats = dequantize(gguf, name, info, bytes)?;
    let narrow = !matches!(info.kind.0, 0 | 1 | 24..=28 | 30);
    let k = info.shape.last().copied().unwrap_or(0);
    Ok(if narrow && k % 32 == 0 { Converted::Q8_0(q8_0(&floats)) } else { Converted::F32(floats) })
}

/// All numbers of a tensor in f32.
fn dequantize(gguf: &Gguf, name: &str, info: &TensorInfo, bytes: &[u8]) -> Result<Vec<f32>> {
    let wrong = |e: candle_core::Error| {
        Error::model(format!("{}: tensor `{name}` of type {} can't be converted: {e}", gguf.name, info.kind))
    };
    let four = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let dtype = match info.kind.0 {
        0 => return Ok(bytes.chunks_exact(4).map(four).collect()),
        1 => return Ok(bytes.chunks_exact(2).map(|b| f16::from_bits(two(b)).to_f32()).collect()),
        30 => return Ok(bytes.chunks_exact(2).map(|b| half::bf16::from_bits(two(b)).to_f32()).collect()),
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
        _ => {
            let found = format!("tensor `{name}` is of type {}, for which there is no conversion", info.kind);
            return Err(gguf.error(format!("{found}; convert the model to Q8_0, F16 or a k-quant")));
        }
    };
    let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype).map_err(wrong)?;
    let tensor = QTensor::new(storage, info.shape.clone()).map_err(wrong)?;
    let floats = tensor.dequantize(&Device::Cpu).and_then(|t| t.flatten_all()).map_err(wrong)?;
    floats.to_vec1().map_err(wrong)
}
