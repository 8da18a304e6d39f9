//! The cache on disk: content-addressed blocks, and a manifest and a tail for each session.
//!
//! ```text
//! DIR/v4/lock                               held (shared) by every process that uses the folder
//! DIR/v4/runs/<hash>                        held by the one process that adds to a run's sessions
//! DIR/v4/blocks/<2 hex>/<hash>.safetensors  a sealed block, written once, shared by whoever has read the same
//! DIR/v4/windows/<2 hex>/<hash>.safetensors its layers that have a window, where a model has such
//! DIR/v4/packs/<hash>.pack                  many small ones of both, in one file
//! DIR/v4/manifests/<session>.log            what a session is made of: a record a turn
//! DIR/v4/tails/<session>.<n>.log            f16 rows of a session's open block: a record a turn
//! DIR/v4/checks/<identity>                  what the self-check found
//! DIR/v4/damaged/                           files that failed a check, set aside
//! ```
//! With a key the folder is `v4-<fingerprint of the key>`, and everything in it but the index of a pack is encrypted. Names are
//! hashes, never ids from outside. Every file carries checksums, verified while reading. Files are read by plain reads into
//! owned memory, never mapped. Main type: [`Store`].

pub(crate) mod block;
pub(crate) mod cipher;
mod files;
pub(crate) mod inventory;
pub(crate) mod log;
pub(crate) mod manifest;
pub(crate) mod pack;
pub(crate) mod tail;

use super::blocks::{Rows, SealedBlock};
use super::layout::{KvLayout, Part};
use super::table::BlockHash;
use crate::{Error, Result, SessionKey};
use cipher::{CacheKey, Cipher};
use files::{io_error, make_private_dir, open_lock, short, write_atomically};
use log::Broken;
use manifest::{Journal, Manifest, Write};
use pack::{Builder, Key, Packs};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Cursor, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use tail::TailRef;

/// Version of the folder's layout and of every format in it: part of a cache's identity.
pub(crate) const STORE_VERSION: u32 = 4;

/// A folder of memories, and how it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) key: Option<CacheKey>,
}

/// An opened cache folder.
pub(crate) struct Store {
    root: PathBuf,
    cipher: Cipher,
    /// What sessions' names are derived from besides run and agent: tenant and key.
    secret: String,
    packs: RwLock<Packs>,
    /// Blocks written since the last look at how many small files there are.
    fresh: AtomicUsize,
    runs: Mutex<HashMap<String, File>>,
    _lock: File,
    /// Off only in the test that shows that a wrong code would change the logits.
    pub(crate) verify: bool,
}

/// What reading a stored thing gave.
pub(crate) enum Found<T> {
    /// It is there and passed its checks.
    Whole(T),
    /// It is not there.
    Missing,
    /// It failed a check and was set aside; the reason.
    Damaged(String),
}

impl Place {
    /// The folder of this store version and key.
    fn root(&self) -> PathBuf {
        let key = self.key.as_ref().map_or(String::new(), |key| format!("-{}", key.fingerprint()));
        self.dir.join(format!("v{STORE_VERSION}{key}"))
    }
}

impl Store {
    /// A block's file up to so many bytes is small.
    const SMALL: u64 = 1 << 20;
    /// So many small files are packed.
    const MANY: usize = 256;
    /// Bytes of a pack, at most, unless a single image is larger.
    const PACK: usize = 64 << 20;

    /// Opens (and makes) a cache folder for a tenant.
    ///
    /// # Errors
    /// It can't be made or written, or `greenroom cache rm` is at work in it.
    pub(crate) fn open(place: &Place, tenant: &str) -> Result<Self> {
        let root = place.root();
        for sub in ["runs", "blocks", "windows", "packs", "tails", "manifests", "checks"] {
            make_private_dir(&root.join(sub))?;
        }
        let lock = open_lock(&root.join("lock"))?;
        lock.try_lock_shared().map_err(|e| {
            Error::store(format!(
                "the cache folder {} is being cleaned by another process; try again ({e})",
                place.dir.display()
            ))
        })?;
        let mut packs = Packs::default();
        packs.refresh(&root.join("packs"))?;
        let names = place.key.as_ref().map_or(String::new(), CacheKey::names);
        Ok(Self {
            cipher: Cipher::new(place.key.as_ref()),
            secret: format!("{tenant}\n{names}"),
            packs: RwLock::new(packs),
            fresh: AtomicUsize::new(Self::MANY),
            runs: Mutex::default(),
            _lock: lock,
            root,
            verify: true,
        })
    }

