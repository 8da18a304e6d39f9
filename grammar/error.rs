//! The error type of this crate, and llguidance's messages in its words.

/// A grammar that can't be used, or that has become too costly at a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An llguidance message without parser state and traces.
pub(crate) fn plain(message: &str) -> Error {
    let cut =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| message.find(mark)).min();
    let message = message[..cut.unwrap_or(message.len())].trim();
    let line = |mark: &str| message.split(mark).nth(1).and_then(|rest| rest.lines().next());
    if let Some(reason) = line("\nerror: ").filter(|_| message.contains("regex parse error")) {
        return Error(format!("invalid regular expression: {reason}"));
    }
    if let Some(found) = line("Resource '").and_then(|rest| rest.split('\'').next()) {
        return Error(format!("`{found}` is not in the schema; remote references are not fetched"));
    }
    Error(message.to_string())
}
