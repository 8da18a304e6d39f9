//! Rows as numbers, and the bytes of sealed blocks: how numbers are coded and decoded.

use super::HERE;
use crate::device::states::{LiveState, LiveStates};
use crate::device::{Cache, PassSpan, Seal};
use crate::kv::format::{BlockBytes, BlockFormat, Side, SideFormat};
use crate::kv::layout::{BLOCK, KvLayout, Part, TensorLayout};
use crate::kv::table::{BlockId, RowsId, StateId};
use candle_core::{Result, Tensor};
use greenroom_kernels::quant::{BYTES_ZERO, EXACT, GROUP, LEVELS, Scale};
use greenroom_kernels::shaping::DAMPING;
use greenroom_kernels::{Isa, LANES};
use half::f16;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Multiplies the last dimension of `x` by the block-diagonal Hadamard matrix of parts `widths` wide:
/// each part falls into its powers of two, the largest first, and a block of n is `H / √n`.
pub(super) fn hadamard(x: &Tensor, widths: &[usize]) -> Result<Tensor> {
    let dim: usize = widths.iter().sum();
    x.reshape(((), dim))?.matmul(&Tensor::from_vec(rotation(widths), (dim, dim), &HERE)?)?.reshape(x.shape())
}

/// The Hadamard matrix, `[dim, dim]`. (Sylvester's: the sign of an element is the parity of the bits that its
/// indices share.)
fn rotation(widths: &[usize]) -> Vec<f32> {
    let dim: usize = widths.iter().sum();
    let (mut matrix, mut first) = (vec![0.0; dim * dim], 0);
    for width in widths {
        for n in (0..usize::BITS).rev().map(|bit| 1usize << bit).filter(|n| width & n != 0) {
            for i in 0..n {
                for j in 0..n {
                    let sign = if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                    matrix[(first + i) * dim + first + j] = sign / (n as f32).sqrt();
                }
            }
            first += n;
        }
    }
    matrix
}

/// Constants for coding a layer's keys in 4 bits, see [`calibration`](crate::model::calibration).
pub(super) struct ReferenceShaping {
    dim: usize,
    /// Factors applied to keys, `[n_heads, dim]`.
    scales: Vec<f32>,
    /// B of each head, `[dim, dim]`: a key's error in element i is made up for in those after it.
    feedback: Vec<Vec<f64>>,
}

impl ReferenceShaping {
    /// Computes them from the energy of queries and the variance of keys, `[n_heads, dim]` each.
    pub(super) fn new(queries: &[f32], keys: &[f32], dim: usize) -> Self {
        let (mut all, mut feedback) = (Vec::new(), Vec::new());
        for (queries, keys) in queries.chunks_exact(dim).zip(keys.chunks_exact(dim)) {
            let scales: Vec<f32> = keys.iter().map(|variance| variance.powf(-0.25)).collect();
            let mean = scales.iter().sum::<f32>() / dim as f32;
            let scales: Vec<f32> = scales.iter().map(|scale| scale / mean).collect();
            let energies: Vec<f32> = queries.iter().zip(&scales).map(|(q, s)| q / (s * s)).collect();
            feedback.push(factor(&energies));
            all.extend(scales);
        }
        Self { dim, scales: all, feedback }
    }

    pub(super) fn of_keys(&self) -> Result<Tensor> {
        Tensor::from_slice(&self.scales, (1, self.scales.len() / self.dim, self.dim), &HERE)
    }

    /// `group` query heads read a KV head.
    pub(super) fn of_queries(&self, group: usize) -> Result<Tensor> {
        let heads = self.scales.chunks_exact(self.dim);
        let inverse = heads.flat_map(|head| std::iter::repeat_n(head, group)).flatten().map(|s| 1.0 / s);
        Tensor::from_vec(inverse.collect(), (1, group * self.scales.len() / self.dim, self.dim), &HERE)
    }
}

