//! Thoughts: what a model says to itself before its reply, between marks that its chat template has.
//!
//! A template that prints a reply's reasoning says itself what stands around it: that is found by rendering
//! one. Others remove thoughts from past replies, or open them; their source names one of the [`KNOWN`] marks.
//! A reply is then read as thoughts, if any, the header of its speech, if the form has one (harmony's
//! `<|channel|>final<|message|>`), and speech.

use super::prefix::overlap;
use std::ops::Range;

/// How thoughts are marked in replies to one prompt; by default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThoughtForm {
    marks: Vec<ThoughtMarks>,
    /// What a speech begins with that is no part of it.
    headers: Vec<String>,
    /// What ends a speech, and is no part of it.
    ends: Vec<&'static str>,
    /// True if the prompt has opened a thought.
    is_opened: bool,
    /// True if the prompt may have done so: a thought that ends was one from the beginning.
    may_be_opened: bool,
}

/// The marks around a thought.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThoughtMarks {
    open: String,
    close: String,
    /// Text right before `close` that is no part of the thought.
    tail: String,
    /// Text with which the header ends that `close` begins.
    until: &'static str,
}

/// Marks by which thoughts are known in a text of unknown origin, or in the replies to a template whose source
/// has both: before and after a thought.
const KNOWN: [(&str, &str); 15] = [
    ("<think>", "</think>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thinking>", "</thinking>"),
    ("<think_on>", "</think_on>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
];

/// Text between harmony's messages, which are a thought until the one that is the reply.
const HARMONY_TAIL: &str = "<|end|><|start|>assistant";
/// What harmony's channels begin with, and what follows their headers.
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";

/// Marks around a speech: a header, what ends it, and by what in a template's source they are known.
const SPEECH: [(&str, &str, &str); 6] = [
    ("<response>", "</response>", "<response></response>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>", "<|END_TEXT|>"),
    ("<|begin_of_solution|>", "<|end_of_solution|>", "<|end_of_solution|>"),
    ("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", "[BEGIN FINAL RESPONSE]"),
    ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "'<|open|>'"),
];

impl ThoughtForm {
    /// Replies whose origin isn't known: by all known marks that no text has by chance.
    pub fn of_text() -> Self {
        let known = KNOWN.iter().filter(|(open, _)| !open.ends_with(':'));
        let marks = known.map(|(open, close)| ThoughtMarks::new(open, close)).collect();
        Self { marks, ..Self::default() }.with_speech(|mark| mark.starts_with('<'))
    }

    /// Replies to a template with this source, which prints `open` (empty: its prompt ends with it) and `close`
    /// around a reply's reasoning, if it prints any, and `header` before a reply without reasoning.
    pub(super) fn of_template(source: &str, printed: Option<(&str, &str)>, header: &str) -> Self {
        let mut form = Self::default();
        // (Spaces are part of a header that ends like a word.)
        let is_word = |text: &str| text.ends_with(char::is_alphanumeric);
        let header = if is_word(header.trim()) { header.trim_start() } else { header.trim() };
        let printed = printed.map(|(open, close)| {
            let (open, close) = (open.trim(), close.trim());
            let known = KNOWN.iter().find_map(|(open, mark)| Some((*open, *mark, close.strip_prefix(mark)?)));
            // Of a close that ends with the speech's header, the header alone is certain to be said.
            let tail = close.strip_suffix(header).filter(|_| !header.is_empty());
            match (known, tail) {
                (Some((usual, close, after)), _) => {
                    form.headers.extend(Some(after.trim()).filter(|it| !it.is_empty()).map(str::to_owned));
                    ThoughtMarks::new(if open.is_empty() { usual } else { open }, close)
                }
                (None, Some(tail)) => {
                    ThoughtMarks { tail: tail.to_owned(), ..ThoughtMarks::new(open, header) }
                }
                (None, None) => ThoughtMarks::new(open, close),
            }
        });
        form.marks.extend(printed.filter(|marks| !marks.open.is_empty() && !marks.close.is_empty()));
        for (open, close) in KNOWN {
            let is_named = source.contains(open) && source.contains(close);
            if is_named && form.marks.iter().all(|marks| marks.close != close) {
                form.marks.push(ThoughtMarks::new(open, close));
            }
        }
        let mut form = form.with_speech(|mark| source.contains(mark));
        if !header.is_empty() && !form.headers.iter().any(|known| known == header) {
            form.headers.push(header.to_owned());
        }
        form
    }

