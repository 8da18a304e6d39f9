//! Messages of the Language Server Protocol on standard input and output, within size limits.

use crate::terminal::output;
use anyhow::{Context as _, ensure};
use lsp_server::{Connection, Message};
use std::io::{BufRead, Read as _};
use std::thread::{JoinHandle, spawn};

/// Maximum message size in bytes: a scenario has a few kilobytes.
const MAX_MESSAGE: usize = 64 << 20;
/// Longest line of a header, in bytes, and most lines.
const MAX_HEADER: (u64, usize) = (4096, 32);

/// A connection to the editor, and the thread that writes to it, which ends when the connection is dropped.
pub(super) fn stdio() -> (Connection, JoinHandle<()>) {
    let (ours, Connection { sender, receiver }) = Connection::memory();
    spawn(move || {
        let mut from = std::io::stdin().lock();
        loop {
            match read(&mut from) {
                Ok(Some(message)) => drop(sender.send(message)),
                Ok(None) => return,
                Err(error) => return eprintln!("error: {error:#}"),
            }
        }
    });
    let writer = spawn(move || {
        for message in receiver {
            let mut bytes = Vec::new();
            // Writing into memory can't fail.
            let _ = message.write(&mut bytes);
            output::message(&bytes);
        }
    });
    (ours, writer)
}

/// The next message; `None`: there is no more.
fn read(from: &mut impl BufRead) -> anyhow::Result<Option<Message>> {
    let mut length = None;
    for n in 0.. {
        ensure!(n < MAX_HEADER.1, "a message header has more than {} lines", MAX_HEADER.1);
        let mut line = String::new();
        from.by_ref().take(MAX_HEADER.0).read_line(&mut line).context("can't read a message header")?;
        if line.is_empty() && n == 0 {
            return Ok(None);
        }
        let field = line.strip_suffix('\n');
        let field = field
            .with_context(|| format!("expected a message header line, found `{}`", line.escape_debug()))?;
        match field.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                let given = value.trim().parse::<usize>();
                length = Some(
                    given.with_context(|| format!("expected a length in bytes, found `{}`", value.trim()))?,
                );
            }
            None if field.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let length = length.context("a message header has no Content-Length")?;
    ensure!(length <= MAX_MESSAGE, "a message has {length} bytes; at most {MAX_MESSAGE} are accepted");
    let mut body = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut body).context("can't read a message")?;
    ensure!(body.len() == length, "a message of {length} bytes ends after {}", body.len());
    serde_json::from_slice(&body).context("a message is not JSON-RPC").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        read(&mut text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn messages_are_read_one_after_another_until_there_is_no_more() {
        let body = r#"{"jsonrpc":"2.0","method":"initialized","params":{}}"#;
        let one = format!("content-length: {}\r\nContent-Type: x\r\n\r\n{body}", body.len());
        let mut two = [one.clone(), one].concat().into_bytes();
        let mut from = &two[..];
        assert!(read(&mut from).unwrap().is_some() && read(&mut from).unwrap().is_some());
        assert!(read(&mut from).unwrap().is_none());
        two.pop();
        let mut from = &two[..];
        assert!(read(&mut from).unwrap().is_some() && read(&mut from).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused_within_bounds() {
        assert_eq!(message("hello"), "expected a message header line, found `hello`");
        assert_eq!(message("a: b\n\nxyz"), "a message header has no Content-Length");
        assert_eq!(message("Content-Length: many\n\n"), "expected a length in bytes, found `many`");
        assert_eq!(
            message("Content-Length: 99999999999\n\nx"),
            "a message has 99999999999 bytes; at most 67108864 are accepted"
        );
        assert_eq!(message("Content-Length: 9\n\n{}"), "a message of 9 bytes ends after 2");
        assert_eq!(message("Content-Length: 2\n\n{}"), "a message is not JSON-RPC");
        assert_eq!(message(&"a: b\n".repeat(99)), "a message header has more than 32 lines");
        assert!(message(&"x".repeat(1 << 20)).len() < 5000);
    }
}
