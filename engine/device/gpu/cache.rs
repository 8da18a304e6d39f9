//! Keys and values on the GPU: for each layer a buffer of sealed blocks, one of exact rows and one of open
//! rows, in slots of one size; and states of recurrent layers.

use super::context::Context;
use super::plan::layer_bytes;
use super::slots::Slots;
use super::states::{GpuStates, StateTables};
use super::steps::{PassShape, Plan};
use super::upload::Upload;
use crate::Result;
use crate::device::{Cache, Pass};
use crate::kv::format::{BlockBytes, BlockFormat};
use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::kv::table::{BlockId, RowsId, StateId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use wgpu::Buffer;

/// Places of a part of a sealed block.
#[derive(Clone, Copy)]
struct BlockSlot {
    part: Part,
    slot: u32,
    exact: Option<u32>,
}

/// Rows of one block.
struct OpenRows {
    slot: u32,
    n: usize,
}

/// A layer's buffers, and bytes of a slot in each.
struct LayerBuffers {
    part: Part,
    blocks: Buffer,
    exact: Buffer,
    rows: Buffer,
    block_bytes: u64,
    exact_bytes: u64,
    row_bytes: u64,
}

/// See [`Cache`].
pub(super) struct GpuCache {
    context: Arc<Context>,
    pub(super) layout: Arc<KvLayout>,
    layers: Vec<LayerBuffers>,
    formats: [BlockFormat; 2],
    blocks: HashMap<BlockId, BlockSlot>,
    open: HashMap<RowsId, OpenRows>,
    /// Slots of blocks and of exact rows, by part; of open rows.
    slots: [Slots; 2],
    exact: [Slots; 2],
    rows: Slots,
    pub(super) states: GpuStates,
    /// Rises when a buffer is replaced.
    pub(super) generation: u64,
    /// The reason why something could not be taken in: nothing may be read from here any more.
    pub(super) broken: Option<String>,
    /// Plans of passes over this cache, with what they are bound to.
    pub(super) plans: HashMap<PassShape, BoundPlan>,
}

/// A plan whose steps are bound to buffers.
pub(super) struct BoundPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) params: Buffer,
    pub(super) upload: Upload,
    pub(super) steps: Vec<(Arc<super::kernels::Compiled>, wgpu::BindGroup)>,
    /// Generations of the buffers: of the cache, and of the memory of passes; `None`: its own are new.
    pub(super) generations: Option<[u64; 2]>,
}

impl BoundPlan {
    /// Dispatches a step, if it has workgroups.
    pub(super) fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, step: usize, groups: [u32; 3]) {
        if groups.contains(&0) {
            return;
        }
        let (compiled, group) = &self.steps[step];
        pass.set_pipeline(&compiled.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
    }
}

impl GpuCache {
    pub(super) fn new(context: &Arc<Context>, layout: Arc<KvLayout>) -> Self {
        let layer = |l: usize| {
            let [block, exact] = layer_bytes(layout.layers[l]);
            let empty = || context.buffer(0);
            LayerBuffers {
                part: layout.part_of(l),
                blocks: empty(),
                exact: empty(),
                rows: empty(),
                block_bytes: block as u64,
                exact_bytes: exact as u64,
                row_bytes: (BLOCK * layout.layers[l].row_bytes()) as u64,
            }
        };
        let layers = (0..layout.layers.len()).map(layer).collect();
        let formats = Part::OF_BLOCKS.map(|part| BlockFormat::new(&layout, part));
        let states = GpuStates::new(context, &layout);
        Self {
            context: context.clone(),
            layout,
            layers,
            states,
            formats,
            blocks: HashMap::new(),
            open: HashMap::new(),
            slots: Default::default(),
            exact: Default::default(),
            rows: Slots::default(),
            generation: 0,
            broken: None,
            plans: HashMap::new(),
        }
    }

    pub(super) fn blocks(&self, layer: usize) -> &Buffer {
        &self.layers[layer].blocks
    }

