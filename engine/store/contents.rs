//! Contents of a cache folder, told apart by names and kinds of file; nothing is read.

use super::files::{self, Entry, TEMPORARY};
use super::pack;
use super::secret::{self, SECRET};
use super::{block, manifest, part_folder, tail};
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::kv::table::BlockKey;
use std::path::{Path, PathBuf};

/// The folders that a store makes.
pub(super) const FOLDERS: [&str; 7] = ["runs", "blocks", "windows", "packs", "tails", "manifests", "checks"];
/// The folder of what failed a check.
pub(super) const DAMAGED: &str = "damaged";
/// Bytes of what was found out about a model, at most.
pub(super) const MOST_CHECK: u64 = 1 << 20;

/// A regular file of a size that its kind may have.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Everything below a folder of one store version and key.
#[derive(Default)]
pub(super) struct Contents {
    /// Manifests by the ids of their sessions.
    pub(super) manifests: Vec<(String, File)>,
    /// Tails by their names.
    pub(super) tails: Vec<(String, File)>,
    /// Blocks in files of their own.
    pub(super) blocks: Vec<(BlockKey, File)>,
    pub(super) packs: Vec<File>,
    pub(super) checks: Vec<(BlockHash, File)>,
    /// The secret of the folder.
    pub(super) secrets: Vec<File>,
    /// Locks of the folder: in use as long as it is, whatever is in them.
    pub(super) locks: Vec<File>,
    /// Locks of runs.
    pub(super) runs: Vec<File>,
    /// Files that a crash left unfinished.
    pub(super) temporary: Vec<File>,
    /// Files that were set aside before.
    pub(super) damaged: Vec<File>,
    /// Entries that have a name of ours and are something else: what they are, in words.
    pub(super) foreign: Vec<(PathBuf, String)>,
    /// Entries that have no name of ours.
    pub(super) unknown: Vec<PathBuf>,
    /// Folders that could not be listed, and why.
    pub(super) unread: Vec<String>,
}

impl Contents {
    /// Lists a folder; nothing if it is not there.
    pub(super) fn read(root: &Path) -> Self {
        let mut contents = Self::default();
        for entry in contents.list(root) {
            match entry.name.to_str() {
                Some("lock" | "packs.lock") => {
                    contents.put(entry, u64::MAX, |contents, file| contents.locks.push(file));
                }
                Some(SECRET) => {
                    contents.put(entry, secret::LEN, |contents, file| contents.secrets.push(file))
                }
                Some(name) if secret::is_unfinished(name) => {
                    contents.put(entry, secret::LEN, |contents, file| contents.temporary.push(file));
                }
                Some(name) if FOLDERS.contains(&name) || name == DAMAGED => {
                    contents.folder(name, &entry.path)
                }
                _ => contents.unknown.push(entry.path),
            }
        }
        contents
    }

    /// Bytes of what the store wrote, without what was set aside.
    pub(super) fn bytes(&self) -> u64 {
        let named = self.manifests.iter().chain(&self.tails).map(|(_, file)| file);
        let named = named.chain(self.blocks.iter().map(|(_, file)| file));
        let named = named.chain(self.checks.iter().map(|(_, file)| file));
        let rest = [&self.packs, &self.runs, &self.temporary].into_iter().flatten();
        named.chain(rest).map(|file| file.bytes).sum()
    }

    fn list(&mut self, dir: &Path) -> Vec<Entry> {
        files::entries(dir).unwrap_or_else(|e| {
            self.unread.push(e.to_string());
            Vec::new()
        })
    }

    fn folder(&mut self, folder: &str, path: &Path) {
        for entry in self.list(path) {
            let name = entry.name.to_str().map(str::to_owned);
            match (folder, name) {
                (DAMAGED, _) => self.damaged.extend(entry.removable()),
                ("blocks" | "windows", Some(name)) if is_hex(&name, 2..=2) => self.blocks_of(folder, entry),
                (_, Some(name)) => self.file(folder, &name, entry),
                (_, None) => self.unknown.push(entry.path),
            }
        }
    }

    fn blocks_of(&mut self, folder: &str, entry: Entry) {
        if !entry.is_folder() {
            let kind = entry.file().err().unwrap_or("a file");
            return self.foreign.push((entry.path, format!("it is {kind}, not a folder")));
        }
        for entry in self.list(&entry.path) {
            match entry.name.to_str().map(str::to_owned) {
                Some(name) => self.file(folder, &name, entry),
                None => self.unknown.push(entry.path),
            }
        }
    }

    /// A file by its folder and name.
    fn file(&mut self, folder: &str, name: &str, entry: Entry) {
        let (stem, extension) = name.split_once('.').unwrap_or((name, ""));
        if is_temporary(stem, extension) && !["runs", "tails"].contains(&folder) {
            return self.put(entry, block::MOST, |contents, file| contents.temporary.push(file));
        }
        let hash = BlockHash::from_hex(stem);
        let part = Part::ALL.into_iter().find(|part| part_folder(*part) == folder);
        let session = is_hex(stem, 40..=40);
        match (folder, extension, hash, part) {
            ("blocks" | "windows", "safetensors", Some(hash), Some(part))
                if entry.path.ends_with(super::block_name((hash, part))) =>
            {
                self.put(entry, block::MOST, |contents, file| contents.blocks.push(((hash, part), file)));
            }
            ("manifests", "log", ..) if session => self.put(entry, manifest::MOST, |contents, file| {
                contents.manifests.push((stem.to_owned(), file))
            }),
            ("tails", ..) if session && extension.strip_suffix(".log").is_some_and(|n| is_hex(n, 1..=32)) => {
                self.put(entry, tail::MOST, |contents, file| contents.tails.push((name.to_owned(), file)));
            }
            ("packs", "pack", ..) if session => {
                self.put(entry, pack::MOST, |contents, file| contents.packs.push(file));
            }
            ("checks", "", Some(hash), _) => {
                self.put(entry, MOST_CHECK, |contents, file| contents.checks.push((hash, file)));
            }
            ("runs", "", ..) if session => self.put(entry, 0, |contents, file| contents.runs.push(file)),
            _ => self.unknown.push(entry.path),
        }
    }

    /// Puts a regular file of at most `most` bytes where it belongs, and anything else among what is foreign.
    fn put(&mut self, entry: Entry, most: u64, to: impl FnOnce(&mut Self, File)) {
        match entry.file() {
            Ok(bytes) if bytes <= most => to(self, File { path: entry.path, bytes }),
            Ok(bytes) => {
                let reason = format!("it has {bytes} bytes, at most {most} are possible");
                self.foreign.push((entry.path, reason));
            }
            Err(kind) => self.foreign.push((entry.path, format!("it is {kind}, not a regular file"))),
        }
    }
}

impl Entry {
    /// Returns it as a file that can be removed by its name: all but a folder, which may hold what is not ours.
    fn removable(self) -> Option<File> {
        let bytes = self.file().unwrap_or(0);
        (!self.is_folder()).then_some(File { path: self.path, bytes })
    }
}

fn is_hex(text: &str, n: std::ops::RangeInclusive<usize>) -> bool {
    n.contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_temporary(stem: &str, extension: &str) -> bool {
    let random = extension.strip_prefix(TEMPORARY);
    is_hex(stem, 40..=64) && random.is_some_and(|random| is_hex(random, 1..=16))
}