    /// The same, with what is known around speeches as far as it is named, and with harmony's other channels.
    fn with_speech(mut self, is_named: impl Fn(&str) -> bool) -> Self {
        for (header, end, _) in SPEECH.iter().filter(|(_, _, name)| is_named(name)) {
            self.ends.push(end);
            let is_known = self.headers.iter().any(|known| known == header);
            if !is_known && self.marks.iter().all(|marks| marks.close != *header) {
                self.headers.push((*header).to_owned());
            }
        }
        if let Some(at) = self.marks.iter().position(|marks| marks.open.starts_with(CHANNEL)) {
            // Between the channel's name and the message there may be more (`<|constrain|>json`).
            let harmony = &mut self.marks[at];
            self.headers.push(harmony.close.clone());
            let close = harmony.close.strip_suffix(MESSAGE).unwrap_or(&harmony.close);
            let other = ThoughtMarks {
                tail: HARMONY_TAIL.to_owned(),
                until: MESSAGE,
                ..ThoughtMarks::new(CHANNEL, close)
            };
            *harmony = ThoughtMarks { open: harmony.open.clone(), ..other.clone() };
            self.marks.insert(at + 1, other);
            self.ends.extend(["<|end|>", "<|return|>", "<|start|>"]);
        }
        self
    }

    /// The same, after a prompt that ends with this text: it may have opened a thought.
    pub fn after_prompt(mut self, prompt: &str) -> Self {
        self.is_opened = self.opens(prompt);
        self
    }

    /// True if a prompt that ends with this text has opened a thought.
    pub(super) fn opens(&self, prompt: &str) -> bool {
        self.marks.iter().any(|marks| prompt.trim_end().ends_with(&marks.open))
    }

    /// The same, where nobody knows whether the prompt has opened a thought.
    pub fn perhaps_opened(self) -> Self {
        Self { may_be_opened: true, ..self }
    }

    /// The mark with which a thought begins, if there are thoughts.
    pub(crate) fn open(&self) -> Option<&str> {
        self.marks.first().map(|marks| &*marks.open)
    }

    /// True if a text is a whole thought, or the end of one.
    pub(super) fn is_thought(&self, text: &str) -> bool {
        self.marks.first().is_some_and(|marks| {
            let (text, close) = (text.trim(), &*marks.close);
            text.starts_with(&marks.open) && text.ends_with(close) || text == close
        })
    }

    /// True if there are thoughts.
    pub(crate) fn thinks(&self) -> bool {
        !self.marks.is_empty()
    }

    /// The mark with which it ends.
    pub(super) fn close(&self) -> Option<&str> {
        self.marks.first().map(|marks| &*marks.close)
    }

    /// The parts of a whole reply.
    pub fn parts(&self, reply: &str) -> ReplyParts {
        let mut reader = ThoughtReader::new(self.clone());
        reader.read(reply.as_bytes());
        reader.parts(reply.as_bytes())
    }

    /// The parts of a reply that may continue; `None`: where its speech begins is not certain yet.
    pub fn begin_so_far(&self, reply: &str) -> Option<usize> {
        let mut reader = ThoughtReader::new(self.clone());
        reader.read(reply.as_bytes());
        reader.speech()
    }

    /// A speech without the thoughts in it.
    pub fn without_thoughts(&self, speech: &str) -> String {
        let mut text = speech.to_owned();
        for marks in &self.marks {
            while let Some(start) = text.find(&marks.open) {
                let close = text[start..].find(&marks.close);
                let end = close.map_or(text.len(), |at| start + at + marks.close.len());
                text.replace_range(start..end, "");
            }
        }
        text
    }

    /// A text without a mark at its end that is only half there.
    pub fn without_open_mark<'t>(&self, text: &'t str) -> &'t str {
        &text[..self.begin_of_open_mark(text.as_bytes())]
    }

    /// The marks around a thought that was opened by those with this number; `None`: by any.
    fn candidates(&self, number: Option<usize>) -> impl Iterator<Item = &ThoughtMarks> {
        let all = self.marks.iter().enumerate();
        all.filter(move |(n, _)| number.is_none_or(|number| number == *n)).map(|(_, marks)| marks)
    }

    /// Offset at which a mark begins that the text ends within; the text's length: there is none.
    fn begin_of_open_mark(&self, text: &[u8]) -> usize {
        let marks = self.marks.iter().flat_map(|marks| [&*marks.open, &marks.close, &marks.tail]);
        let all = marks.chain(self.headers.iter().map(|it| &**it)).chain(self.ends.iter().copied());
        let begins = all.map(|mark| text.len() - overlap(text, mark.as_bytes()));
        begins.min().unwrap_or(text.len())
    }
}

