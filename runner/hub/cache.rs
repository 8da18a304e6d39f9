//! The cache that all clients of the Hub share, as `huggingface_hub` lays it out:
//!
//! ```text
//! models--ORG--REPO/blobs/SHA256                 a file's bytes, or SHA256.incomplete
//! models--ORG--REPO/snapshots/COMMIT/PATH        a link to them
//! models--ORG--REPO/refs/REVISION                the commit of a branch or tag at the last request
//! .locks/models--ORG--REPO/SHA256.lock           held while it is downloaded
//! ```

use super::{HubFile, Repository};
use crate::files::{self, FileKind};
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Deepest folder below a snapshot in which [`HubCache::addresses`] looks for files.
const MAX_DEPTH: usize = 4;

/// A cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    folder: PathBuf,
}

impl HubCache {
    /// The user's: `HF_HUB_CACHE`, `HF_HOME/hub`, or `huggingface/hub` in the user's cache folder (`~/.cache`
    /// unless `XDG_CACHE_HOME` is set, on every system).
    ///
    /// # Errors
    /// There is no home folder.
    pub fn open() -> anyhow::Result<Self> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(folder) = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE")) {
            return Ok(Self::at(folder));
        }
        let caches = || var("XDG_CACHE_HOME").or_else(|| Some(dirs::home_dir()?.join(".cache")));
        let home = var("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
        Ok(Self::at(
            home.context("there is no home folder; set HF_HOME to locate the Hugging Face cache")?
                .join("hub"),
        ))
    }

    /// The one in a folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A downloaded file: that of the revision, as of its last request. For the default revision any download
    /// will do, the newest first.
    pub fn find(&self, address: &HubFile) -> Option<PathBuf> {
        let repository = self.repository(&address.repository);
        let snapshots = repository.join("snapshots");
        let file =
            |commit: &str| Some(snapshots.join(commit).join(&address.file)).filter(|path| path.is_file());
        let revision = &address.repository.revision;
        let reference = files::read_text(&repository.join("refs").join(revision), FileKind::Revision);
        let referenced = reference.ok().filter(|commit| is_commit(commit.trim()));
        referenced.and_then(|commit| file(commit.trim())).or_else(|| file(revision)).or_else(|| {
            let entries = std::fs::read_dir(&snapshots).ok().filter(|_| address.repository.is_default())?;
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            let found = names.filter_map(|commit| file(&commit));
            found.max_by_key(|path| std::fs::metadata(path).and_then(|found| found.modified()).ok())
        })
    }

    /// All GGUF files, in order of their names.
    pub fn addresses(&self) -> BTreeSet<HubFile> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let repositories = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (org, name) = name.strip_prefix("models--")?.split_once("--")?;
            Repository::new(org, name).ok()
        });
        repositories.flat_map(|repository| self.addresses_in(&repository)).collect()
    }

    fn addresses_in(&self, repository: &Repository) -> Vec<HubFile> {
        let snapshots = self.repository(repository).join("snapshots");
        let below = walkdir::WalkDir::new(&snapshots).min_depth(2).max_depth(MAX_DEPTH).into_iter().flatten();
        let address = |entry: walkdir::DirEntry| {
            let inside = entry.path().strip_prefix(&snapshots).ok()?;
            let parts: Option<Vec<&str>> = inside.iter().skip(1).map(|part| part.to_str()).collect();
            let address = HubFile::new(repository.clone(), &parts?.join("/")).ok()?;
            entry.path().is_file().then_some(address)
        };
        below.filter_map(address).collect()
    }

    fn repository(&self, repository: &Repository) -> PathBuf {
        self.folder.join(folder_name(repository))
    }

    /// Makes room for a file that is to be downloaded.
    ///
    /// # Errors
    /// The folders can't be made.
    pub(super) fn place(&self, address: &HubFile, remote: &RemoteFile) -> anyhow::Result<CacheSlot> {
        let repository = self.repository(&address.repository);
        let revision = &address.repository.revision;
        let place = CacheSlot {
            blob: repository.join("blobs").join(&remote.sha256),
            partial: repository.join("blobs").join(format!("{}.incomplete", remote.sha256)),
            pointer: repository.join("snapshots").join(&remote.commit).join(&address.file),
            // From the snapshot's folder, through those that contain the file.
            target: Path::new(&"../".repeat(2 + address.file.matches('/').count()))
                .join("blobs")
                .join(&remote.sha256),
            reference: (*revision != remote.commit).then(|| repository.join("refs").join(revision)),
            lock: self
                .folder
                .join(".locks")
                .join(folder_name(&address.repository))
                .join(format!("{}.lock", remote.sha256)),
            commit: remote.commit.clone(),
        };
        let made = [Some(&place.blob), Some(&place.pointer), place.reference.as_ref(), Some(&place.lock)]
            .into_iter()
            .flatten()
            .filter_map(|file| file.parent())
            .try_for_each(std::fs::create_dir_all);
        made.with_context(|| self.not_writable())?;
        Ok(place)
    }

    /// Message for a cache that can't be written to: the problem, and what helps.
    pub(super) fn not_writable(&self) -> String {
        format!(
            "can't write to the Hugging Face cache {}; use HF_HUB_CACHE=DIR to put it elsewhere",
            self.folder.display()
        )
    }
}

