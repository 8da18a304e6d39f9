//! What can be seen of a plan being played.

use super::Settings;
use crate::backend::{Progress, Usage};
use crate::prompt::{Direction, Directions, Memories};
use crate::transcript::{CallRecord, ChoiceRecord, Odds, RouteRecord, TurnRecord};
use greenroom_engine::StopReason;
use greenroom_scenario::{Turn, TurnId};

/// An event that can be watched while a plan is played.
#[derive(Clone, Copy, Debug)]
pub enum Scene<'a> {
    /// A turn's prompt was sent.
    Started {
        /// The turn.
        turn: &'a Turn,
        /// What its speaker reads that is new.
        reads: &'a str,
    },
    /// Something streams out of it.
    Progress(&'a Progress),
    /// Its speaker has called a tool, and reads what it gave.
    Called(&'a CallRecord),
    /// It is on record.
    Written {
        /// The turn.
        turn: &'a Turn,
        /// The text that others heard.
        spoken: &'a str,
        /// The reason why the reply ended.
        stop: StopReason,
        /// What was cut after it, if a remote engine said more.
        cut: &'a str,
        /// The choice, if the reply was one.
        choice: Option<&'a ChoiceRecord>,
        /// The odds of its options; `None`: no model was asked.
        odds: Option<&'a Odds>,
        /// Its cost; `None`: it was replayed.
        usage: Option<&'a Usage>,
    },
    /// It does not take place.
    Skipped,
    /// No turn begins until the run goes on, or it goes on.
    Paused(bool),
    /// Those who speak in its phase were picked.
    Routed(&'a RouteRecord),
    /// Lines of the stage before it; after the last turn, too.
    Directed(&'a Direction),
    /// It is over, but a human who plays may not know of it yet; it is shown later, if at all.
    Withheld,
    /// The run is over; what follows was withheld.
    Unveiled,
}

/// Watches a plan being played. A turn that does not take place is [`Scene::Skipped`], in plan order too.
pub trait Watch {
    /// Something happened to a turn. Turns that run together mix; `Written` comes in plan order.
    fn see(&mut self, id: TurnId, scene: Scene<'_>);
}

/// Watches nothing.
pub struct Unwatched;

impl Watch for Unwatched {
    fn see(&mut self, _id: TurnId, _scene: Scene<'_>) {}
}

/// Shows the lines of the stage before a turn, and earlier ones that were not shown yet.
pub(super) fn direct(
    memories: &Memories,
    directions: &Directions,
    undirected: &mut usize,
    until: TurnId,
    watch: &mut dyn Watch,
) {
    for id in (*undirected..=until.0).map(TurnId) {
        memories.directions(directions, id).iter().for_each(|line| watch.see(id, Scene::Directed(line)));
    }
    *undirected = (*undirected).max(until.0 + 1);
}

/// Shows the line of a turn; a summary is the speaker's own affair.
pub(super) fn show(
    turn: &Turn,
    id: TurnId,
    line: &TurnRecord,
    usage: Option<&Usage>,
    settings: &Settings,
    watch: &mut dyn Watch,
) {
    if line.path == turn.path {
        let choice = line.constraint.as_ref();
        let odds = choice.and_then(|choice| choice.odds(settings.of(id, &line.hints).0.temperature));
        let (spoken, cut, odds) = (line.spoken.as_str(), line.cut.as_str(), odds.as_ref());
        watch.see(id, Scene::Written { turn, spoken, stop: line.stop, cut, choice, odds, usage });
    }
}
