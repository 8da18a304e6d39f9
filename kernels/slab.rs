//! Memory for weights: a few large mappings on huge pages, cut into slabs.
//!
//! A token reads all weights once; with pages of 4 KiB the walk through the page tables costs nearly half of
//! the bandwidth (a plain read of 640 MB: 26 to 35 GB/s, against 51 to 58 on huge pages, two cores of an
//! EPYC). Pages that are never touched take no memory.

use memmap2::{MmapMut, MmapRaw};
use std::sync::Arc;

/// Bytes of the first mapping, unless a slab needs more; each later one has twice as many as the one before,
/// up to [`CHUNK`]. So a small model takes little address space.
const FIRST_CHUNK: usize = 16 << 20;
/// Bytes of a mapping, unless a slab needs more.
const CHUNK: usize = 256 << 20;
/// Slabs start at lines of the cache.
const LINE: usize = 64;
/// Bytes of the operating system's huge pages on x86-64 and on most ARM systems.
const HUGE: usize = 2 << 20;

/// Cuts slabs one after another.
#[derive(Default)]
pub struct Slabs {
    chunk: Option<Arc<MmapRaw>>,
    used: usize,
}

/// A range of a mapping's bytes, owned exclusively.
pub struct Slab {
    chunk: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl Slabs {
    /// A slab of `len` zeros, aligned to 64 bytes.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn cut(&mut self, len: usize) -> std::io::Result<Slab> {
        let chunk = match &self.chunk {
            Some(chunk) if chunk.len() - self.used >= len => chunk.clone(),
            last => {
                let usual = last.as_ref().map_or(FIRST_CHUNK, |chunk| (2 * chunk.len()).min(CHUNK));
                let map = MmapMut::map_anon(usual.max(len) + HUGE)?;
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage); // a wish; pages of any size do
                self.used = map.as_ptr().align_offset(HUGE);
                self.chunk.insert(Arc::new(map.into())).clone()
            }
        };
        let start = self.used;
        self.used = (start + len).next_multiple_of(LINE).min(chunk.len());
        Ok(Slab { chunk, start, len })
    }
}

impl Slab {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which lives as long as the slab; slabs do not overlap.
        unsafe { std::slice::from_raw_parts(self.chunk.as_ptr().add(self.start), self.len) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long as they are.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.as_mut_ptr().add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_zeros_of_their_own_in_mappings_that_grow() {
        let mut slabs = Slabs::default();
        let mut cut: Vec<Slab> = (0..40).map(|_| slabs.cut((1 << 20) + 7).expect("memory")).collect();
        cut.push(slabs.cut(CHUNK + 1).expect("memory"));
        for (i, slab) in cut.iter_mut().enumerate() {
            assert_eq!(slab.bytes().as_ptr().align_offset(LINE), 0);
            let ends = [0, slab.len - 1];
            assert!(ends.iter().all(|at| slab.bytes()[*at] == 0), "slab {i} is another's too");
            ends.iter().for_each(|at| slab.bytes_mut()[*at] = i as u8 + 1);
        }
        let ends = |slab: &Slab| [slab.bytes()[0], slab.bytes()[slab.len - 1]];
        assert!(cut.iter().enumerate().all(|(i, slab)| ends(slab) == [i as u8 + 1; 2]));
        let sizes: Vec<usize> = cut.iter().map(|slab| slab.chunk.len()).collect();
        assert!(sizes[0] < 2 * FIRST_CHUNK && sizes.is_sorted(), "{sizes:?}");
    }
}