    /// Keeps other processes from adding to a run's sessions for as long as the store is open.
    ///
    /// # Errors
    /// Another process does so.
    pub(crate) fn claim(&self, run: &str) -> Result<()> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.contains_key(run) {
            return Ok(());
        }
        let file = open_lock(&self.root.join("runs").join(name_hash(&self.secret, &[run])))?;
        file.try_lock().map_err(|_| {
            Error::store(format!(
                "the memories of run {run} are in use by another process: wait until it has ended, or start a new run"
            ))
        })?;
        runs.insert(run.to_owned(), file);
        Ok(())
    }

    /// Whether a part of a block is stored.
    pub(crate) fn has_block(&self, key: Key) -> bool {
        block_path(&self.root, key).is_file() || self.packed(key).is_some()
    }

    /// Writes a part of a block unless it is there; returns the bytes written. `index` is the block's place in the sequence.
    pub(crate) fn write_block(
        &self,
        key: Key,
        index: usize,
        block: &SealedBlock,
        layout: &KvLayout,
    ) -> Result<u64> {
        if self.has_block(key) {
            return Ok(0);
        }
        let path = block_path(&self.root, key);
        make_private_dir(path.parent().expect("a block's path has a folder"))?;
        let bytes = self.cipher.seal(&block_place(key), block::encode(key, index, block, layout)?)?;
        write_atomically(&path, &bytes)?;
        self.fresh.fetch_add(1, Ordering::Relaxed);
        Ok(bytes.len() as u64)
    }

    /// Reads a part of a block and checks it against its address, the layout and its checksum; also gives its bytes on disk.
    pub(crate) fn read_block(&self, key: Key, index: usize, layout: &KvLayout) -> Found<(SealedBlock, u64)> {
        let read =
            |source: &mut dyn block::Source, span| block::read(source, span, key, index, layout, self.verify);
        let loose = self.checked(&block_path(&self.root, key), |file| {
            let len = file.metadata().map_err(|e| e.to_string())?.len();
            Ok((self.open_image(file, key, (0, len), read)?, len))
        });
        let (Found::Missing, Some(place)) = (&loose, self.packed(key)) else { return loose };
        let found = File::open(&*place.pack).map_err(|e| format!("it can't be read: {e}"));
        let found = found.and_then(|file| self.open_image(file, key, (place.offset, place.len), read));
        match found {
            Ok(block) => Found::Whole((block, place.len)),
            Err(reason) => {
                self.packs.write().unwrap_or_else(PoisonError::into_inner).forget(key);
                let reason = format!("a block in {} is damaged: {reason}", short(&place.pack));
                tracing::warn!("{reason}");
                Found::Damaged(reason)
            }
        }
    }

    /// Hands an image to `read`: from where it lies, or decrypted.
    fn open_image<T>(
        &self,
        mut file: File,
        key: Key,
        (start, len): (u64, u64),
        read: impl FnOnce(&mut dyn block::Source, (u64, u64)) -> Result<T, String>,
    ) -> Result<T, String> {
        if !self.cipher.encrypts() {
            return read(&mut file, (start, len));
        }
        let mut bytes = Vec::new();
        let whole = std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start))
            .and_then(|_| file.take(len).read_to_end(&mut bytes));
        whole.map_err(|e| format!("it can't be read: {e}"))?;
        let bytes = self.cipher.open(&block_place(key), bytes)?;
        let len = bytes.len() as u64;
        read(&mut Cursor::new(bytes), (0, len))
    }

    /// Where a block lies in a pack; packs of other processes are seen too.
    fn packed(&self, key: Key) -> Option<pack::Place> {
        let find = || self.packs.read().unwrap_or_else(PoisonError::into_inner).find(key);
        find().filter(|place| place.pack.is_file()).or_else(|| {
            let mut packs = self.packs.write().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = packs.refresh(&self.root.join("packs")) {
                tracing::debug!("{e}");
            }
            packs.find(key)
        })
    }

    /// Packs small blocks once there are many, unless another process is at it; returns how many it packed.
    ///
    /// # Errors
    /// A file can't be read or written; what was there still is.
    pub(crate) fn compact(&self) -> Result<usize> {
        if self.fresh.load(Ordering::Relaxed) < Self::MANY {
            return Ok(0);
        }
        self.fresh.store(0, Ordering::Relaxed);
        let small: Vec<(Key, PathBuf)> = loose_blocks(&self.root)?
            .into_iter()
            .filter(|(_, path)| files::size(path) <= Self::SMALL)
            .collect();
        let lock = open_lock(&self.root.join("packs.lock"))?;
        if small.len() < Self::MANY || lock.try_lock().is_err() {
            return Ok(0);
        }
        self.pack(small)
    }

    /// Packs all blocks, however few.
    #[cfg(test)]
    pub(crate) fn pack_all(&self) -> usize {
        self.pack(loose_blocks(&self.root).expect("a folder")).expect("a pack")
    }

    fn pack(&self, loose: Vec<(Key, PathBuf)>) -> Result<usize> {
        let packs = self.root.join("packs");
        let (mut builder, mut packed, mut n) = (Builder::default(), Vec::new(), 0);
        let mut finish = |builder: Builder, packed: Vec<PathBuf>| {
            builder.write(&packs)?;
            n += packed.len();
            packed.iter().try_for_each(|path| files::remove(path).map(drop))
        };
        for (key, path) in loose {
            // What is in a pack as well was packed before a crash, or is damaged there: then this one stays.
            if let Some(place) = self.packed(key) {
                if self.verify_image(key, place.read().unwrap_or_default()).is_ok() {
                    packed.push(path);
                }
                continue;
            }
            let image = fs::read(&path).map_err(|e| io_error("read", &path, e))?;
            if builder.len() + image.len() > Self::PACK {
                finish(std::mem::take(&mut builder), std::mem::take(&mut packed))?;
            }
            builder.push(key, &image);
            packed.push(path);
        }
        finish(builder, packed)?;
        tracing::debug!("{n} small blocks packed");
        Ok(n)
    }

    /// Checks a block's image by itself.
    fn verify_image(&self, key: Key, image: Vec<u8>) -> Result<(), String> {
        block::verify(&self.cipher.open(&block_place(key), image)?, key.0)
    }

    /// What was written for an identity by [`Store::write_check`].
    pub(crate) fn read_check(&self, root: BlockHash) -> Option<String> {
        fs::read_to_string(self.check_path(root)).ok()
    }

    /// Keeps a verdict on an identity.
    pub(crate) fn write_check(&self, root: BlockHash, verdict: &str) -> Result<()> {
        write_atomically(&self.check_path(root), verdict.as_bytes())
    }

    fn check_path(&self, root: BlockHash) -> PathBuf {
        self.root.join("checks").join(root.hex())
    }

    /// Hash that names a session's files.
    pub(crate) fn session_id(&self, session: &SessionKey) -> String {
        name_hash(&self.secret, &[&session.run, &session.agent])
    }

    /// Reads a session's manifest, and what a writer must know to add to it. The text says why it is not the latest state.
    pub(crate) fn read_manifest(&self, session: &SessionKey) -> Found<(Manifest, Journal, Option<Broken>)> {
        let id = self.session_id(session);
        self.checked(&manifest_path(&self.root, &id), |file| {
            let found = manifest::decode(&whole(file)?, &id, &self.cipher)?;
            if found.0.session() != *session {
                return Err("it belongs to another agent".to_owned());
            }
            Ok(found)
        })
    }

    /// Brings a session's manifest up to date and removes the tails that it no longer names.
    pub(crate) fn write_manifest(
        &self,
        manifest: &Manifest,
        journal: &mut Option<Journal>,
        obsolete_tails: &[String],
    ) -> Result<u64> {
        let id = self.session_id(&manifest.session());
        let path = manifest_path(&self.root, &id);
        // A file that lost what the journal stands on (by hand, or set aside) begins anew.
        let before = journal.as_ref().filter(|journal| journal.bytes() <= files::size(&path));
        let (write, after) = Journal::update(before, manifest, &id, &self.cipher)?;
        let n = match &write {
            Write::Append { at, record } => {
                files::append(&path, *at, record)?;
                record.len()
            }
            Write::Replace(bytes) => {
                write_atomically(&path, bytes)?;
                bytes.len()
            }
        };
        *journal = Some(after);
        for tail in obsolete_tails {
            // What can't be removed now is an orphan that the next `cache rm` sweeps.
            let _ = files::remove(&self.root.join("tails").join(tail));
        }
        Ok(n as u64)
    }

    /// Whether a tail's file is at least as long as what counts of it.
    pub(crate) fn has_tail(&self, tail: &TailRef) -> bool {
        files::size(&self.root.join("tails").join(&tail.file)) >= tail.end.bytes
    }

    /// Appends the rows that a tail lacks, up to `n`, and moves it on. Returns the bytes written.
    pub(crate) fn append_tail(
        &self,
        tail: &mut TailRef,
        n: usize,
        rows: &Rows,
        layout: &KvLayout,
    ) -> Result<u64> {
        tail::append(&self.root.join("tails"), tail, n, rows, layout, &self.cipher)
    }

    /// Reads the rows of a session's open block; also gives their bytes on disk.
    pub(crate) fn read_tail(&self, tail: &TailRef, layout: &KvLayout) -> Found<(Rows, u64)> {
        self.checked(&self.root.join("tails").join(&tail.file), |file| {
            let bytes = whole(file)?;
            Ok((tail::decode(&bytes, tail, layout, &self.cipher)?, bytes.len() as u64))
        })
    }

    /// Reads and decodes a file; one that does not decode is set aside, with the reason.
    fn checked<T>(&self, path: &Path, decode: impl FnOnce(File) -> Result<T, String>) -> Found<T> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Found::Missing,
            Err(e) => return Found::Damaged(format!("{} can't be read: {e}", short(path))),
        };
        match decode(file) {
            Ok(value) => Found::Whole(value),
            Err(reason) => {
                let reason = format!("{} is damaged: {reason}; it was set aside", short(path));
                tracing::warn!("{reason}");
                self.set_aside(path);
                Found::Damaged(reason)
            }
        }
    }

    fn set_aside(&self, path: &Path) {
        let aside = self.root.join("damaged");
        let moved = make_private_dir(&aside).and_then(|()| {
            let name = path.file_name().unwrap_or_default();
            fs::rename(path, aside.join(name)).map_err(|e| io_error("set aside", path, e))
        });
        if let Err(e) = moved {
            tracing::warn!("{e}");
        }
    }
}

