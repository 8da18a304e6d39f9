//! The cache on disk, or in an object store ([`objects`]): content-addressed blocks, and a manifest and a
//! tail for each session.
//!
//! ```text
//! DIR/v4/export.key                         secret that exports are signed with, once there was one
//! DIR/v4/lock                               held (shared) by every process that uses the folder
//! DIR/v4/runs/<hash>                        held by the one process that adds to a run's sessions
//! DIR/v4/blocks/<2 hex>/<hash>.safetensors  a sealed block, written once, shared by equal content
//! DIR/v4/windows/<2 hex>/<hash>.safetensors its layers that have a window, where a model has such
//! DIR/v4/states/<2 hex>/<hash>.safetensors   states of its recurrent layers, where it has such
//! DIR/v4/packs/<hash>.pack                  many small ones of these, in one file
//! DIR/v4/manifests/<session>.log            what a session is made of: a record a turn
//! DIR/v4/tails/<session>.<n>.log            f16 rows of an open block, or one sealed since: a record a turn
//! DIR/v4/checks/<identity>                  what the self-check found
//! DIR/v4/damaged/                           files that failed a check, set aside
//! ```
//! With a key the folder is `v4-<fingerprint of the key>`, and everything in it but the index of a pack is
//! encrypted. Names are hashes, never ids from outside. Every file carries checksums, verified while reading.
//! Files are read by plain reads into owned memory, never mapped. Main type: [`Store`].

pub(crate) mod block;
pub(crate) mod bound;
pub(crate) mod cipher;
mod contents;
mod disk;
mod files;
mod found;
#[cfg(test)]
pub(crate) mod in_memory;
pub(crate) mod inventory;
pub(crate) mod log;
pub(crate) mod manifest;
pub(crate) mod medium;
pub(crate) mod memory_file;
pub(crate) mod numerics;
#[cfg(feature = "objects")]
pub(crate) mod objects;
#[cfg(not(feature = "objects"))]
#[path = "objects/absent.rs"]
pub(crate) mod objects;
pub(crate) mod pack;
pub(crate) mod remove;
mod repack;
pub(crate) mod secret;
pub(crate) mod source;
mod sweep;
pub(crate) mod tail;
mod verify;

use crate::kv::format::BlockBytes;
use crate::kv::layout::{KvLayout, Part};
use crate::kv::table::{BlockHash, BlockKey};
use crate::{Error, ErrorKind, Result, SessionKey};
use cipher::{CacheKey, Cipher, OVERHEAD};
use disk::Disk;
pub(crate) use found::{Failure, Found};
use inventory::Folder;
use log::Broken;
use manifest::{Journal, Manifest, Write};
use medium::{Blobs, Lease, Logs, Traffic};
use objects::{Objects, ObjectsAddress};
use pack::{Builder, Packs};
use source::{ByteSource, Input, stretch};
use std::fs::TryLockError;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
pub use sweep::Removed;
use tail::TailRef;
pub use verify::Verdict;

/// Version of the folder's layout and of every format in it: part of a cache's identity.
pub(crate) const STORE_VERSION: u32 = 4;

/// Where memories lie, and how they are read.
#[derive(Clone, Debug)]
pub(crate) struct StoreLocation {
    /// Their folder; that of copies of them, if they lie in an object store.
    pub(crate) dir: PathBuf,
    pub(crate) key: Option<CacheKey>,
    pub(crate) objects: Option<ObjectsAddress>,
    /// True once it was said that its bound can't be kept; clones of it say so once together.
    is_warned: Arc<AtomicBool>,
}

/// The bytes that a folder may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) bytes: u64,
    /// True if what no session needs is removed even while the folder is within them.
    pub(crate) is_tidy: bool,
}

/// The right to add to a run's sessions.
pub(crate) struct RunLock(Lease);

impl RunLock {
    /// Tells whether another process has it by now, as far as is known.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.is_taken()
    }
}