    pub(super) fn exact(&self, layer: usize) -> &Buffer {
        &self.layers[layer].exact
    }

    pub(super) fn rows(&self, layer: usize) -> &Buffer {
        &self.layers[layer].rows
    }

    /// Slots of a part of a block and of its exact rows.
    pub(super) fn slots_of(&self, id: BlockId) -> Option<(u32, Option<u32>)> {
        self.blocks.get(&id).map(|at| (at.slot, at.exact))
    }

    /// The slot of rows, which may be new; records that they hold `n` tokens from now on.
    pub(super) fn place_rows(&mut self, id: RowsId, n: usize) -> u32 {
        let slots = &mut self.rows;
        let open = self.open.entry(id).or_insert_with(|| OpenRows { slot: slots.take(), n: 0 });
        open.n = n;
        open.slot
    }

    /// Places for a part of a block, or for a state, that is about to be sealed.
    pub(super) fn place_block(&mut self, id: BlockId, part: Part, is_first: bool) {
        if part == Part::State {
            let slot = self.states.sealed.take();
            self.blocks.insert(id, BlockSlot { part, slot, exact: None });
            return;
        }
        let keeps = is_first && self.layers.iter().any(|layer| layer.part == part && layer.exact_bytes > 0);
        let slot = self.slots[part as usize].take();
        let exact = keeps.then(|| self.exact[part as usize].take());
        self.blocks.insert(id, BlockSlot { part, slot, exact });
    }

    /// Logs the tokens of a pass, and lists what it does with states. Those that it seals have a place.
    pub(super) fn log_tokens(&mut self, pass: &Pass) -> StateTables {
        let Self { states, blocks, .. } = self;
        states.tables(pass, |id| blocks[&id].slot)
    }

    /// Makes the buffers as large as their slots want.
    ///
    /// # Errors
    /// Memory runs out.
    pub(super) fn grow(&mut self) -> Result<()> {
        let Self { context, layers, slots, exact, rows, states, generation, .. } = self;
        let fits = |slots: &mut Slots| slots.wanted().is_none();
        if slots.iter_mut().chain(&mut *exact).chain([&mut *rows]).chain(states.slots()).all(fits) {
            return Ok(());
        }
        context.checked("memory for a cache", || {
            let mut encoder = context.encoder();
            let of_layers = layers.iter_mut().flat_map(|layer| {
                let part = layer.part as usize;
                [
                    (&mut layer.blocks, layer.block_bytes, &slots[part]),
                    (&mut layer.exact, layer.exact_bytes, &exact[part]),
                    (&mut layer.rows, layer.row_bytes, &*rows),
                ]
            });
            for (buffer, bytes, slots) in of_layers.chain(states.buffers()) {
                let Some(n) = slots.wanted().filter(|_| bytes > 0) else { continue };
                let larger = context.buffer(u64::from(n) * bytes);
                encoder.copy_buffer_to_buffer(buffer, 0, &larger, 0, u64::from(slots.capacity) * bytes);
                *buffer = larger;
            }
            context.queue.submit([encoder.finish()]);
            Ok(())
        })?;
        for slots in slots.iter_mut().chain(exact).chain([rows]).chain(states.slots()) {
            slots.capacity = slots.wanted().unwrap_or(slots.capacity);
        }
        *generation += 1;
        Ok(())
    }

    /// The bytes of rows in one layer.
    ///
    /// # Errors
    /// The GPU fails.
    pub(super) fn export_layer(&self, id: RowsId, l: usize) -> Result<Vec<u8>> {
        let (open, layer) = (&self.open[&id], &self.layers[l]);
        let n = (open.n * self.layout.layers[l].row_bytes()) as u64;
        let at = u64::from(open.slot) * layer.row_bytes;
        self.read(&[(&layer.rows, at, n)])
    }

    fn read(&self, pieces: &[(&Buffer, u64, u64)]) -> Result<Vec<u8>> {
        self.check()?;
        self.context.read("reading a cache", self.context.encoder(), pieces)
    }