impl ThoughtMarks {
    fn new(open: &str, close: &str) -> Self {
        let [open, close] = [open, close].map(str::to_owned);
        Self { open, close, tail: String::new(), until: "" }
    }
}

/// The parts of a reply, as offsets in its text, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplyParts {
    /// The thought, without its marks; empty: there is none.
    pub thought: Range<usize>,
    /// What is said to others. A call of a tool is no part of it.
    pub speech: Range<usize>,
}

/// Finds the parts of a reply as it grows, each byte examined once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThoughtReader {
    form: ThoughtForm,
    stage: ReplyStage,
    /// The thoughts so far, their marks left out.
    thought: Range<usize>,
    /// Offset after the last thought, or the header of the speech; 0: there was none.
    head: usize,
    /// True if that was a header: only speech follows.
    is_headed: bool,
    /// Offset at which the mark begins that ends the speech.
    end: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum ReplyStage {
    /// A thought may begin, or the header of the speech, from this offset on, after spaces up to `text`.
    Between { from: usize, text: usize },
    /// In a thought with these marks, which does not end before `searched`. A mark that ends it may stand there,
    /// its header not yet whole.
    Thought { marks: Option<usize>, searched: usize },
    /// Speech from this offset on, which does not end before `searched`.
    Speech { from: usize, searched: usize },
}

impl Default for ReplyStage {
    fn default() -> Self {
        Self::Between { from: 0, text: 0 }
    }
}

impl ThoughtReader {
    /// At the beginning of a reply.
    pub(crate) fn new(form: ThoughtForm) -> Self {
        let stage = match form.is_opened {
            true => ReplyStage::Thought { marks: None, searched: 0 },
            false => ReplyStage::default(),
        };
        Self { form, stage, ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn form(&self) -> &ThoughtForm {
        &self.form
    }

    /// True within a thought.
    pub(crate) fn is_in_thought(&self) -> bool {
        matches!(self.stage, ReplyStage::Thought { .. })
    }

    /// Offset after the last thought that has ended, or the header of the speech; 0: there was none.
    pub(crate) fn head(&self) -> usize {
        self.head
    }

    /// The offset at which the speech begins, with spaces before it where nothing else stands; `None`: it is
    /// not certain yet.
    pub(crate) fn speech(&self) -> Option<usize> {
        match self.stage {
            ReplyStage::Speech { from, .. } => Some(from),
            ReplyStage::Between { .. } | ReplyStage::Thought { .. } => None,
        }
    }

    /// The offset after the last thought and the header of the speech, whether a further one follows or not;
    /// `None`: in a thought.
    pub(crate) fn after_head(&self) -> Option<usize> {
        match self.stage {
            ReplyStage::Speech { from, .. } | ReplyStage::Between { from, .. } => Some(from),
            ReplyStage::Thought { .. } => None,
        }
    }

    /// Only speech follows.
    pub(crate) fn end_thoughts(&mut self) {
        self.is_headed = true;
    }

    /// What begins here is no thought, whatever it looks like: it ends one, and only speech follows.
    pub(crate) fn end_thought_at(&mut self, bytes: &[u8]) {
        let tails = self.form.marks.iter().map(|marks| overlap(bytes, marks.tail.as_bytes()));
        let n = bytes.len() - tails.max().unwrap_or(0);
        self.thought.end = self.end_of_thought(&bytes[..n]).max(self.thought.start);
        (self.head, self.is_headed) = (bytes.len(), true);
        self.stage = ReplyStage::Speech { from: bytes.len(), searched: bytes.len() };
    }

    /// The reply was cut to this length.
    pub(crate) fn cut(&mut self, length: usize) {
        match &mut self.stage {
            ReplyStage::Between { from, text } => (*from, *text) = ((*from).min(length), (*text).min(length)),
            ReplyStage::Thought { searched, .. } => *searched = (*searched).min(length),
            ReplyStage::Speech { from, searched } => {
                (*from, *searched) = ((*from).min(length), (*searched).min(length))
            }
        }
        self.end = self.end.filter(|end| *end <= length);
    }

    /// Reads what was added to the reply.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        while let Some(next) = self.next(bytes) {
            self.stage = next;
        }
    }

