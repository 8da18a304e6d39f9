//! Records that outlive the server: a file of JSON lines, appended to while it runs and rewritten when it
//! starts.
//!
//! A line that can't be read is skipped: the last one may be incomplete if the server was killed. A line that
//! can't be written causes a warning; its content is known until the server ends.

use crate::files::{self, FileKind, FileLines};
use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;

/// A file of JSON lines; without a folder nothing is kept.
#[derive(Debug, Default)]
pub(super) struct Journal(Option<File>);

impl Journal {
    /// Reads a folder's file of that name, passes each line to `absorb`, and rewrites it with the lines that
    /// `all` then returns.
    ///
    /// # Errors
    /// The file can't be read or written, or another server has it.
    pub(super) fn open<L: DeserializeOwned + Serialize>(
        folder: Option<&Path>,
        name: &str,
        mut absorb: impl FnMut(L),
        all: impl FnOnce() -> Vec<L>,
    ) -> anyhow::Result<Self> {
        let Some(folder) = folder else { return Ok(Self(None)) };
        std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        let path = folder.join(name);
        let failed = |what: &str| format!("can't {what} {}", path.display());
        let lock = files::open_to_write(
            &folder.join(format!("{name}.lock")),
            OpenOptions::new().write(true).create(true),
        )
        .with_context(|| failed("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!(
                    "another server keeps its records in {}; give this one its own --cache-dir",
                    folder.display()
                )
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| failed("lock")),
        }
        match FileLines::open(&path, FileKind::Journal) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lines => {
                for line in lines.with_context(|| failed("read"))? {
                    if let Ok(line) = serde_json::from_slice(&line.with_context(|| failed("read"))?) {
                        absorb(line);
                    }
                }
            }
        }
        let text = all().iter().map(Self::line).collect::<serde_json::Result<String>>()?;
        let whole = folder.join(format!("{name}.new"));
        files::write(&whole, text)?;
        std::fs::rename(&whole, &path).with_context(|| failed("replace"))?;
        let file = files::open_to_write(&path, OpenOptions::new().append(true));
        // The lock is the file's as long as the server lives.
        std::mem::forget(lock);
        Ok(Self(Some(file.with_context(|| failed("write"))?)))
    }

    /// Adds lines.
    pub(super) fn append<L: Serialize>(&mut self, lines: &[L]) {
        let Some(file) = &mut self.0 else { return };
        let text: serde_json::Result<String> = lines.iter().map(Self::line).collect();
        let written = text.map_err(io::Error::other).and_then(|text| file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!("can't write the server's records, so they will be lost when it ends: {error}");
        }
    }

    fn line<L: Serialize>(line: &L) -> serde_json::Result<String> {
        Ok(serde_json::to_string(line)? + "\n")
    }
}
