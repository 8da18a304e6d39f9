//! Programs that are called: the arguments as JSON on their standard input, their standard output is the result.

use super::Outcome;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// Bytes of a program's output that are kept.
const MAX_OUTPUT: u64 = 64 << 10;

/// A process and all that it has started, which end with this value.
pub(super) struct Process {
    pub(super) child: Child,
}

impl Process {
    /// Starts a program in a folder, its standard streams as pipes.
    ///
    /// # Errors
    /// In words: it can't be started.
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
        Ok(Self { child })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(leader) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()))
        {
            // One that has ended already is not there to be told.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

/// Calls a program.
pub(super) async fn call(line: &[String], folder: &Path, timeout: u64, input: String) -> Outcome {
    let mut process = Process::start(line, folder)?;
    let pipes = (process.child.stdin.take(), process.child.stdout.take(), process.child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else { return Err("it has no pipes".into()) };
    let write = async move {
        // One that does not read its input may do without.
        let _ = stdin.write_all(input.as_bytes()).await;
    };
    let work = async {
        let ((), out, err) = tokio::join!(write, read(stdout), read(stderr));
        (out, err, process.child.wait().await)
    };
    let ended = tokio::time::timeout(Duration::from_secs(timeout), work).await;
    let (out, err, status) = ended.map_err(|_| format!("no result after {timeout} s"))?;
    let status = status.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(out.trim_end().to_string());
    }
    let last = err.lines().rev().find(|line| !line.trim().is_empty());
    Err(last.map_or_else(|| format!("it ended with {status}"), |line| line.trim().to_string()))
}

/// Reads to the end, and keeps the first bytes.
async fn read(mut from: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let _ = (&mut from).take(MAX_OUTPUT).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str, timeout: u64) -> Outcome {
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
        let told = shell("yes | head -c 3000000", 30).unwrap();
        assert!(told.len() as u64 <= MAX_OUTPUT);
    }
}