/// All bytes of a file.
fn whole(mut file: File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| format!("it can't be read: {e}"))?;
    Ok(bytes)
}

/// Hash of names from outside; where one ends and the next begins counts.
fn name_hash(secret: &str, names: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("greenroom 2026 session file name");
    for name in std::iter::once(&secret).chain(names) {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    hasher.finalize().to_hex()[..40].to_owned()
}

fn block_path(root: &Path, (hash, part): Key) -> PathBuf {
    let hex = hash.hex();
    root.join(part_folder(part)).join(&hex[..2]).join(format!("{hex}.safetensors"))
}

fn part_folder(part: Part) -> &'static str {
    match part {
        Part::Lasting => "blocks",
        Part::Windowed => "windows",
    }
}

/// What an encrypted image of a block is bound to.
fn block_place((hash, part): Key) -> Vec<u8> {
    [&[part as u8], &hash.0[..]].concat()
}

fn manifest_path(root: &Path, id: &str) -> PathBuf {
    root.join("manifests").join(format!("{id}.log"))
}

/// Blocks in files of their own.
fn loose_blocks(root: &Path) -> Result<Vec<(Key, PathBuf)>> {
    let mut all = Vec::new();
    for part in Part::ALL {
        let named = files::list(&root.join(part_folder(part)))?.into_iter().filter_map(|path| {
            let hash = BlockHash::from_hex(path.file_stem()?.to_str()?)?;
            path.extension().is_some_and(|e| e == "safetensors").then_some(((hash, part), path))
        });
        all.extend(named);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Names as nobody should give them.
    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("../x".to_owned()),
            Just("..\\x".to_owned()),
            Just("/etc/passwd".to_owned()),
            Just("a\0b".to_owned()),
            Just(String::new()),
            Just("x".repeat(10_240)),
            Just("alice".to_owned()),
            Just("\u{430}lice".to_owned()), // a Cyrillic a
            Just("alice\u{200d}".to_owned()),
            Just("al\u{131}ce".to_owned()),
            "\\PC{0,12}",
        ]
    }

    proptest! {
        /// Different (tenant, run, agent) have different files, whose names say nothing and lead nowhere.
        #[test]
        fn no_name_leads_to_anothers_files(
            a in (hostile(), hostile(), hostile()),
            b in (hostile(), hostile(), hostile()),
            shift in any::<bool>(),
        ) {
            let id = |(tenant, run, agent): &(String, String, String)| name_hash(&format!("{tenant}\n"), &[run, agent]);
            // Where one name ends and the next begins counts.
            let b = if shift { (a.0.clone(), format!("{}{}", a.1, a.2), String::new()) } else { b };
            prop_assert_eq!(id(&a) == id(&b), a == b);
            prop_assert!(id(&a).len() == 40 && id(&a).bytes().all(|c| c.is_ascii_hexdigit()));
            let path = manifest_path(Path::new("root"), &id(&a));
            prop_assert_eq!(path.parent(), Some(Path::new("root/manifests")));
        }
    }
}
