//! Reads a transcript: every line by itself, with the line's number, what was found and what was expected.

use super::FORMAT;
use super::record::{Footer, Header, Line, TurnRecord};
use std::path::Path;

/// A transcript as found on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    /// The first line.
    pub header: Recorded<Header>,
    /// The turns.
    pub turns: Vec<Recorded<TurnRecord>>,
    /// The last line, if the run came to its end.
    pub footer: Option<Recorded<Footer>>,
    /// Bytes of whole lines: an interrupted run may have left a torn one behind them.
    pub whole_bytes: u64,
    /// The torn last line, if there is one.
    pub torn: Option<ReadError>,
}

/// A line and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded<T> {
    /// Its content.
    pub record: T,
    /// Its number, from 1.
    pub line: usize,
    /// The hash written in it.
    pub hash: String,
    /// Whether content and predecessor give that hash.
    pub intact: bool,
}

/// A line that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: found {found}, expected {expected}")]
pub struct ReadError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What stands there.
    pub found: String,
    /// What should.
    pub expected: String,
}

impl Transcript {
    /// Reads a file's text. A damaged *last* line is set aside as [`Self::torn`]: a crash leaves such lines.
    ///
    /// # Errors
    /// The first line (but the last) that is no line of a transcript, or a missing header.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ReadError> {
        let file = path.display().to_string();
        let error = |line, found: String, expected: &str| {
            let (file, expected) = (file.clone(), expected.to_string());
            ReadError { file, line, found, expected }
        };
        let (mut header, mut turns, mut footer) = (None, Vec::new(), None);
        let (mut previous, mut whole_bytes, mut torn) = (String::new(), 0, None);
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for (at, text) in lines.iter().enumerate() {
            let number = at + 1;
            let parsed = parse_line(text).map_err(|(found, expected)| error(number, found, &expected));
            let (line, hash) = match parsed {
                Ok(parsed) => parsed,
                Err(reason) if number == lines.len() && header.is_some() => {
                    torn = Some(reason);
                    break;
                }
                Err(reason) => return Err(reason),
            };
            let intact = line.chained(&previous).is_ok_and(|(expected, _)| expected == hash);
            let after_footer = footer.is_some();
            match line {
                Line::Header(record) if header.is_none() && record.format != FORMAT => {
                    let found = format!("format {} (written by {})", record.format, record.engine);
                    let expected = format!("format {FORMAT}: use the version of the program that wrote it");
                    return Err(error(number, found, &expected));
                }
                Line::Header(record) if header.is_none() => {
                    header = Some(Recorded { record: *record, line: number, hash: hash.clone(), intact });
                }
                Line::Turn(record) if header.is_some() && !after_footer => {
                    turns.push(Recorded { record, line: number, hash: hash.clone(), intact });
                }
                Line::Footer(record) if header.is_some() && !after_footer => {
                    footer = Some(Recorded { record, line: number, hash: hash.clone(), intact });
                }
                other => {
                    let expected = match (header.is_some(), after_footer) {
                        (false, _) => "a header",
                        (_, true) => "the end of the file after the footer",
                        _ => "a turn or the footer",
                    };
                    return Err(error(number, format!("a {}", other.kind()), expected));
                }
            }
            previous = hash;
            whole_bytes += text.len() as u64;
        }
        let header = header.ok_or_else(|| error(1, "nothing".into(), "a header"))?;
        Ok(Self { header, turns, footer, whole_bytes, torn })
    }

    /// Hash of its last line.
    pub fn hash(&self) -> &str {
        let turn = || self.turns.last().map_or(&self.header.hash, |turn| &turn.hash);
        self.footer.as_ref().map_or_else(turn, |footer| &footer.hash)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file can't be read, or a line of it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        Ok(Self::parse(path, &String::from_utf8_lossy(&bytes))?)
    }
}

fn parse_line(text: &str) -> Result<(Line, String), (String, String)> {
    let shown = |text: &str| {
        let short: String = text.trim_end().chars().take(60).collect();
        if short.len() < text.trim_end().len() { format!("`{short}…`") } else { format!("`{short}`") }
    };
    let expected = "a line of a transcript: {\"type\": \"header\" | \"turn\" | \"footer\", …, \"hash\": …}";
    if !text.ends_with('\n') {
        return Err((format!("a line without an end, {}", shown(text)), expected.into()));
    }
    let mut value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| (shown(text), format!("{expected} ({error})")))?;
    let hash = value.as_object_mut().and_then(|object| object.remove("hash"));
    let Some(serde_json::Value::String(hash)) = hash else {
        return Err((format!("no hash in {}", shown(text)), expected.into()));
    };
    let line =
        serde_json::from_value(value).map_err(|error| (shown(text), format!("{expected} ({error})")))?;
    Ok((line, hash))
}
