//! The error type of this crate, and llguidance's messages in its words.

/// A grammar that can't be used, or that has become too costly at a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// llguidance's remark about alternatives that may hold together; it suggests an option of its own.
const OVERLAP: &str = "oneOf constraints are not supported";

impl Error {
    /// True if alternatives of `oneOf` may hold together.
    pub(crate) fn is_overlap(&self) -> bool {
        self.0.starts_with(OVERLAPPING)
    }
}

const OVERLAPPING: &str = "the alternatives of `oneOf` may overlap";

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
    if message.contains(OVERLAP) {
        let advice = "use `anyOf`, or give each a required property whose `const` tells it from the others";
        return Error(format!("{OVERLAPPING}: {advice}"));
    }
    if let Some(keywords) =
        message.split("Unimplemented keys: [").nth(1).and_then(|rest| rest.split(']').next())
    {
        let keywords = keywords.replace('"', "`");
        return Error(format!("{keywords} can't be enforced while a text is written"));
    }
    if let Some(format) = line("Unknown format: ") {
        return Error(format!("the format `{}` is unknown", format.trim()));
    }
    Error(message.to_string())
}