    /// What comes after the stage that it is in, if that is certain.
    fn next(&mut self, bytes: &[u8]) -> Option<ReplyStage> {
        match self.stage {
            ReplyStage::Speech { from, searched } => {
                let ends = &self.form.ends;
                // (Without a mark before it, a speech has none at its end.)
                let longest = ends.iter().map(|end| end.len()).max().filter(|_| self.head > 0);
                if let (None, Some(longest)) = (self.end, longest) {
                    let found = ends.iter().filter_map(|end| find(&bytes[searched..], end.as_bytes()));
                    self.end = found.min().map(|at| searched + at);
                    let searched = (bytes.len() + 1).saturating_sub(longest).max(searched);
                    self.stage = ReplyStage::Speech { from, searched };
                }
                None
            }
            ReplyStage::Between { from, text } => self.begin(bytes, from, text),
            ReplyStage::Thought { marks, searched } => {
                let is_guess = marks.is_none() && !self.form.is_opened && self.head == 0;
                let longest = self.form.candidates(marks).map(|it| it.close.len()).max()?;
                let found = self.form.candidates(marks).filter_map(|marks| {
                    let at = find(&bytes[searched..], marks.close.as_bytes())? + searched;
                    Some((at, marks))
                });
                let number = marks;
                let Some((at, marks)) = found.min_by_key(|(at, _)| *at) else {
                    let searched = (bytes.len() + 1).saturating_sub(longest).max(searched);
                    self.stage = ReplyStage::Thought { marks, searched };
                    return None;
                };
                if is_guess && find(&bytes[..at], marks.open.as_bytes()).is_some() {
                    return Some(ReplyStage::Speech { from: 0, searched: 0 }); // it belongs to a mark in it
                }
                let header = at + marks.close.len();
                let until = if marks.until.is_empty() {
                    Some(0)
                } else {
                    find(&bytes[header..], marks.until.as_bytes())
                };
                let Some(until) = until.map(|at| at + marks.until.len()) else {
                    self.stage = ReplyStage::Thought { marks: number, searched: at };
                    return None;
                };
                let from = header + until;
                self.thought.end = self.end_of_thought(&bytes[..at]);
                self.head = from;
                Some(ReplyStage::Between { from, text: from })
            }
        }
    }

    /// What begins at an offset after spaces.
    fn begin(&mut self, bytes: &[u8], from: usize, text: usize) -> Option<ReplyStage> {
        let rest = bytes.get(text..).unwrap_or_default().trim_ascii_start();
        let at = bytes.len() - rest.len();
        self.stage = ReplyStage::Between { from, text: at };
        if self.is_headed {
            let from = if self.head == 0 { from } else { at };
            return (!rest.is_empty()).then_some(ReplyStage::Speech { from, searched: from });
        }
        if let Some(header) = self.form.headers.iter().find(|header| rest.starts_with(header.as_bytes())) {
            let from = at + header.len();
            (self.head, self.is_headed) = (from, true);
            return Some(ReplyStage::Between { from, text: from });
        }
        let is_open = |mark: &str| rest.len() < mark.len() && mark.as_bytes().starts_with(rest);
        let marks = &self.form.marks;
        // A longer mark may begin as another one does.
        let may_become = marks
            .iter()
            .map(|marks| &*marks.open)
            .chain(self.form.headers.iter().map(|it| &**it))
            .any(is_open);
        if may_become {
            return None;
        }
        if let Some(n) = marks.iter().position(|marks| rest.starts_with(marks.open.as_bytes())) {
            if self.thought.is_empty() {
                let begin = at + marks[n].open.len();
                self.thought = begin..begin;
            }
            return Some(ReplyStage::Thought { marks: Some(n), searched: at });
        }
        if self.form.may_be_opened && self.head == 0 {
            return Some(ReplyStage::Thought { marks: None, searched: from });
        }
        let from = if self.head == 0 { from } else { at };
        Some(ReplyStage::Speech { from, searched: from })
    }

    /// Where a thought ends that is known up to here, without spaces and what stands before the mark after it.
    fn end_of_thought(&self, bytes: &[u8]) -> usize {
        let begin = self.thought.start.min(bytes.len());
        let mut text = bytes[begin..].trim_ascii_end();
        for marks in self.form.marks.iter().filter(|marks| !marks.tail.is_empty()) {
            text = text.strip_suffix(marks.tail.as_bytes()).unwrap_or(text).trim_ascii_end();
        }
        begin + text.len()
    }

