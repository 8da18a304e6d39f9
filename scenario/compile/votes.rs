//! The votes of a phase once its rounds are over.

use super::{Compiler, TurnDraft};
use crate::choice::Decision;
use crate::hints::Hints;
use crate::language::Text;
use crate::plan::{Audience, Condition, Constraint, Input, Purpose, TurnId};
use crate::{AgentId, Phase, PhaseId};

/// Rounds of talk between the votes of a phase.
pub(crate) fn n_rounds_between(phase: &Phase) -> usize {
    match phase.decision {
        Some(Decision::Consensus { attempts }) if phase.rounds > 0 => attempts.saturating_sub(1),
        _ => 0,
    }
}

/// Ballots of a phase with this many speakers.
pub(super) fn n_ballots(phase: &Phase, n_speakers: usize) -> usize {
    let n_options = phase.choice.as_ref().map_or(0, |choice| choice.options.len());
    match phase.decision {
        None => 0,
        Some(Decision::Coordinator(_)) => 1,
        Some(Decision::MajorityVote) => n_speakers,
        Some(Decision::RankedChoice) => n_speakers.saturating_mul(n_options.saturating_sub(1).max(1)),
        Some(Decision::Consensus { attempts }) => n_speakers.saturating_mul(attempts),
    }
}

impl Compiler<'_> {
    /// Adds the votes: secret, all at once; each result is announced to everybody present. `left` counts the
    /// phase's turns down: a consensus whose turns are used up votes again without talk.
    pub(super) fn decide(&mut self, id: PhaseId, decision: Decision, opens: &[Condition], left: &mut usize) {
        let phase = self.scenario.phase(id);
        let n_options = phase.choice.as_ref().map_or(0, |choice| choice.options.len());
        let voters = match decision {
            Decision::Coordinator(coordinator) => vec![coordinator],
            _ => phase.voters.as_ref().map_or_else(|| phase.speakers(), |voters| voters.agents.clone()),
        };
        let (attempts, ranks) = match decision {
            Decision::Consensus { attempts } => (attempts, 1),
            Decision::RankedChoice => (1, n_options.saturating_sub(1).max(1)),
            Decision::MajorityVote | Decision::Coordinator(_) => (1, 1),
        };
        for attempt in 1..=attempts {
            let again = (attempt > 1).then_some(Condition::Undecided(id, attempt));
            let guard: Vec<_> = opens.iter().cloned().chain(again).collect();
            let round = phase.rounds.max(1) + attempt - 1;
            if attempt > 1 && phase.rounds > 0 && *left > 0 {
                self.begins.insert((id, round), self.horizon());
                self.announce(id, round, false);
                self.round(id, round, &guard, left);
                self.round_ends(id, round);
            }
            let mut cast: Vec<Vec<TurnId>> = vec![Vec::new(); voters.len()];
            let known = Some(self.horizon());
            for rank in 1..=ranks {
                for (at, voter) in voters.iter().enumerate() {
                    let draft = self.ballot(id, *voter, (attempt, rank, ranks), &cast[at], &guard);
                    cast[at].push(self.turn(id, round, TurnDraft { known, ..draft }));
                }
            }
            if !phase.is_secret_vote {
                self.happens(id, &phase.agents, Input::Vote(id, attempt));
            }
        }
    }

    /// A ballot: (which vote, which place, of how many).
    fn ballot(
        &self,
        id: PhaseId,
        voter: AgentId,
        (attempt, rank, ranks): (usize, usize, usize),
        sooner: &[TurnId],
        guard: &[Condition],
    ) -> TurnDraft {
        let name = &self.scenario.agent(voter).name;
        let phase = self.scenario.phase(id);
        let choice = phase.choice.clone();
        let among = phase.voters.as_ref().and_then(|voters| voters.among.as_ref());
        let votes = among.map(|_| Condition::Votes);
        let language = &self.scenario.language;
        let place = (ranks > 1).then(|| language.ordinal(rank));
        TurnDraft {
            speaker: voter,
            suffix: if ranks == 1 { ".vote".to_string() } else { format!(".vote-{rank}") },
            cue: [language.say(Text::Vote, &[("name", name)])]
                .into_iter()
                .chain(place)
                .collect::<Vec<_>>()
                .join(" "),
            ask: None,
            guard: guard.iter().cloned().chain(votes).collect(),
            constraint: choice.map(|choice| Constraint { choice, except: sooner.to_vec() }),
            form: None,
            call: None,
            purpose: Purpose::Ballot { attempt, rank },
            audience: Audience::Nobody,
            known: None,
            hints: Hints::default(),
        }
    }
}
