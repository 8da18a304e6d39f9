//! Writes text word by word, wrapped with a hanging indent.

use super::output::Stdout;
use crate::diagnostic::printable;
use std::io::Write;

/// A page that text is written to.
pub struct Page {
    out: Box<dyn Write>,
    /// Columns; `None`: lines are as long as they are.
    width: Option<usize>,
    column: usize,
    word: String,
    space: bool,
}

/// Indentation of the second and later lines of a message.
const INDENT: usize = 4;

impl Page {
    /// A page on standard output, wrapped at `width` columns.
    pub fn stdout(width: Option<usize>) -> Self {
        Self::new(Box::new(Stdout), width)
    }

    /// A page on any writer.
    pub fn new(out: Box<dyn Write>, width: Option<usize>) -> Self {
        Self { out, width, column: 0, word: String::new(), space: false }
    }

    /// Columns; `None`: lines are as long as they are.
    pub(super) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Writes a line, which may hold colours, on as many lines as it needs.
    pub(super) fn paragraph(&mut self, text: &str) {
        match self.width {
            Some(width) => self.line(&textwrap::fill(text, width)),
            None => self.line(text),
        }
    }

    /// Writes a whole line unchanged.
    pub fn line(&mut self, text: &str) {
        self.put(text);
        self.put("\n");
        self.column = 0;
    }

    /// Starts a message with a head, which may hold colours.
    pub fn head(&mut self, text: &str) {
        self.put(text);
        self.column = console::measure_text_width(text);
        self.space = true;
        self.flush();
    }

    /// Adds a piece of text; its last word waits until it is whole.
    pub fn push(&mut self, text: &str) {
        for c in text.chars() {
            if c.is_whitespace() {
                self.end_word();
                self.space = true;
            } else if !c.is_control() {
                self.word.push_str(&printable(c.encode_utf8(&mut [0; 4])));
            }
        }
        self.flush();
    }

    /// Adds a remark, which may hold colours, after the message's last word.
    pub fn note(&mut self, text: &str) {
        self.end_word();
        let width = console::measure_text_width(text);
        let wrap = self.width.is_some_and(|limit| self.column + 2 + width > limit) && self.column > INDENT;
        self.put(&if wrap { format!("\n{}", " ".repeat(INDENT)) } else { "  ".to_string() });
        match self.width.filter(|_| wrap) {
            Some(limit) => {
                let indent = " ".repeat(INDENT);
                let options =
                    textwrap::Options::new(limit).initial_indent(&indent).subsequent_indent(&indent);
                self.put(textwrap::fill(text, options).trim_start());
            }
            None => self.put(text),
        }
    }

    /// Ends the message.
    pub fn end(&mut self) {
        self.end_word();
        self.put("\n");
        (self.column, self.space) = (0, false);
        self.flush();
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        let width = console::measure_text_width(&word);
        let wanted = self.column + usize::from(self.space) + width;
        if self.width.is_some_and(|limit| wanted > limit) && self.column > INDENT {
            self.put("\n");
            self.put(&" ".repeat(INDENT));
            self.column = INDENT;
        } else if self.space {
            self.put(" ");
            self.column += 1;
        }
        self.put(&word);
        (self.column, self.space) = (self.column + width, false);
    }

    /// Writes text. A failure is not a reason to stop a run; `output` keeps it.
    fn put(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes());
    }

    fn flush(&mut self) {
        let _ = self.out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(width: Option<usize>, pieces: &[&str]) -> String {
        let kept = Kept::default();
        let mut page = Page::new(Box::new(kept.clone()), width);
        page.head("Marco:");
        pieces.iter().for_each(|piece| page.push(piece));
        page.end();
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn words_wrap_whole_however_they_arrive() {
        let whole = written(Some(20), &["I will not say a single word"]);
        assert_eq!(whole, "Marco: I will not\n    say a single\n    word\n");
        assert_eq!(whole, written(Some(20), &["I wi", "ll not s", "ay a single wor", "d"]));
        assert_eq!(written(None, &["a  b", " c\u{1b}[31m"]), "Marco: a b c[31m\n");
    }
}
