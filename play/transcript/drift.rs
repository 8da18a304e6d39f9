//! The first broken link between a recording and what would be played now.

use std::fmt;

/// Reason why a recording does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A system text, name, lifecycle or strategy has changed.
    AgentChanged,
    /// The agent reads something else at this turn now.
    PromptChanged,
    /// The values of a choice's options have changed, their texts have not.
    ChoiceChanged,
    /// The form of the reply has changed.
    FormChanged,
    /// The rule that plays the agent gives another reply.
    RuleChanged,
    /// An agent's tools are others, or a tool gives something else.
    ToolsChanged,
    /// The replies are the same, but give other results.
    ResultsChanged,
    /// The model gives another reply.
    ReplyChanged,
    /// The version that wrote the recording read the reply by other rules.
    ReadingChanged,
    /// The line's content does not fit its hash, or the reply its parts.
    RecordAltered,
    /// The plan has a turn that the recording lacks.
    LineMissing,
    /// The recording has a turn that the plan lacks.
    LineTooMany,
    /// The turns are in another order.
    Order,
    /// The run was interrupted: no footer.
    NoFooter,
    /// A line can't be read.
    Unreadable,
    /// The run was made with other settings.
    Settings,
}

/// The first broken link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Drift {
    /// The turn's path, `header` or `footer`.
    pub path: Box<str>,
    /// Line in the transcript, from 1.
    pub line: Option<usize>,
    /// The cause.
    pub cause: Cause,
    /// The details, as text.
    pub detail: Box<str>,
    /// The text as recorded.
    pub recorded: Box<str>,
    /// The text as it would be now.
    pub now: Box<str>,
}

impl Cause {
    /// As text.
    pub fn words(self) -> &'static str {
        match self {
            Self::AgentChanged => "an agent changed",
            Self::PromptChanged => "the phase's prompt changed",
            Self::ChoiceChanged => "the choice changed",
            Self::FormChanged => "the form of the reply changed",
            Self::RuleChanged => "the strategy's reply changed",
            Self::ToolsChanged => "the tools changed",
            Self::ResultsChanged => "the results changed",
            Self::ReplyChanged => "the model says something else",
            Self::ReadingChanged => "the reply is read differently now",
            Self::RecordAltered => "the recorded line was altered",
            Self::LineMissing => "a line is missing",
            Self::LineTooMany => "an extra line",
            Self::Order => "the order of turns changed",
            Self::NoFooter => "the run was interrupted",
            Self::Unreadable => "a line can't be read",
            Self::Settings => "the settings differ",
        }
    }
}

impl Drift {
    /// A drift without texts to compare.
    pub fn new(path: impl Into<String>, cause: Cause, detail: impl Into<String>) -> Self {
        let (path, detail) = (path.into().into(), detail.into().into());
        Self { path, line: None, cause, detail, recorded: "".into(), now: "".into() }
    }

    /// Adds the texts to compare.
    pub fn texts(mut self, recorded: impl Into<String>, now: impl Into<String>) -> Self {
        (self.recorded, self.now) = (recorded.into().into(), now.into().into());
        self
    }

    /// Adds the line in the transcript.
    pub fn at_line(mut self, line: usize) -> Self {
        self.line = Some(line);
        self
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.path, self.cause.words(), self.detail)
    }
}
