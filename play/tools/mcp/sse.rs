//! Streams of server-sent events: the data of one event after another.

use std::io::{BufRead, Result};

/// Events of a stream (the HTML standard, "Server-sent events").
pub(super) struct Events<R> {
    stream: R,
}

impl<R: BufRead> Events<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream }
    }

    /// The stream.
    pub(super) fn stream(&self) -> &R {
        &self.stream
    }

    /// The data of the next event that has some; `None`: the stream has ended. An event that the end cuts off
    /// counts, since its data may be whole.
    ///
    /// # Errors
    /// The stream can't be read.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let mut data: Option<Vec<u8>> = None;
        loop {
            let mut line = Vec::new();
            if self.stream.read_until(b'\n', &mut line)? == 0 {
                return Ok(data);
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() && data.as_ref().is_some_and(|data| !data.is_empty()) {
                return Ok(data);
            }
            if let Some(more) = line.strip_prefix(b"data:") {
                let more = more.strip_prefix(b" ").unwrap_or(more);
                if let Some(data) = &mut data {
                    data.push(b'\n');
                }
                data.get_or_insert_default().extend_from_slice(more);
            } else if line.is_empty() {
                data = None;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn events_are_read_one_by_one() {
        let stream = b": hello\n\nid: 1\ndata:\n\nevent: message\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata:2\n\ndata: 3";
        let mut events = Events::new(&stream[..]);
        let mut next = || events.next().unwrap().map(|data| String::from_utf8(data).unwrap());
        assert_eq!(next().as_deref(), Some("{\"a\":\n1}"), "comments and empty events are passed over");
        assert_eq!(next().as_deref(), Some("2"));
        assert_eq!(next().as_deref(), Some("3"));
        assert_eq!(next(), None);
    }
}
