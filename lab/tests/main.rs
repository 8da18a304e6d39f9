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

/// Flags that no help shows.
const HIDDEN: [&str; 1] = ["--here"];

/// The lab's commands that the pages show: each has the flags that it is given there.
#[test]
fn commands_of_the_pages_exist() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let mut n = 0;
    for page in std::fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()) {
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        let lines = text.lines().filter(|line| !line.contains('`')); // of a block
        let quoted = text.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains('\n'));
        for command in lines.chain(quoted).filter(|command| command.starts_with("greenroom-lab ")) {
            let words: Vec<&str> =
                command.split_whitespace().skip(1).take_while(|word| *word != "#").collect();
            let named =
                words.iter().take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).take(2);
            let path: Vec<&str> = named.copied().collect();
            let help = |path: &[&str]| Stage::new().lab(&[path, &["--help"]].concat()).output().unwrap();
            // The second word may be what the command takes.
            let help = Some(help(&path))
                .filter(|output| output.status.success())
                .unwrap_or_else(|| help(&path[..1]));
            assert!(help.status.success(), "{}: `{command}`", page.display());
            let help = String::from_utf8_lossy(&help.stdout).into_owned();
            for flag in
                words.iter().filter_map(|word| word.split('=').next()).filter(|word| word.starts_with("--"))
            {
                let is_known = help.contains(flag) || HIDDEN.contains(&flag);
                assert!(is_known, "{}: `{command}`: no {flag} in\n{help}", page.display());
            }
            n += 1;
        }
    }
    assert!(n > 8, "{n}");
}
