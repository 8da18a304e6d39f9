//! A model's matrices on the GPU: the file's bits, in planes that kernels read in whole words.
//!
//! A row is divided into units of 32 numbers, the last one padded with zeros; the rows of a matrix, which are its
//! outputs, into panels of 16, the last one padded too. A panel's units follow one another, and of a unit the 16
//! outputs: threads that take an output each read neighbouring bytes. A matrix is stored in a slab as planes,
//! each for all units in this order and aligned to 16 bytes: first the codes (of those that take more than 16
//! bytes a unit, by 16 bytes of all outputs), then their scales and biases.
//!
//! | type | codes | further planes |
//! |---|---|---|
//! | Q4_0, IQ4_NL | 16 bytes: the first half of the unit in the low halves | scale (f16) |
//! | Q4_1 | the same | scale and minimum (f16) |
//! | Q5_0, Q5_1 | the same | fifth bits (u32); scale (f16), or scale and minimum |
//! | Q8_0 | 32 bytes | scale (f16) |
//! | Q4_K | 16 bytes | for 8 units the 16 bytes before their codes in the file |
//! | Q5_K | 16 bytes | fifth bits (u32); as Q4_K |
//! | Q6_K | 16 bytes | fifth and sixth bits (8 bytes); two scales (i8); for 8 units their scale (f16) |
//! | MXFP4 | 16 bytes | exponent (u8) |
//! | F32, F16, BF16 | 128 or 64 bytes | none |
//!
//! Other types become Q8_0, and rows that are not whole units F32.

use super::context::Context;
use crate::device::cpu::numbers;
use crate::model::gguf::{Gguf, TensorType};
use crate::model::tensors::{Numbers, converted};
use crate::model::weights::{Matrix, Pack};
use crate::{Error, Result};
use greenroom_kernels::quant::q8_0;
use std::sync::Arc;

/// Numbers of a unit.
pub(super) const UNIT: usize = 32;

macro_rules! schemes {
    ($($name:ident $kind:ident),*) => {
        /// The types that kernels multiply by as they are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(super) enum GpuScheme {
            $($name),*
        }

        impl GpuScheme {
            /// All of them.
            pub(super) const ALL: &[Self] = &[$(Self::$name),*];

            /// Its type in files.
            pub(super) fn kind(self) -> TensorType {
                match self {
                    $(Self::$name => TensorType::$kind),*
                }
            }
        }
    };
}

schemes!(
    F32 F32, F16 F16, Bf16 BF16, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, Q4K Q4_K, Q5K Q5_K,
    Q6K Q6_K, Iq4Nl IQ4_NL, Mxfp4 MXFP4
);

impl GpuScheme {
    fn of(kind: TensorType) -> Option<Self> {
        Self::ALL.iter().copied().find(|scheme| scheme.kind() == kind)
    }