    /// The thought as far as nothing can take it back.
    pub(crate) fn certain_thought(&self, bytes: &[u8]) -> Range<usize> {
        let mut thought = self.thought.clone();
        if let ReplyStage::Thought { marks, searched } = self.stage {
            let rest = bytes.get(searched..).unwrap_or_default();
            let ends = self.form.candidates(marks).any(|marks| rest.starts_with(marks.close.as_bytes()));
            let known = if ends { searched } else { self.form.begin_of_open_mark(bytes) };
            thought.end = self.end_of_thought(&bytes[..known]).max(thought.end);
        }
        self.trimmed(thought, bytes)
    }

    /// The parts of a reply of these bytes, which has ended.
    pub(crate) fn parts(&self, bytes: &[u8]) -> ReplyParts {
        let mut thought = self.thought.clone();
        let from = match self.stage {
            ReplyStage::Between { text, .. } if self.head > 0 => text,
            ReplyStage::Speech { from, .. } | ReplyStage::Between { from, .. } => from,
            // It turns out that there was none.
            ReplyStage::Thought { marks: None, .. } if self.form.may_be_opened && !self.form.is_opened => 0,
            ReplyStage::Thought { .. } => {
                thought.end = self.end_of_thought(bytes);
                bytes.len()
            }
        };
        let end = self.end.map_or(bytes.len(), |end| end.min(bytes.len()));
        ReplyParts { thought: self.trimmed(thought, bytes), speech: from.min(end)..end }
    }

    /// The end of a speech as far as nothing can take it back.
    pub(crate) fn certain_end(&self, bytes: &[u8]) -> usize {
        let ends = self.form.ends.iter().filter(|_| self.head > 0);
        let open = ends.map(|end| overlap(bytes, end.as_bytes())).max();
        let known = bytes.len() - open.unwrap_or(0);
        self.end.map_or(known, |end| end.min(known))
    }

    /// A thought without the spaces that it begins with; one of nothing else is at the beginning.
    fn trimmed(&self, thought: Range<usize>, bytes: &[u8]) -> Range<usize> {
        let end = thought.end.min(bytes.len());
        let text = bytes[thought.start.min(end)..end].trim_ascii_start();
        if text.is_empty() { 0..0 } else { end - text.len()..end }
    }
}