/// Memory of sessions beyond the process.
pub(crate) struct Store {
    medium: Arc<dyn Logs>,
    cipher: Cipher,
    /// Secret of the key, from which sessions' names are derived besides tenant, run and agent.
    names: String,
    packs: RwLock<Packs>,
    /// Blocks written since the last look at how many small files there are.
    fresh: AtomicUsize,
    /// Off only in the test that shows that a wrong code would change the logits.
    pub(crate) verify: bool,
}

impl StoreLocation {
    /// A folder with a key, or the place in an object store that it has copies of.
    pub(crate) fn new(dir: PathBuf, key: Option<CacheKey>, objects: Option<ObjectsAddress>) -> Self {
        Self { dir, key, objects, is_warned: Arc::default() }
    }

    /// Name of the folder of this store version and key.
    fn root_name(&self) -> String {
        let key = self.key.as_ref().map_or(String::new(), |key| format!("-{}", key.fingerprint()));
        format!("v{STORE_VERSION}{key}")
    }

    fn root(&self) -> PathBuf {
        self.dir.join(self.root_name())
    }

    /// Opens it (and makes it) to use it.
    fn open(&self) -> Result<Arc<dyn Logs>> {
        let disk = Disk::open(self.root(), &self.dir)?;
        Ok(match &self.objects {
            None => Arc::new(disk),
            Some(address) => Arc::new(Objects::open(address, &self.root_name(), self.key.is_some(), disk)?),
        })
    }

    /// Bounds the folder at this many bytes, if no other process uses it now; logs what was done, or why not.
    /// Of copies, the oldest are removed; what is in an object store stays.
    pub(crate) fn keep_within(&self, bound: Bound) {
        if self.objects.is_none() {
            return Folder::on(self.clone(), Arc::new(Disk::at(&self.root()))).keep_within(bound);
        }
        if let Err(e) = Disk::at(&self.root()).trim(bound.bytes) {
            tracing::debug!("can't limit the copies in {}: {e}", self.dir.display());
        }
    }
}

impl std::fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.objects {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "the cache folder {}", self.dir.display()),
        }
    }
}

impl Store {
    /// A block's file of up to this many bytes is small.
    const MAX_SMALL_BYTES: u64 = 1 << 20;
    /// Number of small files from which on they are packed.
    const MIN_PACKED_FILES: usize = 256;
    /// Maximum bytes of a pack, unless a single image is larger.
    const PACK: usize = 64 << 20;

    /// Opens (and makes) a cache folder.
    ///
    /// # Errors
    /// `Store`: it can't be made or written; `InUse`: `greenroom cache rm` is running in it.
    pub(crate) fn open(place: &StoreLocation) -> Result<Self> {
        Ok(Self::on(place.open()?, place.key.as_ref()))
    }

    /// A store on a medium.
    pub(crate) fn on(medium: Arc<dyn Logs>, key: Option<&CacheKey>) -> Self {
        let mut packs = Packs::default();
        if medium.gathers()
            && let Err(e) = packs.refresh(&*medium)
        {
            tracing::warn!("{e}"); // it is looked at again when a block is missed
        }
        Self {
            medium,
            cipher: Cipher::new(key),
            names: key.map_or(String::new(), CacheKey::names),
            packs: RwLock::new(packs),
            fresh: AtomicUsize::new(Self::MIN_PACKED_FILES),
            verify: true,
        }
    }

    /// Keeps others from adding to the sessions of a run for as long as the lock is held; `session` is one of
    /// them.
    ///
    /// # Errors
    /// `InUse`: another process does so; `Store`: there can be no lock.
    pub(crate) fn claim(&self, session: &SessionKey) -> Result<RunLock> {
        let SessionKey { tenant, run, .. } = session;
        let lease = self.medium.lease(&format!("runs/{}", name_hash(&self.secret(tenant), &[run])))?;
        lease.map(RunLock).ok_or_else(|| {
            let reason = format!(
                "the memories of run {run} are in use by another process, or by another engine of this one; wait until it has ended, or start \
                 a new run"
            );
            Error::new(ErrorKind::InUse, reason)
        })
    }

