//! The plan as bytes, for its hash: recordings hold it, so it must change with what turns are and depend on,
//! and with nothing else, neither a name in this program nor a field's place in the file.
//!
//! Numbers are 64 bits, little-endian; texts and lists are preceded by their lengths, variants by a number of
//! their own. A change of the encoding is a new [`VERSION`].
//!
//! A recording holds its plan as a hash over an encoding of its own, with a version: it changes with what
//! turns are and wait for, not with names in this program.

use super::plan::{
    Announced, Audience, Change, Condition, Constraint, Edge, Horizon, Input, Plan, Purpose, RoutePoint,
    Trigger, Turn,
};
use super::template::Template;
use super::{Choice, ChoiceMethod, PhaseId, Route};

/// Version of the encoding.
const VERSION: u32 = 1;

impl Plan {
    /// The hash that equal plans share: the version of their encoding, a colon, and blake3 (hex) over turns
    /// and edges.
    pub fn hash(&self) -> String {
        let mut bytes = Bytes(blake3::Hasher::new());
        bytes.list(self.order(), |bytes, (id, turn)| {
            bytes.turn(turn);
            let needs = self.needs(id).map(|(from, edge)| (from.0, kind(edge)));
            let mut needs: Vec<(usize, u64)> = needs.collect();
            needs.sort_unstable();
            bytes.list(needs.iter(), |bytes, (from, kind)| {
                bytes.number(*from);
                bytes.variant(*kind);
            });
        });
        // What no older scenario has leaves no trace in the hashes of those that have none of it.
        if !self.changes.is_empty() {
            bytes.list(self.changes.iter(), Bytes::change);
        }
        if !self.routes.is_empty() {
            bytes.list(self.routes.iter(), |bytes, (phase, point)| bytes.route(*phase, point));
        }
        self.language.iter().for_each(|language| bytes.text(language));
        format!("{VERSION}:{}", bytes.0.finalize().to_hex())
    }

    /// True if a hash is of this program's encoding: one of another version can't be compared with this plan.
    pub fn can_compare(hash: &str) -> bool {
        hash.split_once(':').is_some_and(|(version, _)| version == VERSION.to_string())
    }
}

fn kind(edge: Edge) -> u64 {
    match edge {
        Edge::Memory => 0,
        Edge::Hears => 1,
        Edge::Decides => 2,
    }
}

struct Bytes(blake3::Hasher);

impl Bytes {
    fn variant(&mut self, n: u64) {
        self.0.update(&n.to_le_bytes());
    }

    fn number(&mut self, n: usize) {
        self.variant(n as u64);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    fn list<T>(&mut self, items: impl Iterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        let items: Vec<T> = items.collect();
        self.number(items.len());
        items.into_iter().for_each(|item| each(self, item));
    }

    fn template(&mut self, template: Option<&Template>) {
        self.list(template.into_iter(), |bytes, template| bytes.text(&template.text));
    }

    fn turn(&mut self, turn: &Turn) {
        self.text(&turn.path);
        self.text(&turn.cue);
        self.list(turn.inputs.iter(), |bytes, input| bytes.input(*input));
        self.template(turn.ask.as_deref());
        self.list(turn.guard.iter(), Self::condition);
        self.list(turn.constraint.iter(), Self::constraint);
        self.purpose(turn.purpose);
        self.audience(&turn.audience);
        if let Some(form) = &turn.form {
            self.text(form.kind());
            self.text(form.text());
            self.variant(u64::from(form.is_shown));
        }
        turn.call.iter().for_each(|call| self.text(call));
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::Opening(phase) => {
                self.variant(0);
                self.number(phase.0);
            }
            Input::Heard(turn) => {
                self.variant(1);
                self.number(turn.0);
            }
            Input::Vote(phase, attempt) => {
                self.variant(2);
                self.number(phase.0);
                self.number(attempt);
            }
            Input::Announced(Announced { phase, round, index, known }) => {
                self.variant(3);
                [phase.0, round, index, known.turns.0].into_iter().for_each(|n| self.number(n));
            }
            Input::Record(phase) => {
                self.variant(4);
                self.number(phase.0);
            }
        }
    }