    /// # Errors
    /// Something could not be taken in before.
    pub(super) fn check(&self) -> Result<()> {
        self.broken.as_ref().map_or(Ok(()), |why| Err(crate::Error::device(why)))
    }

    /// Takes in bytes for a slot; a failure shows in the next pass.
    fn write(&self, buffer: &Buffer, at: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.context.queue.write_buffer(buffer, at, bytes);
        }
    }

    fn grow_or_break(&mut self) {
        if let Err(e) = self.grow() {
            self.broken = Some(e.to_string());
        }
    }

    /// Bytes of a layer in a block of its part: what is coded, and its exact rows.
    fn ranges(&self, part: Part, is_first: bool) -> Vec<(usize, Range<usize>, Range<usize>)> {
        let of_layer = |layer: &crate::kv::format::LayerFormat| {
            let first = layer.k.codes.start;
            let exact = layer.sides().map(|side| &side.exact).filter(|exact| !exact.is_empty());
            let exact = exact.fold(None, |all: Option<Range<usize>>, exact| match all {
                None => Some(exact.clone()),
                Some(all) => Some(all.start.min(exact.start)..all.end.max(exact.end)),
            });
            let bytes = self.layers[layer.layer].block_bytes as usize;
            (layer.layer, first..first + bytes, exact.filter(|_| is_first).unwrap_or(0..0))
        };
        self.formats[part as usize].layers.iter().map(of_layer).collect()
    }
}

impl Cache for GpuCache {
    fn import_block(&mut self, id: BlockId, part: Part, bytes: Arc<BlockBytes>) {
        if part == Part::State {
            self.place_block(id, part, false);
            self.grow_or_break();
            let slot = u64::from(self.blocks[&id].slot);
            for (layer, range) in self.states.layers.iter().zip(self.states.ranges()) {
                self.write(&layer.sealed, slot * layer.sealed_bytes, &bytes.as_bytes()[range]);
            }
            return;
        }
        let is_first = bytes.len() == self.formats[part as usize].len(true);
        self.place_block(id, part, is_first);
        self.grow_or_break();
        let BlockSlot { slot, exact, .. } = self.blocks[&id];
        for (l, block, rows) in self.ranges(part, exact.is_some()) {
            let layer = &self.layers[l];
            self.write(&layer.blocks, u64::from(slot) * layer.block_bytes, &bytes.as_bytes()[block]);
            if let Some(exact) = exact {
                self.write(&layer.exact, u64::from(exact) * layer.exact_bytes, &bytes.as_bytes()[rows]);
            }
        }
    }

    fn export_block(&self, id: BlockId) -> Result<Arc<BlockBytes>> {
        let BlockSlot { part, slot, exact } = self.blocks[&id];
        if part == Part::State {
            let pieces = self
                .states
                .layers
                .iter()
                .map(|layer| (&layer.sealed, u64::from(slot) * layer.sealed_bytes, layer.sealed_bytes));
            let pieces: Vec<(&Buffer, u64, u64)> = pieces.collect();
            let mut bytes = BlockBytes::zeroed(self.states.sealed_len());
            bytes.as_bytes_mut().copy_from_slice(&self.read(&pieces)?);
            return Ok(Arc::new(bytes));
        }
        let ranges = self.ranges(part, exact.is_some());
        let mut pieces = Vec::new();
        for (l, block, rows) in &ranges {
            let layer = &self.layers[*l];
            pieces.push((&layer.blocks, u64::from(slot) * layer.block_bytes, block.len() as u64));
            let exact = u64::from(exact.unwrap_or(0)) * layer.exact_bytes;
            pieces.push((&layer.exact, exact, rows.len() as u64));
        }
        let is_first = exact.is_some();
        let mut bytes = BlockBytes::zeroed(self.formats[part as usize].len(is_first));
        pieces.retain(|(.., n)| *n > 0);
        let read = self.read(&pieces)?;
        let mut at = 0;
        for range in ranges.into_iter().flat_map(|(_, block, rows)| [block, rows]) {
            let n = range.len();
            bytes.as_bytes_mut()[range].copy_from_slice(&read[at..at + n]);
            at += n;
        }
        Ok(Arc::new(bytes))
    }

