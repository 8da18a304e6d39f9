//! `greenroom-lab`, from its command line to its figures.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod bench;
mod candle;
#[cfg(target_os = "linux")]
mod outputs;
mod quality;

use assert_cmd::Command;
use std::path::PathBuf;

/// A separate folder for a test.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program in the repository's root, with an empty home.
    fn lab(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("greenroom-lab"));
        command
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .env("HOME", self.dir.path())
            .env_remove("XDG_CACHE_HOME");
        command.args(args);
        command
    }
}
