//! Places in buffers: what is freed is taken again, and buffers grow by a quarter, for a slot may be large (a
//! state takes up to megabytes a layer).

/// Equal places in the buffers of some layers.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) free: Vec<u32>,
    /// Slots that were ever taken.
    n: u32,
    /// Slots that the buffers have.
    pub(super) capacity: u32,
}

impl Slots {
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.n += 1;
            self.n - 1
        })
    }

    /// Slots that the buffers should have, if they have too few.
    pub(super) fn wanted(&self) -> Option<u32> {
        (self.n > self.capacity).then(|| self.n + self.n / 4)
    }
}
