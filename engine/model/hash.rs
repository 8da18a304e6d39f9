//! A hash of gigabytes, by all threads: blake3 is a tree, and each thread makes branches of it. And what a file
//! is known by, so that it need not be hashed again.

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use greenroom_kernels::threads::map;
use std::fs::Metadata;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a branch: a power of two, so that it is one in blake3's tree, too.
const BRANCH: usize = 32 << 20;

/// blake3 (hex) of some pieces of bytes, one after another. Bytes that were read are handed to `done`.
pub(crate) fn blake3_of(pieces: &[&[u8]], done: impl Fn(&[u8]) + Sync) -> String {
    let n: usize = pieces.iter().map(|piece| piece.len()).sum();
    if n <= BRANCH {
        let mut hasher = blake3::Hasher::new();
        for piece in pieces {
            hasher.update(piece);
        }
        return hasher.finalize().to_hex().to_string();
    }
    let branches: Vec<ChainingValue> = map(n.div_ceil(BRANCH), |i| {
        let start = i * BRANCH;
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(start as u64);
        for part in parts(pieces, start..n.min(start + BRANCH)) {
            hasher.update(part);
            done(part);
        }
        hasher.finalize_non_root()
    });
    let (left, right) = halves(&branches, n);
    merge_subtrees_root(&left, &right, Mode::Hash).to_hex().to_string()
}

/// What a file is known by as long as nobody writes to it.
#[cfg_attr(not(unix), allow(dead_code))] // none is made
pub(crate) struct Stamp {
    /// Place, size and times.
    text: String,
    /// Seconds since 1970 of its last change.
    changed: u64,
}

/// Seconds after which another write leaves another time, on every file system.
const SETTLED_S: u64 = 3;

impl Stamp {
    /// `None`: the system does not say.
    #[cfg(unix)]
    pub(super) fn of(file: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        // Nobody can set the time of the last change, as they can that of the modification.
        let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
        let text = format!("{} {} {} {times:?}", file.dev(), file.ino(), file.size());
        Some(Self { text, changed: u64::try_from(file.ctime()).ok()? })
    }

    /// As for Unix, where a file has a number and a time that nobody sets.
    #[cfg(not(unix))]
    pub(super) fn of(_: &Metadata) -> Option<Self> {
        None
    }

    /// The stamp's text, unless the file was written to just now: another write might leave the same.
    pub(super) fn at(&self, now: SystemTime) -> Option<String> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        (self.changed + SETTLED_S < now).then(|| self.text.clone())
    }
}

/// Bytes `range` of some pieces.
fn parts<'a>(pieces: &[&'a [u8]], range: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let mut start = 0;
    pieces.iter().filter_map(move |piece| {
        let (from, to) = (range.start.max(start), range.end.min(start + piece.len()));
        let part = (from < to).then(|| &piece[from - start..to - start]);
        start += piece.len();
        part
    })
}

/// The two halves of the tree over `n` bytes, by its branches.
fn halves(branches: &[ChainingValue], n: usize) -> (ChainingValue, ChainingValue) {
    let n_left = left_subtree_len(n as u64) as usize;
    let (left, right) = branches.split_at(n_left / BRANCH);
    (joined(left, n_left), joined(right, n - n_left))
}

fn joined(branches: &[ChainingValue], n: usize) -> ChainingValue {
    match branches {
        [branch] => *branch,
        _ => {
            let (left, right) = halves(branches, n);
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_kernels::threads::ThreadPool;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The hash is blake3's, wherever a model is cut into files, and every byte is handed over once.
    #[test]
    fn it_is_the_hash_of_all_bytes_in_order() {
        let bytes: Vec<u8> = (0..5 * BRANCH + 77).map(|i| ((i * 31) >> 7) as u8).collect();
        let mut pool = ThreadPool::new(2).expect("threads");
        for n in [0, 5, BRANCH, BRANCH + 1, 3 * BRANCH, bytes.len()] {
            let expected = blake3::hash(&bytes[..n]).to_hex().to_string();
            for cut in [0, n / 3, n] {
                let (handed, (first, last)) = (AtomicUsize::new(0), bytes[..n].split_at(cut));
                let count = |part: &[u8]| {
                    handed.fetch_add(part.len(), Ordering::Relaxed);
                };
                assert_eq!(
                    pool.install(|| blake3_of(&[first, last], count)),
                    expected,
                    "{n} bytes, cut at {cut}"
                );
                assert!(handed.into_inner() == if n > BRANCH { n } else { 0 });
            }
        }
    }
}
