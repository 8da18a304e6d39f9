//! A model's tensors: matrices packed for the kernels at load, vectors and embedding rows in f32.

use crate::gguf::{Gguf, TensorType};
use crate::kernels::panel::{Format, Packed};
use crate::kernels::schemes::numbers;
use crate::kernels::slab::Slabs;
use crate::quant::q8_0;
use crate::{Error, Result};
use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::{bf16, f16};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Takes a model's tensors one after another. The pages of the file that a packed matrix came from are given back, so that
/// the weights are never in memory twice.
pub(crate) struct Loader<'a> {
    pub(crate) gguf: &'a Arc<Gguf>,
    slabs: Slabs,
    on_progress: &'a mut (dyn FnMut(u64, u64) + Send),
    done: u64,
    /// Tensors by what was made of them, for the log.
    made: BTreeMap<String, usize>,
    /// Tensors that were asked for.
    taken: HashSet<String>,
}

impl<'a> Loader<'a> {
    /// `on_progress` is told of bytes of the file packed, and of all there are.
    pub(crate) fn new(gguf: &'a Arc<Gguf>, on_progress: &'a mut (dyn FnMut(u64, u64) + Send)) -> Self {
        let (slabs, made, taken) = (Slabs::default(), BTreeMap::new(), HashSet::new());
        Self { gguf, slabs, on_progress, done: 0, made, taken }
    }

    /// The matrix `name.weight`, whose shape must be `[n_out, k]`, with `name.bias` if there is one.
    ///
    /// # Errors
    /// It is missing, has another shape or a type for which there is no conversion; memory runs out.
    pub(crate) fn matrix(&mut self, name: &str, n_out: usize, k: usize) -> Result<Packed> {
        let mut matrices = self.pack(name, &[n_out, k], 1)?;
        let mut matrix = matrices.pop().ok_or_else(|| self.gguf.error("no matrix was packed"))?;
        matrix.bias = self.optional(&format!("{name}.bias"), &[n_out])?;
        Ok(matrix)
    }

    /// `n` equal matrices in the tensor `name.weight`, `[n, n_out, k]`, with `name.bias`, `[n, n_out]`, if there is one.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub(crate) fn matrices(&mut self, name: &str, n: usize, n_out: usize, k: usize) -> Result<Vec<Packed>> {
        let mut matrices = self.pack(name, &[n, n_out, k], n)?;
        if let Some(biases) = self.optional(&format!("{name}.bias"), &[n, n_out])? {
            let rows = biases.chunks_exact(n_out).map(<[f32]>::to_vec);
            matrices.iter_mut().zip(rows).for_each(|(matrix, bias)| matrix.bias = Some(bias));
        }
        Ok(matrices)
    }

    /// The tensor `name.weight` of this shape as `n` matrices.
    fn pack(&mut self, name: &str, shape: &[usize], n: usize) -> Result<Vec<Packed>> {
        let gguf = self.gguf;
        let name = format!("{name}.weight");
        let (info, bytes) = gguf.tensor(&name)?;
        if info.shape != shape {
            let found = format!("tensor `{name}` has the shape {:?}, {shape:?} was expected", info.shape);
            return Err(gguf.error(found));
        }
        let no_memory = |e: std::io::Error| {
            Error::model(format!("{}: tensor `{name}` does not fit in memory: {e}", gguf.name)).with_source(e)
        };
        let (n_out, k) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let mut matrices = Vec::with_capacity(n);
        let mut made = info.kind.to_string();
        for bytes in bytes.chunks_exact((bytes.len() / n).max(1)) {
            let packed = match Format::of(info.kind) {
                Some(format) if k % format.block() == 0 => {
                    Packed::pack(&mut self.slabs, format, n_out, k, bytes)
                }
                _ => {
                    let floats = dequantize(gguf, &name, info.kind, &[n_out, k], bytes)?;
                    let (format, packed) = convert(&mut self.slabs, n_out, k, &floats);
                    made = format!("{} as {format}", info.kind);
                    packed
                }
            };
            matrices.push(packed.map_err(no_memory)?);
        }
        gguf.release(bytes);
        self.done += bytes.len() as u64;
        *self.made.entry(made).or_default() += matrices.len();
        self.taken.insert(name);
        (self.on_progress)(self.done, gguf.bytes().len() as u64);
        Ok(matrices)
    }

    /// The floats `name.weight`, `n` of them.
    ///
    /// # Errors
    /// They are missing, or have another shape.
    pub(crate) fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let name = format!("{name}.weight");
        let floats = vector(self.gguf, &name, n)?;
        self.taken.insert(name);
        Ok(floats)
    }

    fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if !self.gguf.has_tensor(name) {
            return Ok(None);
        }
        self.taken.insert(name.to_owned());
        floats(self.gguf, name, shape).map(Some)
    }

    /// A tensor that is read elsewhere.
    pub(crate) fn taken(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// All is loaded: says what the matrices are.
    ///
    /// # Errors
    /// The file has a tensor that nobody asked for: silence would mean wrong answers.
    pub(crate) fn finish(self, family: &str) -> Result<()> {
        let all = self.gguf.tensors().map(|(name, _)| name);
        let mut unknown: Vec<&str> = all.filter(|name| !self.taken.contains(*name)).collect();
        unknown.sort_unstable();
        if let Some(first) = unknown.first() {
            return Err(self.gguf.error(format!(
                "tensor `{first}` (one of {}) has no place in a {family} decoder: the model would answer wrongly without it",
                unknown.len()
            )));
        }
        let total = self.gguf.bytes().len() as u64;
        (self.on_progress)(total, total);
        for (what, n) in self.made.iter().filter(|(what, _)| what.contains(" as ")) {
            tracing::warn!(
                "{}: {n} matrices of {what}: their rows are no whole blocks of the file's type",
                self.gguf.name
            );
        }
        let made = self.made.iter().map(|(what, n)| format!("{n} × {what}")).collect::<Vec<_>>().join(", ");
        tracing::info!("matrices: {made}");
        Ok(())
    }
}

impl Format {
    /// The format that tensors of a type are packed in as they are.
    fn of(kind: TensorType) -> Option<Self> {
        Some(match kind.0 {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            23 => Self::Iq4Xs,
            30 => Self::Bf16,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }
}

/// Rows that are no whole blocks of their type become Q8_0 (quantized ones lose nothing to speak of) or, where they are no
/// multiple of 32 either, F32.
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

/// A vector of `n` floats (norms, factors).
pub(crate) fn vector(gguf: &Gguf, name: &str, n: usize) -> Result<Vec<f32>> {
    floats(gguf, name, &[n])
}

/// All numbers of a tensor of this shape.
fn floats(gguf: &Gguf, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let (info, bytes) = gguf.tensor(name)?;
    if info.shape != shape {
        let found = format!("tensor `{name}` has the shape {:?}, {shape:?} was expected", info.shape);
        return Err(gguf.error(found));
    }
    dequantize(gguf, name, info.kind, shape, bytes)
}

/// All numbers of (a part of) a tensor in f32.
fn dequantize(gguf: &Gguf, name: &str, kind: TensorType, shape: &[usize], bytes: &[u8]) -> Result<Vec<f32>> {
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
        20 => return Ok(numbers(Format::Iq4Nl, bytes)),
        23 => return Ok(numbers(Format::Iq4Xs, bytes)),
        39 => return Ok(numbers(Format::Mxfp4, bytes)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::fixtures::{Dtype, RandomModel};

    /// What is compiled into the program has no alignment.
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
