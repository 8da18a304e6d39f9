//! A scenario that is open in an editor: its text and its diagnostics.

use crate::diagnostic::{Diagnostic, Report, Severity, Source, Span};
use crate::rehearsal::open_text;
use crate::scenario::{Loaded, Scenario};
use lsp_types::{
    DiagnosticRelatedInformation, DiagnosticSeverity, Location, NumberOrString, Position, Range, Uri,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;

/// An open document.
pub(super) struct Document {
    uri: Uri,
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The findings of the last check.
    pub(super) report: Option<Report>,
    /// The last playable version of the scenario.
    pub(super) scenario: Option<Arc<Scenario>>,
    /// Addresses of the files with reported diagnostics.
    pub(super) published: Vec<String>,
}

impl Document {
    /// `None`: it is not a file.
    pub(super) fn new(uri: &Uri, text: String) -> Option<Self> {
        let path = url::Url::parse(uri.as_str()).ok()?.to_file_path().ok()?;
        Some(Self { uri: uri.clone(), path, text, report: None, scenario: None, published: Vec::new() })
    }

    /// The same document with another text, which has been checked.
    pub(super) fn with(&self, text: String, scenario: Option<Arc<Scenario>>) -> Self {
        let (uri, path) = (self.uri.clone(), self.path.clone());
        Self { uri, path, text, report: None, scenario, published: Vec::new() }
    }

    /// Checks the text; returns the diagnostics by the address of their file. A YAML file without `phases` is
    /// not a scenario, and is ignored.
    pub(super) fn check(&mut self, root: Option<&Path>) -> BTreeMap<String, Vec<lsp_types::Diagnostic>> {
        self.report = None;
        if !is_scenario(&self.text) {
            return BTreeMap::new();
        }
        let mut found = BTreeMap::from([(self.uri.to_string(), Vec::new())]);
        match open_text(&self.path, &self.text, root, &[]) {
            Ok(Loaded { scenario, report, .. }) => {
                self.scenario = scenario.or(self.scenario.take());
                for diagnostic in &report.diagnostics {
                    let uri = self.uri_of(&report, diagnostic.span);
                    found.entry(uri.to_string()).or_default().push(self.lsp_diagnostic(&report, diagnostic));
                }
                self.report = Some(report);
            }
            Err(error) => {
                let diagnostic =
                    lsp_types::Diagnostic { message: format!("{error:#}"), ..Default::default() };
                found.entry(self.uri.to_string()).or_default().push(diagnostic);
            }
        }
        found
    }

    fn lsp_diagnostic(&self, report: &Report, diagnostic: &Diagnostic) -> lsp_types::Diagnostic {
        let Diagnostic { severity, code, message, span, related, help, .. } = diagnostic;
        let help = help.as_ref().map_or_else(String::new, |help| format!("\n{help}"));
        let related = related.as_ref().map(|(span, note)| DiagnosticRelatedInformation {
            location: Location {
                uri: self.uri_of(report, *span),
                range: range(report.sources.of(*span), *span),
            },
            message: note.clone(),
        });
        lsp_types::Diagnostic {
            range: range(report.sources.of(*span), *span),
            severity: Some(match severity {
                Severity::Error => DiagnosticSeverity::ERROR,
                Severity::Warning => DiagnosticSeverity::WARNING,
            }),
            code: Some(NumberOrString::String((*code).to_owned())),
            source: Some("greenroom".to_owned()),
            message: format!("{message}{help}"),
            related_information: related.map(|related| vec![related]),
            ..Default::default()
        }
    }

    /// The file that contains a span.
    fn uri_of(&self, report: &Report, span: Span) -> Uri {
        let included = || self.beside(&report.sources.of(span).name);
        if span.file == 0 { self.uri.clone() } else { included().unwrap_or_else(|| self.uri.clone()) }
    }

    /// A file that the scenario names.
    pub(super) fn beside(&self, name: &str) -> Option<Uri> {
        let folder = self.path.parent()?;
        uri(&folder.join(name))
    }

    /// A place in the document.
    pub(super) fn location(&self, span: Span) -> Location {
        Location { uri: self.uri.clone(), range: range(&self.source(), span) }
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The text as a separate source.
    pub(super) fn source(&self) -> Source {
        Source { name: self.path.display().to_string(), text: self.text.clone() }
    }

    /// The byte at an editor's position.
    pub(super) fn offset(&self, at: Position) -> usize {
        let start = match at.line {
            0 => 0,
            n => {
                self.text.match_indices('\n').nth(n as usize - 1).map_or(self.text.len(), |(end, _)| end + 1)
            }
        };
        let line = self.text[start..].split(['\n', '\r']).next().unwrap_or_default();
        let mut left = at.character as usize;
        for (byte, c) in line.char_indices() {
            if left < c.len_utf16() {
                return start + byte;
            }
            left -= c.len_utf16();
        }
        start + line.len()
    }
}

/// An editor's range of a span: lines, and units of UTF-16.
pub(super) fn range(source: &Source, span: Span) -> Range {
    Range { start: position(source, span.start), end: position(source, span.end.max(span.start)) }
}

fn position(source: &Source, byte: usize) -> Position {
    let before = source.text.get(..byte).unwrap_or(&source.text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count();
    Position { line: line as u32, character: before[start..].encode_utf16().count() as u32 }
}

/// The address of a file.
pub(super) fn uri(path: &Path) -> Option<Uri> {
    let path = std::path::absolute(path).ok()?;
    Uri::from_str(url::Url::from_file_path(path).ok()?.as_str()).ok()
}

/// True for a text with a field `phases`, well-formed or not.
fn is_scenario(text: &str) -> bool {
    let field = |line: &str| line.trim_start_matches(['{', ' ', '"', '\'']).starts_with("phases");
    text.lines().any(field)
}
