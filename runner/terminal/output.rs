//! The one writer of what the program says: nothing gets lost without a word, and nothing in it steers the
//! terminal.
//!
//! A reader that closes the pipe (`greenroom graph … | head`) ends nothing: what it would not read is
//! dropped, and the command ends as it would have. Any other failure is kept, and [`finish`] reports it when
//! the command has done its work.
//!
//! A reader that closes the pipe ends nothing: neither the play nor its exit code. Output that is lost for
//! any other reason is exit code 4.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// What a command wrote that was called by a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// To standard output.
    pub out: String,
    /// To standard error.
    pub err: String,
}

thread_local! {
    /// What is written on this thread while a program calls a command.
    static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
}

/// Keeps what `work` writes on this thread, instead of writing it.
pub fn captured<T>(work: impl FnOnce() -> T) -> (T, Captured) {
    /// Ends the capture after a panic, too.
    struct Outer(Option<Captured>);
    impl Drop for Outer {
        fn drop(&mut self) {
            CAPTURED.with(|captured| captured.replace(self.0.take()));
        }
    }
    let outer = Outer(CAPTURED.with(|captured| captured.replace(Some(Captured::default()))));
    let result = work();
    let written = CAPTURED.with(|captured| captured.take()).unwrap_or_default();
    drop(outer);
    (result, written)
}

/// True while what this thread writes is kept for a program.
pub(crate) fn is_captured() -> bool {
    CAPTURED.with(|captured| captured.borrow().is_some())
}

/// Keeps a text if this thread's output is captured.
fn kept(text: &str, to: impl FnOnce(&mut Captured) -> &mut String) -> bool {
    CAPTURED.with(|captured| match &mut *captured.borrow_mut() {
        Some(captured) => {
            to(captured).push_str(&safe(text));
            true
        }
        None => false,
    })
}

/// Standard output, as far as it has failed.
enum OutputState {
    Open,
    /// The reader has closed the pipe.
    Unread,
    Failed(io::Error),
}

static STATE: Mutex<OutputState> = Mutex::new(OutputState::Open);

/// Writes to standard output.
pub fn out(text: &str) {
    if kept(text, |captured| &mut captured.out) {
        return;
    }
    attempt(|stdout| stdout.write_all(safe(text).as_bytes()));
}

/// Writes to standard error; a failure there can't be reported.
pub fn err(text: &str) {
    if kept(text, |captured| &mut captured.err) {
        return;
    }
    let _ = io::stderr().write_all(safe(text).as_bytes());
}

/// Writes a message of a protocol, as it is, at once: a program reads it, no terminal shows it.
pub fn message(bytes: &[u8]) {
    attempt(|stdout| stdout.write_all(bytes).and_then(|()| stdout.flush()));
}

/// Shows what has been written without an end of line.
pub fn flush() {
    attempt(Write::flush);
}

/// Ends all output.
///
/// # Errors
/// Something that was written before, or now, has not reached standard output, which was not closed by its
/// reader.
pub fn finish() -> io::Result<()> {
    flush();
    match std::mem::replace(&mut *STATE.lock().unwrap_or_else(PoisonError::into_inner), OutputState::Unread) {
        OutputState::Failed(error) => Err(error),
        OutputState::Open | OutputState::Unread => Ok(()),
    }
}

fn attempt(write: impl FnOnce(&mut io::Stdout) -> io::Result<()>) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !matches!(*state, OutputState::Open) {
        return;
    }
    if let Err(error) = write(&mut io::stdout()) {
        *state = if error.kind() == ErrorKind::BrokenPipe {
            OutputState::Unread
        } else {
            OutputState::Failed(error)
        };
    }
}

/// Standard output for what takes a writer; whole texts are to be written at once.
pub(super) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        out(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        flush();
        Ok(())
    }
}

/// A text whose only control sequences are our colours: any other one comes from a file.
fn safe(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(steers) {
        safe.push_str(&rest[..at]);
        rest = &rest[at..];
        let n = colour(rest);
        let end = if n > 0 { n } else { rest.chars().next().map_or(0, char::len_utf8) };
        safe.push_str(if n > 0 { &rest[..n] } else { "\u{fffd}" });
        rest = &rest[end..];
    }
    Cow::Owned(safe + rest)
}

/// Bytes of the sequence that sets a colour or style (`ESC [ 1 ; 31 m`) at a text's beginning; 0: there is
/// none.
fn colour(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let n = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if parameters[n..].starts_with('m') { n + 3 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_writes_is_kept_for_its_caller() {
        let ((), outer) = captured(|| {
            out("a\u{7}");
            let ((), inner) = captured(|| err("b"));
            assert_eq!(inner, Captured { out: String::new(), err: "b".to_string() });
            let panicked = std::panic::catch_unwind(|| captured(|| panic!("in a command")));
            assert!(panicked.is_err());
            err("c");
        });
        assert_eq!(outer, Captured { out: "a\u{fffd}".to_string(), err: "c".to_string() });
        assert!(!is_captured());
    }

    #[test]
    fn colours_pass_and_nothing_else_that_steers() {
        for plain in ["", "a\tb\nc", "\u{1b}[1;31mred\u{1b}[0m", "ümläut 水 \u{202e}"] {
            assert_eq!(safe(plain), plain);
        }
        assert_eq!(safe("\u{1b}]0;title\u{7}"), "\u{fffd}]0;title\u{fffd}");
        assert_eq!(safe("\u{1b}[2Ja\rb\u{9b}1mc\u{7f}"), "\u{fffd}[2Ja\u{fffd}b\u{fffd}1mc\u{fffd}");
        assert_eq!(safe("\u{1b}"), "\u{fffd}");
        assert_eq!(safe("\u{1b}["), "\u{fffd}[");
    }
}
