//! Work for many threads: numbered tasks on the pool that the engine's thread runs in, and outputs that they share.

use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// Runs `task(0) .. task(n - 1)` on the current pool, in no particular order.
///
/// Tasks write to places of their own and never add to a common sum: which thread runs which changes nothing.
pub(crate) fn for_each(n: usize, task: impl Fn(usize) + Sync + Send) {
    match n {
        0 => {}
        1 => task(0),
        _ => (0..n).into_par_iter().with_max_len(1).for_each(task),
    }
}

/// What `task(0) .. task(n - 1)` give, in order.
pub(crate) fn map<T: Send>(n: usize, task: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    match n {
        1 => vec![task(0)],
        _ => (0..n).into_par_iter().with_max_len(1).map(task).collect(),
    }
}

/// Cuts `n` items into ranges, about eight for each thread, of at least `least` items.
pub(crate) fn for_ranges(n: usize, least: usize, task: impl Fn(Range<usize>) + Sync + Send) {
    let pieces = (8 * rayon::current_num_threads()).min(n / least.max(1)).max(1);
    let start = |piece: usize| n * piece / pieces;
    for_each(pieces, |piece| task(start(piece)..start(piece + 1)));
}

/// A slice that several tasks write to, each to parts of its own.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `part` alone, whose callers promise that no two overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares a slice.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// While the part lives, no other part overlaps it.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside of its slice");
        // SAFETY: in bounds by the assertion, unshared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
