//! A model's vectors and embedding rows in f32, and any tensor of a file as numbers.

use crate::Result;
use crate::model::gguf::{Gguf, TensorType};
use half::{bf16, f16};
use std::sync::Arc;

/// Numbers of whole blocks of a type, as a device reads them; `None`: there is no conversion.
pub(crate) type Numbers = fn(TensorType, &[u8]) -> Option<Vec<f32>>;

/// The table of token embeddings: rows are read from the file as they are needed.
pub(crate) struct TokenEmbedding {
    gguf: Arc<Gguf>,
    name: &'static str,
    numbers: Numbers,
    /// Tokens that have a row.
    pub(crate) n_vocab: usize,
    d_model: usize,
}

impl TokenEmbedding {
    /// The tensor `name`, `[n_vocab, d_model]`.
    ///
    /// # Errors
    /// It is missing, has another shape or a type for which there is no conversion.
    pub(crate) fn open(
        gguf: &Arc<Gguf>,
        name: &'static str,
        d_model: usize,
        numbers: Numbers,
    ) -> Result<Self> {
        let (info, _) = gguf.tensor(name)?;
        let &[n_vocab, width] = info.shape.as_slice() else {
            return Err(
                gguf.error(format!("tensor `{name}` has the shape {:?}; expected a matrix", info.shape))
            );
        };
        if width != d_model || n_vocab == 0 {
            let found =
                format!("tensor `{name}` has the shape [{n_vocab}, {width}]; expected [_, {d_model}]");
            return Err(gguf.error(found));
        }
        let embedding = Self { gguf: gguf.clone(), name, numbers, n_vocab, d_model };
        embedding.rows(&[0])?;
        Ok(embedding)
    }

    /// Rows of tokens below `n_vocab`: `[ids, d_model]`.
    ///
    /// # Errors
    /// As [`TokenEmbedding::open`], where that succeeded: none.
    pub(crate) fn rows(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let (info, bytes) = self.gguf.tensor(self.name)?;
        let row_bytes = bytes.len() / self.n_vocab;
        let mut out = Vec::with_capacity(ids.len() * self.d_model);
        for id in ids {
            let row = &bytes[*id as usize * row_bytes..][..row_bytes];
            out.extend(converted(&self.gguf, self.name, info.kind, self.d_model, row, self.numbers)?);
        }
        Ok(out)
    }
}

/// All numbers of a tensor of this shape.
pub(crate) fn floats(gguf: &Gguf, name: &str, shape: &[usize], numbers: Numbers) -> Result<Vec<f32>> {
    let (info, bytes) = gguf.tensor(name)?;
    if info.shape != shape {
        let found = format!("tensor `{name}` has the shape {:?}; expected {shape:?}", info.shape);
        return Err(gguf.error(found));
    }
    converted(gguf, name, info.kind, shape.iter().product(), bytes, numbers)
}

/// The `n` numbers of (a part of) a tensor.
pub(crate) fn converted(
    gguf: &Gguf,
    name: &str,
    kind: TensorType,
    n: usize,
    bytes: &[u8],
    numbers: Numbers,
) -> Result<Vec<f32>> {
    let Some(found) = numbers(kind, bytes) else {
        let found = format!("tensor `{name}` has the type {kind}, which can't be converted");
        let advice = "quantize the model again, to Q8_0 or a k-quant such as Q4_K_M";
        return Err(gguf.error(format!("{found}; {advice}")));
    };
    if found.len() == n {
        Ok(found)
    } else {
        Err(gguf
            .error(format!("tensor `{name}` of type {kind}: {n} numbers are not a whole number of blocks")))
    }
}

/// Numbers of the types that are not quantized.
pub(crate) fn plain(kind: TensorType, bytes: &[u8]) -> Option<Vec<f32>> {
    let four = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match kind {
        TensorType::F32 => Some(bytes.chunks_exact(4).map(four).collect()),
        TensorType::F16 => Some(bytes.chunks_exact(2).map(|b| f16::from_bits(two(b)).to_f32()).collect()),
        TensorType::BF16 => Some(bytes.chunks_exact(2).map(|b| bf16::from_bits(two(b)).to_f32()).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::device::cpu::numbers;
    use crate::fixtures::{Dtype, RandomModel};

    /// Models compiled into the program have no guaranteed alignment.
    #[test]
    fn a_model_may_stand_at_any_address() {
        let model = RandomModel { dtype: Dtype::Q8_0, ..RandomModel::tiny(3) }.bytes();
        let rows = [0, 1, 3].map(|offset| {
            let bytes: &'static [u8] = [vec![0; offset], model.clone()].concat().leak();
            let source = ModelSource::Bundled("random", &bytes[offset..]);
            let gguf = Arc::new(Gguf::open(&source).expect("a model"));
            let embedding = TokenEmbedding::open(&gguf, "token_embd.weight", 128, numbers).expect("a table");
            embedding.rows(&[5, 9]).expect("rows")
        });
        assert!(rows[0] == rows[1] && rows[1] == rows[2]);
        assert!(rows[0].iter().any(|x| *x != 0.0));
    }
}
