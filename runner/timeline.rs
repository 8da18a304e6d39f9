//! Timeline of one agent: an append-only list of events.
//!
//! Nothing is ever edited, dropped or rendered again, which is why the agent's next prompt always begins
//! with what its memory already holds. `prompt/` turns events into a prompt.

use std::sync::Arc;

/// Something that happened to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The system text, which says who the agent is; the first event, constant for as long as the timeline lives.
    System(String),
    /// The stage spoke: an opening, a debate format, a cue.
    Stage {
        /// Kind of text.
        kind: StageKind,
        /// The text, as rendered; it is data from here on.
        text: String,
        /// The field of the scenario that it comes from; empty: the plan itself.
        origin: String,
    },
    /// Another agent spoke.
    Heard {
        /// Display name of who spoke.
        from: String,
        /// The text that was heard, on one line.
        text: String,
        /// Path of the turn.
        origin: String,
    },
    /// The agent itself spoke.
    Said {
        /// The sampled ids, from which the rest follows.
        ids: Arc<[u32]>,
        /// The ids as text.
        raw: Arc<str>,
        /// The text that others heard.
        spoken: String,
        /// Path of the turn.
        origin: String,
    },
}

impl Event {
    /// Tells whether the agent itself spoke.
    pub fn is_said(&self) -> bool {
        matches!(self, Self::Said { .. })
    }
}

/// Kind of stage text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// The opening of a phase, for everybody.
    Opening,
    /// A private opening.
    Private,
    /// The debate format.
    Format,
    /// The result of a vote.
    Vote,
    /// A line before or after a round.
    Announcement,
    /// A line that a fork added; its origin is the path of the turn that it stands before.
    Added,
    /// The agent's own summary, with which a new epoch begins.
    Summary,
    /// The line that asks for a reply.
    Cue,
}

/// An agent's events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    events: Vec<Event>,
}

impl Timeline {
    /// A life that begins with a system text (none if it is empty).
    pub fn new(system: &str) -> Self {
        let events = if system.is_empty() { Vec::new() } else { vec![Event::System(system.to_string())] };
        Self { events }
    }

    /// Adds an event at the end; there is no other way to change a timeline.
    pub fn push(&mut self, event: Event) {
        debug_assert!(!matches!(event, Event::System(_)), "the system text stands first, once");
        self.events.push(event);
    }

    /// All events, oldest first.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The system text.
    pub fn system(&self) -> Option<&str> {
        match self.events.first() {
            Some(Event::System(text)) => Some(text),
            _ => None,
        }
    }
}
