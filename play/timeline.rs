//! Timeline of one agent: an append-only list of events.
//!
//! Nothing is ever edited, dropped or rendered again, which is why the agent's next prompt always begins
//! with what its memory already holds. `prompt/` turns events into a prompt.

use greenroom_scenario::{Choice, Reasoning};
use std::sync::Arc;

/// Something that happened to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The system text, which says who the agent is; the first event, constant for as long as the timeline
    /// lives.
    System(String),
    /// The stage spoke: an opening, a debate format, a cue.
    Stage {
        /// Kind of text.
        kind: StageKind,
        /// The text, as rendered; it is data from here on.
        text: String,
        /// The field of the scenario that it comes from; empty: the plan itself.
        origin: String,
        /// Name in transcripts of the phase that it belongs to; empty: none.
        phase: String,
    },
    /// Another agent spoke.
    Heard {
        /// Display name of who spoke.
        from: String,
        /// The text that was heard, on one line.
        text: String,
        /// The option that was chosen; none: it was no choice, or an invalid one.
        picked: Option<Picked>,
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
        /// How much it was to think before.
        reasoning: Reasoning,
        /// Path of the turn.
        origin: String,
        /// Name of its phase in the file.
        phase: String,
    },
    /// The agent called a tool, and read its result.
    Called {
        /// The sampled ids.
        ids: Arc<[u32]>,
        /// The ids as text.
        raw: Arc<str>,
        /// The call, as it is quoted: `tool(arguments)`.
        call: String,
        /// Its result, as it was read.
        result: String,
        /// What the agent noted down by it, as later epochs begin with.
        note: Option<String>,
        /// How much it was to think before.
        reasoning: Reasoning,
        /// Path of the call's line in a transcript.
        origin: String,
    },
}

/// An option that another agent has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The choice.
    pub of: Arc<Choice>,
    /// The option, by index.
    pub option: usize,
}

impl Event {
    /// A line that asks for a reply.
    pub fn asking(text: String) -> Self {
        Self::Stage { kind: StageKind::Cue, text, origin: String::new(), phase: String::new() }
    }

    /// What an epoch begins with.
    pub fn remembered(text: String) -> Self {
        Self::Stage { kind: StageKind::Summary, text, origin: String::new(), phase: String::new() }
    }

    /// What the agent noted down by it, or earlier.
    fn note(&self) -> Option<Self> {
        let text = match self {
            Self::Called { note, .. } => note.clone()?,
            Self::Stage { kind: StageKind::Note, text, .. } => text.clone(),
            _ => return None,
        };
        Some(Self::Stage { kind: StageKind::Note, text, origin: String::new(), phase: String::new() })
    }

    /// Returns whether the agent itself spoke.
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
    /// A line that a fork added; its origin is the path of the turn that it is before.
    Added,
    /// What a new epoch begins with: the agent's own summary, or pieces of what it had read and said.
    Summary,
    /// What the agent noted down in an earlier epoch.
    Note,
    /// The line that asks for a reply.
    Cue,
}

/// An agent's events, oldest first: those of the epoch that it lives in, and those of epochs that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    past: Arc<Vec<Event>>,
    events: Vec<Event>,
}

impl Timeline {
    /// A timeline that starts with a system prompt (none if it is empty).
    pub fn new(system: &str) -> Self {
        let events = if system.is_empty() { Vec::new() } else { vec![Event::System(system.to_string())] };
        Self { past: Arc::default(), events }
    }

    /// A new epoch of it: the system text, what the agent has noted down, what the epoch begins with, and
    /// what has happened from event `from` on. All before is past.
    pub fn begin_epoch(self, from: usize, with: Option<Event>) -> Self {
        let Self { mut past, mut events } = self;
        let news = events.split_off(from.min(events.len()));
        let system = events.first().filter(|event| matches!(event, Event::System(_))).cloned();
        let notes: Vec<Event> = events.iter().filter_map(Event::note).collect();
        let is_kept =
            |event: &Event| matches!(event, Event::System(_) | Event::Stage { kind: StageKind::Note, .. });
        Arc::make_mut(&mut past).extend(events.into_iter().filter(|event| !is_kept(event)));
        Self { past, events: system.into_iter().chain(notes).chain(with).chain(news).collect() }
    }

    /// Adds an event at the end; there is no other way to change a timeline.
    pub fn push(&mut self, event: Event) {
        debug_assert!(!matches!(event, Event::System(_)), "the system text stands first, once");
        self.events.push(event);
    }

    /// Events of epochs that have ended, oldest first, without the system text.
    pub fn past(&self) -> &[Event] {
        &self.past
    }

    /// All events of this epoch, oldest first.
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
