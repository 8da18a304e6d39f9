//! Keys and values of many sequences in memory: sealed blocks and f16 rows by their ids.

use super::block::{F16Rows, Sealing, tile};
use crate::Result;
use crate::device::states::{LiveState, LiveStates};
use crate::device::{Cache, Pass, PassSpan, Seal, StateSpan};
use crate::kv::format::{BlockBytes, BlockFormat, LayerFormat};
use crate::kv::layout::{BLOCK, KvLayout, Part, TensorLayout};
use crate::kv::table::{BlockId, RowsId, StateId};
use crate::model::spec::RecurrenceSpec;
use greenroom_kernels::Isa;
use greenroom_kernels::attention::{Keys, TILE, Tiles, Values};
use greenroom_kernels::shaping::Shaping;
use std::ops::Range;
use std::sync::Arc;

/// Head, first column, and what was sealed of a tile of a state.
pub(super) type SealedTile = (usize, usize, Vec<(Seal, Vec<u8>, Vec<f32>)>);

/// See [`Cache`].
pub(crate) struct CpuCache {
    pub(crate) layout: Arc<KvLayout>,
    formats: [BlockFormat; 2],
    /// Part of each layer, and which of the part's layers it is.
    places: Vec<(Part, usize)>,
    /// Blocks and sealed states by [`BlockId`].
    blocks: Vec<Option<Arc<BlockBytes>>>,
    /// Rows by [`RowsId`].
    rows: Vec<Option<F16Rows>>,
    /// Bytes of all rows, kept up to date: every pass needs them, however many sessions are at rest.
    row_bytes: u64,
    pub(super) states: LiveStates,
}

/// The place of an id, which may be new.
fn place<T>(all: &mut Vec<Option<T>>, id: u32) -> &mut Option<T> {
    let id = id as usize;
    if all.len() <= id {
        all.resize_with(id + 1, || None);
    }
    &mut all[id]
}

impl CpuCache {
    /// Nothing in memory yet.
    pub(crate) fn new(layout: Arc<KvLayout>) -> Self {
        let formats = Part::OF_BLOCKS.map(|part| BlockFormat::new(&layout, part));
        let mut next = [0; 2];
        let place = |layer: usize| {
            let part = layout.part_of(layer);
            next[part as usize] += 1;
            (part, next[part as usize] - 1)
        };
        let places = (0..layout.layers.len()).map(place).collect();
        let states = LiveStates::new(&layout);
        Self { layout, formats, places, blocks: Vec::new(), rows: Vec::new(), row_bytes: 0, states }
    }

    /// Makes room for the blocks that a pass completes, and for the states that it seals.
    pub(crate) fn begin(&mut self, pass: &Pass) {
        for span in &pass.spans {
            span.state.iter().for_each(|state| self.begin_seals(state));
            for (block, parts) in (span.start / BLOCK..).zip(&span.completed) {
                for (format, id) in self.formats.iter().zip(parts) {
                    let Some(id) = id else { continue };
                    *place(&mut self.blocks, id.0) =
                        Some(Arc::new(BlockBytes::zeroed(format.len(block == 0))));
                }
            }
        }
    }

    /// Makes room for the states that a sequence seals.
    pub(super) fn begin_seals(&mut self, span: &StateSpan) {
        for id in span.seals.iter().filter_map(|seal| seal.to) {
            *place(&mut self.blocks, id.0) = Some(Arc::new(BlockBytes::zeroed(self.states.format.len())));
        }
    }

    /// All layers have advanced the states of a pass.
    pub(super) fn finish_states(&mut self, pass: &Pass) {
        pass.spans.iter().filter_map(|span| span.state.as_ref()).for_each(|state| self.states.finish(state));
    }

