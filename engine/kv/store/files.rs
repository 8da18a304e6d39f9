//! Private files: replaced whole or appended to, synced. All of the store's writes go through here, and each passes points at
//! which a test lets the process die or the disk be full ([`fault`]).

use crate::{Error, Result, fault};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Writes a file so that it is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        fault::write_point()?;
        let mut file = private(&mut options).open(&temporary)?;
        write_all(&mut file, bytes)?;
        file.sync_all()?;
        fault::write_point()?;
        fs::rename(&temporary, path)?;
        fault::write_point()?;
        sync_dir(path)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        io_error("write", path, e)
    })
}

/// Appends to a file whose first `at` bytes count; what lies behind them is cut off.
pub(super) fn append(path: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        fault::write_point()?;
        let mut file = private(&mut options).open(path)?;
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        write_all(&mut file, bytes)?;
        file.sync_all()?;
        fault::write_point()?;
        if at == 0 { sync_dir(path) } else { Ok(()) }
    })();
    written.map_err(|e: io::Error| io_error("write", path, e))
}

fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    file.write_all(first)?;
    fault::write_point()?;
    file.write_all(rest)
}

/// Removes a file; returns the bytes that it had. One that is not there is no error.
pub(super) fn remove(path: &Path) -> Result<u64> {
    let bytes = size(path);
    match fault::write_point().and_then(|()| fs::remove_file(path)) {
        Ok(()) => Ok(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(io_error("remove", path, e)),
    }
}

/// Bytes of a file; 0 if it is not there.
pub(super) fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

/// All files below a folder (none if it does not exist), in order.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io_error("read", dir, e)),
    };
    let mut out = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| io_error("read", dir, e))?;
        let kind = entry.file_type().map_err(|e| io_error("read", &entry.path(), e))?;
        match kind.is_dir() {
            true => out.extend(list(&entry.path())?),
            false => out.push(entry.path()),
        }
    }
    out.sort();
    Ok(out)
}

/// A file's name for messages.
pub(super) fn short(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Opens a lock file, made if it is not there.
pub(super) fn open_lock(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    private(&mut options).open(path).map_err(|e| io_error("open", path, e))
}

/// Makes a folder that its owner alone can enter.
pub(super) fn make_private_dir(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|e| io_error("make the folder", path, e))
}

/// Readable by its owner alone; a link in its place is not followed.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    }
    options
}

/// Makes a rename in a file's folder durable.
fn sync_dir(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

pub(super) fn io_error(what: &str, path: &Path, e: io::Error) -> Error {
    Error::store(format!("can't {what} {}: {e}", path.display())).with_source(e)
}
