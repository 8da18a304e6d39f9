//! The store's files: read within bounds, replaced whole or appended to, synced. The store reads, lists and
//! writes only through this module, which has points at which a test can kill the process, fill the disk, or
//! fail a read ([`fault`]).
//!
//! A file with a second name is replaced, never appended to; what is set aside is removed by the next sweep.

use super::found::Failure;
use super::source::Input;
use crate::files::{Links, Unopened, kind, open};
use crate::{Error, Result, fault};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// A file whose reads a test may let fail.
struct Guarded(File);

impl Read for Guarded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        fault::read_point()?;
        self.0.read(buffer)
    }
}

impl Seek for Guarded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Opens a file to read.
pub(super) fn input(path: &Path) -> Result<Input, Failure> {
    let opened = fault::open_point(path).map_err(Unopened::Failed);
    match opened.and_then(|()| open(path, Links::Refuse, OpenOptions::new().read(true))) {
        Ok((file, found)) => Ok(Input::new(Guarded(file), found.len())),
        Err(Unopened::Foreign(kind)) => Err(format!("it is {kind}, not a regular file").into()),
        Err(Unopened::Failed(e)) => Err(Failure::io("it", &e)),
    }
}

/// Entry of a folder.
pub(super) struct DirEntry {
    pub(super) name: OsString,
    pub(super) path: PathBuf,
    found: Metadata,
}

impl DirEntry {
    pub(super) fn is_folder(&self) -> bool {
        self.found.is_dir()
    }

    /// When it was written last, where that is known.
    pub(super) fn modified(&self) -> Option<std::time::SystemTime> {
        self.found.modified().ok()
    }

    /// Bytes of a regular file; of anything else its kind.
    pub(super) fn file(&self) -> Result<u64, &'static str> {
        if self.found.is_file() { Ok(self.found.len()) } else { Err(kind(self.found.file_type())) }
    }
}

/// Lists a folder's entries, sorted by name; none if the folder is not there.
///
/// # Errors
/// It is not a folder, or can't be read.
pub(super) fn entries(dir: &Path) -> Result<Vec<DirEntry>> {
    let wrong = |e| io_error("read", dir, e);
    let mut out = Vec::new();
    if !is_folder(dir)? {
        return Ok(out);
    }
    for entry in fs::read_dir(dir).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        match entry.metadata() {
            Ok(found) => out.push(DirEntry { name: entry.file_name(), path: entry.path(), found }),
            // It is gone: another process has packed or replaced it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error("read", &entry.path(), e)),
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

fn not_a_folder(dir: &Path, found: &Metadata) -> Error {
    let kind = kind(found.file_type());
    Error::store(format!("{} is {kind}, not a folder; move it away", dir.display()))
}

/// Tells whether a folder is there.
///
/// # Errors
/// Another kind of file is in its place, or its kind can't be determined.
pub(super) fn is_folder(dir: &Path) -> Result<bool> {
    match fault::read_point().and_then(|()| fs::symlink_metadata(dir)) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(found) => Err(not_a_folder(dir, &found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io_error("read", dir, e)),
    }
}

/// A folder that a person named, links followed.
pub(super) fn resolved(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}

/// Bytes of all regular files below a folder; links are not followed.
pub(super) fn bytes_below(dir: &Path) -> Result<u64> {
    let (mut bytes, mut folders) = (0u64, vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder)? {
            if entry.is_folder() {
                folders.push(entry.path);
            } else {
                bytes = bytes.saturating_add(entry.file().unwrap_or(0));
            }
        }
    }
    Ok(bytes)
}

/// Writes a file so that it is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary(path)?;
    let written = (|| {
        fault::write_point()?;
        // A name that nothing has: neither another engine's file nor a link is written to.
        let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&temporary)?;
        write_all(&mut file, bytes)?;
        file.sync_all()?;
        fault::write_point()?;
        fs::rename(&temporary, path)?;
        fault::write_point()?;
        sync_parent(path)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        io_error("write", path, e)
    })
}

/// A name that no other write has, of this process or another one, on this machine or another one.
fn temporary(path: &Path) -> Result<PathBuf> {
    Ok(path.with_extension(format!("{TEMPORARY}{:016x}", u64::from_le_bytes(random()?))))
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut random = [0; N];
    getrandom::fill(&mut random).map_err(|e| Error::store(format!("can't get random numbers: {e}")))?;
    Ok(random)
}

/// Beginning of the extension of a file that was not written to its end.
pub(super) const TEMPORARY: &str = "tmp";

/// Appends to a file of which the first `at` bytes count; the rest is cut off.
pub(super) fn append(path: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    let written = (|| {
        fault::write_point()?;
        let (mut file, found) = open_to_write(path)?;
        if n_names(&found) > 1 {
            return Err(io::Error::other("it has a second name (a hard link)"));
        }
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        write_all(&mut file, bytes)?;
        file.sync_all()?;
        fault::write_point()?;
        if at == 0 { sync_parent(path) } else { Ok(()) }
    })();
    written.map_err(|e: io::Error| io_error("write", path, e))
}

/// Tells whether a file can be appended to after its first `at` bytes: a regular one, so long, that has no
/// other name (what has one is somebody's copy too).
pub(super) fn appendable(path: &Path, at: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && n_names(&found) == 1 && found.len() >= at)
}

#[cfg(unix)]
fn n_names(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(found)
}