    fn condition(&mut self, condition: &Condition) {
        match condition {
            Condition::Opens(phase) => {
                self.variant(0);
                self.number(phase.0);
            }
            Condition::NotYetEnded(phase, round) => {
                self.variant(1);
                self.number(phase.0);
                self.number(*round);
            }
            Condition::Holds(expression) => {
                self.variant(2);
                self.text(&expression.text);
            }
            Condition::Chose(turn, option) => {
                self.variant(3);
                self.number(turn.0);
                self.number(*option);
            }
            Condition::Played(turn) => {
                self.variant(11);
                self.number(turn.0);
            }
            Condition::NotPlayed(turn) => {
                self.variant(4);
                self.number(turn.0);
            }
            Condition::Drawn(place) => {
                self.variant(9);
                self.number(*place);
            }
            Condition::Paired(first, second, pairs) => {
                self.variant(10);
                [first.0, second.0].into_iter().for_each(|n| self.number(n));
                self.text(&pairs.text);
            }
            Condition::Present => self.variant(6),
            Condition::Votes => self.variant(7),
            Condition::CanChoose => self.variant(8),
            Condition::Undecided(phase, attempt) => {
                self.variant(5);
                self.number(phase.0);
                self.number(*attempt);
            }
        }
    }

    fn change(&mut self, change: &Change) {
        let Change { path, phase: _, after, set, known: Horizon { turns, changes: _ } } = change;
        self.text(path);
        self.variant(match after {
            Trigger::Phase => 0,
            Trigger::Round(_) => 1,
            Trigger::Turn(_) => 2,
        });
        self.number(turns.0);
        self.list(set.iter(), |bytes, assignment| {
            bytes.text(&assignment.name);
            bytes.text(&assignment.value.text);
            assignment.each.iter().for_each(|each| bytes.text(&each.text));
        });
    }

    fn route(&mut self, phase: PhaseId, point: &RoutePoint) {
        let RoutePoint { route, unread, waits } = point;
        let Route { query, among, take, least, best, otherwise } = route.as_ref();
        self.number(phase.0);
        self.text(&query.text);
        self.list(among.iter(), |bytes, agent| bytes.number(agent.0));
        self.number(*take);
        self.list(least.iter(), |bytes, least| bytes.variant(least.to_bits()));
        self.number(*best);
        self.list(otherwise.iter(), |bytes, agent| bytes.number(agent.0));
        self.list(unread.iter(), |bytes, (of, inputs)| {
            bytes.number(of.agent.0);
            bytes.list(inputs.iter(), |bytes, input| bytes.input(*input));
        });
        self.list(waits.iter(), |bytes, turn| bytes.number(turn.0));
    }

    fn constraint(&mut self, constraint: &Constraint) {
        let Constraint { choice, except } = constraint;
        let Choice { path: _, options, method, shuffle, by_length, ask, open, n_picks } = choice.as_ref();
        self.list(options.iter(), |bytes, option| {
            bytes.text(&option.value.to_string());
            bytes.text(&option.text);
        });
        self.variant(match method {
            ChoiceMethod::Decode => 0,
            ChoiceMethod::Parse => 1,
        });
        self.variant(u64::from(*shuffle));
        self.template(ask.as_deref());
        if let Some(open) = open {
            self.text(&open.text);
        }
        self.list(except.iter(), |bytes, turn| bytes.number(turn.0));
        if *by_length {
            self.text("normalize: length");
        }
        if *n_picks > 1 {
            self.number(*n_picks);
        }
    }

    fn purpose(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Speech => self.variant(0),
            Purpose::Choice => self.variant(1),
            Purpose::Ballot { attempt, rank } => {
                self.variant(2);
                self.number(attempt);
                self.number(rank);
            }
            Purpose::Floor => self.variant(3),
        }
    }

    fn audience(&mut self, audience: &Audience) {
        match audience {
            Audience::All => self.variant(0),
            Audience::Whisper { to, by } => {
                self.variant(1);
                self.list(to.iter(), |bytes, agent| bytes.number(agent.0));
                self.list(by.iter(), |bytes, agent| bytes.number(agent.0));
            }
            Audience::Nobody => self.variant(2),
        }
    }
}
