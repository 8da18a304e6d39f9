//! What a program writes in addition to its result, and bytes that are not UTF-8: so that a failure names its
//! cause.
//!
//! A server's messages are JSON in UTF-8, one a line. What is not UTF-8 is replaced instead of being lost
//! with its whole message, and a line that is not a message is kept for the reason of a failure.

use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes of a program's standard error that are kept.
const MAX_ERROR: usize = 64 << 10;
/// Characters of a line that a reason quotes.
const MAX_QUOTED: usize = 300;

/// State of a server's streams other than its messages.
#[derive(Debug, Default)]
pub(super) struct ServerStreams {
    error: Mutex<Vec<u8>>,
    /// True once its standard error has ended.
    is_heard: AtomicBool,
    output: Mutex<Output>,
}

#[derive(Debug, Default)]
struct Output {
    /// The beginning of the line that is being written.
    line: String,
    /// The last line that can't be a message.
    stray: Option<String>,
    /// True if a line was longer than a message may be.
    is_too_long: bool,
    /// True if something was not UTF-8 since it was last asked.
    is_odd: bool,
}

impl ServerStreams {
    /// Reads a server's standard error to its end, and keeps the last of it.
    pub(super) async fn hear_error(&self, mut from: impl AsyncRead + Unpin) {
        let mut piece = vec![0; 8 << 10];
        while let Ok(n @ 1..) = from.read(&mut piece).await {
            let mut kept = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&piece[..n]);
            let beyond = kept.len().saturating_sub(MAX_ERROR);
            kept.drain(..beyond);
        }
        self.is_heard.store(true, Ordering::Relaxed);
    }

    /// Reads a server's output to its end, and hands over each line as UTF-8; one of more than `most` bytes
    /// is left out.
    pub(super) async fn hear(
        &self,
        mut from: impl AsyncRead + Unpin,
        most: usize,
        mut take: impl FnMut(&str),
    ) {
        let (mut piece, mut text) = (vec![0; 8 << 10], Utf8::default());
        let (mut line, mut is_too_long) = (String::new(), false);
        while let Ok(n @ 1..) = from.read(&mut piece).await {
            let said = text.of(&piece[..n]);
            self.look(&said, std::mem::take(&mut text.is_odd));
            for part in said.split_inclusive('\n') {
                is_too_long |= line.len() + part.len() > most;
                if !is_too_long {
                    line.push_str(part);
                }
                if part.ends_with('\n') {
                    if std::mem::take(&mut is_too_long) {
                        self.note_too_long();
                    } else {
                        take(&line);
                    }
                    line.clear();
                }
            }
        }
    }

    fn note_too_long(&self) {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).is_too_long = true;
    }

    /// Looks for lines that are not messages, which begin as an object or a list.
    fn look(&self, said: &str, is_odd: bool) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.is_odd |= is_odd;
        for piece in said.split_inclusive('\n') {
            let room = MAX_QUOTED.saturating_sub(output.line.chars().count());
            output.line.extend(piece.chars().take(room));
            if piece.ends_with('\n') {
                let line = std::mem::take(&mut output.line);
                let line = line.trim();
                if !line.is_empty() && !line.starts_with(['{', '[']) {
                    output.stray = Some(line.to_string());
                }
            }
        }
    }

    /// True if something that the server wrote since the last call of this was not UTF-8.
    pub(super) fn was_odd(&self) -> bool {
        std::mem::take(&mut self.output.lock().unwrap_or_else(PoisonError::into_inner).is_odd)
    }

    /// The last line of output that was no message, as the end of a reason; nothing if there was none.
    pub(super) fn stray(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.is_too_long {
            return "; it wrote a message that is too long".to_string();
        }
        let stray = output.stray.as_ref();
        stray.map_or_else(String::new, |line| format!("; it wrote a line that is not a message: `{line}`"))
    }

    /// How a server ended, with its last words, as the end of a reason.
    pub(super) async fn end(&self, status: ExitStatus) -> String {
        // What it has written may still be on its way; what it has started may hold its standard error open.
        for _ in 0..100 {
            if self.is_heard.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last_line(&error);
        let last =
            last.map_or_else(String::new, |line| format!("; the last line of its standard error: `{line}`"));
        format!("({status}){last}")
    }
}

/// The first non-empty line of a text, shortened, without control characters.
pub(super) fn first_line(text: &str) -> Option<String> {
    let first = text.lines().find(|line| !line.trim().is_empty())?.trim();
    Some(first.chars().filter(|c| !c.is_control()).take(MAX_QUOTED).collect())
}

/// The last non-empty line of a text, shortened.
pub(super) fn last_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty())?.trim();
    Some(last.chars().take(MAX_QUOTED).collect())
}

/// Bytes as text, piece by piece: what is not UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    /// The beginning of a character whose end has not come yet.
    begun: Vec<u8>,
    /// True if something was replaced.
    pub(super) is_odd: bool,
}

impl Utf8 {
    /// The text of the next piece, up to the last character that is complete.
    pub(super) fn of(&mut self, piece: &[u8]) -> String {
        self.begun.extend(piece);
        let bytes = std::mem::take(&mut self.begun);
        let mut text = String::with_capacity(bytes.len());
        let mut rest = &bytes[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(n) = error.error_len() else {
                        self.begun = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.is_odd = true;
                    rest = &after[n..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8;

    #[test]
    fn text_is_the_same_however_it_is_cut() {
        for (bytes, expected, is_odd) in [
            ("caf\u{e9} \u{1F600}".as_bytes(), "caf\u{e9} \u{1F600}", false),
            (&b"caf\xe9 cr\xe8me"[..], "caf\u{fffd} cr\u{fffd}me", true),
            (&b"\xf0\x9f\x98\x80\xff"[..], "\u{1F600}\u{fffd}", true),
        ] {
            for n in 1..=bytes.len() {
                let mut utf8 = Utf8::default();
                let text: String = bytes.chunks(n).map(|piece| utf8.of(piece)).collect();
                assert_eq!((text.as_str(), utf8.is_odd), (expected, is_odd), "{n}");
            }
        }
    }
}
