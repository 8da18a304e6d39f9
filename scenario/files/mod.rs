//! The only access to files: everything that the runner reads or writes by a path.
//!
//! Only regular files are read, of a size that their [`FileKind`] may have: a named pipe would keep its
//! reader waiting for ever, a device never ends. A failure to write is an error that names the file. [`Root`]
//! limits where a file may lead.

mod root;

pub use root::Root;

use anyhow::Context as _;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::path::{Component, Path};

/// The kind of content that a file is read for, which determines how large it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A scenario, or a file that one includes.
    Scenario,
    /// Values of a scenario's variables, case by case.
    Cases,
    /// The record of a run.
    Transcript,
    /// The trace of a run: what each turn cost.
    Trace,
    /// `experiment.json`.
    Experiment,
    /// A KV configuration.
    KvConfig,
    /// A secret that memories are encrypted with.
    CacheKey,
    /// Keys of a server's clients.
    Keys,
    /// What a server remembers of its conversations.
    Journal,
    /// A text, or ids, that a model is to read.
    Text,
    /// Another engine's scenario.
    Import,
    /// The JSON schema that editors complete by.
    Schema,
    /// Figures that the operating system reports.
    System,
    /// A model's weights.
    Model,
    /// The commit of a branch of a model's repository.
    Revision,
    /// What another program says of the models that it keeps.
    Store,
    /// A line typed at a terminal.
    Typed,
}

impl FileKind {
    /// The most bytes that such a file may have.
    pub const fn max_bytes(self) -> u64 {
        match self {
            Self::CacheKey | Self::Typed | Self::Revision => 64 << 10,
            Self::KvConfig | Self::Schema | Self::System | Self::Import => 1 << 20,
            Self::Scenario | Self::Store => 4 << 20,
            Self::Experiment | Self::Cases | Self::Keys => 16 << 20,
            Self::Text => 64 << 20,
            Self::Trace => 256 << 20,
            Self::Transcript | Self::Journal => 1 << 30,
            Self::Model => 1 << 50,
        }
    }

    /// The most bytes that a line of such a file may have, its end included.
    const fn max_line_bytes(self) -> u64 {
        match self {
            Self::Trace | Self::Typed => 64 << 10,
            _ => 8 << 20,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Scenario => "a scenario",
            Self::Cases => "a case file",
            Self::Transcript => "a transcript",
            Self::Trace => "a trace",
            Self::Experiment => "an experiment record",
            Self::KvConfig => "a KV configuration",
            Self::CacheKey => "a secret file",
            Self::Keys => "a key file",
            Self::Journal => "a server's journal",
            Self::Text => "a text",
            Self::Import => "a scenario to import",
            Self::Schema => "a schema",
            Self::System => "a system file",
            Self::Model => "a model",
            Self::Revision => "a revision",
            Self::Store => "a manifest or a settings file",
            Self::Typed => "an answer",
        }
    }
}

/// Opens a regular file whose size its kind may have.
///
/// # Errors
/// The system's error; or it is not a regular file, or too large.
pub fn open(path: &Path, kind: FileKind) -> io::Result<File> {
    // Its kind is checked before it is opened: opening alone has effects on some devices.
    fits(&std::fs::metadata(path)?, kind)?;
    let file = without_waiting(OpenOptions::new().read(true)).open(path)?;
    // Another file may have taken its place meanwhile.
    fits(&file.metadata()?, kind)?;
    Ok(file)
}

/// The bytes of a regular file whose size its kind may have.
///
/// # Errors
/// As [`open()`].
pub fn read(path: &Path, kind: FileKind) -> io::Result<Vec<u8>> {
    let file = open(path, kind)?;
    let mut bytes = Vec::new();
    // A file may grow while it is read, and those of /proc report a length of 0.
    let n = file.take(kind.max_bytes() + 1).read_to_end(&mut bytes)?;
    if n as u64 > kind.max_bytes() { Err(too_large(n as u64, kind)) } else { Ok(bytes) }
}

