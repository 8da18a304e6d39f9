//! Diagnostics for files that people write: what is wrong, with file, line, column, code and help.
//!
//! [`Sources`] are the texts of a scenario's files; a [`Report`] the diagnostics found in them, all at once.
//! The layout on a terminal is here too, so that every command shows mistakes the same way.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// Maximum length, in bytes, of a line that is shown as it is.
const MAX_FRAMED: usize = 400;

/// A range of bytes in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Index of the source in [`Sources`].
    pub file: usize,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A file's name, as it is shown, and its text.
#[derive(Debug)]
pub struct Source {
    /// Name shown in messages.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// The files of one scenario: itself, then what it includes.
#[derive(Clone, Debug)]
pub struct Sources(Vec<Arc<Source>>);

/// Severity of a diagnostic: a scenario with errors can't be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The scenario can't be played.
    Error,
    /// The scenario can be played, but not all of it means what it says.
    Warning,
}

/// One problem reported to the author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Short name of the mistake's kind, e.g. `unknown-agent`.
    pub code: &'static str,
    /// Message: what was found and what was expected.
    pub message: String,
    /// Path of the field, e.g. `phases[2].agents[1]`.
    pub path: String,
    /// Its place.
    pub span: Span,
    /// A second place that matters, e.g. the first definition of a duplicate.
    pub related: Option<(Span, String)>,
    /// Advice on what to do.
    pub help: Option<String>,
    /// Known fields that an unknown field may be a misspelling of; a single entry is a near match.
    pub meant: Vec<String>,
}

/// The diagnostics of one scenario.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its files.
    pub sources: Sources,
    /// The diagnostics, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

impl Source {
    /// One-based line and column (in characters) of a byte.
    pub fn position(&self, byte: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
    }

    fn line(&self, number: usize) -> &str {
        self.text.lines().nth(number.saturating_sub(1)).unwrap_or("")
    }
}

impl Sources {
    /// A scenario that includes nothing yet.
    pub fn new(main: Source) -> Self {
        Self(vec![Arc::new(main)])
    }

    /// Adds an included file; its index.
    pub fn add(&mut self, source: Source) -> usize {
        self.0.push(Arc::new(source));
        self.0.len() - 1
    }

    /// Shares the texts that other sources hold as well: many cases of one scenario read the same files.
    pub fn share(&mut self, others: &Self) {
        for (own, other) in self.0.iter_mut().zip(&others.0) {
            if own.name == other.name && own.text == other.text {
                *own = other.clone();
            }
        }
    }

    /// The scenario's own file.
    pub fn main(&self) -> &Source {
        &self.0[0]
    }

    /// blake3 (hex) of all texts.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for source in self.iter() {
            hasher.update(source.text.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// All files, the scenario's own first.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().map(Arc::as_ref)
    }

    /// The file of a span.
    pub fn of(&self, span: Span) -> &Source {
        self.0.get(span.file).unwrap_or(&self.0[0])
    }

    /// Name of the file, one-based line and column of a span's start.
    pub fn place(&self, span: Span) -> (&str, usize, usize) {
        let source = self.of(span);
        let (line, column) = source.position(span.start);
        (&source.name, line, column)
    }
}

