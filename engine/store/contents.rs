//! Contents of a cache folder, distinguished by names and kinds of file; nothing is read.

use super::files::TEMPORARY;
use super::medium::{EntryKind, ListFolder, Logs, MediumEntry};
use super::secret::{self, SECRET};
use super::{block, manifest, pack, part_folder, tail};
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::kv::table::BlockKey;

/// The folders that a store makes.
pub(super) const FOLDERS: [&str; 8] =
    ["runs", "blocks", "windows", "states", "packs", "tails", "manifests", "checks"];
/// The folder of what failed a check.
pub(super) const DAMAGED: &str = "damaged";
/// Maximum bytes of what was found out about a model.
pub(super) const MAX_CHECK_BYTES: u64 = 1 << 20;

/// A regular file of a size that its kind may have.
#[derive(Debug)]
pub(super) struct SizedFile {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// Everything below a folder of one store version and key.
#[derive(Default)]
pub(super) struct Contents {
    /// Manifests by the ids of their sessions.
    pub(super) manifests: Vec<(String, SizedFile)>,
    /// Tails by their names.
    pub(super) tails: Vec<(String, SizedFile)>,
    /// Blocks in files of their own.
    pub(super) blocks: Vec<(BlockKey, SizedFile)>,
    pub(super) packs: Vec<SizedFile>,
    pub(super) checks: Vec<(BlockHash, SizedFile)>,
    /// The secret of the folder.
    pub(super) secrets: Vec<SizedFile>,
    /// Locks of the folder: in use as long as it is, whatever is in them.
    pub(super) locks: Vec<SizedFile>,
    /// Locks of runs.
    pub(super) runs: Vec<SizedFile>,
    /// Files that a crash left unfinished.
    pub(super) temporary: Vec<SizedFile>,
    /// Files that were set aside before.
    pub(super) damaged: Vec<SizedFile>,
    /// Entries that have a name of ours and are something else: what they are, as text.
    pub(super) foreign: Vec<(String, String)>,
    /// Entries that have no name of ours.
    pub(super) unknown: Vec<String>,
    /// What could not be listed or read, and why.
    pub(super) unread: Vec<String>,
}

impl Contents {
    /// Lists a folder; nothing if it is not there.
    pub(super) fn read(medium: &dyn Logs) -> Self {
        let mut contents = Self::default();
        match medium.listing() {
            Ok(listing) => contents.topmost(&listing),
            Err(e) => contents.unread.push(e.to_string()),
        }
        contents
    }

    fn topmost(&mut self, listing: &ListFolder<'_>) {
        for entry in self.list(listing, "") {
            let name = entry.name.clone();
            match &*name {
                "lock" | "packs.lock" => {
                    self.put(name, &entry, u64::MAX, |contents, file| contents.locks.push(file));
                }
                SECRET => self.put(name, &entry, secret::LEN, |contents, file| contents.secrets.push(file)),
                unfinished if secret::is_unfinished(unfinished) => {
                    self.put(name, &entry, secret::LEN, |contents, file| contents.temporary.push(file));
                }
                folder if FOLDERS.contains(&folder) || folder == DAMAGED => self.folder(listing, folder),
                _ => self.unknown.push(name),
            }
        }
    }

    /// Bytes of what the store wrote, without what was set aside.
    pub(super) fn bytes(&self) -> u64 {
        let named = self.manifests.iter().chain(&self.tails).map(|(_, file)| file);
        let named = named.chain(self.blocks.iter().map(|(_, file)| file));
        let named = named.chain(self.checks.iter().map(|(_, file)| file));
        let rest = [&self.packs, &self.runs, &self.temporary].into_iter().flatten();
        named.chain(rest).map(|file| file.bytes).sum()
    }

    fn list(&mut self, listing: &ListFolder<'_>, folder: &str) -> Vec<MediumEntry> {
        listing(folder).unwrap_or_else(|e| {
            self.unread.push(e.to_string());
            Vec::new()
        })
    }