/// The text of a regular file whose size its kind may have.
///
/// # Errors
/// As [`open()`]; [`ErrorKind::InvalidData`] where it is not UTF-8.
pub fn read_text(path: &Path, kind: FileKind) -> io::Result<String> {
    let text = String::from_utf8(read(path, kind)?);
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// The first bytes of a regular file of any size, `n` at most.
///
/// # Errors
/// As [`open()`], sizes aside.
pub fn head(path: &Path, n: u64) -> io::Result<Vec<u8>> {
    regular(&std::fs::metadata(path)?)?;
    let file = without_waiting(OpenOptions::new().read(true)).open(path)?;
    regular(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(n).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lines of a file, their ends included, none longer than its kind may have.
#[derive(Debug)]
pub struct FileLines<R> {
    from: R,
    kind: FileKind,
    left: u64,
}

impl FileLines<BufReader<File>> {
    /// Those of a regular file.
    ///
    /// # Errors
    /// As [`open()`].
    pub fn open(path: &Path, kind: FileKind) -> io::Result<Self> {
        Ok(Self::new(BufReader::new(open(path, kind)?), kind))
    }
}

impl<R: BufRead> FileLines<R> {
    /// Those of a reader.
    pub fn new(from: R, kind: FileKind) -> Self {
        Self { from, kind, left: kind.max_bytes() }
    }
}

impl<R: BufRead> Iterator for FileLines<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let most = self.kind.max_line_bytes();
        let mut line = Vec::new();
        match self.from.by_ref().take(most + 1).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(n) if n as u64 > most => {
                let message = format!("a line has more than {}", size(most));
                Some(Err(io::Error::new(ErrorKind::FileTooLarge, message)))
            }
            Ok(n) => match self.left.checked_sub(n as u64) {
                Some(left) => {
                    self.left = left;
                    Some(Ok(line))
                }
                None => Some(Err(too_large(self.kind.max_bytes() + 1, self.kind))),
            },
            Err(error) => Some(Err(error)),
        }
    }
}

/// A typed line; `None` at the end of input. The length of a line is limited.
///
/// # Errors
/// The reader's error, a line that is too long, or one that is not UTF-8.
pub fn typed_line(from: impl BufRead) -> io::Result<Option<String>> {
    let line = FileLines::new(from, FileKind::Typed).next().transpose()?;
    let text = line.map(String::from_utf8).transpose();
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// Writes a regular file, replacing one that exists.
///
/// # Errors
/// The file and the system's message, or that it is another kind of file.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let file = open_to_write(path, OpenOptions::new().write(true).create(true).truncate(true));
    let written = file.and_then(|mut file| file.write_all(bytes.as_ref()));
    written.with_context(|| format!("can't write {}", path.display()))
}

/// Writes a file, whole or not at all, in the place of what is there: a link is replaced, not followed. The
/// permissions of a regular file stay.
///
/// # Errors
/// The file and the system's message.
pub fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let replaced = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut new = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        new.write_all(bytes.as_ref())?;
        if let Ok(before) = std::fs::symlink_metadata(path)
            && before.is_file()
        {
            new.as_file().set_permissions(before.permissions())?;
        }
        new.persist(path).map(drop).map_err(|error| error.error)
    };
    replaced().with_context(|| format!("can't write {}", path.display()))
}

/// Writes to what a person named, which may be a pipe or a device: `/dev/stdout`, `>(less)`.
///
/// # Errors
/// The path, and the system's message.
pub fn write_to(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let written = File::create(path).and_then(|mut file| file.write_all(bytes.as_ref()));
    written.with_context(|| format!("can't write {}", path.display()))
}

/// Writes a file that is not there yet.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`], or what else the system says.
pub fn write_new(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    File::create_new(path)?.write_all(bytes.as_ref())
}

/// Copies a regular file of any size to a place where there is none; a link is not followed.
///
/// # Errors
/// Either file, and the system's message.
pub fn copy_new(from: &Path, to: &Path) -> anyhow::Result<()> {
    let opened = std::fs::symlink_metadata(from).and_then(|found| regular(&found));
    let opened = opened.and_then(|()| without_waiting(OpenOptions::new().read(true)).open(from));
    let mut read = opened.with_context(|| format!("can't read {}", from.display()))?;
    let copied = File::create_new(to).and_then(|mut written| io::copy(&mut read, &mut written));
    copied.map(drop).with_context(|| format!("can't copy {} to {}", from.display(), to.display()))
}

