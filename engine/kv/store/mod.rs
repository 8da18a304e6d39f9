//! The cache on disk: content-addressed blocks, a tail log and a manifest for each session.
//!
//! ```text
//! DIR/v3/lock                            held (shared) by every process that uses the folder
//! DIR/v3/blocks/<2 hex>/<hash>.safetensors  a sealed block, written once, shared by whoever has read the same
//! DIR/v3/windows/<2 hex>/<hash>.safetensors its layers that have a window, where a model has such
//! DIR/v3/tails/<session>.<n>.tail        f16 rows of a session's open block, appended turn by turn
//! DIR/v3/manifests/<session>.json        what a session is made of; replaced atomically, last of all
//! DIR/v3/checks/<identity>               what the self-check found
//! DIR/v3/damaged/                        files that failed a check, set aside
//! ```
//! Names are hashes, never ids from outside. Every file carries a checksum, verified while reading. Files are read by
//! plain reads into owned memory, never mapped. Main type: [`Store`].

pub(crate) mod block;
pub(crate) mod inventory;
pub(crate) mod manifest;
pub(crate) mod tail;

use super::blocks::{Rows, SealedBlock};
use super::layout::{KvLayout, Part};
use super::table::BlockHash;
use crate::{Error, Result, SessionKey};
use manifest::Manifest;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Version of the folder's layout and of every format in it: part of a cache's identity.
pub(crate) const STORE_VERSION: u32 = 3;

/// An opened cache folder.
pub(crate) struct Store {
    dir: PathBuf,
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

impl Store {
    /// Opens (and makes) a cache folder.
    ///
    /// # Errors
    /// It can't be made or written, or `greenroom cache rm` is at work in it.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let root = dir.join(format!("v{STORE_VERSION}"));
        for sub in ["blocks", "windows", "tails", "manifests", "checks"] {
            make_private_dir(&root.join(sub))?;
        }
        let lock = open_lock(&root)?;
        lock.try_lock_shared().map_err(|e| {
            Error::store(format!(
                "the cache folder {} is being cleaned by another process; try again ({e})",
                dir.display()
            ))
        })?;
        Ok(Self { dir: root, _lock: lock, verify: true })
    }

    /// The folder of this store version.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether a part of a block is stored.
    pub(crate) fn has_block(&self, hash: BlockHash, part: Part) -> bool {
        block_path(&self.dir, part, &hash.hex()).is_file()
    }

    /// Writes a part of a block unless it is there; returns the bytes written. `index` is the block's place in the sequence.
    pub(crate) fn write_block(
        &self,
        (hash, part): (BlockHash, Part),
        index: usize,
        block: &SealedBlock,
        layout: &KvLayout,
    ) -> Result<u64> {
        let path = block_path(&self.dir, part, &hash.hex());
        if path.is_file() {
            return Ok(0);
        }
        make_private_dir(path.parent().expect("a block's path has a folder"))?;
        let bytes = block::encode((hash, part), index, block, layout)?;
        write_atomically(&path, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Reads a part of a block and checks it against its address, the layout and its checksum.
    pub(crate) fn read_block(
        &self,
        (hash, part): (BlockHash, Part),
        index: usize,
        layout: &KvLayout,
    ) -> Result<Found<(SealedBlock, u64)>> {
        let path = block_path(&self.dir, part, &hash.hex());
        self.checked(&path, |mut file| block::read(&mut file, (hash, part), index, layout, self.verify))
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
        self.dir.join("checks").join(root.hex())
    }

    /// Reads a session's manifest.
    pub(crate) fn read_manifest(&self, session: &SessionKey) -> Result<Found<Manifest>> {
        self.checked(&manifest_path(&self.dir, session), |file| manifest::decode(&whole(file)?))
    }

    /// Replaces a session's manifest and removes the tail that it no longer names.
    pub(crate) fn write_manifest(&self, manifest: &Manifest, obsolete_tails: &[String]) -> Result<u64> {
        let bytes = manifest::encode(manifest)?;
        write_atomically(&manifest_path(&self.dir, &manifest.session()), &bytes)?;
        for tail in obsolete_tails {
            // What can't be removed now is an orphan that the next `cache rm` sweeps.
            let _ = fs::remove_file(self.dir.join("tails").join(tail));
        }
        Ok(bytes.len() as u64)
    }

    /// Reads the rows of a session's open block.
    pub(crate) fn read_tail(
        &self,
        reference: &tail::TailRef,
        root: BlockHash,
        layout: &KvLayout,
    ) -> Result<Found<(Rows, u64)>> {
        let path = self.dir.join("tails").join(&reference.file);
        self.checked(&path, |file| {
            let bytes = whole(file)?;
            Ok((tail::decode(&bytes, reference, root, layout)?, bytes.len() as u64))
        })
    }

    /// Reads and decodes a file; one that does not decode is set aside, with the reason.
    fn checked<T>(&self, path: &Path, decode: impl FnOnce(File) -> Result<T, String>) -> Result<Found<T>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Missing),
            Err(e) => return Ok(Found::Damaged(format!("{} can't be read: {e}", short(path)))),
        };
        match decode(file) {
            Ok(value) => Ok(Found::Whole(value)),
            Err(reason) => {
                let reason = format!("{} is damaged: {reason}; it was set aside", short(path));
                tracing::warn!("{reason}");
                self.set_aside(path);
                Ok(Found::Damaged(reason))
            }
        }
    }

    fn set_aside(&self, path: &Path) {
        let aside = self.dir.join("damaged");
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

/// Hash that names a session's files.
pub(crate) fn session_id(session: &SessionKey) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("greenroom 2026 session file name");
    for part in [&session.run, &session.agent] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..40].to_owned()
}

fn block_path(dir: &Path, part: Part, hex: &str) -> PathBuf {
    let folder = dir.join(part_folder(part)).join(hex.get(..2).unwrap_or_default());
    folder.join(format!("{hex}.safetensors"))
}

fn part_folder(part: Part) -> &'static str {
    match part {
        Part::Lasting => "blocks",
        Part::Windowed => "windows",
    }
}

fn manifest_path(dir: &Path, session: &SessionKey) -> PathBuf {
    dir.join("manifests").join(format!("{}.json", session_id(session)))
}

fn short(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn io_error(what: &str, path: &Path, e: std::io::Error) -> Error {
    Error::store(format!("can't {what} {}: {e}", path.display())).with_source(e)
}

/// Opens the lock file of a store folder.
pub(crate) fn open_lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    private(&mut options).open(&path).map_err(|e| io_error("open", &path, e))
}

pub(crate) fn make_private_dir(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|e| io_error("make the folder", path, e))
}

/// Files are readable by their owner alone.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Writes a file so that it is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = private(&mut options).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_dir(path)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        io_error("write", path, e)
    })
}

/// Makes a rename in a file's folder durable.
pub(crate) fn sync_dir(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
