//! End to end: the program on the bundled model, from YAML to transcript, through faults and back.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod calls;
mod compat;
mod crashes;
mod dates;
mod exact;
mod families;
mod faults;
mod formats;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(target_os = "linux")]
mod hostile;
#[cfg(target_os = "linux")] // as its limits are
mod hostile_folders;
mod hub;
#[cfg(unix)]
mod interrupts;
mod isolation;
mod language;
#[cfg(target_os = "linux")] // which limits a process, and says what it used
mod limits;
mod looked_up;
mod lsp;
mod memory;
mod models;
#[cfg(target_os = "linux")]
mod outputs;
mod pull;
#[cfg(unix)]
mod quota;
#[cfg(unix)]
mod remote;
mod replays;
mod seeds;
#[cfg(unix)]
mod serve;
mod stores;
#[cfg(unix)]
mod thoughts;
mod verify;
mod writes;

use assert_cmd::Command;
use greenroom_engine::fixtures::{is_deep, some};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A folder that goes with its value: in memory, where the system has room there, for runs sync each turn; on
/// a disk where everything is tried.
fn folder() -> tempfile::TempDir {
    #[cfg(target_os = "linux")]
    if !is_deep()
        && let Ok(space) = rustix::fs::statvfs("/dev/shm")
        && space.f_bavail * space.f_frsize > 2 << 30
        && let Ok(folder) = tempfile::tempdir_in("/dev/shm")
    {
        return folder;
    }
    tempfile::tempdir().unwrap()
}

/// A folder of its own for a test: a home, runs and caches.
struct Stage {
    dir: tempfile::TempDir,
}

/// The folder of a finished run.
struct Run {
    dir: PathBuf,
}

/// Sends a signal to a child, which may have ended by itself. (A minimal system has no program `kill`.)
#[cfg(unix)]
fn signal(child: &std::process::Child, name: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match name {
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "KILL" => Signal::KILL,
        other => panic!("no signal {other}"),
    };
    let _ = kill_process(Pid::from_child(child), signal);
}

impl Stage {
    /// A checkout: recordings in it find the scenarios beside them.
    fn new() -> Self {
        let dir = folder();
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program in the repository's root, with an empty home.
    fn greenroom(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("greenroom").unwrap();
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("HOME", self.dir.path())
            .env_remove("XDG_CACHE_HOME");
        command.args(args);
        command
    }

    /// Arguments of a run of a shipped scenario into `out`, with short replies.
    fn args<'a>(&self, scenario: &'a str, out: &'a str) -> Vec<String> {
        let out = self.path(out).display().to_string();
        let cache = self.path("cache").display().to_string();
        let fixed = ["--max-tokens", "16", "--seed", "5", "--quiet"].map(str::to_owned);
        let mut args = vec!["run".to_owned(), format!("scenarios/{scenario}.yaml"), "--out".into(), out];
        args.extend(["--cache-dir".to_owned(), cache]);
        args.extend(fixed);
        args
    }

    /// Plays a shipped scenario to its end.
    fn play(&self, scenario: &str, out: &str, more: &[&str]) -> Run {
        let args = self.args(scenario, out);
        let mut args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        if !args.contains(&"--threads") {
            args.extend(["--threads", "1"]); // tests run side by side: each stays on its own core
        }
        self.greenroom(&args).assert().success();
        Run { dir: self.path(out) }
    }
}

impl Run {
    fn transcript(&self) -> String {
        std::fs::read_to_string(self.dir.join("transcript.jsonl")).unwrap()
    }

    /// Lines of type `turn` of a JSONL file of the run.
    fn turns(&self, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &Value| line["type"] == "turn").collect()
    }

    fn summary(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir.join("summary.json")).unwrap()).unwrap()
    }
}

/// A copy of a shipped scenario, edited.
fn edited(stage: &Stage, scenario: &str, edit: impl FnOnce(String) -> String) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{scenario}.yaml"));
    let copy = stage.path("edited.yaml");
    let original = std::fs::read_to_string(path).unwrap();
    let changed = edit(original.clone());
    assert_ne!(original, changed, "the edit found nothing to change");
    std::fs::write(&copy, changed).unwrap();
    copy
}
