//! A model's matrices, packed for the kernels.

use crate::model::gguf::TensorType;
use crate::model::tensors::{Numbers, converted, plain};
use crate::model::weights::{Matrix, Pack};
use crate::{Error, Result};
use greenroom_kernels::panel::{Format, Packed};
use greenroom_kernels::quant::q8_0;
use greenroom_kernels::slab::Slabs;

impl Pack for Slabs {
    type Matrix = Packed;

    fn pack(&mut self, matrix: Matrix<'_>) -> Result<(Packed, String)> {
        let Matrix { gguf, name, kind, n_out, k, bytes, bias, .. } = matrix;
        let (packed, made) = match Format::of(kind) {
            Some(format) if k % format.block() == 0 => {
                (Packed::pack(self, format, n_out, k, bytes), kind.to_string())
            }
            _ => {
                let floats = converted(gguf, name, kind, n_out * k, bytes, numbers)?;
                let (format, packed) = convert(self, n_out, k, &floats);
                (packed, format!("{kind} as {format}"))
            }
        };
        let mut packed = packed.map_err(|e| {
            Error::model(format!("{}: tensor `{name}` does not fit in memory: {e}", gguf.name)).with_source(e)
        })?;
        packed.bias = bias;
        Ok((packed, made))
    }

    fn numbers(&self) -> Numbers {
        numbers
    }
}

/// Numbers of whole blocks of a type; `None`: there is no conversion.
pub(crate) fn numbers(kind: TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    plain(kind, bytes).or_else(|| Format::of(kind).map(|format| format.numbers(bytes)))
}

/// Rows that are not whole blocks of their type become Q8_0 (quantized ones lose nothing to speak of) or,
/// where they are not a multiple of 32 either, F32.
fn convert(
    slabs: &mut Slabs,
    n_out: usize,
    k: usize,
    floats: &[f32],
) -> (&'static str, std::io::Result<Packed>) {
    if k % Format::Q8_0.block() == 0 {
        return ("Q8_0", Packed::pack(slabs, Format::Q8_0, n_out, k, bytemuck::cast_slice(&q8_0(floats))));
    }
    ("F32", Packed::pack(slabs, Format::F32, n_out, k, bytemuck::cast_slice(floats)))
}