impl Report {
    /// Number of errors (warnings aside).
    pub fn n_errors(&self) -> usize {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error).count()
    }

    /// The report as text: framed excerpts in colour for a terminal, or one `file:line:column:` line and the
    /// quoted source for a pipe.
    pub fn render(&self, fancy: bool) -> String {
        let (mut out, mut helped) = (String::new(), BTreeSet::new());
        for diagnostic in &self.diagnostics {
            // The same remedy is given once.
            let is_helped =
                diagnostic.help.as_ref().is_some_and(|help| !helped.insert((diagnostic.code, help)));
            let diagnostic =
                &Diagnostic { help: diagnostic.help.clone().filter(|_| !is_helped), ..diagnostic.clone() };
            let (_, line, _) = self.sources.place(diagnostic.span);
            let source = self.sources.of(diagnostic.span);
            let long = source.line(line).len() > MAX_FRAMED;
            // A frame shows the lines around as they are.
            let framed = fancy && !long && !source.text.replace("\r\n", "\n").contains(steers);
            if !framed || self.fancy(diagnostic, &mut out).is_err() {
                self.plain(diagnostic, &mut out);
            }
        }
        out
    }

    fn fancy(&self, diagnostic: &Diagnostic, out: &mut String) -> std::fmt::Result {
        let source = self.sources.of(diagnostic.span);
        let source = miette::NamedSource::new(printable(&source.name), source.text.clone());
        miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::unicode())
            .render_report(out, &MietteDiagnostic { diagnostic, source })
    }

    fn plain(&self, diagnostic: &Diagnostic, out: &mut String) {
        let (name, line, column) = self.sources.place(diagnostic.span);
        let Diagnostic { severity, code, message, path, .. } = diagnostic;
        let place = if path.is_empty() { String::new() } else { format!(" (at `{path}`)") };
        let (name, text) = (printable(name), printable(&format!("{message}{place}")));
        // Writing to a String can't fail.
        let _ = writeln!(out, "{name}:{line}:{column}: {}[{code}]: {text}", severity.word());
        let text = self.sources.of(diagnostic.span).line(line);
        if !text.trim().is_empty() {
            // Of a very long line, the part around the place.
            let skipped = if text.len() > MAX_FRAMED { column.saturating_sub(MAX_FRAMED / 4) } else { 0 };
            // One character for each, so that the marks below line up.
            let shown = text.chars().skip(skipped).take(MAX_FRAMED);
            let shown: String = shown.map(|c| if steers(c) { '\u{fffd}' } else { c }).collect();
            let column = column - skipped;
            let width = self.width_on_line(diagnostic.span, &shown, column);
            let _ = writeln!(out, "{line:>5} | {shown}");
            let _ = writeln!(out, "      | {}{}", " ".repeat(column - 1), "^".repeat(width));
        }
        if let Some((span, note)) = &diagnostic.related {
            let (name, line, column) = self.sources.place(*span);
            let _ = writeln!(out, "  note: {}:{line}:{column}: {}", printable(name), printable(note));
        }
        if let Some(help) = &diagnostic.help {
            let _ = writeln!(out, "  help: {}", printable(help));
        }
    }

    fn width_on_line(&self, span: Span, line: &str, column: usize) -> usize {
        let marked = self.sources.of(span).text.get(span.start..span.end).unwrap_or("");
        let marked = marked.lines().next().unwrap_or("").trim_end().chars().count();
        marked.min((line.chars().count() + 1).saturating_sub(column)).max(1)
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(
        code: &'static str,
        path: impl Into<String>,
        span: Span,
        message: impl Into<String>,
    ) -> Self {
        let (path, message) = (path.into(), message.into());
        Self {
            severity: Severity::Error,
            code,
            message,
            path,
            span,
            related: None,
            help: None,
            meant: Vec::new(),
        }
    }

    /// A warning at a place.
    pub fn warning(
        code: &'static str,
        path: impl Into<String>,
        span: Span,
        message: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, path, span, message) }
    }

    /// Adds what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Names that the help suggests, each with the span of the wrong name that it would replace.
    pub fn replacements(&self, source: &Source) -> Vec<(Span, String)> {
        let names = self.help.as_deref().map(Suggestion::names_in).unwrap_or_default();
        let Some(wrong) = self.message.split('`').nth(1).filter(|wrong| !wrong.is_empty()) else {
            return Vec::new();
        };
        let text = source.text.get(self.span.start..self.span.end).unwrap_or_default();
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let mut places = text.match_indices(wrong).filter(|(at, found)| {
            !is_word(text[..*at].chars().next_back()) && !is_word(text[at + found.len()..].chars().next())
        });
        let Some((at, _)) = places.next().filter(|_| places.next().is_none()) else { return Vec::new() };
        let start = self.span.start + at;
        let span = Span { start, end: start + wrong.len(), ..self.span };
        names.into_iter().filter(|name| *name != wrong).map(|name| (span, name.to_owned())).collect()
    }

    /// Adds a second place.
    pub fn related(mut self, span: Span, note: impl Into<String>) -> Self {
        self.related = Some((span, note.into()));
        self
    }
}