    fn free_block(&mut self, id: BlockId) {
        if let Some(BlockSlot { part, slot, exact }) = self.blocks.remove(&id) {
            if part == Part::State {
                return self.states.free_sealed(slot);
            }
            self.slots[part as usize].free.push(slot);
            self.exact[part as usize].free.extend(exact);
        }
    }

    fn import_rows(&mut self, id: RowsId, bytes: &[u8]) {
        let n = bytes.len() / self.layout.row_bytes();
        let before = self.open.get(&id).map_or(0, |open| open.n);
        let slot = self.place_rows(id, before + n);
        self.grow_or_break();
        let mut first = 0;
        for (l, layer) in self.layers.iter().enumerate() {
            let width = self.layout.layers[l].row_bytes();
            let rows = bytes.chunks_exact(self.layout.row_bytes());
            let rows: Vec<u8> = rows.flat_map(|row| &row[first..first + width]).copied().collect();
            let at = u64::from(slot) * layer.row_bytes + (before * width) as u64;
            self.write(&layer.rows, at, &rows);
            first += width;
        }
    }

    fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> Result<Vec<u8>> {
        let slot = u64::from(self.open[&id].slot);
        let widths: Vec<usize> = self.layout.layers.iter().map(|layer| layer.row_bytes()).collect();
        let piece = |(layer, width): (_, &usize)| {
            let layer: &LayerBuffers = layer;
            let at = slot * layer.row_bytes + (tokens.start * width) as u64;
            (&layer.rows, at, (tokens.len() * width) as u64)
        };
        let pieces: Vec<_> = self.layers.iter().zip(&widths).map(piece).collect();
        let read = self.read(&pieces)?;
        let mut out = Vec::with_capacity(read.len());
        for token in 0..tokens.len() {
            let mut first = 0;
            for width in &widths {
                out.extend(&read[first + token * width..][..*width]);
                first += tokens.len() * width;
            }
        }
        Ok(out)
    }

    fn copy_rows(&mut self, from: RowsId, to: RowsId, n: usize) {
        let (from, to) = (self.place_rows(from, self.open[&from].n), self.place_rows(to, n));
        self.grow_or_break();
        let mut encoder = self.context.encoder();
        for (l, layer) in self.layers.iter().enumerate() {
            let [from, to] = [from, to].map(|slot| u64::from(slot) * layer.row_bytes);
            let staging = self.context.buffer(layer.row_bytes);
            let n_bytes = (n * self.layout.layers[l].row_bytes()) as u64;
            encoder.copy_buffer_to_buffer(&layer.rows, from, &staging, 0, n_bytes);
            encoder.copy_buffer_to_buffer(&staging, 0, &layer.rows, to, n_bytes);
        }
        self.context.queue.submit([encoder.finish()]);
    }

    fn truncate_rows(&mut self, id: RowsId, n: usize) {
        if let Some(open) = self.open.get_mut(&id) {
            open.n = open.n.min(n);
        }
    }

    fn free_rows(&mut self, id: RowsId) {
        if let Some(open) = self.open.remove(&id) {
            self.rows.free.push(open.slot);
        }
    }

    fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>) {
        let from = from.map(|id| self.blocks[&id].slot);
        let inputs = self.states.load(id, at, from);
        self.grow_or_break();
        if let (Some(from), false) = (from, inputs.is_empty()) {
            let mut encoder = self.context.encoder();
            self.states.copy_inputs(&mut encoder, from, &inputs);
            self.context.queue.submit([encoder.finish()]);
        }
    }

    fn truncate_state(&mut self, id: StateId, n: usize) {
        self.states.truncate(id, n);
    }

    fn free_state(&mut self, id: StateId) {
        self.states.free(id);
    }

    fn open_bytes(&self) -> u64 {
        (self.open.len() * BLOCK * self.layout.row_bytes()) as u64 + self.states.bytes()
    }
}
