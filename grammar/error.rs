//! The one error of this crate, and what llguidance says in its words.

/// A grammar that can't be used, or that has become too costly at a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What llguidance says, without the state of its parser and without its traces.
pub(crate) fn plain(message: &str) -> Error {
    let cut =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| message.find(mark)).min();
    let message = message[..cut.unwrap_or(message.len())].trim();
    let line = |mark: &str| message.split(mark).nth(1).and_then(|rest| rest.lines().next());
    if let Some(reason) = line("\nerror: ").filter(|_| message.contains("regex parse error")) {
        return Error(format!("the regular expression can't be read: {reason}"));
    }
    if let Some(found) = line("Resource '").and_then(|rest| rest.split('\'').next()) {
        return Error(format!("`{found}` is not in the schema, and nothing is fetched"));
    }
    Error(message.to_string())
}
