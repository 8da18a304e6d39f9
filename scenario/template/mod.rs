//! minijinja as scenarios use it: what a template may name, and how the seeds' `${…}` becomes safe.
//!
//! Strict: an undefined name is an error. The output of a template is data and is never rendered again, so a
//! reply that holds `{{ }}` or `${ }` is only text. `render` has the meanings of names.

mod code;
mod context;
mod explain;
mod filters;
mod lines;
mod mentions;

pub use code::Code;
pub(super) use context::{
    AgentObject, by_key, constants, evaluate_in, number, plain, plain_variables, variables,
};
pub use context::{evaluate_alone, evaluator, render_system};
pub use explain::remedy;
pub(super) use filters::ByKey;
pub use filters::{DRAWING, FILTERS, FUNCTIONS};
pub use lines::FIRST_RULES;
pub use lines::keep_lines;
pub use mentions::mentions;

use super::{PassId, PhaseId};
use greenroom_jinja::{Bound, Jinja, Use};
pub use greenroom_jinja::{Mention, Word};
use greenroom_yaml::Path;
use minijinja::UndefinedBehavior;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Name of every template, in minijinja's errors; the caller that reports them knows where the text is.
pub(super) const NAME: &str = "<string>";

/// Names that a system text may use in addition to the variables.
pub const SYSTEM_NAMES: &[&str] = &["me", "agents", "scenario", "variables", "display_name", "role"];

/// Names that only a stage text may use, in addition to agents and earlier phases.
pub const STAGE_NAMES: &[&str] = &["phase", "phases", "cast", "others", "payoffs"];

/// Names that only a text of a round may use, and conditions that are asked in a phase: the round, and the
/// most rounds of the phase.
pub const ROUND_NAMES: &[&str] = &["round", "rounds"];

/// Names that only texts and conditions in a block, and its own conditions, may use: the number of its pass,
/// and the most passes.
pub const PASS_NAMES: &[&str] = &["pass", "passes"];

/// The name under which a nested block uses the pass of the outer one: `outer.pass` and `outer.passes`.
pub const OUTER: &str = "outer";

/// Names that an expression may use in addition to variables and phases; `mine`, `others` and `all` only in a
/// payoff, `outcome` only in assertions and later outcomes.
pub const EXPRESSION_NAMES: &[&str] = &["phases", "payoffs", "variables"];

/// The fields of a phase in templates and expressions.
pub const PHASE_FIELDS: &[&str] = &[
    "name",
    "label",
    "messages",
    "played",
    "rounds",
    "choices",
    "history",
    "votes",
    "decision",
    "tied",
    "invalid",
    "said",
    "replies",
    "reply_history",
    "calls",
    "verdict",
];

/// Other dependencies of a text or an expression, besides the phases that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Its phase; none for what is computed before the run or at its end.
    pub at: Option<PhaseId>,
    /// The pass that a condition of a block is about, if it is not the phase's innermost one.
    pub pass: Option<PassId>,
    /// The intermediate values that it uses, by index in [`Content::lets`](crate::Content::lets), in that
    /// order.
    pub lets: Vec<usize>,
    /// True if it uses the state.
    pub state: bool,
    /// True if it uses payoffs.
    pub payoffs: bool,
    /// The phase of the judge whose `verdict` it uses.
    pub verdict: Option<PhaseId>,
    /// Phases that decide about the state by then, and about which of the phases named were played.
    pub waits: Vec<PhaseId>,
}

/// A template of a scenario: its place and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Path of the field.
    pub path: Path,
    /// The text, `${…}` rewritten; ready for minijinja.
    pub text: String,
    /// Earlier phases whose messages it may quote.
    pub quotes: Vec<PhaseId>,
    /// What else it depends on.
    pub scope: Scope,
}

/// A quoted transcript in a template, found without rendering it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Name of the phase.
    pub phase: String,
    /// Name of the agent, where it is written out.
    pub agent: Option<String>,
    /// One-based line in the template.
    pub line: usize,
}

/// A minijinja expression of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// Path of the field.
    pub path: Path,
    /// The expression.
    pub text: String,
    /// Phases whose results it uses.
    pub phases: Vec<PhaseId>,
    /// What else it depends on.
    pub scope: Scope,
}

impl Template {
    /// Phases whose turns must be over before it can be read.
    pub fn needs(&self) -> impl Iterator<Item = PhaseId> {
        self.quotes.iter().chain(&self.scope.waits).copied()
    }
}

impl Expression {
    /// Phases whose turns must be over before it has its value.
    pub fn needs(&self) -> impl Iterator<Item = PhaseId> {
        self.phases.iter().chain(&self.scope.waits).copied()
    }
}

/// A template's error: what, and on which of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    /// The kind of mistake.
    pub kind: TemplateFault,
    /// The same as text.
    pub message: String,
    /// One-based line in the template.
    pub line: usize,
}

/// A kind of mistake in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateFault {
    /// A bound was met.
    Bound(Bound),
    /// A name is undefined.
    Undefined(String),
    /// There is no filter of this name.
    UnknownFilter(String),
    /// A block or a value is not ended.
    Unended,
    /// A character that means nothing there, or a quote that is not closed.
    Character(char),
    /// It can't be parsed.
    Syntax,
    /// Anything else.
    Other,
}

/// The environment in which templates and expressions are compiled and run, within bounds.
pub fn environment() -> &'static Jinja {
    static JINJA: LazyLock<Jinja> =
        LazyLock::new(|| filters::added(Jinja::new(UndefinedBehavior::Strict).with_ranges()));
    &JINJA
}

