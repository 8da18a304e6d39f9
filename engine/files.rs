//! Opening what others may have put in a file's place: regular files alone, and never waiting for one.
//!
//! Opening a FIFO would block for ever, a device never ends, a link leads out of the cache folder. The engine
//! opens all its files here; `tests/runner/floors.rs` checks that.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// True if a link in a file's place is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Links are followed: for files that a person names.
    Follow,
    /// Links are refused: in folders of our own, where there are none.
    Refuse,
}

/// Reason why a file was not opened.
#[derive(Debug)]
pub(crate) enum Unopened {
    /// Another kind of file is in its place; names the kind.
    Foreign(&'static str),
    /// The system says so; it may be otherwise the next time.
    Failed(io::Error),
}

impl From<io::Error> for Unopened {
    fn from(e: io::Error) -> Self {
        Self::Failed(e)
    }
}

/// Opens a regular file; also says what it is.
///
/// # Errors
/// Another kind of file is in its place, or it can't be opened.
pub(crate) fn open(
    path: &Path,
    links: Links,
    options: &mut OpenOptions,
) -> Result<(File, Metadata), Unopened> {
    let look = || match links {
        Links::Follow => std::fs::metadata(path),
        Links::Refuse => std::fs::symlink_metadata(path),
    };
    // First without opening it: to open some devices does something.
    let before = look();
    if let Ok(found) = &before {
        regular(found.file_type())?;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        // What has taken its place since is not waited for either.
        let follow = if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 };
        options.custom_flags(libc::O_NONBLOCK | follow);
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    regular(found.file_type())?;
    Ok((file, found))
}

fn regular(found: FileType) -> Result<(), Unopened> {
    if found.is_file() { Ok(()) } else { Err(Unopened::Foreign(kind(found))) }
}

/// A kind of file as text.
pub(crate) fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        match () {
            () if found.is_fifo() => return "a named pipe",
            () if found.is_socket() => return "a socket",
            () if found.is_char_device() || found.is_block_device() => return "a device",
            () => {}
        }
    }
    match () {
        () if found.is_file() => "a file",
        () if found.is_dir() => "a folder",
        () if found.is_symlink() => "a link",
        () => "not a regular file",
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_none_is_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").expect("a file");
        std::fs::create_dir(at("folder")).expect("a folder");
        std::os::unix::fs::symlink(at("file"), at("link")).expect("a link");
        std::os::unix::fs::symlink("/dev/zero", at("zero")).expect("a link");
        std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo");
        assert!(made.success());
        let cases: [(&str, [Option<&str>; 2]); 6] = [
            ("file", [None, None]),
            ("folder", [Some("a folder"), Some("a folder")]),
            ("link", [None, Some("a link")]),
            ("zero", [Some("a device"), Some("a link")]),
            ("socket", [Some("a socket"), Some("a socket")]),
            ("pipe", [Some("a named pipe"), Some("a named pipe")]),
        ];
        for (name, kinds) in cases {
            for (links, kind) in [Links::Follow, Links::Refuse].into_iter().zip(kinds) {
                for write in [false, true] {
                    let opened = open(&at(name), links, OpenOptions::new().read(!write).write(write));
                    let found = match opened {
                        Ok(_) => None,
                        Err(Unopened::Foreign(kind)) => Some(kind),
                        Err(Unopened::Failed(e)) => panic!("{name}: {e}"),
                    };
                    assert_eq!(found, kind, "{name}, {links:?}, to write: {write}");
                }
            }
        }
    }
}