/// B, unit lower triangular, of `H diag(energies) Hᵀ = Bᵀ Δ B`, energies damped.
fn factor(energies: &[f32]) -> Vec<f64> {
    let dim = energies.len();
    let damping = DAMPING * energies.iter().sum::<f32>() / dim as f32;
    let h: Vec<f64> = rotation(&[dim]).iter().map(|x| f64::from(*x)).collect();
    let at = |i: usize, j: usize| {
        (0..dim).map(|k| h[i * dim + k] * f64::from(energies[k] + damping) * h[k * dim + j]).sum::<f64>()
    };
    let mut c: Vec<f64> = (0..dim * dim).map(|ij| at(ij / dim, ij % dim)).collect();
    for i in (0..dim).rev() {
        let pivot = c[i * dim + i];
        for j in 0..i {
            for k in 0..=j {
                c[j * dim + k] -= c[i * dim + j] * c[i * dim + k] / pivot;
            }
        }
        (0..i).for_each(|j| c[i * dim + j] /= pivot);
    }
    c
}

/// BlockRows of one block: for each layer keys and values, `[n, n_heads, dim]`, rounded to f16.
type BlockRows = Vec<[Vec<f32>; 2]>;

/// See [`Cache`].
pub(super) struct ReferenceCache {
    pub(super) layout: Arc<KvLayout>,
    blocks: HashMap<BlockId, Arc<BlockBytes>>,
    rows: HashMap<RowsId, BlockRows>,
    pub(super) states: LiveStates,
}

/// The nearest half, as a number.
fn half(x: f32) -> f32 {
    f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_f32()
}

impl ReferenceCache {
    pub(super) fn new(layout: Arc<KvLayout>) -> Self {
        let states = LiveStates::new(&layout);
        Self { layout, blocks: HashMap::new(), rows: HashMap::new(), states }
    }

    fn state(&mut self, id: BlockId) -> &mut BlockBytes {
        let len = self.states.format.len();
        let bytes = self.blocks.entry(id).or_insert_with(|| Arc::new(BlockBytes::zeroed(len)));
        Arc::get_mut(bytes).expect("a state in the making is nobody else's")
    }

    /// Puts matrices of a recurrent layer into a sealed state, which may be new.
    pub(super) fn put_state(&mut self, id: BlockId, layer: usize, elements: &[u8], scales: &[f32]) {
        let format = self.states.format.layers[layer].clone();
        let bytes = self.state(id).as_bytes_mut();
        bytes[format.elements].copy_from_slice(elements);
        bytes[format.scales].copy_from_slice(bytemuck::cast_slice(scales));
    }

    /// Puts the inputs of its convolution there.
    pub(super) fn put_inputs(&mut self, id: BlockId, layer: usize, seal: Seal, live: &LiveState) {
        let place = self.states.format.layers[layer].inputs.clone();
        let inputs: &[u8] = bytemuck::cast_slice(live.inputs_before(layer, seal.at));
        self.state(id).as_bytes_mut()[place].copy_from_slice(inputs);
    }

    /// Elements of a token's keys and values in a layer.
    fn widths(&self, l: usize) -> [usize; 2] {
        let layout = self.layout.layers[l];
        [layout.k.row(), layout.stored_v().map_or(0, TensorLayout::row)]
    }

    /// The format of a layer's part, and which of its layers it is.
    fn format(&self, l: usize) -> (Part, BlockFormat, usize) {
        let part = self.layout.part_of(l);
        let format = BlockFormat::new(&self.layout, part);
        let index = format.layers.iter().position(|layer| layer.layer == l).unwrap_or(0);
        (part, format, index)
    }