fn folder_name(repository: &Repository) -> String {
    format!("models--{}--{}", repository.org, repository.name)
}

/// A file as the Hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// The commit of the revision.
    pub(super) commit: String,
    /// Of the whole file, in hexadecimal.
    pub(super) sha256: String,
    /// Bytes.
    pub(super) size: u64,
}

/// Tells whether a text is a commit's hash.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Paths of one file in the cache.
#[derive(Debug)]
pub(super) struct CacheSlot {
    blob: PathBuf,
    /// The part of it that has arrived.
    pub(super) partial: PathBuf,
    /// Its name in the snapshot.
    pointer: PathBuf,
    /// The pointer's target, relative to the pointer's folder.
    target: PathBuf,
    reference: Option<PathBuf>,
    lock: PathBuf,
    commit: String,
}

impl CacheSlot {
    /// Keeps other processes from downloading the same file while the lock lives; calls `wait` if one is
    /// doing so.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn lock(&self, wait: impl FnOnce()) -> io::Result<File> {
        let file =
            files::open_to_write(&self.lock, OpenOptions::new().write(true).create(true).truncate(false))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                wait();
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(file)
    }

    /// The file's bytes, if they have been downloaded. Where the system has no links, they lie in the
    /// snapshot.
    pub(super) fn downloaded(&self) -> Option<&Path> {
        [&self.blob, &self.pointer].into_iter().find(|path| path.is_file()).map(PathBuf::as_path)
    }

    /// Makes what has arrived the file itself.
    pub(super) fn complete(&self) -> io::Result<()> {
        std::fs::rename(&self.partial, &self.blob)
    }

    /// Lets the file be found by its name; returns it.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn publish(&self) -> io::Result<PathBuf> {
        if self.blob.is_file() && !leads_to(&self.pointer, &self.blob) {
            match std::fs::remove_file(&self.pointer) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            link(&self.target, &self.pointer).or_else(|_| std::fs::rename(&self.blob, &self.pointer))?;
        }
        if let Some(reference) = &self.reference {
            files::write(reference, &self.commit).map_err(io::Error::other)?;
        }
        Ok(self.pointer.clone())
    }
}

fn leads_to(pointer: &Path, blob: &Path) -> bool {
    match (pointer.canonicalize(), blob.canonicalize()) {
        (Ok(pointer), Ok(blob)) => pointer == blob,
        _ => false,
    }
}

#[cfg(unix)]
fn link(target: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Elsewhere links take rights that users seldom have.
#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";

    fn address(text: &str) -> HubFile {
        text.parse().unwrap()
    }

    #[test]
    fn what_other_clients_have_fetched_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::at(folder.path());
        let repository = folder.path().join("models--org--repo");
        let write = |name: String, text: &str| {
            let path = repository.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let old = write(format!("snapshots/{OLD}/sub/m.gguf"), "x");
        assert_eq!(cache.find(&address("hf:org/repo/sub/m.gguf")).as_ref(), Some(&old));
        let new = write(format!("snapshots/{NEW}/sub/m.gguf"), "y");
        write("refs/main".into(), OLD);
        assert_eq!(cache.find(&address("hf:org/repo/sub/m.gguf")).as_ref(), Some(&old));
        write("refs/main".into(), "../../../etc");
        write("refs/v2".into(), NEW);
        assert_eq!(cache.find(&address("hf:org/repo/sub/m.gguf@v2")).as_ref(), Some(&new));
        assert_eq!(cache.find(&address(&format!("hf:org/repo/sub/m.gguf@{NEW}"))).as_ref(), Some(&new));
        assert_eq!(cache.find(&address("hf:org/repo/sub/m.gguf@v3")), None);
        assert_eq!(cache.find(&address("hf:org/repo/m.gguf")), None);
        let all: Vec<_> = cache.addresses().iter().map(HubFile::to_string).collect();
        assert_eq!(all, ["hf:org/repo/sub/m.gguf"]);
    }

    #[test]
    fn a_download_is_published_as_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::at(folder.path());
        let remote = RemoteFile { commit: NEW.into(), sha256: "ab".repeat(32), size: 4 };
        let address = address("hf:org/repo/a/b/m.gguf");
        for _ in 0..2 {
            let place = cache.place(&address, &remote).unwrap();
            let _lock = place.lock(|| panic!("nobody else is here")).unwrap();
            std::fs::write(&place.partial, "GGUF").unwrap();
            place.complete().unwrap();
            let path = place.publish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"GGUF");
            assert_eq!(cache.find(&address), Some(path));
            assert!(!place.partial.exists());
        }
        let reference = folder.path().join("models--org--repo/refs/main");
        assert_eq!(std::fs::read_to_string(reference).unwrap(), NEW);
        #[cfg(unix)]
        assert_eq!(
            std::fs::read_link(folder.path().join(format!("models--org--repo/snapshots/{NEW}/a/b/m.gguf")))
                .unwrap(),
            Path::new(&format!("../../../../blobs/{}", "ab".repeat(32)))
        );
    }
}