#[cfg(test)]
thread_local! {
    /// Bytes of replies examined so far.
    pub(crate) static N_EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Offset of a pattern in some bytes.
pub(crate) fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    #[cfg(test)]
    N_EXAMINED.set(N_EXAMINED.get() + bytes.len());
    bytes.windows(pattern.len()).position(|w| w == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(form: &ThoughtForm, reply: &str) -> (String, String) {
        let ReplyParts { thought, speech } = form.parts(reply);
        (reply[thought].to_owned(), reply[speech].to_owned())
    }

    #[test]
    fn replies_of_unknown_origin_have_known_marks() {
        let form = ThoughtForm::of_text();
        let harmony =
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
        for (reply, thought, speech) in [
            ("Yes.", "", "Yes."),
            (" Yes. ", "", " Yes. "),
            ("<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
            ("<think></think>Yes.", "", "Yes."),
            ("<think>a</think> <think>b</think>Yes.", "a</think> <think>b", "Yes."),
            ("<think>hm", "hm", ""),
            ("<thi", "", "<thi"),
            ("[THINK]hm[/THINK]Yes.", "hm", "Yes."),
            (harmony, "hm", "Yes."),
            ("<|channel|>final<|message|>Yes.<|return|>", "", "Yes."),
            ("<|channel|>commentary<|message|>hm", "commentary<|message|>hm", ""),
            ("<think>hm</think><response>Yes.</response>", "hm", "Yes."),
            ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "", "{}"),
            ("Close it with </response> please.", "", "Close it with </response> please."),
            ("Here are my reasoning steps: none.", "", "Here are my reasoning steps: none."),
            ("<|channel>thought\nhm<channel|>Yes.", "hm", "Yes."),
            ("hm</think>Yes.", "", "hm</think>Yes."),
            ("Yes <think>hm</think>.", "", "Yes <think>hm</think>."),
        ] {
            assert_eq!(parts(&form, reply), (thought.to_owned(), speech.to_owned()), "{reply:?}");
        }
        let perhaps = form.clone().perhaps_opened();
        for (reply, thought, speech) in [
            ("hm</think>Yes.", "hm", "Yes."),
            ("Yes.", "", "Yes."),
            ("<think>hm</think>Yes.", "hm", "Yes."),
            ("Yes <think>hm</think>.", "", "Yes <think>hm</think>."),
        ] {
            assert_eq!(parts(&perhaps, reply), (thought.to_owned(), speech.to_owned()), "{reply:?}");
        }
        let opened = form.after_prompt("assistant\n<think>\n");
        for (reply, thought, speech) in [("hm\n</think>\n\nYes.", "hm", "Yes."), ("hm", "hm", "")] {
            assert_eq!(parts(&opened, reply), (thought.to_owned(), speech.to_owned()), "{reply:?}");
        }
    }

    #[test]
    fn a_template_says_what_stands_around_a_thought() {
        let own = ThoughtForm::of_template("", Some(("<<hm:", ":hm>>\n")), "");
        assert_eq!(parts(&own, "<<hm: so :hm>>\nYes."), ("so".to_owned(), "Yes.".to_owned()));
        let named = ThoughtForm::of_template("…split('</think>')[-1]…<think>", None, "");
        assert_eq!(parts(&named, "<think>so</think>Yes.").1, "Yes.");
        assert_eq!(
            parts(&ThoughtForm::of_template("", None, ""), "<think>so</think>Yes.").1,
            "<think>so</think>Yes."
        );
        let apriel =
            ThoughtForm::of_template("Here are my reasoning steps: [BEGIN FINAL RESPONSE]", None, "");
        let reply = "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]";
        assert_eq!(parts(&apriel, reply), ("hm".to_owned(), "Yes.\n".to_owned()));
        let channels = ThoughtForm::of_template("", Some(("<a>", "</a><|final|>")), "<|final|>");
        assert_eq!(parts(&channels, "<a>so</a><|final|>Yes."), ("so".to_owned(), "Yes.".to_owned()));
        assert_eq!(parts(&channels, "<|final|>Yes."), (String::new(), "Yes.".to_owned()));
    }

    #[test]
    fn no_part_of_a_header_is_a_thought() {
        let reply = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final \
                     <|constrain|>json<|message|>{}";
        let mut reader = ThoughtReader::new(ThoughtForm::of_text());
        for end in 0..=reply.len() {
            reader.read(&reply.as_bytes()[..end]);
            let thought = &reply[reader.certain_thought(&reply.as_bytes()[..end])];
            assert!("hm".starts_with(thought), "{thought:?} of {:?}", &reply[..end]);
        }
        assert_eq!(reader.parts(reply.as_bytes()).speech, reply.len() - 2..reply.len());
    }

    proptest! {
        /// However a reply is cut into tokens: what is certain stays, and the end is the same.
        #[test]
        fn a_growing_reply_is_read_as_a_whole_one(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "<think>", "</think>", "<thi", "nk>", "hm", " ", "\n", "<|channel|>", "analysis", "final", "<|message|>",
                "<|end|>", "<|start|>", "assistant", "<|end|><|start|>assistant", "Yes.", "<response>", "[THINK]",
            ]), 0..16),
            opened in 0..3,
        ) {
            let form = ThoughtForm::of_text();
            let form = match opened {
                0 => form,
                1 => form.after_prompt("<think>\n"),
                _ => form.perhaps_opened(),
            };
            let (mut reader, mut text, mut thought) = (ThoughtReader::new(form.clone()), String::new(), String::new());
            let whole = pieces.concat();
            let expected = form.parts(&whole);
            let mut begin = None;
            for piece in &pieces {
                text.push_str(piece);
                reader.read(text.as_bytes());
                if opened < 2 {
                    let now = text[reader.certain_thought(text.as_bytes())].to_owned();
                    prop_assert!(now.starts_with(&thought), "{thought:?} became {now:?}");
                    thought = now;
                }
                prop_assert!(begin.is_none() || begin == reader.speech());
                begin = reader.speech();
            }
            prop_assert_eq!(reader.parts(text.as_bytes()), expected.clone());
            prop_assert!(whole[expected.thought.clone()].starts_with(&thought), "{thought:?} is not of {expected:?}");
        }
    }
}