    /// Tells whether rows meet it in 8 bits.
    pub(super) fn is_coded(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Tells whether its codes have a bias.
    pub(super) fn is_biased(self) -> bool {
        self.is_coded() && !matches!(self, Self::Q8_0 | Self::Iq4Nl | Self::Mxfp4)
    }

    /// Values of 4-bit codes, where a table defines them.
    pub(super) fn table(self) -> Option<[i8; 16]> {
        match self {
            Self::Iq4Nl => Some([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]),
            Self::Mxfp4 => Some([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
            _ => None,
        }
    }

    /// Bytes of each plane for eight units.
    fn planes(self) -> [usize; 4] {
        match self {
            Self::F32 => [8 * 128, 0, 0, 0],
            Self::F16 | Self::Bf16 => [8 * 64, 0, 0, 0],
            Self::Q4_0 | Self::Iq4Nl => [8 * 16, 8 * 2, 0, 0],
            Self::Q4_1 => [8 * 16, 8 * 4, 0, 0],
            Self::Q5_0 => [8 * 16, 8 * 4, 8 * 2, 0],
            Self::Q5_1 => [8 * 16, 8 * 4, 8 * 4, 0],
            Self::Q8_0 => [8 * 32, 8 * 2, 0, 0],
            Self::Q4K => [8 * 16, 16, 0, 0],
            Self::Q5K => [8 * 16, 8 * 4, 16, 0],
            Self::Q6K => [8 * 16, 8 * 8, 8 * 2, 2],
            Self::Mxfp4 => [8 * 16, 8, 0, 0],
        }
    }

    /// Places of the planes of `n` units, and the end of the last one, in bytes.
    fn places(self, n: usize) -> [usize; 5] {
        let mut places = [0; 5];
        for (i, n_bytes) in self.planes().into_iter().enumerate() {
            places[i + 1] = (places[i] + (n * n_bytes).div_ceil(8)).next_multiple_of(16);
        }
        places
    }

    /// Planes of rows of a matrix, `[n_rows, k]`, which are `bytes` in the file.
    fn lay(self, bytes: &[u8], n_rows: usize, k: usize) -> [Vec<u8>; 4] {
        let (block, size) = self.kind().block();
        let (units, per_row) = (k.div_ceil(UNIT), k / block);
        let n_units = n_rows.next_multiple_of(PANEL) * units;
        let mut planes = self.planes().map(|n_bytes| vec![0; (n_units * n_bytes).div_ceil(8)]);
        let mut put = |plane: usize, at: usize, bytes: &[u8]| {
            planes[plane][at * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        };
        for (row, bytes) in bytes.chunks_exact(per_row * size).enumerate() {
            // Places by output of what a panel has `n` of in a row.
            let place = |n: usize, i: usize| (row / PANEL * n + i) * PANEL + row % PANEL;
            if !self.is_coded() {
                for (u, unit) in bytes.chunks(UNIT * size).enumerate() {
                    let n = UNIT * size / 16;
                    for (i, part) in unit.chunks(16).enumerate() {
                        let mut whole = [0; 16];
                        whole[..part.len()].copy_from_slice(part);
                        put(0, place(units * n, u * n + i), &whole);
                    }
                }
                continue;
            }
            for (i, bytes) in bytes.chunks_exact(size).enumerate() {
                let at = place(per_row, i);
                match self {
                    Self::Q4_0 | Self::Iq4Nl => {
                        put(0, at, &bytes[2..]);
                        put(1, at, &bytes[..2]);
                    }
                    Self::Q4_1 => {
                        put(0, at, &bytes[4..]);
                        put(1, at, &bytes[..4]);
                    }
                    Self::Q5_0 => {
                        put(0, at, &bytes[6..]);
                        put(1, at, &bytes[2..6]);
                        put(2, at, &bytes[..2]);
                    }
                    Self::Q5_1 => {
                        put(0, at, &bytes[8..]);
                        put(1, at, &bytes[4..8]);
                        put(2, at, &bytes[..4]);
                    }
                    Self::Q8_0 => {
                        put(0, place(2 * units, 2 * i), &bytes[2..18]);
                        put(0, place(2 * units, 2 * i + 1), &bytes[18..]);
                        put(1, at, &bytes[..2]);
                    }
                    Self::Mxfp4 => {
                        put(0, at, &bytes[1..]);
                        put(1, at, &bytes[..1]);
                    }
                    _ => {
                        let codes = self.codes(bytes);
                        for (u, codes) in codes.chunks_exact(UNIT).enumerate() {
                            let at = place(units, block / UNIT * i + u);
                            let low: Vec<u8> =
                                (0..16).map(|j| codes[j] & 15 | (codes[j + 16] & 15) << 4).collect();
                            put(0, at, &low);
                            // The bits above the low four, by unit.
                            let high = |width: usize| {
                                let bits = codes.iter().enumerate();
                                bits.fold(0u64, |all, (j, code)| all | u64::from(code >> 4) << (width * j))
                            };
                            match self {
                                Self::Q5K => put(1, at, &(high(1) as u32).to_le_bytes()),
                                Self::Q6K => {
                                    put(1, at, &high(2).to_le_bytes());
                                    put(2, at, &bytes[192 + 2 * u..][..2]);
                                }
                                _ => {}
                            }
                        }
                        match self {
                            Self::Q4K => put(1, at, &bytes[..16]),
                            Self::Q5K => put(2, at, &bytes[..16]),
                            _ => put(3, at, &bytes[208..210]),
                        }
                    }
                }
            }
        }
        planes
    }

    /// Codes of a super-block of 256 numbers, in order.
    fn codes(self, bytes: &[u8]) -> Vec<u8> {
        let mut codes = vec![0; 256];
        match self {
            Self::Q4K | Self::Q5K => {
                let (fifth, low) = bytes[16..].split_at(if self == Self::Q5K { 32 } else { 0 });
                for (i, code) in codes.iter_mut().enumerate() {
                    let (unit, l) = (i / 32, i % 32);
                    *code = low[32 * (unit / 2) + l] >> (4 * (unit % 2)) & 15;
                    *code |= fifth.get(l).map_or(0, |bits| (bits >> unit & 1) << 4);
                }
            }
            _ => {
                let (low, high) = (&bytes[..128], &bytes[128..192]);
                for (i, code) in codes.iter_mut().enumerate() {
                    let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
                    let byte = low[64 * half + l + 32 * (quarter % 2)];
                    let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
                    *code = four | (high[32 * half + l] >> (2 * quarter) & 3) << 4;
                }
            }
        }
        codes
    }
}

/// Rows of a matrix in one slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixPart {
    pub(super) slab: usize,
    /// First vector of four words.
    pub(super) codes: u32,
    /// First words of the further planes.
    pub(super) planes: [u32; 3],
    pub(super) first_out: usize,
    pub(super) n_out: usize,
}

/// A matrix `[n_out, k]` on the GPU.
#[derive(Clone, Debug)]
pub(super) struct GpuMatrix {
    pub(super) scheme: GpuScheme,
    pub(super) n_out: usize,
    pub(super) k: usize,
    pub(super) pieces: Vec<MatrixPart>,
    /// First of its biases among the vectors. Where a tensor holds several matrices, their units and their
    /// biases follow one another.
    pub(super) bias: Option<u32>,
}

impl GpuMatrix {
    /// Units of a row.
    pub(super) fn units(&self) -> usize {
        self.k.div_ceil(UNIT)
    }

    /// Units of a panel's rows of this many outputs, as segments count them: those of an output in each.
    pub(super) fn panel_units(&self, n_out: usize) -> usize {
        n_out.div_ceil(PANEL) * self.units()
    }

    /// Bytes of it, as kernels read them.
    pub(super) fn n_bytes(&self) -> u64 {
        let planes: usize = self.scheme.planes().iter().sum();
        (self.n_out * self.units() * planes / 8) as u64
    }
}

/// Outputs of a panel.
pub(super) const PANEL: usize = 16;
/// Bytes of a slab, at least: several matrices share one.
const SLAB: u64 = 2 << 30;
/// Maximum number of bytes that wait for the driver to take them.
const WAITING: u64 = 64 << 20;

/// Puts matrices into slabs. Without a GPU it only notes where they would go.
pub(super) struct Packer {
    context: Option<Arc<Context>>,
    /// Maximum bytes of a slab.
    limit: u64,
    /// Bytes of matrices that are still to come, about.
    rest: u64,
    pub(super) slabs: Vec<Option<wgpu::Buffer>>,
    /// Bytes taken, and all, of the last slab.
    used: u64,
    size: u64,
    waiting: u64,
    /// The layer and the tensor whose matrices are being packed.
    layer: Option<usize>,
    tensor: Option<MatrixPart>,
    /// Biases; norms and the like join them.
    pub(super) vectors: Vec<f32>,
    /// Bytes of all matrices.
    pub(super) n_bytes: u64,
}

/// Bytes that the tensors of a layer take, about; 0: there is no such layer.
fn layer_bytes(gguf: &Gguf, l: usize) -> u64 {
    let of_layer = gguf.tensors().filter(|(name, _)| layer_of(name) == Some(l));
    let sizes = of_layer.filter_map(|(name, _)| gguf.tensor(name).ok());
    sizes.map(|(_, bytes)| (bytes.len() + bytes.len() / 64 + 64) as u64).sum()
}

/// The layer that a tensor belongs to, by its name.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

impl Packer {
    /// Matrices of a file of `n_bytes` bytes, in slabs of `limit` bytes at most.
    pub(super) fn new(context: Option<Arc<Context>>, limit: u64, file_bytes: u64) -> Self {
        let rest = file_bytes + file_bytes / 64 + (16 << 20);
        Self {
            context,
            limit,
            rest,
            slabs: vec![],
            used: 0,
            size: 0,
            waiting: 0,
            layer: None,
            tensor: None,
            vectors: vec![],
            n_bytes: 0,
        }
    }

    /// Makes room for this many bytes in one slab.
    fn reserve(&mut self, n_bytes: u64) -> Result<()> {
        if self.used + n_bytes <= self.size {
            return Ok(());
        }
        self.slab(n_bytes.max(SLAB.min(self.rest)))
    }

    /// Makes room for a layer in one slab, so that its matrices can share steps; a new slab has room for
    /// whole layers.
    fn reserve_layer(&mut self, gguf: &Gguf, l: usize) -> Result<()> {
        let most = SLAB.min(self.limit);
        let mut layers = (l..).map(|l| layer_bytes(gguf, l)).take_while(|n| *n > 0).peekable();
        if layers.peek().is_none_or(|n| self.used + n <= self.size || *n > most) {
            return Ok(());
        }
        let all = layers.scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        });
        let n_bytes = all.take_while(|sum| *sum <= most).last();
        n_bytes.map_or(Ok(()), |n_bytes| self.slab(n_bytes))
    }

    /// Takes a new slab.
    fn slab(&mut self, n_bytes: u64) -> Result<()> {
        self.size = n_bytes.min(self.limit).next_multiple_of(16);
        self.used = 0;
        let had: u64 = self.n_bytes;
        let buffer = match &self.context {
            None => None,
            Some(context) => Some(
                context.checked("memory for weights", || Ok(context.buffer(self.size))).map_err(|e| {
                    let mib = |n: u64| n >> 20;
                    let (had, more, all) = (mib(had), mib(self.size), mib(had + self.rest));
                    Error::device(format!(
                        "{e}; {had} MiB were allocated, {more} MiB more were requested, about \
                        {all} MiB are needed in all"
                    ))
                })?,
            ),
        };
        self.slabs.push(buffer);
        Ok(())
    }

    /// Takes room for rows `first_out..` of a matrix in the last slab.
    fn take(&mut self, scheme: GpuScheme, n_units: usize, first_out: usize, n_out: usize) -> MatrixPart {
        let places = scheme.places(n_units).map(|place| self.used + place as u64);
        let n_bytes = places[4] - self.used;
        self.used += n_bytes;
        self.n_bytes += n_bytes;
        self.rest = self.rest.saturating_sub(n_bytes);
        let plane = |i: usize| (places[i] / 4) as u32;
        let planes = [plane(1), plane(2), plane(3)];
        MatrixPart { slab: self.slabs.len() - 1, codes: (places[0] / 16) as u32, planes, first_out, n_out }
    }

    /// Writes rows to a piece, from unit `first` on.
    fn put(
        &mut self,
        piece: &MatrixPart,
        first: usize,
        scheme: GpuScheme,
        bytes: &[u8],
        n_rows: usize,
        k: usize,
    ) {
        let (Some(context), Some(buffer)) = (&self.context, &self.slabs[piece.slab]) else { return };
        let places = [4 * piece.codes, piece.planes[0], piece.planes[1], piece.planes[2]];
        let planes = scheme.lay(bytes, n_rows, k);
        for ((place, n_bytes), mut plane) in places.into_iter().zip(scheme.planes()).zip(planes) {
            self.waiting += plane.len() as u64;
            plane.resize(plane.len().next_multiple_of(4), 0); // as buffers are written
            let at = 4 * u64::from(place) + (first * n_bytes / 8) as u64;
            context.queue.write_buffer(buffer, at, &plane);
        }
        if self.waiting > WAITING {
            context.settle();
            self.waiting = 0;
        }
    }
}

impl Pack for Packer {
    type Matrix = GpuMatrix;

