//! Epochs: how a memory that is full continues. It begins again with the system text, what is kept of all
//! before, and what its agent has just heard: a summary in the agent's own words, or some of the
//! [pieces](Piece) of its past.
//!
//! Both are a line of their own, `PATH.summary`, before the turn's; that it is there makes a replay begin the
//! epoch. Which pieces were kept only a model can tell, so the line lists them; their texts follow from the
//! record. The engine sees a conversation that diverges after the system text.

use super::delta::conversation;
use super::memories::{Asked, Memories, PromptError, Unanswered};
use super::pieces::{Piece, pieces};
use super::spoken::spoken;
use crate::timeline::{Event, Timeline};
use crate::transcript::{TurnRecord, summary_of};
use greenroom_engine::StopReason;
use greenroom_scenario::language::Text;
use greenroom_scenario::{Hints, Keep, Recalled, TimelineId, TurnId};

impl Memories {
    /// Returns what to ask a memory that is full: a summary of it, as it was before it heard what is new.
    ///
    /// # Errors
    /// Nothing has been said in it yet.
    pub fn ask_for_summary(&self, id: TurnId) -> Result<Asked, PromptError> {
        let turn = self.plan.turn(id);
        let (of, path) = (turn.timeline, summary_of(&turn.path));
        let events = self.look(of).map(Timeline::events).unwrap_or_default();
        let past = &events[..self.ended(id)?];
        let cue = Event::asking(format!("[{}]", self.scenario.language.text(Text::SummaryCue)));
        let conversation = conversation(past.iter().chain([&cue]));
        self.is_extended(id, &conversation)?;
        let (seed, choice, form) = (self.seeds.of(id, &path), None, None);
        let (n_calls, may_call) = (0, false);
        let recalled = Recalled::default();
        Ok(Asked {
            id,
            is_summary: true,
            conversation,
            seed,
            choice,
            form,
            path,
            n_calls,
            may_call,
            must_call: None,
            recalled,
        })
    }

    /// What the speaker of a turn keeps when its memory is full.
    pub fn keep_of(&self, id: TurnId) -> Keep {
        self.scenario.agent(self.plan.turn(id).speaker).memory.keep
    }

    /// True if the memory of a turn's speaker has begun again for this turn.
    pub fn begins_epoch(&self, id: TurnId) -> bool {
        self.unanswered.get(&self.plan.turn(id).timeline).is_some_and(|turn| turn.is_new_epoch)
    }

    /// The pieces that a full memory may keep, oldest first: all before what it has just heard.
    ///
    /// # Errors
    /// Nothing has been said in it yet.
    pub fn keepable(&self, id: TurnId) -> Result<Vec<Piece>, PromptError> {
        let end = self.ended(id)?;
        let of = self.plan.turn(id).timeline;
        let name = &self.scenario.agent(of.agent).name;
        Ok(self.look(of).map(|timeline| pieces(timeline, end, name)).unwrap_or_default())
    }

    /// What the speaker of a turn has just heard, cue included, as one text.
    pub fn news_of(&self, id: TurnId) -> String {
        let of = self.plan.turn(id).timeline;
        let events = self.look(of).map(Timeline::events).unwrap_or_default();
        let begin = self.unanswered.get(&of).map_or(events.len(), |turn| turn.begin);
        conversation(&events[begin..]).next
    }

    /// Returns what to ask the speaker of a turn if its memory started over with these pieces.
    ///
    /// # Errors
    /// As [`Memories::ask`].
    pub fn ask_keeping(&self, id: TurnId, kept: &[&Piece]) -> Result<Asked, PromptError> {
        let (of, asked) = (self.plan.turn(id).timeline, self.ask(id)?);
        let begin = self.unanswered.get(&of).map_or(0, |turn| turn.begin);
        let timeline = self.look(of).cloned().unwrap_or_else(|| self.born(of));
        let epoch = timeline.begin_epoch(begin, self.quoting(kept));
        Ok(Asked { conversation: self.folded(asked.id, epoch.events()), ..asked })
    }

    /// Lets the memory of a turn's speaker start over with the pieces of these names, in the order of time;
    /// returns the line.
    ///
    /// # Errors
    /// A name is not a piece's; nothing has been said in the memory yet.
    pub fn keep(&mut self, id: TurnId, kept: &[String]) -> Result<TurnRecord, PromptError> {
        let all = self.keepable(id)?;
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let agent = self.scenario.agent(turn.timeline.agent).key.clone();
        let path = summary_of(&turn.path);
        if let Some(piece) = kept.iter().find(|name| !all.iter().any(|piece| piece.name == **name)) {
            return Err(PromptError::NotAPiece { path, agent, piece: piece.clone() });
        }
        let kept: Vec<&Piece> = all.iter().filter(|piece| kept.contains(&piece.name)).collect();
        self.begin_epoch(turn.timeline, self.quoting(&kept));
        let seed = self.seeds.of(id, &path);
        Ok(TurnRecord {
            path,
            agent,
            delta: String::new(),
            tokens: Vec::new(),
            raw: String::new(),
            speech: None,
            spoken: kept.iter().map(|piece| piece.quoted()).collect::<Vec<_>>().join("\n"),
            stop: StopReason::EndOfTurn,
            cut: String::new(),
            constraint: None,
            form: None,
            call: None,
            kept: Some(kept.iter().map(|piece| piece.name.clone()).collect()),
            seed,
            hints: Hints::default(),
        })
    }

    /// Lets the memory of a turn's speaker start over with a summary; returns it as it is remembered.
    pub(super) fn sum_up(&mut self, id: TurnId, speech: &str) -> String {
        let of = self.plan.turn(id).timeline;
        let summary = spoken(&self.scenario.agent(of.agent).name, speech);
        let text = self.scenario.language.say(Text::Remembered, &[("summary", &summary)]);
        self.begin_epoch(of, Some(Event::remembered(text)));
        summary
    }

    fn begin_epoch(&mut self, of: TimelineId, with: Option<Event>) {
        let past = self.timelines.remove(&of).unwrap_or_else(|| self.born(of));
        let n_events = past.events().len();
        let from = self.unanswered.get(&of).map_or(n_events, |turn| turn.begin);
        let epoch = past.begin_epoch(from, with);
        if let Some(Unanswered { begin, is_new_epoch, .. }) = self.unanswered.get_mut(&of) {
            *is_new_epoch = true;
            *begin = epoch.events().len() - (n_events - from);
        }
        self.timelines.insert(of, epoch);
        self.sent.remove(&of);
    }

    /// The line that quotes pieces; none where there are none.
    fn quoting(&self, kept: &[&Piece]) -> Option<Event> {
        let quotes: Vec<String> = kept.iter().map(|piece| piece.quoted()).collect();
        let quotes = quotes.join("\n");
        let text = self.scenario.language.say(Text::Remembered, &[("summary", &quotes)]);
        (!kept.is_empty()).then(|| Event::remembered(text))
    }

    /// The number of events of the epoch that ends before what a turn's speaker has just heard.
    fn ended(&self, id: TurnId) -> Result<usize, PromptError> {
        let turn = self.plan.turn(id);
        let of = turn.timeline;
        let end = self.unanswered.get(&of).map_or(0, |turn| turn.begin);
        let events = self.look(of).map(Timeline::events).unwrap_or_default();
        if events[..end].iter().any(Event::is_said) {
            return Ok(end);
        }
        let agent = self.scenario.agent(of.agent).key.clone();
        Err(PromptError::TooLong { path: turn.path.clone(), agent })
    }
}