#[cfg(not(unix))]
fn n_names(_: &Metadata) -> u64 {
    1
}

/// Opens a regular file of our own to write, made if it is not there; what is in it stays.
fn open_to_write(path: &Path) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    match open(path, Links::Refuse, private(options.create(true).truncate(false).write(true))) {
        Ok(opened) => Ok(opened),
        Err(Unopened::Foreign(kind)) => Err(io::Error::other(format!("it is {kind}; move it away"))),
        Err(Unopened::Failed(e)) => Err(e),
    }
}

fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    file.write_all(first)?;
    fault::write_point()?;
    file.write_all(rest)
}

/// Removes a file; returns the bytes that it had. One that is missing is not an error.
pub(super) fn remove(path: &Path) -> Result<u64> {
    let bytes = size(path).unwrap_or(0);
    match fault::write_point().and_then(|()| fs::remove_file(path)) {
        Ok(()) => Ok(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(io_error("remove", path, e)),
    }
}

/// Removes a folder with all that is in it; returns the bytes freed. Links in it go, what they lead to stays.
pub(super) fn remove_folder(dir: &Path) -> Result<u64> {
    let bytes = bytes_below(dir)?;
    fs::remove_dir_all(dir).map_err(|e| io_error("remove", dir, e))?;
    Ok(bytes)
}

/// Moves something into the folder `aside`, under a name that is not taken.
pub(super) fn set_aside(path: &Path, aside: &Path) -> Result<()> {
    make_private_dir(aside)?;
    let name = path.file_name().unwrap_or_default();
    let mut to = aside.join(name);
    for n in 1.. {
        match fs::symlink_metadata(&to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            _ => {
                let mut another = name.to_owned();
                another.push(format!(".{n}"));
                to = aside.join(another);
            }
        }
    }
    fault::write_point().and_then(|()| fs::rename(path, to)).map_err(|e| io_error("set aside", path, e))
}

/// Bytes of a regular file; `None` if there is none.
pub(super) fn size(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(Metadata::is_file).map(|found| found.len())
}

/// Opens a lock file, made if it is not there.
pub(super) fn open_lock(path: &Path) -> Result<File> {
    let opened = fault::write_point().and_then(|()| open_to_write(path));
    opened.map(|(file, _)| file).map_err(|e| io_error("open", path, e))
}

/// Makes a folder that its owner alone can enter, and those above it; each is durable before anything is put
/// into it.
///
/// # Errors
/// It can't be created, or another kind of file is in its place.
pub(super) fn make_private_dir(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(found) => return Err(not_a_folder(path, &found)),
        Err(_) => {}
    }
    // Where a person wants the cache to lie is that person's business: links above it are followed.
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir()) {
        make_private_dir(parent)?;
    }
    let builder = private_folder();
    let made = fault::write_point().and_then(|()| match builder.create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()), // another process was faster
        made => made,
    });
    let durable = made.and_then(|()| sync(path)).and_then(|()| sync_parent(path));
    durable.map_err(|e| io_error("create the folder", path, e))
}

/// Makes folders that are their owner's alone.
#[cfg_attr(not(unix), allow(unused_mut))]
fn private_folder() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Readable by its owner alone.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Makes durable what happened to a name in its folder.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))
}

fn sync(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(dir.to_owned()));
    #[cfg(unix)]
    File::open(dir)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

pub(super) fn io_error(what: &str, path: &Path, e: io::Error) -> Error {
    Error::store(format!("can't {what} {}: {e}", path.display())).with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// Folders that were synced on this thread.
        pub(super) static SYNCED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn every_folder_that_is_made_is_durable_and_so_is_its_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        SYNCED.take();
        make_private_dir(&at("a/b/c")).expect("folders");
        let [a, b, c] = ["a", "a/b", "a/b/c"].map(at);
        // Each before its contents.
        let expected = [&a, dir.path(), &b, &a, &c, &b].map(Path::to_owned);
        assert_eq!(SYNCED.take(), expected);
        make_private_dir(&c).expect("a folder");
        assert!(SYNCED.take().is_empty());
        std::fs::write(at("file"), "").expect("a file");
        assert!(make_private_dir(&at("file")).is_err() && make_private_dir(&at("file/a")).is_err());
    }

    #[test]
    fn writers_of_one_file_do_not_meet() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("check");
        let threads: Vec<_> = (0..8u8)
            .map(|i| {
                let path = path.clone();
                std::thread::spawn(move || {
                    for _ in 0..40 {
                        write_atomically(&path, &vec![i; 5000]).expect("a write");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a writer"));
        let bytes = input(&path).and_then(|mut input| input.whole(5000)).expect("a file");
        assert!(bytes.len() == 5000 && bytes.iter().all(|b| *b == bytes[0]));
        assert_eq!(entries(dir.path()).expect("a folder").len(), 1);
    }

    #[test]
    fn what_is_set_aside_takes_nobodys_place() {
        let dir = tempfile::tempdir().expect("a folder");
        for text in ["one", "two", "three"] {
            std::fs::write(dir.path().join("x.log"), text).expect("a file");
            set_aside(&dir.path().join("x.log"), &dir.path().join("damaged")).expect("a move");
        }
        let kept = entries(&dir.path().join("damaged")).expect("a folder");
        let names: Vec<_> = kept.iter().map(|entry| entry.name.to_string_lossy()).collect();
        assert_eq!(names, ["x.log", "x.log.1", "x.log.2"]);
    }
}
