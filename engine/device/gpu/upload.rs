//! What a pass tells the GPU of its tokens, in one buffer and one write: small tables, each at a place with room for
//! more.

use super::context::Context;
use super::steps::PassBuffer;
use std::collections::HashMap;
use wgpu::{Buffer, BufferBinding};

/// Distance of tables: what bindings are aligned to.
const ALIGNMENT: u64 = 256;

/// A table's place, and the most bytes that it may have.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    room: u64,
}

/// Tables of the passes of one plan.
pub(super) struct Upload {
    buffer: Buffer,
    places: HashMap<PassBuffer, Place>,
}

impl Upload {
    /// Room for these tables, and a quarter more.
    pub(super) fn new(context: &Context, tables: &[(PassBuffer, Vec<u8>)]) -> Self {
        let mut end = 0;
        let mut place = |bytes: &Vec<u8>| {
            let n = bytes.len() as u64;
            let place = Place { offset: end, room: (n + n / 4).next_multiple_of(ALIGNMENT).max(ALIGNMENT) };
            end += place.room;
            place
        };
        let places = tables.iter().map(|(name, bytes)| (*name, place(bytes))).collect();
        Self { buffer: context.buffer(end), places }
    }

    /// Tells whether tables fit.
    pub(super) fn has_room(&self, tables: &[(PassBuffer, Vec<u8>)]) -> bool {
        let fits = |(name, bytes): &(PassBuffer, Vec<u8>)| {
            self.places.get(name).is_some_and(|place| bytes.len() as u64 <= place.room)
        };
        tables.iter().all(fits)
    }

    /// Writes tables that fit.
    pub(super) fn write(&self, context: &Context, tables: &[(PassBuffer, Vec<u8>)]) {
        let mut all = Vec::new();
        for (name, bytes) in tables {
            all.resize(self.places[name].offset as usize, 0);
            all.extend(bytes);
        }
        context.queue.write_buffer(&self.buffer, 0, &all);
    }

    /// A table, as kernels read it; `None`: it is not one of these.
    pub(super) fn binding(&self, name: PassBuffer) -> Option<BufferBinding<'_>> {
        let Place { offset, room } = *self.places.get(&name)?;
        Some(BufferBinding { buffer: &self.buffer, offset, size: std::num::NonZero::new(room) })
    }
}
