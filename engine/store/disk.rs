//! A store in a folder.

use super::files;
use super::found::Failure;
use super::medium::{Blobs, EntryKind, Lease, ListFolder, Logs, MediumEntry};
use super::source::Input;
use super::{contents, locked};
use crate::{ErrorKind, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a folder that is being cleaned is waited for: a bound on its size may make any process clean it.
const CLEANING_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval for trying again.
const RETRY: Duration = Duration::from_millis(20);

/// A folder of one store version and key.
pub(crate) struct Disk {
    root: PathBuf,
    /// Lock of a folder in use: cleaning needs the folder for itself.
    _lock: Option<File>,
}

impl Disk {
    /// Opens (and makes) the folder `root` to use it; `dir` is what a person calls it. While another process
    /// cleans it, this waits, up to [`CLEANING_TIMEOUT`].
    ///
    /// # Errors
    /// `Store`: it can't be made or written; `InUse`: another process was still cleaning it after
    /// [`CLEANING_TIMEOUT`].
    pub(super) fn open(root: PathBuf, dir: &Path) -> Result<Self> {
        files::make_private_dir(&root)?;
        for sub in contents::FOLDERS {
            files::make_private_dir(&root.join(sub))?;
        }
        let lock = files::open_lock(&root.join("lock"))?;
        let busy = || {
            let dir = dir.display();
            format!("the cache folder {dir} is being cleaned by another process; try again")
        };
        let began = Instant::now();
        while let Err(e) = locked(lock.try_lock_shared(), busy) {
            if e.kind() != ErrorKind::InUse || began.elapsed() > CLEANING_TIMEOUT {
                return Err(e);
            }
            std::thread::sleep(RETRY);
        }
        Ok(Self { root, _lock: Some(lock) })
    }

    /// The folder itself, for code that holds it in another way.
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), _lock: None }
    }

    /// The name of a file below the folder.
    fn name(&self, path: &Path) -> String {
        let inside = path.strip_prefix(&self.root).unwrap_or(path);
        inside.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
    }

    /// All regular files below a folder ("": all).
    fn files(&self, folder: &str) -> Result<Vec<files::DirEntry>> {
        let (mut found, mut folders) = (Vec::new(), vec![self.root.join(folder)]);
        while let Some(folder) = folders.pop() {
            for entry in files::entries(&folder)? {
                match entry.file() {
                    Ok(_) => found.push(entry),
                    Err(_) if entry.is_folder() => folders.push(entry.path),
                    Err(_) => {}
                }
            }
        }
        Ok(found)
    }

    /// Removes the oldest files until the rest take at most `limit` bytes: for copies of what is stored
    /// elsewhere.
    pub(super) fn trim(&self, limit: u64) -> Result<()> {
        let mut copies = self.files("")?;
        copies.retain(|copy| copy.file() != Ok(0)); // locks
        copies.sort_by_key(files::DirEntry::modified);
        let mut stored: u64 = copies.iter().filter_map(|copy| copy.file().ok()).sum();
        for copy in copies {
            if stored <= limit {
                break;
            }
            stored = stored.saturating_sub(files::remove(&copy.path)?);
        }
        Ok(())
    }
}

impl Blobs for Disk {
    fn open(&self, name: &str) -> Result<Input, Failure> {
        files::input(&self.root.join(name))
    }

    fn size(&self, name: &str) -> Option<u64> {
        files::size(&self.root.join(name))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(name);
        if let Some(parent) = path.parent() {
            files::make_private_dir(parent)?;
        }
        files::write_atomically(&path, bytes)
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        let named = |entry: files::DirEntry| Some((self.name(&entry.path), entry.file().ok()?));
        let mut found: Vec<_> = self.files(folder)?.into_iter().filter_map(named).collect();
        found.sort();
        Ok(found)
    }

    fn listing(&self) -> Result<ListFolder<'_>> {
        let entry = |entry: files::DirEntry| MediumEntry {
            name: entry.name.to_string_lossy().into_owned(),
            kind: match entry.file() {
                Ok(bytes) => EntryKind::File(bytes),
                Err(_) if entry.is_folder() => EntryKind::Folder,
                Err(kind) => EntryKind::Other(kind),
            },
        };
        Ok(Box::new(move |folder| {
            Ok(files::entries(&self.root.join(folder))?.into_iter().map(entry).collect())
        }))
    }

    fn remove(&self, name: &str) -> Result<u64> {
        files::remove(&self.root.join(name))
    }

    fn set_aside(&self, name: &str) -> Result<()> {
        files::set_aside(&self.root.join(name), &self.root.join(contents::DAMAGED))
    }
}

impl Logs for Disk {
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        files::append(&self.root.join(name), at, bytes)
    }

    fn can_append(&self, name: &str, at: u64) -> bool {
        files::appendable(&self.root.join(name), at)
    }

    fn lease(&self, name: &str) -> Result<Option<Lease>> {
        let file = files::open_lock(&self.root.join(name))?;
        match locked(file.try_lock(), String::new) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(e) if e.kind() == ErrorKind::InUse => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn alone(&self) -> Result<Option<Lease>> {
        // What does not exist is not in use.
        if files::is_folder(&self.root)? { self.lease("lock") } else { Ok(Some(Box::new(()))) }
    }
}
