//! Reads a transcript: every line by itself, with the line's number, what was found and what was expected.

use super::record::{Footer, Header, InterTurnRecord, Line, RouteRecord, TurnRecord};
use super::{FORMAT, RULES};
use anyhow::Context as _;
use greenroom_scenario::files::{FileKind, FileLines};
use std::io::{self, BufRead};
use std::path::Path;

/// Most lists and mappings that a line may hold; a header has one for each agent. Each of them takes much
/// more memory than text.
const MAX_COLLECTIONS: usize = 100_000;

/// A transcript as found on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    /// The first line.
    pub header: Recorded<Header>,
    /// The turns.
    pub turns: Vec<Recorded<TurnRecord>>,
    /// What is between them: changes of the state, and who was picked to speak.
    pub between: Vec<Recorded<InterTurnRecord>>,
    /// The last line, if the run came to its end.
    pub footer: Option<Recorded<Footer>>,
    /// Bytes of whole lines: an interrupted run may have left a torn one after them.
    pub whole_bytes: u64,
    /// The torn line that ends it, if there is one.
    pub torn: Option<ReadError>,
    /// True if that is more than the beginning of a line: zeros, or lines after them.
    pub goes_on: bool,
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
    /// True if content and predecessor give that hash.
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
    /// The content that was found.
    pub found: String,
    /// The content that was expected.
    pub expected: String,
}

impl Transcript {
    /// Reads a file's text. A damaged *last* line is set aside as [`Self::torn`], because crashes leave such
    /// lines; so is one with zeros, and all after it, which a power cut can leave.
    ///
    /// # Errors
    /// The first line (but the last) that is not a line of a transcript, or a missing header.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ReadError> {
        Self::from_lines(path, FileLines::new(text.as_bytes(), FileKind::Transcript))
    }

    /// Reads one line after the other, so that a long file takes no more memory than what is in it.
    fn from_lines<R: BufRead>(path: &Path, lines: FileLines<R>) -> Result<Self, ReadError> {
        let file = path.display().to_string();
        let error = |line, found: String, expected: &str| {
            let (file, expected) = (file.clone(), expected.to_string());
            ReadError { file, line, found, expected }
        };
        let (mut header, mut turns, mut between, mut footer) = (None, Vec::new(), Vec::new(), None);
        let (mut previous, mut whole_bytes, mut torn, mut goes_on) = (String::new(), 0, None, false);
        let mut lines = lines.zip(1..).peekable();
        while let Some((line, number)) = lines.next() {
            let line = line.map_err(|broken| error(number, broken.to_string(), "a line of a transcript"))?;
            let (text, n_bytes) = (String::from_utf8_lossy(&line), line.len() as u64);
            let parsed = parse_line(&text).map_err(|(found, expected)| error(number, found, &expected));
            let (line, hash) = match parsed {
                Ok(parsed) => parsed,
                Err(reason) if header.is_some() => {
                    goes_on = lines.peek().is_some() || text.contains('\0');
                    if goes_on && !is_torn_end(&text, lines.by_ref().map(|(line, _)| line)) {
                        return Err(reason);
                    }
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
                    let expected = format!("format {FORMAT}; use the version of the program that wrote it");
                    return Err(error(number, found, &expected));
                }
                Line::Header(record) if header.is_none() && record.rules.unwrap_or(1) > RULES => {
                    let found = format!(
                        "rules of version {} (written by {})",
                        record.rules.unwrap_or(1),
                        record.engine
                    );
                    let expected = format!("version {RULES} or lower; use a newer version of this program");
                    return Err(error(number, found, &expected));
                }
                Line::Header(record) if header.is_none() => {
                    header = Some(Recorded { record: *record, line: number, hash: hash.clone(), intact });
                }
                Line::Turn(record) if header.is_some() && !after_footer => {
                    turns.push(Recorded { record: *record, line: number, hash: hash.clone(), intact });
                }
                Line::State(record) if header.is_some() && !after_footer => {
                    let record = InterTurnRecord::State(record);
                    between.push(Recorded { record, line: number, hash: hash.clone(), intact });
                }
                Line::Route(record) if header.is_some() && !after_footer => {
                    let record = InterTurnRecord::Route(record);
                    between.push(Recorded { record, line: number, hash: hash.clone(), intact });
                }
                Line::Footer(record) if header.is_some() && !after_footer => {
                    footer = Some(Recorded { record, line: number, hash: hash.clone(), intact });
                }
                other => {
                    let expected = if header.is_none() {
                        "a header"
                    } else if after_footer {
                        "the end of the file after the footer"
                    } else {
                        "a turn, a state, a route or the footer"
                    };
                    return Err(error(number, format!("a {}", other.kind()), expected));
                }
            }
            previous = hash;
            whole_bytes += n_bytes;
        }
        let header = header.ok_or_else(|| error(1, "nothing".into(), "a header"))?;
        Ok(Self { header, turns, between, footer, whole_bytes, torn, goes_on })
    }

    /// Who was picked to speak, phase by phase.
    pub fn routes(&self) -> impl Iterator<Item = &RouteRecord> {
        self.between.iter().filter_map(|line| match &line.record {
            InterTurnRecord::Route(route) => Some(route),
            InterTurnRecord::State(_) => None,
        })
    }

    /// Hash of its last line.
    pub fn hash(&self) -> &str {
        let turn = self.turns.last().map(|turn| (turn.line, &turn.hash));
        let between = self.between.last().map(|line| (line.line, &line.hash));
        let last = turn.max(between).map_or(&self.header.hash, |(_, hash)| hash);
        self.footer.as_ref().map_or(last, |footer| &footer.hash)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file can't be read, or a line of it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let lines = FileLines::open(path, FileKind::Transcript);
        Ok(Self::from_lines(path, lines.with_context(|| format!("can't read {}", path.display()))?)?)
    }

    /// Reads the file of a run that may have been interrupted. `None`: there is none, or it has no whole
    /// line.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_begun(path: &Path) -> anyhow::Result<Option<Self>> {
        let first = match FileLines::open(path, FileKind::Transcript) {
            Ok(mut lines) => lines.next().transpose(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        };
        let first = first.with_context(|| format!("can't read {}", path.display()))?;
        if first.is_some_and(|line| line.ends_with(b"\n")) { Self::open(path).map(Some) } else { Ok(None) }
    }
}