/// True of a text with something that is rendered.
pub fn is_code(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// Names that a template uses and does not define itself.
///
/// # Errors
/// The template's syntax, with the line.
pub fn names(text: &str) -> Result<Vec<String>, TemplateError> {
    let template = environment().template(NAME, text)?;
    all_known(template.unknown())?;
    Ok(template.names())
}

/// Names that an expression uses.
///
/// # Errors
/// Its syntax.
pub fn expression_names(text: &str) -> Result<Vec<String>, TemplateError> {
    if let Some(c) = odd_character(text) {
        let message = match c {
            '"' | '\'' => format!("the quote `{c}` is not closed"),
            c => format!("`{c}` has no meaning here"),
        };
        return Err(TemplateError { kind: TemplateFault::Character(c), message, line: 1 });
    }
    let expression = environment().expression(text)?;
    all_known(expression.unknown())?;
    Ok(expression.names())
}

/// Rejects a filter or test that does not exist: it would fail wherever it is reached.
fn all_known(unknown: Option<(Use<'_>, usize)>) -> Result<(), TemplateError> {
    let Some((used, line)) = unknown else { return Ok(()) };
    let (kind, message) = match used {
        Use::Filter(name) => {
            (TemplateFault::UnknownFilter(name.to_string()), format!("there is no filter `{name}`"))
        }
        Use::Test(name) => (TemplateFault::Other, format!("there is no test `{name}`")),
    };
    Err(TemplateError { kind, message, line })
}

/// A character that expressions don't have, or a quote that is not closed. minijinja's parser takes most of
/// these for the end of the expression, so that `a && b` would mean `a`.
fn odd_character(text: &str) -> Option<char> {
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\'' => loop {
                match rest.next() {
                    None => return Some(c),
                    Some('\\') => _ = rest.next(),
                    Some(end) if end == c => break,
                    Some(_) => {}
                }
            },
            '!' if rest.peek() != Some(&'=') => return Some(c),
            c if c.is_ascii_alphanumeric() || c.is_whitespace() || "_+-*/%~|=!<>()[]{}.,:".contains(c) => {}
            c => return Some(c),
        }
    }
    None
}

/// Line of a template on which a name first occurs inside braces.
pub fn line_of(code: &Code, text: &str, name: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut places = text.match_indices(name).map(|(at, _)| at).filter(|at| {
        let before = text[..*at].ends_with(|c| is_word(c) || c == '.');
        !before && !text[at + name.len()..].starts_with(is_word) && code.contains(*at)
    });
    places.next().map_or(1, |at| code.line(at))
}

/// Rewrites `${phase.messages[agent]}` into an expression; returns the quotes found in either syntax, and
/// the lines of other `${…}`, which stay as they are.
pub fn rewrite(text: &str) -> (String, Vec<Quote>, BTreeSet<(usize, String)>) {
    let (mut out, mut quotes, mut odd) = (String::with_capacity(text.len()), Vec::new(), BTreeSet::new());
    let code = Code::of(text);
    let mut done = 0;
    while let Some(at) = text[done..].find("${").map(|at| done + at) {
        out.push_str(&text[done..at]);
        let inner = text[at..].split(['}', '\n']).next().unwrap_or_default();
        let closed = text[at + inner.len()..].starts_with('}') && !code.is_raw(at);
        let inner = &inner[2..];
        done = at + 2 + if closed { inner.len() + 1 } else { 0 };
        match seed_quote(inner).filter(|_| closed) {
            Some((phase, agent)) => {
                out.push_str(&format!("{{{{ {phase}.messages[\"{agent}\"] }}}}"));
                let (phase, agent) = (phase.to_string(), Some(agent.to_string()));
                quotes.push(Quote { phase, agent, line: code.line(at) });
            }
            None => {
                out.push_str(&text[at..done]);
                if closed {
                    odd.insert((code.line(at), inner.to_string()));
                }
            }
        }
    }
    out.push_str(&text[done..]);
    quotes.extend(braced_quotes(&code, text));
    (out, quotes, odd)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// `phase.messages[agent]`, as the seeds write it.
fn seed_quote(inner: &str) -> Option<(&str, &str)> {
    let (phase, rest) = inner.split_once(".messages[")?;
    let agent = rest.strip_suffix(']')?.trim().trim_matches(['"', '\'']);
    (is_name(phase) && is_name(agent)).then_some((phase, agent))
}

/// `{{ phase.messages["agent"] }}`; without quotes the key may be any expression.
fn braced_quotes(code: &Code, text: &str) -> Vec<Quote> {
    const MARK: &str = ".messages[";
    let places = text.match_indices(MARK).filter(|(at, _)| code.contains(*at));
    let quote = |(at, _): (usize, &str)| {
        let before = &text[..at];
        let tail = before.char_indices().rev().take_while(|(_, c)| c.is_alphanumeric() || *c == '_').last();
        let phase = &before[tail.map_or(at, |(start, _)| start)..];
        let key = text[at + MARK.len()..].split(']').next().unwrap_or("").trim();
        let quoted = key.len() > 1 && key.starts_with(['"', '\'']);
        let agent = quoted.then(|| key.trim_matches(['"', '\'']).to_string());
        let line = code.line(at);
        (!phase.is_empty()).then(|| Quote { phase: phase.to_string(), agent, line })
    };
    places.filter_map(quote).collect()
}
