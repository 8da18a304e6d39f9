//! Votes: majority, instant run-off, a coordinator's word, consensus.

use super::Line;
use crate::scenario::choice::{Chosen, Decision};
use crate::scenario::plan::Purpose;
use crate::scenario::{AgentId, Phase};
use std::collections::BTreeMap;

/// How a phase's options stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The option that was decided, by index.
    pub decision: Option<usize>,
    /// Whether nothing was, because options were level.
    pub tied: bool,
    /// How often each option was chosen; in a ranking, for the first place.
    pub votes: Vec<usize>,
}

/// Counts a phase's latest vote; without one, its choices.
pub fn tally(phase: &Phase, lines: &[Line]) -> Tally {
    let n_options = phase.choice.as_ref().map_or(0, |choice| choice.options.len());
    let attempt = |line: &Line| match line.purpose {
        Purpose::Ballot { attempt, .. } => attempt,
        Purpose::Choice if phase.decision.is_none() => 1,
        _ => 0,
    };
    let last = lines.iter().map(attempt).max().unwrap_or(0);
    let mut ballots: BTreeMap<AgentId, Vec<Option<usize>>> = BTreeMap::new();
    let own =
        |line: &&Line| line.choice.as_ref().zip(phase.choice.as_ref()).is_some_and(|((a, _), b)| a == b);
    let (mut votes, mut n_cast) = (vec![0; n_options], 0);
    for line in lines.iter().filter(|line| last > 0 && attempt(line) == last).filter(own) {
        let chosen = match line.choice {
            Some((_, Chosen::Option(id))) if id < n_options => Some(id),
            _ => None,
        };
        let first = !matches!(line.purpose, Purpose::Ballot { rank: 2.., .. });
        if let Some(id) = chosen.filter(|_| first) {
            votes[id] += 1;
        }
        n_cast += usize::from(first);
        ballots.entry(line.speaker).or_default().push(chosen);
    }
    let (decision, tied) = match phase.decision.filter(|_| n_cast > 0) {
        None => (None, false),
        Some(Decision::MajorityVote) => most(&votes),
        Some(Decision::Coordinator(_)) => (votes.iter().position(|n| *n > 0), false),
        Some(Decision::Consensus { .. }) => (votes.iter().position(|n| *n == n_cast), false),
        Some(Decision::RankedChoice) => (run_off(ballots.into_values().collect(), n_options), false),
    };
    Tally { decision, tied, votes }
}

/// The option with most votes, if there is one such.
fn most(votes: &[usize]) -> (Option<usize>, bool) {
    let best = votes.iter().copied().max().filter(|n| *n > 0);
    let mut leaders = votes.iter().enumerate().filter(|(_, n)| Some(**n) == best).map(|(id, _)| id);
    match (leaders.next(), leaders.next()) {
        (Some(winner), None) => (Some(winner), false),
        (first, _) => (None, first.is_some()),
    }
}

/// Instant run-off: the option with fewest first places among those left goes (of several, the one that is listed last),
/// until one has more than half. A ballot without any option that is left no longer counts.
fn run_off(mut ballots: Vec<Vec<Option<usize>>>, n_options: usize) -> Option<usize> {
    let mut left: Vec<usize> = (0..n_options).collect();
    for ballot in &mut ballots {
        // The options that a full ballot does not name share its last place: with one of them, it is that one.
        let named: Vec<usize> = ballot.iter().flatten().copied().collect();
        let rest: Vec<usize> = left.iter().copied().filter(|id| !named.contains(id)).collect();
        if let (true, [only]) = (!named.is_empty(), rest.as_slice()) {
            ballot.push(Some(*only));
        }
    }
    loop {
        let first =
            |ballot: &Vec<Option<usize>>| ballot.iter().flatten().find(|id| left.contains(id)).copied();
        let firsts: Vec<usize> = ballots.iter().filter_map(first).collect();
        if firsts.is_empty() {
            return None;
        }
        let count = |id: usize| firsts.iter().filter(|first| **first == id).count();
        if let Some(winner) = left.iter().find(|id| 2 * count(**id) > firsts.len()) {
            return Some(*winner);
        }
        let out = left.iter().enumerate().min_by_key(|(at, id)| (count(**id), usize::MAX - at))?.0;
        left.remove(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_majority_wins_and_level_options_are_tied() {
        assert_eq!(most(&[1, 3, 2]), (Some(1), false));
        assert_eq!(most(&[2, 0, 2]), (None, true));
        assert_eq!(most(&[0, 0]), (None, false));
    }

    #[test]
    fn the_run_off_moves_votes_on() {
        let ballot = |places: &[usize]| places.iter().map(|id| Some(*id)).collect::<Vec<_>>();
        // 2 goes first; its ballot prefers 1, which then has three of five.
        let ballots = [[0, 1], [0, 2], [1, 0], [1, 2], [2, 1]].map(|places| ballot(&places));
        assert_eq!(run_off(ballots.to_vec(), 3), Some(1));
        // All level: what is listed last goes first, then two against one.
        let level = [[0, 1], [1, 2], [2, 0]].map(|places| ballot(&places));
        assert_eq!(run_off(level.to_vec(), 3), Some(0));
        assert_eq!(run_off(vec![vec![None, None]], 3), None);
        assert_eq!(run_off(vec![ballot(&[2, 1]), vec![None, Some(0)], vec![None, Some(0)]], 3), Some(0));
    }
}
