//! Programs that are called: the arguments as JSON on their standard input, their standard output is the
//! result.
//!
//! Each is the leader of a process group of its own, which ends with it, and at the latest with this program.

use super::CallOutcome;
use super::streams::{Utf8, last_line};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// Bytes of a program's output that are kept.
const MAX_OUTPUT: usize = 64 << 10;
/// Time that a program's output may still take once it has ended.
const GRACE: Duration = Duration::from_secs(1);

/// What becomes of bytes that are not characters.
pub(super) const REPLACED: &str = "bytes that are not were replaced by U+FFFD";

/// Leaders of the process groups that are running.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Ends all running programs, where this program ends without dropping them.
pub fn end_all() {
    let groups = std::mem::take(&mut *GROUPS.lock().unwrap_or_else(PoisonError::into_inner));
    groups.into_iter().for_each(end_group);
}

/// Ends a process and all that it has started.
fn end_group(leader: u32) {
    #[cfg(unix)]
    if let Some(leader) = rustix::process::Pid::from_raw(leader.cast_signed()) {
        // A process group that has ended gets no signal.
        let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}

/// A process and all that it has started, which end with this value.
pub(super) struct Process {
    pub(super) child: Child,
    leader: Option<u32>,
}

impl Process {
    /// Starts a program in a folder, its standard streams as pipes.
    ///
    /// # Errors
    /// As text: it can't be started.
    pub(super) fn start(line: &[String], folder: &Path) -> Result<Self, String> {
        let (program, arguments) = line.split_first().ok_or("no program")?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        command.process_group(0);
        let child = command.spawn();
        let child =
            child.map_err(|error| format!("can't start `{program}` in {}: {error}", folder.display()))?;
        let leader = child.id();
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).extend(leader);
        Ok(Self { child, leader })
    }

    /// How it ended, if it does within a moment; what it has started ends with it.
    pub(super) async fn end(&mut self) -> Option<ExitStatus> {
        tokio::time::timeout(GRACE, self.ended()).await.ok()?.ok()
    }

    /// Waits for its end; what it has started ends with it.
    async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.end_group();
        status
    }

    fn end_group(&mut self) {
        if let Some(leader) = self.leader.take() {
            GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&leader);
            end_group(leader);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_group();
    }
}

/// Calls a program.
pub(super) async fn call(line: &[String], folder: &Path, timeout: u64, input: String) -> CallOutcome {
    let mut process = Process::start(line, folder)?;
    let pipes = (process.child.stdin.take(), process.child.stdout.take(), process.child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else { return Err("it has no pipes".into()) };
    let write = async move {
        // One that does not read its input may do without.
        let _ = stdin.write_all(input.as_bytes()).await;
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let work = async {
        let streams =
            async { tokio::join!(write, read_first(stdout, &mut out), read_last(stderr, &mut err)) };
        tokio::pin!(streams);
        tokio::select! {
            status = process.ended() => {
                // Only one that has left its group still holds them open.
                let _ = tokio::time::timeout(GRACE, streams).await;
                status
            }
            _ = &mut streams => process.ended().await,
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(timeout), work).await;
    let status =
        ended.map_err(|_| format!("no result after {timeout} s"))?.map_err(|error| error.to_string())?;
    if status.success() {
        let mut utf8 = Utf8::default();
        let text = utf8.of(&out);
        if utf8.is_odd {
            tracing::warn!("the result of `{}` is not UTF-8; {REPLACED}", line.join(" "));
        }
        return Ok(text.trim_end().to_string());
    }
    Err(last_line(&err).unwrap_or_else(|| format!("it ended with {status}")))
}

/// Reads to the end, and keeps the first bytes.
async fn read_first(from: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    read(from, |piece| kept.extend(&piece[..piece.len().min(MAX_OUTPUT - kept.len())])).await;
}

/// Reads to the end, and keeps the last bytes.
async fn read_last(from: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    read(from, |piece| {
        kept.extend(piece);
        kept.drain(..kept.len().saturating_sub(MAX_OUTPUT));
    })
    .await;
}

async fn read(mut from: impl AsyncRead + Unpin, mut take: impl FnMut(&[u8])) {
    let mut piece = vec![0; 8 << 10];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        take(&piece[..n]);
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str, timeout: u64) -> CallOutcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let line = ["sh", "-c", script].map(String::from);
        runtime.block_on(call(&line, Path::new(""), timeout, r#"{"town":"Ulm"}"#.into()))
    }

    #[test]
    fn a_program_reads_its_arguments_and_writes_its_result() {
        assert_eq!(shell("cat; echo", 10).as_deref(), Ok(r#"{"town":"Ulm"}"#));
        assert_eq!(shell("echo sunny", 10).as_deref(), Ok("sunny"), "one that reads nothing");
        assert_eq!(shell("echo ''", 10).as_deref(), Ok(""));
    }

    #[test]
    fn a_program_that_fails_says_why() {
        assert_eq!(shell("echo first >&2; echo no such town >&2; exit 3", 10), Err("no such town".into()));
        assert!(shell("exit 3", 10).unwrap_err().contains('3'));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let none = runtime.block_on(call(&["greenroom-none".into()], Path::new(""), 1, String::new()));
        assert!(none.unwrap_err().starts_with("can't start `greenroom-none`"));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("still-there");
        let began = Instant::now();
        let script = format!("(sleep 3; touch {}) & sleep 60", mark.display());
        assert_eq!(shell(&script, 1), Err("no result after 1 s".into()));
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!mark.exists());
    }

    #[test]
    fn endless_output_is_bounded() {
        let output = shell("yes | head -c 3000000", 30).unwrap();
        assert!(output.len() <= MAX_OUTPUT);
        let script = "yes oh | head -c 300000 >&2; echo no such town >&2; exit 1";
        assert_eq!(shell(script, 30), Err("no such town".into()), "its last words");
    }

    #[test]
    fn processes_that_a_program_leaves_end_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("still-there");
        let began = Instant::now();
        // One holds the output open, one does not.
        let child = format!("sleep 3; touch {}", mark.display());
        let script = format!("({child}) & ({child}) > /dev/null 2>&1 & echo sunny");
        assert_eq!(shell(&script, 30).as_deref(), Ok("sunny"));
        assert!(began.elapsed() < Duration::from_secs(3));
        std::thread::sleep(Duration::from_secs(4));
        assert!(!mark.exists());
    }
}