    fn pack(&mut self, matrix: Matrix<'_>) -> Result<(GpuMatrix, String)> {
        let Matrix { gguf, name, kind, n_out, k, bytes, bias, index, of } = matrix;
        let floats = || converted(gguf, name, kind, n_out * k, bytes, numbers);
        let (converted, made);
        let (scheme, bytes, word) = match GpuScheme::of(kind) {
            Some(scheme) if k % scheme.kind().block().0 == 0 => (scheme, bytes, kind.to_string()),
            _ if k % UNIT == 0 => {
                converted = q8_0(&floats()?);
                (GpuScheme::Q8_0, bytemuck::cast_slice(&converted), format!("{kind} as Q8_0"))
            }
            _ => {
                made = floats()?;
                (GpuScheme::F32, bytemuck::cast_slice(&made), format!("{kind} as F32"))
            }
        };
        let units = k.div_ceil(UNIT);
        let mut pieces = Vec::new();
        if let Some(l) = layer_of(name).filter(|l| self.layer != Some(*l)) {
            self.reserve_layer(gguf, l)?;
            self.layer = Some(l);
        }
        // Matrices of one tensor lie in one slab, their units one after the other.
        let n_units = n_out.next_multiple_of(PANEL) * units;
        let together = scheme.places(of * n_units)[4] as u64;
        if together <= self.limit {
            let piece = match self.tensor.filter(|_| index > 0) {
                Some(piece) => piece,
                None => {
                    self.reserve(together)?;
                    self.take(scheme, of * n_units, 0, n_out)
                }
            };
            self.tensor = Some(piece);
            self.put(&piece, index * n_units, scheme, bytes, n_out, k);
            pieces.push(piece);
        } else if of > 1 {
            return Err(Error::device(format!(
                "{}: tensor `{name}` takes {} MiB, but this GPU's kernels can access at most {} MiB at a \
                 time",
                gguf.name,
                together >> 20,
                self.limit >> 20
            )));
        } else {
            let (row_bytes, of_row) = (bytes.len() / n_out, together.div_ceil(n_out as u64) + 1);
            let most = ((self.limit - 64) / of_row) as usize / PANEL * PANEL;
            let mut first = 0;
            while first < n_out {
                let n = most.max(PANEL).min(n_out - first);
                let n_units = n.next_multiple_of(PANEL) * units;
                self.reserve(scheme.places(n_units)[4] as u64)?;
                let piece = self.take(scheme, n_units, first, n);
                self.put(&piece, 0, scheme, &bytes[first * row_bytes..][..n * row_bytes], n, k);
                pieces.push(piece);
                first += n;
            }
        }
        let bias = bias.map(|bias| {
            let first = self.vectors.len() as u32;
            self.vectors.extend(bias);
            first
        });
        Ok((GpuMatrix { scheme, n_out, k, pieces, bias }, word))
    }

    fn numbers(&self) -> Numbers {
        numbers
    }
}