    /// Writes keys and values of a span, `[n, n_heads, dim]`, and seals the blocks that they complete.
    pub(super) fn write(
        &mut self,
        l: usize,
        span: &PassSpan,
        k: &Tensor,
        v: Option<&Tensor>,
        shaping: Option<&ReferenceShaping>,
    ) -> Result<()> {
        let new: Vec<f32> = k.flatten_all()?.to_vec1()?;
        let values: Vec<f32> = v.map_or(Ok(vec![]), |v| v.flatten_all()?.to_vec1())?;
        let widths = self.widths(l);
        let (part, format, index) = self.format(l);
        let mut done = 0;
        for (i, id) in span.rows.iter().enumerate() {
            let (block, at) = ((span.start + done) / BLOCK, (span.start + done) % BLOCK);
            let n = (BLOCK - at).min(span.n - done);
            let n_layers = self.layout.layers.len();
            let rows = &mut self.rows.entry(*id).or_insert_with(|| vec![Default::default(); n_layers])[l];
            for ((rows, new), width) in rows.iter_mut().zip([&new, &values]).zip(widths) {
                rows.extend(new[done * width..(done + n) * width].iter().map(|x| half(*x)));
            }
            done += n;
            let Some(id) = span.completed.get(i).and_then(|parts| parts[part as usize]) else { continue };
            let is_first = block == 0;
            let empty = || Arc::new(BlockBytes::zeroed(format.len(is_first)));
            let bytes = Arc::make_mut(self.blocks.entry(id).or_insert_with(empty)).as_bytes_mut();
            for (side, rows) in format.layers[index].sides().zip(&*rows) {
                seal(side, rows, is_first, shaping.filter(|_| side.side == Side::Keys), bytes);
            }
        }
        Ok(())
    }

    /// Keys and values of a layer, `[tokens, n_heads, dim]`, from block `oldest` on: blocks before `own`
    /// sealed, of that one `n` rows.
    pub(super) fn seen(
        &self,
        l: usize,
        span: &PassSpan,
        oldest: usize,
        own: usize,
        n: usize,
    ) -> Result<(Tensor, Tensor)> {
        let layout = self.layout.layers[l];
        let (part, format, index) = self.format(l);
        let mut all: [Vec<f32>; 2] = Default::default();
        for block in oldest..own {
            let n_sealed = span.sealed.len();
            let parts = if block < n_sealed { span.sealed[block] } else { span.completed[block - n_sealed] };
            let bytes = parts[part as usize].and_then(|id| self.blocks.get(&id));
            let bytes = bytes.ok_or_else(|| candle_core::Error::msg("a block that a row sees is missing"))?;
            for (all, side) in all.iter_mut().zip(format.layers[index].sides()) {
                all.extend(numbers(side, bytes.as_bytes()));
            }
        }
        let rows = &self.rows[&span.rows[own - span.sealed.len()]][l];
        for ((all, rows), width) in all.iter_mut().zip(rows).zip(self.widths(l)) {
            all.extend(&rows[..n * width]);
        }
        let [k, v] = all;
        let k = Tensor::from_vec(k, ((), layout.k.n_heads, layout.k.dim), &HERE)?;
        let v = match layout.stored_v() {
            Some(v_layout) => Tensor::from_vec(v, ((), v_layout.n_heads, v_layout.dim), &HERE)?,
            None => k.narrow(2, 0, layout.v.dim)?.contiguous()?,
        };
        Ok((k, v))
    }
}

/// Place of the code of a head's token and column: its byte in the side's codes, and its shift in that byte,
/// in bits.
fn place(side: &SideFormat, bits: u32, head: usize, token: usize, column: usize) -> (usize, u32) {
    let words = side.words(bits);
    match (side.side, bits) {
        (Side::Keys, _) => {
            let columns = 32 / bits as usize; // of a word
            let vector = (head * BLOCK + token / LANES * LANES) * words + column / columns * LANES;
            let (byte, high) = (column % 4, column % columns >= 4);
            (4 * (vector + token % LANES) + byte, if high { 4 } else { 0 })
        }
        (Side::Values, 4) => {
            let byte = column / 32 * 16 + column % 16;
            (4 * (head * BLOCK + token) * words + byte, if column % 32 >= 16 { 4 } else { 0 })
        }
        (Side::Values, _) => (4 * (head * BLOCK + token) * words + column, 0),
    }
}

/// Level of a code, in units of its scale.
fn level(code: u8, bits: u32) -> i32 {
    if bits == 4 { i32::from(LEVELS[usize::from(code)]) } else { i32::from(code) - BYTES_ZERO }
}

fn half_at(bytes: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}

/// Index of element `i` of a token among rows that are not coded.
fn half_place(side: &SideFormat, token: usize, i: usize) -> usize {
    match side.side {
        Side::Keys => (token / LANES * side.layout.row() + i) * LANES + token % LANES,
        Side::Values => token * side.layout.row() + i,
    }
}

