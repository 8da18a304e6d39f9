//! The program under limits of memory, open files and time. It must end by itself, with an exit code of its
//! own.
//!
//! Limits are set by the shell's `ulimit` before the program takes its place. Main types: [`Limits`],
//! [`Ended`].

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Resources that the program may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of address space (RLIMIT_AS): an allocation beyond it fails, which ends a program in Rust with
    /// SIGABRT.
    pub(crate) memory: u64,
    /// Open files (RLIMIT_NOFILE).
    pub(crate) files: u64,
    /// Time on a processor (RLIMIT_CPU, in seconds); on the clock it has [`PATIENCE`] times as long, for the
    /// machine has other work.
    pub(crate) time: Duration,
}

/// A program that has used little processor time after this many times as much wall time is waiting for
/// something.
const PATIENCE: u32 = 6;

/// The limits for hostile input.
impl Default for Limits {
    fn default() -> Self {
        Self { memory: 512 << 20, files: 256, time: Duration::from_secs(10) }
    }
}

/// The way the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; `None`: killed by a signal.
    pub(crate) code: Option<i32>,
    /// It was still going when its time was over.
    pub(crate) timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Bytes of memory in use at once, at most (resident, sampled every few milliseconds).
    pub(crate) peak: u64,
}

impl Limits {
    /// The program in the repository's root, under these limits: add arguments and variables, then
    /// [`Limits::wait`].
    pub(crate) fn greenroom(&self) -> Command {
        let mut command = self.program(assert_cmd::cargo::cargo_bin!("greenroom"));
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_remove("XDG_CACHE_HOME")
            // glibc reserves 64 MB and more of addresses for each thread, of which hardly any becomes memory.
            .env("MALLOC_ARENA_MAX", "1");
        command
    }

    fn program(&self, path: impl AsRef<OsStr>) -> Command {
        let Self { memory, files, time } = self;
        let limits = format!(
            "ulimit -v {} && ulimit -n {files} && ulimit -S -t {}",
            memory >> 10,
            time.as_secs().max(1)
        );
        let script = format!("{limits} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(path);
        command
    }

    /// Runs a command of [`Limits::greenroom`] to its end.
    pub(crate) fn wait(&self, command: &mut Command) -> Ended {
        let began = Instant::now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (text(child.stdout.take()), text(child.stderr.take()));
        let (mut peak, mut timed_out) = (0, false);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            peak = peak.max(resident(&child));
            if began.elapsed() > PATIENCE * self.time && !timed_out {
                timed_out = true;
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
        timed_out |= status.signal() == Some(libc::SIGXCPU);
        Ended { code: status.code(), timed_out, stdout, stderr, peak }
    }
}

impl Ended {
    /// It ended by itself, in time, with one of the documented exit codes, and without a panic.
    pub(crate) fn check(&self, what: &str) {
        let Self { code, timed_out, stdout, stderr, peak } = self;
        let said = format!("{what}: {code:?}, {} MiB at most\n{stdout}\n{stderr}", peak >> 20);
        assert!(!timed_out, "it did not end: {said}");
        assert!(code.is_some_and(|code| [0, 1, 2, 3, 4, 130].contains(&code)), "{said}");
        assert!(!stderr.contains("panicked"), "{said}");
    }
}

/// Reads a pipe to its end, up to a bound: a writer of more than that waits, until its time is over.
fn text(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|pipe| pipe.take(64 << 20).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Bytes of memory that a process has used at once so far, at most.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
fn limits_hold() {
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let shell = |script: &str| limits.wait(limits.program("sh").args(["-c", script]));
    assert!(shell("exec sleep 99").timed_out);
    assert!(shell("while :; do :; done").timed_out);
    let all = shell("ulimit -v; ulimit -n; echo no >&2; exit 3");
    assert_eq!((all.code, all.stdout.as_str(), all.stderr.as_str()), (Some(3), "524288\n256\n", "no\n"));
    assert_eq!(shell("kill -9 $$").code, None);
}