/// True if a line that can't be read, with others after it, is where a power cut ended a run: it can leave zeros
/// in place of any line not yet synced. (A run that has ended is synced, so that its zeros have another cause.)
fn is_torn_end<E>(text: &str, mut rest: impl Iterator<Item = Result<Vec<u8>, E>>) -> bool {
    let is_footer =
        |text: Vec<u8>| matches!(parse_line(&String::from_utf8_lossy(&text)), Ok((Line::Footer(_), _)));
    text.contains('\0') && !rest.any(|line| line.is_ok_and(is_footer))
}

fn parse_line(text: &str) -> Result<(Line, String), (String, String)> {
    let shown = |text: &str| {
        let short: String = text.trim_end().chars().take(60).collect();
        if short.len() < text.trim_end().len() { format!("`{short}…`") } else { format!("`{short}`") }
    };
    let expected = "a line of a transcript: \
                    {\"type\": \"header\" | \"turn\" | \"state\" | \"route\" | \"footer\", …, \"hash\": …}";
    if !text.ends_with('\n') {
        return Err((format!("a line without an end, {}", shown(text)), expected.into()));
    }
    if n_collections(text) > MAX_COLLECTIONS {
        return Err((format!("more than {MAX_COLLECTIONS} lists and mappings in one line"), expected.into()));
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

/// The number of lists and mappings that begin in a line of JSON.
fn n_collections(text: &str) -> usize {
    let (mut n, mut in_string, mut escaped) = (0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => n += 1,
            _ => {}
        }
    }
    n
}