/// Opens a file of ours to write: a new one, if `options` make one, or a regular one. Not by a link, which in
/// a folder from outside may lead to any file of its reader's.
///
/// # Errors
/// The system's error, or there is something other than a regular file.
pub fn open_to_write(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => regular(&found)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = without_waiting(options).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Fsyncs a folder, so that its entries are durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Windows opens no folder as a file, and needs no such thing.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Opening a named pipe would wait for its other end.
#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY)
}

#[cfg(not(unix))]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

fn fits(found: &Metadata, kind: FileKind) -> io::Result<()> {
    regular(found)?;
    if found.len() > kind.max_bytes() { Err(too_large(found.len(), kind)) } else { Ok(()) }
}

fn regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    if found.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder; expected a file"));
    }
    let message = format!("it is {}; expected a regular file", special(found.file_type()));
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

#[cfg(unix)]
fn special(found: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    match found {
        found if found.is_symlink() => "a link",
        found if found.is_fifo() => "a named pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "not a regular file"
}

fn too_large(n: u64, kind: FileKind) -> io::Error {
    let message = format!("it has {}; {} may have at most {}", size(n), kind.word(), size(kind.max_bytes()));
    io::Error::new(ErrorKind::FileTooLarge, message)
}

fn size(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// A path that reveals nothing about the machine: below the current folder, else only its last `n_kept`
/// parts.
pub fn portable(path: &Path, n_kept: usize) -> String {
    let inside = path.canonicalize().ok().zip(std::env::current_dir().and_then(|d| d.canonicalize()).ok());
    let below = inside.and_then(|(path, here)| path.strip_prefix(here).map(Path::to_path_buf).ok());
    let path = below.unwrap_or_else(|| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    let is_named = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let parts: Vec<_> =
        path.components().filter(is_named).map(|part| part.as_os_str().to_string_lossy()).collect();
    let skipped = if path.is_absolute() { parts.len().saturating_sub(n_kept) } else { 0 };
    parts[skipped..].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_whole() {
        let lines: Vec<_> = FileLines::new(&b"a\n\nb"[..], FileKind::Trace).map(Result::unwrap).collect();
        assert_eq!(lines, [b"a\n".to_vec(), b"\n".to_vec(), b"b".to_vec()]);
        let long = io::repeat(b'x').take(70_000);
        let mut lines = FileLines::new(BufReader::new(long), FileKind::Trace);
        assert_eq!(lines.next().unwrap().unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    #[cfg(unix)]
    fn only_regular_files_of_a_fitting_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("small"), "text").unwrap();
        std::os::unix::fs::symlink(at("small"), at("link")).unwrap();
        assert_eq!(read_text(&at("link"), FileKind::Scenario).unwrap(), "text");
        File::create(at("sparse")).unwrap().set_len(FileKind::Scenario.max_bytes() + 1).unwrap();
        let message = |name: &str| read(&at(name), FileKind::Scenario).unwrap_err().to_string();
        assert_eq!(message("sparse"), "it has 4.00 MiB; a scenario may have at most 4.00 MiB");
        assert_eq!(message("."), "it is a folder; expected a file");
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        assert_eq!(message("zero"), "it is a device; expected a regular file");
        assert!(head(&at("zero"), 4).is_err());
        assert_eq!(head(&at("small"), 2).unwrap(), b"te");
    }

    #[test]
    #[cfg(unix)]
    fn a_replaced_file_keeps_its_permissions_and_a_link_is_not_followed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("old"), "old").unwrap();
        std::fs::set_permissions(at("old"), PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(at("old"), at("link")).unwrap();
        replace(&at("link"), "by the link").unwrap();
        assert_eq!(std::fs::read_to_string(at("old")).unwrap(), "old");
        replace(&at("old"), "new").unwrap();
        assert_eq!(std::fs::read_to_string(at("old")).unwrap(), "new");
        assert_eq!(std::fs::metadata(at("old")).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(replace(&at("none/new"), "").unwrap_err().to_string().contains("can't write"));
    }
}
