//! Pieces of a memory: what an agent has read and said, in parts that can be looked up and quoted.

use crate::timeline::{Event, StageKind, Timeline};
use std::collections::BTreeMap;

/// A message, or a paragraph of a text of the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its name, which no other piece of the memory has: the path of its turn, or the phase; after `#` a
    /// number where there are several.
    pub name: String,
    /// Display name of the speaker; `None`: the stage.
    pub by: Option<String>,
    /// The text.
    pub text: String,
}

impl Piece {
    /// The line that an agent reads it again by.
    pub fn quoted(&self) -> String {
        match &self.by {
            Some(by) => format!("[{}] {by}: {}", self.name, self.text),
            None => format!("[{}] {}", self.name, self.text),
        }
    }
}

/// The pieces of a memory, oldest first: all that `own` has read and said in all its epochs, up to event
/// `end` of this one. Lines that ask for a reply, and those that an epoch begins with, are none.
pub(super) fn pieces(timeline: &Timeline, end: usize, own: &str) -> Vec<Piece> {
    let events = &timeline.events()[..end.min(timeline.events().len())];
    pieces_of(timeline.past().iter().chain(events), own)
}

/// The pieces that events are to an agent.
pub(super) fn pieces_of<'a>(events: impl Iterator<Item = &'a Event>, own: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut n_named: BTreeMap<String, usize> = BTreeMap::new();
    let mut add = |name: &str, by: Option<&str>, text: &str| {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let n = n_named.entry(name.to_string()).or_default();
        *n += 1;
        let name = if *n == 1 { name.to_string() } else { format!("{name}#{n}") };
        pieces.push(Piece { name, by: by.map(str::to_string), text: text.to_string() });
    };
    for event in events {
        match event {
            Event::System(_)
            | Event::Stage { kind: StageKind::Cue | StageKind::Summary | StageKind::Note, .. } => {}
            Event::Stage { text, phase, .. } => {
                text.split("\n\n").for_each(|paragraph| add(phase, None, paragraph));
            }
            Event::Heard { from, text, origin, .. } => add(origin, Some(from), text),
            Event::Said { spoken, origin, .. } => add(origin, Some(own), spoken),
            Event::Called { call, result, origin, .. } => add(origin, None, &format!("{call}: {result}")),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_scenario::Reasoning;

    #[test]
    fn pieces_have_names_of_their_own() {
        let stage = |kind, text: &str| {
            let (text, phase) = (text.into(), "tea".into());
            Event::Stage { kind, text, origin: String::new(), phase }
        };
        let mut timeline = Timeline::new("You are Ben.");
        timeline.push(stage(StageKind::Opening, "A table.\n\nA cup.\n"));
        timeline.push(Event::Heard {
            from: "Ann".into(),
            text: "Tea?".into(),
            picked: None,
            origin: "tea/1/ann".into(),
        });
        timeline.push(stage(StageKind::Cue, "[Your turn, Ben.]"));
        let (ids, raw, origin) = ([1].into(), "Yes.".into(), "tea/1/ben".into());
        let reasoning = Reasoning::None;
        let phase = "tea".into();
        timeline.push(Event::Said { ids, raw, spoken: "Yes.".into(), reasoning, origin, phase });
        let quoted: Vec<String> = pieces(&timeline, 5, "Ben").iter().map(Piece::quoted).collect();
        assert_eq!(
            quoted,
            ["[tea] A table.", "[tea#2] A cup.", "[tea/1/ann] Ann: Tea?", "[tea/1/ben] Ben: Yes."]
        );
        // They stay when an epoch ends, and what it began with is none.
        let timeline = timeline.begin_epoch(3, Some(stage(StageKind::Summary, "You remember tea.")));
        assert_eq!(timeline.events().len(), 4);
        let again: Vec<String> = pieces(&timeline, 4, "Ben").iter().map(Piece::quoted).collect();
        assert_eq!(again, quoted);
    }
}