/// The rows that one side of a block holds, `[256, n_heads, dim]`.
fn numbers(side: &SideFormat, block: &[u8]) -> Vec<f32> {
    let TensorLayout { n_heads, dim, .. } = side.layout;
    let n_groups = side.layout.n_groups();
    let (codes, scales, means) =
        (&block[side.codes.clone()], &block[side.scales.clone()], &block[side.means.clone()]);
    let exact = block.get(side.exact.clone()).filter(|exact| !exact.is_empty());
    let number = |at: usize| {
        let (token, head, column) = (at / (n_heads * dim), at / dim % n_heads, at % dim);
        let Some(bits) = side.layout.bits() else {
            return half_at(codes, half_place(side, token, head * dim + column));
        };
        if let Some(exact) = exact.filter(|_| token < EXACT) {
            return half_at(exact, (head * EXACT + token) * dim + column);
        }
        let (byte, shift) = place(side, bits, head, token, column);
        let code = if bits == 4 { codes[byte] >> shift & 15 } else { codes[byte] };
        let scale = Scale(scales[(head * n_groups + column / GROUP) * BLOCK + token]).to_f32();
        let mean = if means.is_empty() { 0.0 } else { half_at(means, head * dim + column) };
        scale * level(code, bits) as f32 + mean
    };
    (0..BLOCK * n_heads * dim).map(number).collect()
}

/// Codes rows `[256, n_heads, dim]` to their side of a block.
fn seal(
    side: &SideFormat,
    rows: &[f32],
    is_first: bool,
    shaping: Option<&ReferenceShaping>,
    block: &mut [u8],
) {
    let TensorLayout { n_heads, dim, .. } = side.layout;
    let n_groups = side.layout.n_groups();
    let mut put_half = |place: &Range<usize>, i: usize, x: f32| {
        block[place.start + 2 * i..][..2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
    };
    let Some(bits) = side.layout.bits() else {
        for (at, x) in rows.iter().enumerate() {
            let (token, i) = (at / (n_heads * dim), at % (n_heads * dim));
            put_half(&side.codes, half_place(side, token, i), *x);
        }
        return;
    };
    let n_exact = if is_first && side.layout.exact { EXACT } else { 0 };
    for head in 0..n_heads {
        let row = |token: usize| &rows[(token * n_heads + head) * dim..][..dim];
        let mut means = vec![0.0; dim];
        if side.layout.centered {
            for (column, mean) in means.iter_mut().enumerate() {
                let sum: f32 = (n_exact..BLOCK).map(|token| row(token)[column]).sum();
                *mean = half(sum / (BLOCK - n_exact) as f32);
                put_half(&side.means, head * dim + column, *mean);
            }
        }
        for token in 0..n_exact {
            (0..dim).for_each(|i| put_half(&side.exact, (head * EXACT + token) * dim + i, row(token)[i]));
        }
    }
    for head in 0..n_heads {
        let feedback = shaping.map(|shaping| &shaping.feedback[head]);
        for token in 0..BLOCK {
            let row = &rows[(token * n_heads + head) * dim..][..dim];
            let mean = |i: usize| {
                let centered = side.layout.centered;
                if centered { half_at(&block[side.means.clone()], head * dim + i) } else { 0.0 }
            };
            let x: Vec<f32> = row.iter().enumerate().map(|(i, x)| x - mean(i)).collect();
            let scales: Vec<Scale> = x.chunks(GROUP).map(|x| fit(x, bits)).collect();
            let mut errors: Vec<f64> = Vec::with_capacity(dim);
            for (i, x) in x.iter().enumerate() {
                let scale = scales[i / GROUP].to_f32();
                let made_up = feedback.map_or(0.0, |b| {
                    b[i * dim..].iter().zip(&errors).map(|(share, error)| share * error).sum::<f64>()
                });
                let code = nearest((f64::from(*x) - made_up) as f32 / scale, bits);
                errors.push(f64::from(scale * level(code, bits) as f32 - x));
                let (byte, shift) = place(side, bits, head, token, i);
                block[side.codes.start + byte] |= code << shift;
            }
            for (group, scale) in scales.into_iter().enumerate() {
                let Scale(byte) = if token < n_exact { Scale::ONE } else { scale };
                block[side.scales.start + (head * n_groups + group) * BLOCK + token] = byte;
            }
        }
    }
}

/// The code whose level is nearest.
fn nearest(x: f32, bits: u32) -> u8 {
    if bits == 8 {
        return (x.round_ties_even().clamp(-127.0, 127.0) as i32 + BYTES_ZERO) as u8;
    }
    let off = |code: &u8| (x - f32::from(LEVELS[usize::from(*code)])).abs();
    (0..16).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0)
}