    /// Puts what a recurrent layer sealed of a sequence to its place.
    pub(super) fn seal_layer(
        &mut self,
        own: &RecurrenceSpec,
        span: &StateSpan,
        live: &LiveState,
        sealed: Vec<SealedTile>,
    ) {
        let format = self.states.format.layers[own.state].clone();
        let matrix = own.k_dim * own.v_dim;
        let size = self.states.format.sealed.element();
        for seal in span.seals.iter().filter(|seal| seal.at <= span.certain) {
            let Some(id) = seal.to else { continue };
            let bytes = self.blocks[id.0 as usize].as_mut().and_then(Arc::get_mut);
            let bytes = bytes.expect("a state in the making is nobody else's");
            let inputs: &[u8] = bytemuck::cast_slice(live.inputs_before(own.state, seal.at));
            bytes.as_bytes_mut()[format.inputs.clone()].copy_from_slice(inputs);
            for (head, first, sealed) in &sealed {
                let of_tile = sealed.iter().find(|(at, ..)| at == seal);
                let Some((_, elements, scales)) = of_tile else { continue };
                let bytes = bytes.as_bytes_mut();
                let at = format.elements.start + size * (head * matrix + first * own.k_dim);
                bytes[at..][..elements.len()].copy_from_slice(elements);
                let scales: &[u8] = bytemuck::cast_slice(scales);
                let at = format.scales.start + 4 * (head * own.v_dim + first);
                bytes.get_mut(at..at + scales.len()).into_iter().for_each(|to| to.copy_from_slice(scales));
            }
        }
    }

    fn layer(&self, layer: usize) -> (Part, &LayerFormat) {
        let (part, index) = self.places[layer];
        (part, &self.formats[part as usize].layers[index])
    }

    /// Writes keys and values of a span's tokens to a layer, and seals what they complete.
    ///
    /// `k: [n, k_row]`, `v: [n, v_row]` (empty where values are a view of the keys), f32, rotated as the
    /// layout's formats want it; `shaping`: by what keys were scaled, if they were.
    pub(crate) fn write(
        &mut self,
        isa: Isa,
        layer: usize,
        span: &PassSpan,
        (k, v): (&[f32], &[f32]),
        shaping: Option<&Shaping>,
    ) {
        let layout = self.layout.layers[layer];
        let (k_row, v_row) = (layout.k.row(), layout.stored_v().map_or(0, TensorLayout::row));
        let mut done = 0;
        for (i, id) in span.rows.iter().enumerate() {
            let (block, at) = ((span.start + done) / BLOCK, (span.start + done) % BLOCK);
            let step = (BLOCK - at).min(span.n - done);
            let rows = place(&mut self.rows, id.0).get_or_insert_with(|| F16Rows::new(&self.layout));
            assert_eq!(rows.len(layer), at, "tokens are written in order");
            self.row_bytes += rows.push(
                isa,
                layer,
                layout,
                &k[done * k_row..][..step * k_row],
                &v[done * v_row..][..step * v_row],
            );
            done += step;
            let Some(parts) = span.completed.get(i) else { continue };
            let (part, index) = self.places[layer];
            let id = parts[part as usize].expect("a part that has layers has a place");
            let bytes = self.blocks[id.0 as usize].as_mut().and_then(Arc::get_mut);
            let bytes = bytes.expect("a block in the making is nobody else's").as_bytes_mut();
            let how = Sealing { isa, is_first: block == 0, shaping };
            let rows = self.rows[span.rows[i].0 as usize].as_ref().expect("rows that were just written");
            rows.seal(layer, &self.formats[part as usize].layers[index], how, bytes);
        }
    }

    /// View of a KV head in a layer, as rows of block `own` of a span see it.
    pub(crate) fn view<'a>(&'a self, span: &'a PassSpan, layer: usize, head: usize, own: usize) -> View<'a> {
        let (part, format) = self.layer(layer);
        View { cache: self, span, layer, part, format, head, own }
    }
}

/// The cache as rows of one block see it, for one layer and KV head.
pub(crate) struct View<'a> {
    cache: &'a CpuCache,
    span: &'a PassSpan,
    layer: usize,
    part: Part,
    format: &'a LayerFormat,
    head: usize,
    own: usize,
}