    fn secret(&self, tenant: &str) -> String {
        format!("{tenant}\n{}", self.names)
    }

    /// The whole store, for maintenance.
    pub(crate) fn folder(&self, place: StoreLocation) -> Folder {
        Folder::on(place, self.medium.clone())
    }

    /// Number of reads worth doing in parallel, given the number of cores that compute.
    pub(crate) fn n_readers(&self, n_cores: usize) -> usize {
        self.medium.n_readers(n_cores)
    }

    /// Network traffic so far; `None` where there is none.
    pub(crate) fn traffic(&self) -> Option<Traffic> {
        self.medium.traffic()
    }

    /// Tells whether a part of a block is stored.
    pub(crate) fn has_block(&self, key: BlockKey) -> bool {
        self.medium.size(&block_name(key)).is_some() || self.packed(key).is_some()
    }

    /// Writes a part of a block unless it is there; returns the bytes written. `index` is the block's place
    /// in the sequence.
    pub(crate) fn write_block(
        &self,
        key: BlockKey,
        index: usize,
        block: &BlockBytes,
        layout: &KvLayout,
    ) -> Result<u64> {
        let name = block_name(key);
        // Where blocks are gathered, to look costs less than to encode.
        if self.medium.gathers() && self.has_block(key) {
            return Ok(0);
        }
        let bytes = self.cipher.seal(&block_place(key), block::encode(key, index, block, layout)?)?;
        if !self.medium.put_new(&name, &bytes)? {
            return Ok(0);
        }
        self.fresh.fetch_add(1, Ordering::Relaxed);
        Ok(bytes.len() as u64)
    }

    /// Reads a part of a block and checks it against its address, the layout and its checksum; also gives its
    /// bytes on disk. Where its own file gives nothing, a pack may.
    pub(crate) fn read_block(
        &self,
        key: BlockKey,
        index: usize,
        layout: &KvLayout,
    ) -> Found<(BlockBytes, u64)> {
        let most = block::most(key.1, layout) + OVERHEAD as u64;
        let read = |input: &mut Input, (start, len): (u64, u64)| {
            if len > most {
                return Err(format!("it has {len} bytes; expected at most {most}").into());
            }
            let block = open_image(&self.cipher, input, key, (start, len), |source, span| {
                block::read(source, span, key, index, layout, self.verify)
            })?;
            Ok((block, len))
        };
        let loose = self.checked(&block_name(key), |input| {
            let len = input.len();
            read(input, (0, len))
        });
        let place = if matches!(loose, Found::Whole(_)) { None } else { self.packed(key) };
        let Some(place) = place else { return loose };
        match place.open(&*self.medium).and_then(|(mut input, span)| read(&mut input, span)) {
            Ok(found) => Found::Whole(found),
            Err(Failure::Missing) => loose,
            Err(Failure::Unreadable(reason)) => {
                Found::Unreadable(format!("a block in {}: {reason}", short(&place.pack)))
            }
            Err(Failure::Damaged(reason)) => {
                self.packs.write().unwrap_or_else(PoisonError::into_inner).forget(key);
                let reason = format!("a block in {} is damaged: {reason}", short(&place.pack));
                tracing::warn!("{reason}");
                Found::Damaged(reason)
            }
        }
    }

