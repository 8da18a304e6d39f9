//! A reply in the making: ids, bytes, and where it must be cut.
//!
//! A stop string cuts before the first token that overlaps it; an incomplete character at the end is cut likewise.
//! Only text that no cut can take back is streamed.

use crate::StopReason;
use crate::tokenizer::Tokenizer;

/// Ids sampled so far and the bytes they stand for.
#[derive(Default)]
pub(crate) struct Reply {
    ids: Vec<u32>,
    /// Where each id's bytes end.
    ends: Vec<usize>,
    bytes: Vec<u8>,
    stops: Vec<Vec<u8>>,
    streamed: usize,
}

impl Reply {
    /// An empty reply; empty stop strings are ignored.
    pub(crate) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).map(|s| s.as_bytes().to_vec()).collect();
        Self { ids: Vec::new(), ends: Vec::new(), bytes: Vec::new(), stops, streamed: 0 }
    }

    /// Ids so far.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Adds a token; the reason to stop, if a stop string is now complete (the reply is then cut).
    pub(crate) fn push(&mut self, id: u32, tokenizer: &Tokenizer) -> Option<StopReason> {
        self.push_bytes(id, tokenizer.piece(id))
    }

    fn push_bytes(&mut self, id: u32, piece: &[u8]) -> Option<StopReason> {
        let longest = self.stops.iter().map(Vec::len).max().unwrap_or(0);
        let from = self.bytes.len().saturating_sub(longest.saturating_sub(1));
        self.ids.push(id);
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
        let found = self.stops.iter().filter_map(|stop| find(&self.bytes[from..], stop)).min()?;
        self.cut_at(from + found);
        Some(StopReason::StopString)
    }

    /// Text that has become certain since the last call.
    pub(crate) fn take_certain(&mut self) -> Option<String> {
        let mut certain = whole_characters(&self.bytes);
        for stop in &self.stops {
            // The longest end of the text that could be the beginning of this stop string.
            let begins = |n: &usize| self.bytes.ends_with(&stop[..*n]);
            if let Some(n) = (1..stop.len()).rev().find(begins) {
                certain = certain.min(self.bytes.len() - n);
            }
        }
        let n = self.tokens_before(certain);
        self.stream_to(n.checked_sub(1).map_or(0, |last| self.ends[last]))
    }

    /// Ends the reply: an incomplete character is cut. What was not streamed yet comes back.
    pub(crate) fn finish(&mut self) -> Option<String> {
        self.cut_at(whole_characters(&self.bytes));
        self.stream_to(self.bytes.len())
    }

    /// The whole text. Bytes that are no UTF-8 inside it become U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn stream_to(&mut self, end: usize) -> Option<String> {
        if end <= self.streamed {
            return None;
        }
        let text = String::from_utf8_lossy(&self.bytes[self.streamed..end]).into_owned();
        self.streamed = end;
        Some(text)
    }

    /// How many tokens end at or before a byte, the last of them with a whole character: a cut there keeps these.
    fn tokens_before(&self, byte: usize) -> usize {
        let mut n = self.ends.partition_point(|end| *end <= byte);
        while n > 0 && whole_characters(&self.bytes[..self.ends[n - 1]]) < self.ends[n - 1] {
            n -= 1;
        }
        n
    }

    fn cut_at(&mut self, byte: usize) {
        let n = self.tokens_before(byte);
        self.ids.truncate(n);
        self.ends.truncate(n);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

/// The length without a character that is begun but not ended.
fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let needs = match bytes[at] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if at + needs > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|w| w == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds pieces (ids 0, 1, …) and returns (ids kept, text, streamed text, stopped by a stop string).
    fn play(pieces: &[&[u8]], stops: &[&str]) -> (usize, String, String, bool) {
        let mut reply = Reply::new(&stops.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        let mut streamed = String::new();
        let mut stopped = false;
        for (id, piece) in pieces.iter().enumerate() {
            stopped = reply.push_bytes(id as u32, piece).is_some();
            if stopped {
                break;
            }
            streamed.extend(reply.take_certain());
        }
        streamed.extend(reply.finish());
        (reply.ids().len(), reply.text(), streamed, stopped)
    }

    #[test]
    fn a_stop_string_cuts_before_the_first_token_that_overlaps_it() {
        let (n, text, streamed, stopped) = play(&[b"Yes.", b" No\n", b"Mar", b"co:", b" hi"], &["\nMarco:"]);
        assert_eq!((n, text.as_str(), streamed.as_str(), stopped), (1, "Yes.", "Yes.", true));
        let (n, text, streamed, stopped) = play(&[b"a", b"\nMar", b"ble"], &["\nMarco:"]);
        assert_eq!((n, text.as_str(), streamed.as_str(), stopped), (3, "a\nMarble", "a\nMarble", false));
    }

    #[test]
    fn an_incomplete_character_is_cut_with_its_token() {
        let snow = "☃".as_bytes();
        assert_eq!(play(&[b"a", &snow[..1], &snow[1..]], &[]), (3, "a☃".into(), "a☃".into(), false));
        assert_eq!(play(&[b"a", &snow[..2]], &[]), (1, "a".into(), "a".into(), false));
        assert_eq!(play(&[&[b'a', snow[0]], &snow[1..2]], &[]), (0, String::new(), String::new(), false));
    }

    #[test]
    fn what_is_streamed_is_never_taken_back() {
        for end in 1..8 {
            let text = b"x\nMarco:";
            let pieces: Vec<&[u8]> = text[..end].chunks(1).collect();
            let (_, text, streamed, _) = play(&pieces, &["\nMarco:"]);
            assert_eq!(text, streamed);
        }
    }
}