    fn folder(&mut self, listing: &ListFolder<'_>, folder: &str) {
        for entry in self.list(listing, folder) {
            let name = format!("{folder}/{}", entry.name);
            match (folder, entry.kind) {
                // A folder may hold what is not ours.
                (DAMAGED, EntryKind::Folder) => {}
                (DAMAGED, EntryKind::File(bytes)) => self.damaged.push(SizedFile { name, bytes }),
                (DAMAGED, EntryKind::Other(_)) => self.damaged.push(SizedFile { name, bytes: 0 }),
                ("blocks" | "windows" | "states", kind) if is_hex(&entry.name, 2..=2) => match kind {
                    EntryKind::Folder => {
                        for entry in self.list(listing, &name) {
                            self.file(folder, format!("{name}/{}", entry.name), &entry);
                        }
                    }
                    EntryKind::File(_) => self.foreign.push((name, "it is a file, not a folder".to_owned())),
                    EntryKind::Other(kind) => {
                        self.foreign.push((name, format!("it is {kind}, not a folder")))
                    }
                },
                _ => self.file(folder, name, &entry),
            }
        }
    }

    /// A file by its folder and name.
    fn file(&mut self, folder: &str, name: String, entry: &MediumEntry) {
        let last = &entry.name;
        let (stem, extension) = last.split_once('.').unwrap_or((last, ""));
        if is_temporary(stem, extension) && !["runs", "tails"].contains(&folder) {
            return self
                .put(name, entry, block::MAX_BLOCK_BYTES, |contents, file| contents.temporary.push(file));
        }
        let hash = BlockHash::from_hex(stem);
        let part = Part::ALL.into_iter().find(|part| part_folder(*part) == folder);
        let session = is_hex(stem, 40..=40);
        match (folder, extension, hash, part) {
            ("blocks" | "windows" | "states", "safetensors", Some(hash), Some(part))
                if name == super::block_name((hash, part)) =>
            {
                self.put(name, entry, block::MAX_BLOCK_BYTES, |contents, file| {
                    contents.blocks.push(((hash, part), file))
                });
            }
            ("manifests", "log", ..) if session => {
                self.put(name, entry, manifest::MAX_MANIFEST_BYTES, |contents, file| {
                    contents.manifests.push((stem.to_owned(), file))
                })
            }
            ("tails", ..) if session && extension.strip_suffix(".log").is_some_and(|n| is_hex(n, 1..=32)) => {
                self.put(name, entry, tail::MAX_TAIL_BYTES, |contents, file| {
                    contents.tails.push((last.clone(), file))
                });
            }
            ("packs", "pack", ..) if session => {
                self.put(name, entry, pack::MAX_PACK_BYTES, |contents, file| contents.packs.push(file));
            }
            ("checks", "", Some(hash), _) => {
                self.put(name, entry, MAX_CHECK_BYTES, |contents, file| contents.checks.push((hash, file)));
            }
            ("runs", "", ..) if session => {
                self.put(name, entry, 0, |contents, file| contents.runs.push(file))
            }
            _ => self.unknown.push(name),
        }
    }

    /// Puts a regular file of at most `most` bytes where it belongs, and anything else among what is foreign.
    fn put(&mut self, name: String, entry: &MediumEntry, most: u64, to: impl FnOnce(&mut Self, SizedFile)) {
        match entry.kind {
            EntryKind::File(bytes) if bytes <= most => to(self, SizedFile { name, bytes }),
            EntryKind::File(bytes) => {
                self.foreign.push((name, format!("it has {bytes} bytes; expected at most {most}")));
            }
            EntryKind::Folder => self.foreign.push((name, "it is a folder, not a regular file".to_owned())),
            EntryKind::Other(kind) => self.foreign.push((name, format!("it is {kind}, not a regular file"))),
        }
    }
}

fn is_hex(text: &str, n: std::ops::RangeInclusive<usize>) -> bool {
    n.contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_temporary(stem: &str, extension: &str) -> bool {
    let random = extension.strip_prefix(TEMPORARY);
    is_hex(stem, 40..=64) && random.is_some_and(|random| is_hex(random, 1..=16))
}