/// Makes any text safe to print: control characters, which steer the terminal, are replaced, and
/// bidirectional overrides are shown by their code point.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if turns(c) => {
                // Writing to a String can't fail.
                let _ = write!(out, "⟨U+{:04X}⟩", u32::from(c));
            }
            c if steers(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn turns(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn steers(c: char) -> bool {
    turns(c) || c.is_control() && c != '\n' && c != '\t'
}

/// Maximum length of names that are compared, in characters, and maximum number of names compared.
const MAX_COMPARED: (usize, usize) = (40, 300);

/// Known names suggested for an unknown one.
pub enum Suggestion<'a> {
    /// The name that was probably meant.
    Near(&'a str),
    /// All known names.
    Any(Vec<&'a str>),
}

impl std::fmt::Display for Suggestion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Near(name) => write!(f, "did you mean `{name}`?"),
            Self::Any(names) => {
                let one_of = if names.len() == 1 { "" } else { "one of " };
                write!(f, "expected {one_of}`{}`", names.join("`, `"))
            }
        }
    }
}

impl<'a> Suggestion<'a> {
    /// The names in a suggestion, parsed from its text; must match `Display`.
    fn names_in(words: &'a str) -> Vec<&'a str> {
        let near = words.strip_prefix("did you mean `").and_then(|rest| rest.strip_suffix("`?"));
        let any = || {
            let rest = words.strip_prefix("expected ")?;
            rest.strip_prefix("one of ").unwrap_or(rest).strip_prefix('`')?.strip_suffix('`')
        };
        near.or_else(any).map(|names| names.split("`, `").collect()).unwrap_or_default()
    }
}

/// The known name that is nearest to `found`, or the only one that contains it (or is contained in it);
/// otherwise all names, if they are few.
pub fn suggestion<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<Suggestion<'a>> {
    let mut seen = std::collections::HashSet::new();
    let short = |name: &str| name.len() <= 4 * MAX_COMPARED.0 && name.chars().count() <= MAX_COMPARED.0;
    let known: Vec<&str> = known.into_iter().filter(|name| short(name) && seen.insert(*name)).collect();
    let compared = &known[..known.len().min(if short(found) { MAX_COMPARED.1 } else { 0 })];
    let lower = found.to_lowercase();
    let distance = |name: &str| strsim::osa_distance(&lower, &name.to_lowercase());
    let near = compared.iter().map(|name| (distance(name), *name)).min();
    let near = near
        .filter(|(n, name)| *n <= (found.chars().count().max(name.chars().count()) / 3).max(1))
        .map(|(_, name)| name);
    // `rounds` for `auto_rounds`, `uppercase` for `upper`.
    let holds = |long: &str, short: &str| short.len() > 3 && long.contains(short);
    let mut containing = compared.iter().filter(|name| holds(name, &lower) || holds(&lower, name));
    let containing = containing.next().filter(|_| containing.next().is_none()).copied();
    match near.or(containing) {
        Some(name) => Some(Suggestion::Near(name)),
        None => (1..=24).contains(&known.len()).then_some(Suggestion::Any(known)),
    }
}

/// A message about an unknown name, with what may be meant if there is anything to suggest.
pub fn unknown<'a>(message: &str, found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match suggest(found, known) {
        Some(help) => format!("{message}; {help}"),
        None => message.to_string(),
    }
}

/// A [`suggestion`] as text.
pub fn suggest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    suggestion(found, known).map(|suggestion| suggestion.to_string())
}

/// One diagnostic dressed for miette.
#[derive(Debug)]
struct MietteDiagnostic<'a> {
    diagnostic: &'a Diagnostic,
    source: miette::NamedSource<String>,
}

impl std::fmt::Display for MietteDiagnostic<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&self.diagnostic.message))
    }
}

impl std::error::Error for MietteDiagnostic<'_> {}

impl miette::Diagnostic for MietteDiagnostic<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        Some(Box::new(self.diagnostic.code))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        let help = self.diagnostic.help.as_ref();
        help.map(|help| Box::new(printable(help)) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let label = |span: Span, text: &str| {
            let length = span.end.saturating_sub(span.start);
            miette::LabeledSpan::new(Some(printable(text)), span.start, length)
        };
        let first = label(self.diagnostic.span, &self.diagnostic.path);
        let second =
            self.diagnostic.related.as_ref().filter(|(span, _)| span.file == self.diagnostic.span.file);
        let second = second.map(|(span, note)| label(*span, note));
        Some(Box::new(std::iter::once(first).chain(second)))
    }
}
