//! Votes: majority, instant run-off, a coordinator's word, consensus.

use super::Utterance;
use crate::choice::{Chosen, Decision};
use crate::plan::Purpose;
use crate::{AgentId, Phase};
use std::collections::BTreeMap;

/// The result of a phase's vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The option that was decided, by index.
    pub decision: Option<usize>,
    /// True if nothing was decided, because options were level.
    pub tied: bool,
    /// The number of votes for each option; in a ranking, for the first place.
    pub votes: Vec<usize>,
}

/// Counts a phase's latest vote.
pub fn tally(phase: &Phase, lines: &[Utterance]) -> Tally {
    let n_options = phase.choice.as_ref().map_or(0, |choice| choice.options.len());
    let attempt = |line: &Utterance| match line.purpose {
        Purpose::Ballot { attempt, .. } => attempt,
        _ => 0,
    };
    let last = lines.iter().map(attempt).max().unwrap_or(0);
    let mut ballots: BTreeMap<AgentId, Vec<Option<usize>>> = BTreeMap::new();
    let own =
        |line: &&Utterance| line.choice.as_ref().zip(phase.choice.as_ref()).is_some_and(|((a, _), b)| a == b);
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
        Some(Decision::RankedChoice) => run_off(ballots.into_values().collect(), n_options),
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

/// Instant run-off: the options with fewest first places go, all that are level at once, until one option has
/// more than half; if those that are left are level, nothing is decided. So the order in which options are
/// listed decides nothing. A ballot without any option that is left no longer counts.
fn run_off(mut ballots: Vec<Vec<Option<usize>>>, n_options: usize) -> (Option<usize>, bool) {
    let mut left: Vec<usize> = (0..n_options).collect();
    for ballot in &mut ballots {
        // The options that a full ballot does not name share its last place: with one of them, it is that
        // one.
        let named: Vec<usize> = ballot.iter().flatten().copied().collect();
        let rest: Vec<usize> = left.iter().copied().filter(|id| !named.contains(id)).collect();
        if let (true, [only]) = (!named.is_empty(), rest.as_slice()) {
            ballot.push(Some(*only));
        }
    }
    loop {
        let mut counts = vec![0; n_options];
        let first =
            |ballot: &Vec<Option<usize>>| ballot.iter().flatten().find(|id| left.contains(id)).copied();
        ballots.iter().filter_map(first).for_each(|id| counts[id] += 1);
        let n_counted: usize = counts.iter().sum();
        if n_counted == 0 {
            return (None, false);
        }
        if let Some(winner) = left.iter().find(|id| 2 * counts[**id] > n_counted) {
            return (Some(*winner), false);
        }
        let fewest = left.iter().map(|id| counts[*id]).min();
        left.retain(|id| Some(counts[*id]) != fewest);
        if left.is_empty() {
            return (None, true);
        }
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
        // 2 is eliminated first; its ballot prefers 1, which then has three of five.
        let ballots = [[0, 1], [0, 2], [1, 0], [1, 2], [2, 1]].map(|places| ballot(&places));
        assert_eq!(run_off(ballots.to_vec(), 3), (Some(1), false));
        assert_eq!(run_off(vec![vec![None, None]], 3), (None, false));
        let some_invalid = vec![ballot(&[2, 1]), vec![None, Some(0)], vec![None, Some(0)]];
        assert_eq!(run_off(some_invalid, 3), (Some(0), false));
        // 1 and 2 are eliminated together, whichever is listed first.
        let ballots = [[0, 1], [0, 2], [1, 0], [2, 0]].map(|places| ballot(&places));
        assert_eq!(run_off(ballots.to_vec(), 3), (Some(0), false));
    }

    #[test]
    fn a_ranking_in_which_options_are_level_decides_nothing() {
        let ballot = |places: &[usize]| places.iter().map(|id| Some(*id)).collect::<Vec<_>>();
        for level in [vec![vec![0], vec![1]], vec![vec![0, 1], vec![1, 2], vec![2, 0]]] {
            let n_options = level.iter().flatten().max().unwrap_or(&0) + 1;
            let ballots = level.iter().map(|places| ballot(places)).collect();
            assert_eq!(run_off(ballots, n_options), (None, true), "{level:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_run_off_does_not_depend_on_the_order_of_options(
            ballots in proptest::collection::vec(
                proptest::sample::subsequence(vec![0usize, 1, 2, 3], 3), 1..9
            ),
            turns in proptest::collection::vec(0usize..4, 9),
        ) {
            // Subsequences are sorted: each ballot is turned by some places.
            let ballots: Vec<Vec<usize>> = ballots.iter().zip(&turns).map(|(ballot, by)| {
                let mut ballot = ballot.clone();
                ballot.rotate_left(by % 3);
                ballot
            }).collect();
            let renamed = |name: fn(usize) -> usize| {
                let ballots = ballots.iter().map(|ballot| ballot.iter().map(|id| Some(name(*id))).collect());
                run_off(ballots.collect(), 4)
            };
            let (decided, tied) = renamed(|id| id);
            proptest::prop_assert_eq!(renamed(|id| 3 - id), (decided.map(|id| 3 - id), tied));
            proptest::prop_assert_eq!(decided.is_none(), tied);
        }
    }
}