impl Tiles for View<'_> {
    fn tile(&self, at: usize) -> (Keys<'_>, Values<'_>) {
        let Self { cache, span, layer, part, format, head, own } = *self;
        let (block, at) = (at / (BLOCK / TILE), at % (BLOCK / TILE));
        let n_sealed = span.sealed.len();
        if block == own {
            let rows = cache.rows[span.rows[block - n_sealed].0 as usize].as_ref();
            return rows.expect("rows that were just written").tile(
                layer,
                cache.layout.layers[layer],
                head,
                at,
            );
        }
        let parts = if block < n_sealed { span.sealed[block] } else { span.completed[block - n_sealed] };
        let bytes = parts[part as usize].and_then(|id| cache.blocks[id.0 as usize].as_deref());
        tile(bytes.expect("what a row sees is in memory").as_bytes(), format, head, at)
    }
}

impl Cache for CpuCache {
    fn import_block(&mut self, id: BlockId, part: Part, bytes: Arc<BlockBytes>) {
        let fits = match part {
            Part::State => self.states.format.len() == bytes.len(),
            _ => {
                [false, true].map(|is_first| self.formats[part as usize].len(is_first)).contains(&bytes.len())
            }
        };
        assert!(fits, "a block of {} bytes has a different layout", bytes.len());
        *place(&mut self.blocks, id.0) = Some(bytes);
    }

    fn export_block(&self, id: BlockId) -> Result<Arc<BlockBytes>> {
        Ok(self.blocks[id.0 as usize].clone().expect("a block that is in memory"))
    }

    fn free_block(&mut self, id: BlockId) {
        *place(&mut self.blocks, id.0) = None;
    }

    fn import_rows(&mut self, id: RowsId, bytes: &[u8]) {
        let rows = place(&mut self.rows, id.0).get_or_insert_with(|| F16Rows::new(&self.layout));
        let before = rows.bytes();
        rows.push_bytes(bytes, &self.layout);
        self.row_bytes += rows.bytes() - before;
    }

    fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> Result<Vec<u8>> {
        let rows = self.rows[id.0 as usize].as_ref().expect("rows that are in memory");
        Ok(rows.to_bytes(tokens, &self.layout))
    }

    fn copy_rows(&mut self, from: RowsId, to: RowsId, n: usize) {
        if let Some(rows) = &self.rows[from.0 as usize] {
            self.import_rows(to, &rows.to_bytes(0..n, &self.layout));
        }
    }

    fn truncate_rows(&mut self, id: RowsId, n: usize) {
        if let Some(rows) = place(&mut self.rows, id.0) {
            rows.truncate(n, &self.layout);
        }
    }

    fn free_rows(&mut self, id: RowsId) {
        if let Some(rows) = place(&mut self.rows, id.0).take() {
            self.row_bytes -= rows.bytes();
        }
    }

    fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>) {
        let sealed = from.map(|id| self.blocks[id.0 as usize].clone().expect("a state that is in memory"));
        self.states.load(Isa::of_host(), id, at, sealed.as_deref());
    }

    fn truncate_state(&mut self, id: StateId, n: usize) {
        self.states.truncate(id, n);
    }

    fn free_state(&mut self, id: StateId) {
        self.states.free(id);
    }

    fn open_bytes(&self) -> u64 {
        debug_assert_eq!(self.row_bytes, self.rows.iter().flatten().map(F16Rows::bytes).sum::<u64>());
        self.row_bytes + self.states.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::cpu::Cpu;
    use crate::fixtures::RandomModel;
    use crate::fixtures::pass::{cache_of, write_pass};
    use crate::kv::layout::LayerLayout;
    use crate::kv::table::BlockHash;
    use crate::memory::arena::Arena;
    use crate::memory::sequence::Sequence;
    use crate::model::gguf::Gguf;
    use crate::{KvFormat, ModelSource};
    use greenroom_kernels::LANES;
    use greenroom_kernels::attention::{AttnParams, Codes, Queries, QueryRows, attend};
    use greenroom_kernels::quant::{BYTES_ZERO, GROUP, LEVELS};

    const GROUP_OF_HEADS: usize = 3;

    /// A device whose weights are of no account.
    fn device() -> Arc<dyn Device> {
        let bytes: &'static [u8] = RandomModel::tiny(1).bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        Arc::new(Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device"))
    }

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (0..n as u32).map(|i| (bits(i) ^ bits(i) >> 13) as f32 / u32::MAX as f32 * 4.0 - 2.0).collect()
    }

    /// Layers under test: (width of keys, width of values, values are the keys' first columns).
    const SHAPES: [(usize, usize, bool); 4] =
        [(96, 96, false), (80, 80, false), (64, 64, false), (192, 128, true)];

    fn layout((k_dim, v_dim, shared): (usize, usize, bool), format: KvFormat) -> Arc<KvLayout> {
        let mut layout = KvLayout::uniform(1, if shared { 1 } else { 2 }, k_dim, format);
        layout.layers[0] = LayerLayout { shared, ..layout.layers[0] };
        layout.layers[0].v.dim = v_dim;
        layout.layers[0].k.centered &= !shared;
        layout.layers[0].k.exact &= !shared;
        Arc::new(layout)
    }

    /// Number `column` of a token by the documented orders; a token is `dim` wide.
    fn code(codes: &Codes<'_>, token: usize, column: usize, dim: usize, keys: bool) -> f32 {
        let byte = |at: usize| codes.codes[at];
        let half = |at: usize, high: bool| if high { byte(at) >> 4 } else { byte(at) & 15 };
        let (vector, lane) = (token / LANES, token % LANES);
        let run = dim.div_ceil(32) * LANES;
        let code = match (keys, codes.bits) {
            (true, 8) => byte((vector * dim / 4 + column / 4) * 64 + 4 * lane + column % 4),
            (true, _) => half((vector * dim / 8 + column / 8) * 64 + 4 * lane + column % 4, column % 8 >= 4),
            (false, 8) => byte(token * dim + column),
            (false, _) => half(token * run + column / 32 * LANES + column % LANES, column % 32 >= LANES),
        };
        let level =
            if codes.bits == 4 { i32::from(LEVELS[usize::from(code)]) } else { i32::from(code) - BYTES_ZERO };
        codes.scales[column / GROUP * codes.stride + token].to_f32() * level as f32
    }

    /// Key and value of a token as the view has them.
    fn token(view: &View<'_>, token: usize, (k_dim, v_dim, _): (usize, usize, bool)) -> (Vec<f32>, Vec<f32>) {
        let (k, v) = view.tile(token / TILE);
        let t = token % TILE;
        let key = |k: Keys<'_>, d: usize| match k {
            Keys::F16 { vectors, stride } => vectors[t / LANES * stride + d * LANES + t % LANES].to_f32(),
            Keys::Coded { exact, .. } if t < exact.len() / k_dim => exact[t * k_dim + d].to_f32(),
            Keys::Coded { codes, mean, .. } => {
                code(&codes, t, d, k_dim, true) + mean.get(d).map_or(0.0, |mean| mean.to_f32())
            }
        };
        let value = |d: usize| match v {
            Values::F16 { rows, stride } => rows[t * stride + d].to_f32(),
            Values::Coded { exact, .. } if t < exact.len() / v_dim => exact[t * v_dim + d].to_f32(),
            Values::Coded { codes, .. } => code(&codes, t, d, v_dim, false),
            Values::Keys(keys) => key(keys, d),
        };
        ((0..k_dim).map(|d| key(k, d)).collect(), (0..v_dim).map(value).collect())
    }

    /// Attention of one query over tokens (key and value) that it sees, by its definition, in f64.
    fn naive(
        tokens: &[(Vec<f32>, Vec<f32>)],
        q: &[f32],
        params: &AttnParams<'_>,
        sink: Option<f32>,
    ) -> Vec<f64> {
        let score = |k: &Vec<f32>| {
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = dot * f64::from(params.scale);
            params.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = tokens.iter().map(|(k, _)| score(k).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| f64::from(sink).exp());
        let column =
            |d: usize| tokens.iter().zip(&weights).map(|((_, v), w)| f64::from(v[d]) * w).sum::<f64>() / sum;
        (0..tokens[0].1.len()).map(column).collect()
    }

    /// The papers' ratio, of what is really allocated: averaged over lengths of 7.5 to 8.5 thousand tokens.
    #[test]
    fn four_bits_take_at_most_three_tenths_of_sixteen() {
        let bytes = |format| -> u64 {
            let layout = Arc::new(KvLayout::uniform(1, 2, 64, format));
            let mut arena = Arena::new(&device(), &layout, u64::MAX);
            let mut sequence = Sequence::new(layout, BlockHash::root("test"));
            let ids = vec![0; 8_500];
            let mut sum = 0;
            for end in (7_500..=8_500).step_by(25) {
                let n = end - sequence.len();
                let rows = |_| (noise(n * 128, 1), noise(n * 128, 2));
                write_pass(Isa::detect(), &mut sequence, (&ids, end), &mut arena, rows);
                sequence.end_turn(&mut arena);
                sum += arena.bytes();
            }
            sum
        };
        let ratio = bytes(KvFormat::Q4) as f64 / bytes(KvFormat::F16) as f64;
        assert!(ratio < 0.28, "{ratio}");
        assert!(ratio > 0.26, "{ratio}: scales, means and open blocks take something");
    }

    /// Compares the memory that caches of real shapes take with what `greenroom models` promises. The papers'
    /// 4-bit caches take 108 KiB a token for Gemma 3 12B (all layers), 76 KiB for DeepSeek-V2-Lite (expanded
    /// heads), 36 KiB for Llama 3.1 8B.
    #[test]
    fn real_shapes_keep_what_models_promises() {
        let same = |n_layers: usize, n_heads, dim, every: usize, window| {
            let mut layout = KvLayout::uniform(n_layers, n_heads, dim, KvFormat::Q4);
            for (l, layer) in layout.layers.iter_mut().enumerate() {
                layer.window = (every > 0 && l % every != every - 1).then_some(window);
            }
            layout
        };
        let mut latent = same(27, 1, 576, 0, 0);
        for layer in &mut latent.layers {
            (layer.shared, layer.v.dim, layer.k.format) = (true, 512, KvFormat::Q8);
            (layer.k.centered, layer.k.exact) = (false, false);
        }
        let shapes = [
            ("Llama 3.1 8B", same(32, 8, 128, 0, 0)),
            ("Gemma 3 12B", same(48, 8, 256, 6, 1024)),
            ("gpt-oss 20B", same(24, 8, 64, 2, 128)),
            ("DeepSeek-V2-Lite", latent),
        ];
        let n = 2600;
        for (name, layout) in shapes {
            let layout = Arc::new(layout);
            let mut arena = Arena::new(&device(), &layout, u64::MAX);
            let mut sequence = Sequence::new(layout.clone(), BlockHash::root("test"));
            let ids = vec![0; n];
            while sequence.len() < n {
                let (start, end) = (sequence.len(), (sequence.len() + BLOCK).min(n));
                let rows = |l: usize| {
                    let (layer, width) = (layout.layers[l], |row: usize| noise((end - start) * row, 1));
                    (width(layer.k.row()), layer.stored_v().map_or(Vec::new(), |v| width(v.row())))
                };
                write_pass(Isa::detect(), &mut sequence, (&ids, end), &mut arena, rows);
                sequence.trim_window(usize::MAX, &mut arena);
            }
            sequence.end_turn(&mut arena);
            sequence.trim_window(usize::MAX, &mut arena);
            let (found, promised) = (arena.bytes(), layout.cost().most(n as u64));
            let per_token = |bytes: u64| bytes as f64 / n as f64 / 1024.0;
            eprintln!(
                "{name}: {:.1} KiB a token at {n}, {:.1} promised",
                per_token(found),
                per_token(promised)
            );
            assert!(found <= promised && found * 2 > promised, "{name}: {found} bytes, {promised} promised");
        }
    }

    /// Attention on the packed cache is attention, with every params, for rows alone and together, on all
    /// instruction sets.
    #[test]
    fn attention_is_right_with_windows_caps_sinks_and_latents() {
        let sinks = [0.5, -1.0, 2.0];
        // The rounding of queries to 8 bits (16 for 8-bit keys) is what sets the bounds.
        for (format, bound) in [(KvFormat::F16, 1e-5), (KvFormat::Q8, 1e-3), (KvFormat::Q4, 0.04)] {
            for shape in SHAPES {
                let (k_dim, v_dim, shared) = shape;
                let scale = 2.0 / (k_dim as f32).sqrt();
                let plain = AttnParams { scale, window: None, soft_cap: None, sinks: None };
                let rules = [
                    plain,
                    AttnParams { window: Some(100), ..plain },
                    AttnParams { window: Some(5), soft_cap: Some(3.0), ..plain },
                    AttnParams { sinks: Some(&sinks), window: Some(300), ..plain },
                ];
                let layout = layout(shape, format);
                let k_row = layout.layers[0].k.row();
                let mut arena = Arena::new(&device(), &layout, u64::MAX);
                let mut sequence = Sequence::new(layout.clone(), BlockHash::root("test"));
                let end = 2 * BLOCK + 48;
                let ids = vec![0; end];
                let v = if shared { Vec::new() } else { noise(end * k_row, 2) };
                let rows = |_| (noise(end * k_row, 1), v.clone());
                write_pass(Isa::SCALAR, &mut sequence, (&ids, end), &mut arena, rows);
                let span = sequence.plan_pass((end, end), end, &mut arena);
                let cache = cache_of(&mut arena);
                let head = layout.layers[0].k.n_heads - 1;
                for (first, n_rows) in [(2 * BLOCK, 1), (2 * BLOCK + 32, 16)] {
                    let view = cache.view(&span, 0, head, first / BLOCK);
                    let tokens: Vec<_> = (0..first + n_rows).map(|t| token(&view, t, shape)).collect();
                    let q = noise(n_rows * GROUP_OF_HEADS * k_dim, 3);
                    for params in &rules {
                        let ask = |q: &[f32], first: usize, isa: Isa| {
                            let (n_rows, group) = (q.len() / (GROUP_OF_HEADS * k_dim), GROUP_OF_HEADS);
                            let rows = [QueryRows { first, n: n_rows, tiles: &view }];
                            let (rows, params) = (&rows, *params);
                            attend(isa, &Queries { q, rows, n_common: 0, group, k_dim, v_dim, params })
                        };
                        let together = ask(&q, first, Isa::SCALAR);
                        for isa in Isa::available() {
                            assert_eq!(ask(&q, first, isa), together, "{}", isa.name());
                        }
                        let contexts = together.chunks_exact(GROUP_OF_HEADS * v_dim);
                        for ((r, row), together) in
                            q.chunks_exact(GROUP_OF_HEADS * k_dim).enumerate().zip(contexts)
                        {
                            assert_eq!(ask(row, first + r, Isa::detect()), together, "row {r} alone");
                            let from =
                                params.window.map_or(0, |window| (first + r + 1).saturating_sub(window));
                            for (head, q) in row.chunks_exact(k_dim).enumerate() {
                                let sink = params.sinks.map(|sinks| sinks[head]);
                                let exact = naive(&tokens[from..=first + r], q, params, sink);
                                let ours = &together[head * v_dim..][..v_dim];
                                let off = exact.iter().zip(ours).map(|(a, b)| (a - f64::from(*b)).abs());
                                let off = off.fold(0.0, f64::max);
                                assert!(
                                    off < bound,
                                    "{format:?}, {shape:?}, row {r}, head {head}: off by {off}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