    /// Finds a block in a pack; packs of other processes are seen too.
    fn packed(&self, key: BlockKey) -> Option<pack::ImageLocation> {
        if !self.medium.gathers() {
            return None;
        }
        let find = || self.packs.read().unwrap_or_else(PoisonError::into_inner).find(key);
        find().filter(|place| self.medium.size(&place.pack).is_some()).or_else(|| {
            let mut packs = self.packs.write().unwrap_or_else(PoisonError::into_inner);
            if let Err(e) = packs.refresh(&*self.medium) {
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
        if !self.medium.gathers() || self.fresh.load(Ordering::Relaxed) < Self::MIN_PACKED_FILES {
            return Ok(0);
        }
        self.fresh.store(0, Ordering::Relaxed);
        let mut small = self.loose_blocks()?;
        small.retain(|(_, bytes)| *bytes <= Self::MAX_SMALL_BYTES);
        match self.medium.lease("packs.lock")? {
            Some(_lease) if small.len() >= Self::MIN_PACKED_FILES => {
                self.pack(small.into_iter().map(|(key, _)| key))
            }
            _ => Ok(0),
        }
    }

    /// Blocks that have files of their own, with their bytes.
    fn loose_blocks(&self) -> Result<Vec<(BlockKey, u64)>> {
        let mut found = Vec::new();
        for part in Part::ALL {
            let below = self.medium.list(part_folder(part))?.into_iter();
            found.extend(below.filter_map(|(name, bytes)| {
                let stem = name.rsplit('/').next()?.strip_suffix(".safetensors")?;
                let key = (BlockHash::from_hex(stem)?, part);
                (block_name(key) == name).then_some((key, bytes))
            }));
        }
        Ok(found)
    }

    /// Packs all blocks, however few.
    #[cfg(test)]
    pub(crate) fn pack_all(&self) -> usize {
        self.pack(self.loose_blocks().expect("blocks").into_iter().map(|(key, _)| key)).expect("a pack")
    }

    fn pack(&self, loose: impl Iterator<Item = BlockKey>) -> Result<usize> {
        let (mut builder, mut packed, mut n) = (Builder::default(), Vec::new(), 0);
        let mut finish = |builder: Builder, packed: Vec<String>| {
            builder.write(&*self.medium)?;
            n += packed.len();
            packed.iter().try_for_each(|name| self.medium.remove(name).map(drop))
        };
        for key in loose {
            let name = block_name(key);
            // What is in a pack as well was packed before a crash, or is damaged there: then this one stays.
            if let Some(place) = self.packed(key) {
                let twin = place.open(&*self.medium);
                let twin =
                    twin.and_then(|(mut input, span)| verify_image(&self.cipher, &mut input, key, span));
                if twin.is_ok() {
                    packed.push(name);
                }
                continue;
            }
            // What can't be read or is damaged stays where it is: that is found out when it is needed.
            let whole = self.medium.open(&name).and_then(|mut input| {
                let len = input.len();
                whole_image(&self.cipher, &mut input, key, (0, len))
            });
            let Ok(image) = whole else { continue };
            if builder.len() + image.len() > Self::PACK {
                finish(std::mem::take(&mut builder), std::mem::take(&mut packed))?;
            }
            builder.push(key, &image);
            packed.push(name);
        }
        finish(builder, packed)?;
        tracing::debug!("{n} small blocks packed");
        Ok(n)
    }

    /// Reads what [`Store::write_check`] wrote for an identity.
    pub(crate) fn read_check(&self, root: BlockHash) -> Found<String> {
        self.checked(&check_name(root), |input| read_check(input, root))
    }

    /// Keeps a verdict on an identity.
    pub(crate) fn write_check(&self, root: BlockHash, verdict: &str) -> Result<()> {
        let text = format!("{verdict}\n{}\n", check_sum(root, verdict));
        self.medium.put(&check_name(root), text.as_bytes())
    }

    /// Hash that names a session's files.
    pub(crate) fn session_id(&self, session: &SessionKey) -> String {
        name_hash(&self.secret(&session.tenant), &[&session.run, &session.agent])
    }

    /// Reads a session's manifest, and what a writer must know to add to it. The text says why it is not the
    /// latest state.
    pub(crate) fn read_manifest(&self, session: &SessionKey) -> Found<(Manifest, Journal, Option<Broken>)> {
        let id = self.session_id(session);
        self.checked(&manifest_name(&id), |input| {
            let found = manifest::decode(&input.whole(manifest::MAX_MANIFEST_BYTES)?, &id, &self.cipher)?;
            if found.0.session() != *session {
                return Err("it belongs to another agent".into());
            }
            Ok(found)
        })
    }

    /// Brings a session's manifest up to date and removes the tails that it no longer names. `lock` is that of
    /// its run: without it, what another process has written since would be replaced.
    ///
    /// # Errors
    /// The lock is lost, or the manifest can't be written.
    pub(crate) fn write_manifest(
        &self,
        lock: &RunLock,
        manifest: &Manifest,
        journal: &mut Option<Journal>,
        obsolete_tails: &[String],
    ) -> Result<u64> {
        lock.0.confirm()?;
        let id = self.session_id(&manifest.session());
        let name = manifest_name(&id);
        // A file that lost what the journal depends on (by hand, or set aside) starts over.
        let goes_on = |journal: &Journal| self.medium.can_append(&name, journal.bytes());
        let (write, after) = Journal::update(journal.as_ref(), goes_on, manifest, &id, &self.cipher)?;
        let n = match &write {
            Write::Append { at, record } => {
                self.medium.append(&name, *at, record)?;
                record.len()
            }
            Write::Replace(bytes) => {
                self.medium.put(&name, bytes)?;
                bytes.len()
            }
        };
        *journal = Some(after);
        for tail in obsolete_tails {
            // What can't be removed now is an orphan that the next `cache rm` sweeps.
            let _ = self.medium.remove(&format!("tails/{tail}"));
        }
        Ok(n as u64)
    }

    /// Returns whether a tail's file grows; else each tail is written whole, as a new one.
    pub(crate) fn appends_tails(&self) -> bool {
        self.medium.appends()
    }

    /// Returns whether a tail's file can be appended to: it is at least as long as its valid part.
    pub(crate) fn has_tail(&self, tail: &TailRef) -> bool {
        self.medium.can_append(&tail::name(tail), tail.end.bytes)
    }

    /// Appends the rows that a tail lacks, up to `n`, and moves it on. Returns the bytes written.
    pub(crate) fn append_tail(&self, tail: &mut TailRef, n: usize, rows: Vec<u8>) -> Result<u64> {
        tail::append(&*self.medium, tail, n, rows, &self.cipher)
    }

    /// Reads the rows of a tail that count; also gives their bytes on disk.
    pub(crate) fn read_tail(&self, tail: &TailRef, layout: &KvLayout) -> Found<(Vec<u8>, u64)> {
        self.checked(&tail::name(tail), |input| {
            let n = tail.end.bytes;
            if n > tail::most(layout) || n > input.len() {
                return Err(format!("its manifest says {n} bytes, but it has {}", input.len()).into());
            }
            let bytes = stretch(input, (0, n))?;
            Ok((tail::decode(&bytes, tail, layout, &self.cipher)?, n))
        })
    }

    /// Reads and decodes a file; one that does not decode is set aside, with the reason. One that can't be
    /// read stays.
    fn checked<T>(&self, name: &str, decode: impl FnOnce(&mut Input) -> Result<T, Failure>) -> Found<T> {
        match self.medium.open(name).and_then(|mut input| decode(&mut input)) {
            Ok(value) => Found::Whole(value),
            Err(Failure::Missing) => Found::Missing,
            Err(Failure::Damaged(reason)) => {
                let reason = format!("{} is damaged: {reason}; it was set aside", short(name));
                tracing::warn!("{reason}");
                if let Err(e) = self.medium.set_aside(name) {
                    tracing::warn!("{e}");
                }
                Found::Damaged(reason)
            }
            Err(Failure::Unreadable(reason)) => {
                let reason = format!("{}: {reason}", short(name));
                tracing::warn!("{reason}");
                Found::Unreadable(reason)
            }
        }
    }
}

/// Distinguishes a lock held by another process from one that can't be taken.
fn locked(tried: Result<(), TryLockError>, busy: impl FnOnce() -> String) -> Result<()> {
    tried.map_err(|e| match e {
        TryLockError::WouldBlock => Error::new(ErrorKind::InUse, busy()),
        TryLockError::Error(e) => Error::store(format!("can't lock the cache folder: {e}")),
    })
}

/// Passes a block's image to `read`: in place, or decrypted.
fn open_image<T>(
    cipher: &Cipher,
    input: &mut Input,
    key: BlockKey,
    span: (u64, u64),
    read: impl FnOnce(&mut dyn ByteSource, (u64, u64)) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if !cipher.encrypts() {
        return read(input, span);
    }
    let bytes = cipher.open(&block_place(key), stretch(input, span)?)?;
    let len = bytes.len() as u64;
    read(&mut Cursor::new(bytes), (0, len))
}

/// A block's image as it is on disk, checked by itself.
fn whole_image(
    cipher: &Cipher,
    input: &mut Input,
    key: BlockKey,
    span: (u64, u64),
) -> Result<Vec<u8>, Failure> {
    verify_image(cipher, input, key, span)?;
    stretch(input, span)
}

fn verify_image(cipher: &Cipher, input: &mut Input, key: BlockKey, span: (u64, u64)) -> Result<(), Failure> {
    open_image(cipher, input, key, span, |source, span| block::verify(source, span, key.0))
}

/// Reads the verdict of a self-check on an identity, and checks it against its checksum.
fn read_check(input: &mut Input, root: BlockHash) -> Result<String, Failure> {
    let text = String::from_utf8(input.whole(contents::MAX_CHECK_BYTES)?).map_err(|e| e.to_string())?;
    let (verdict, sum) = text.split_once('\n').ok_or("it has no checksum")?;
    if sum != format!("{}\n", check_sum(root, verdict)) {
        return Err("its checksum does not match".into());
    }
    Ok(verdict.to_owned())
}

fn check_sum(root: BlockHash, verdict: &str) -> String {
    blake3::keyed_hash(&root.0, verdict.as_bytes()).to_hex().to_string()
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

fn block_name((hash, part): BlockKey) -> String {
    let hex = hash.hex();
    format!("{}/{}/{hex}.safetensors", part_folder(part), &hex[..2])
}

fn part_folder(part: Part) -> &'static str {
    match part {
        Part::Global => "blocks",
        Part::Windowed => "windows",
        Part::State => "states",
    }
}

/// Place that an encrypted image of a block is bound to.
fn block_place((hash, part): BlockKey) -> Vec<u8> {
    [&[part as u8], &hash.0[..]].concat()
}

fn manifest_name(id: &str) -> String {
    format!("manifests/{id}.log")
}

fn check_name(root: BlockHash) -> String {
    format!("checks/{}", root.hex())
}

/// Moves what is damaged out of the way, and keeps it.
fn set_aside(blobs: &dyn Blobs, name: &str, reason: &str) {
    tracing::warn!("{} is damaged: {reason}; it is set aside", short(name));
    if let Err(e) = blobs.set_aside(name) {
        tracing::warn!("{e}");
    }
}

/// A thing's name for messages.
fn short(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hostile names.
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
            let id = |(tenant, run, agent): &(String, String, String)| name_hash(
                &format!("{tenant}\n"), &[run, agent]
            );
            // Where one name ends and the next begins counts.
            let b = if shift { (a.0.clone(), format!("{}{}", a.1, a.2), String::new()) } else { b };
            prop_assert_eq!(id(&a) == id(&b), a == b);
            prop_assert!(id(&a).len() == 40 && id(&a).bytes().all(|c| c.is_ascii_hexdigit()));
            let path = std::path::PathBuf::from(manifest_name(&id(&a)));
            prop_assert_eq!(path.parent(), Some(std::path::Path::new("manifests")));
        }
    }
}