/// The scale of a group: in 8 bits the smallest that reaches its largest number, in 4 bits that of the least
/// squared error.
fn fit(x: &[f32], bits: u32) -> Scale {
    let largest = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    if bits == 8 {
        return Scale::at_least(largest / 127.0);
    }
    let error = |scale: &u8| {
        let scale = Scale(*scale).to_f32();
        let off = |x: &f32| x - scale * level(nearest(x / scale, 4), 4) as f32;
        x.iter().map(|x| off(x) * off(x)).sum::<f32>()
    };
    // A larger one than reaches the largest number is no better, nor is one that cuts most of it off.
    let Scale(most) = Scale::at_least(largest / 63.0);
    let tried = most.saturating_sub(24)..=most.saturating_add(2);
    Scale(tried.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(most))
}

impl Cache for ReferenceCache {
    fn import_block(&mut self, id: BlockId, _: Part, bytes: Arc<BlockBytes>) {
        self.blocks.insert(id, bytes);
    }

    fn export_block(&self, id: BlockId) -> crate::Result<Arc<BlockBytes>> {
        Ok(self.blocks[&id].clone())
    }

    fn free_block(&mut self, id: BlockId) {
        self.blocks.remove(&id);
    }

    fn import_rows(&mut self, id: RowsId, bytes: &[u8]) {
        let widths: Vec<[usize; 2]> = (0..self.layout.layers.len()).map(|l| self.widths(l)).collect();
        let rows = self.rows.entry(id).or_insert_with(|| vec![Default::default(); widths.len()]);
        let mut numbers = bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32());
        for _ in 0..bytes.len() / self.layout.row_bytes() {
            for (layer, widths) in rows.iter_mut().zip(&widths) {
                layer.iter_mut().zip(widths).for_each(|(side, n)| side.extend(numbers.by_ref().take(*n)));
            }
        }
    }

    fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> crate::Result<Vec<u8>> {
        let mut out = Vec::new();
        for token in tokens {
            for (l, layer) in self.rows[&id].iter().enumerate() {
                for (side, width) in layer.iter().zip(self.widths(l)) {
                    let row = &side[token * width..][..width];
                    out.extend(row.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()));
                }
            }
        }
        Ok(out)
    }

    fn copy_rows(&mut self, from: RowsId, to: RowsId, n: usize) {
        let mut rows = self.rows[&from].clone();
        for (l, layer) in rows.iter_mut().enumerate() {
            layer.iter_mut().zip(self.widths(l)).for_each(|(side, width)| side.truncate(n * width));
        }
        self.rows.insert(to, rows);
    }

    fn truncate_rows(&mut self, id: RowsId, n: usize) {
        let widths: Vec<[usize; 2]> = (0..self.layout.layers.len()).map(|l| self.widths(l)).collect();
        for (layer, widths) in self.rows.get_mut(&id).into_iter().flatten().zip(widths) {
            layer.iter_mut().zip(widths).for_each(|(side, width)| side.truncate(n * width));
        }
    }

    fn free_rows(&mut self, id: RowsId) {
        self.rows.remove(&id);
    }

    fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>) {
        let sealed = from.map(|id| self.blocks[&id].clone());
        self.states.load(Isa::SCALAR, id, at, sealed.as_deref());
    }

    fn truncate_state(&mut self, id: StateId, n: usize) {
        self.states.truncate(id, n);
    }

    fn free_state(&mut self, id: StateId) {
        self.states.free(id);
    }

    fn open_bytes(&self) -> u64 {
        let sides = self.rows.values().flatten().flatten();
        sides.map(|side| 4 * side.len() as u64).sum::<u64>() + self.states.bytes()
    }
}
