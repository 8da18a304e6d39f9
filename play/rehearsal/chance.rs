//! Choices in a rehearsal: every way one after the other, or by a rule.

use greenroom_scenario::{AgentId, Turn};
use std::collections::BTreeSet;

/// Plays in which all is left to chance.
const N_RANDOM: u64 = 64;
/// Maximum number of agents of whom each, in a separate play, chooses differently from all others.
const MAX_DIFFERING: usize = 16;

/// Picks ways.
pub(super) enum Chance {
    /// Every way: what was picked in this play, of how many, and how much of it has been repeated.
    Every { path: Vec<(usize, usize)>, at: usize },
    /// A rule.
    By(PlayRule),
}

/// A rule that chooses a play where not all are played.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlayRule {
    kind: RuleKind,
    /// Index of the text that is said.
    text: usize,
    /// Picks so far, of what is random.
    n_picked: u64,
}

#[derive(Clone, Copy, Debug)]
enum RuleKind {
    /// All choose the same.
    Alike(usize),
    /// Neighbours differ.
    ByAgent(usize),
    /// Neighbours differ, and so do rounds.
    ByRound(usize),
    /// One chooses its last way, the others their first.
    OneDiffers(AgentId),
    /// One chooses its first way, the others their last.
    Dissenter(AgentId),
    /// Numbers drawn from this one.
    Random(u64),
}

impl Chance {
    pub(super) fn every() -> Self {
        Self::Every { path: Vec::new(), at: 0 }
    }

    pub(super) fn by(rule: PlayRule) -> Self {
        Self::By(rule)
    }

    /// One of `n` alternatives of a turn, or of its text.
    pub(super) fn pick(&mut self, n: usize, turn: Option<&Turn>) -> usize {
        let n = n.max(1);
        match self {
            Self::Every { path, at } => {
                if *at == path.len() {
                    path.push((0, n));
                }
                *at += 1;
                path[*at - 1].0
            }
            Self::By(rule) => match turn {
                None => rule.text % n,
                Some(turn) => rule.pick(n, turn),
            },
        }
    }

    /// One of `n` ways of something other than a turn, such as a score.
    pub(super) fn draw(&mut self, n: usize) -> usize {
        match self {
            Self::By(PlayRule { kind: RuleKind::Random(seed), n_picked, .. }) => {
                *n_picked += 1;
                drawn(*seed, *n_picked, n.max(1))
            }
            _ => self.pick(n, None),
        }
    }

    /// Index of the text, of `n`, that a turn says, where the play's is `text`.
    pub(super) fn text(&mut self, text: usize, n: usize, turn: &Turn) -> usize {
        match self {
            Self::By(rule) if matches!(rule.kind, RuleKind::Random(_)) => rule.pick(n.max(1), turn),
            _ => text,
        }
    }

    /// The next way; false: there is none.
    pub(super) fn next(&mut self) -> bool {
        let Self::Every { path, at } = self else { return false };
        *at = 0;
        while let Some((picked, n)) = path.pop() {
            if picked + 1 < n {
                path.push((picked + 1, n));
                return true;
            }
        }
        false
    }
}

impl PlayRule {
    fn pick(&mut self, n: usize, turn: &Turn) -> usize {
        match self.kind {
            RuleKind::Alike(which) => which % n,
            RuleKind::ByAgent(by) => (turn.speaker.0 + by) % n,
            RuleKind::ByRound(by) => (turn.speaker.0 + turn.round + by) % n,
            RuleKind::OneDiffers(agent) => {
                if turn.speaker == agent {
                    n - 1
                } else {
                    0
                }
            }
            RuleKind::Dissenter(agent) => {
                if turn.speaker == agent {
                    0
                } else {
                    n - 1
                }
            }
            RuleKind::Random(seed) => {
                self.n_picked += 1;
                drawn(seed, self.n_picked, n)
            }
        }
    }
}

/// A number below `n`, the one after `n_picked - 1` others.
fn drawn(seed: u64, n_picked: u64, n: usize) -> usize {
    (mixed(seed.wrapping_mul(1 << 32).wrapping_add(n_picked)) % n as u64) as usize
}

/// SplitMix64 (Steele et al. 2014): the same numbers on every machine.
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Rules for this many alternatives of a turn and this many texts, the most informative first.
pub(super) fn rules(agents: &BTreeSet<AgentId>, n_ways: usize, n_texts: usize) -> Vec<PlayRule> {
    let texts = (1..n_texts).map(|text| (RuleKind::Alike(0), text));
    let rest = (0..n_ways)
        .map(RuleKind::Alike)
        .chain((0..N_RANDOM / 8).map(RuleKind::Random))
        .chain((0..n_ways).map(RuleKind::ByAgent))
        .chain((0..n_ways).map(RuleKind::ByRound))
        .chain(agents.iter().take(MAX_DIFFERING).copied().map(RuleKind::OneDiffers))
        .chain(agents.iter().take(MAX_DIFFERING).copied().map(RuleKind::Dissenter))
        .chain((N_RANDOM / 8..N_RANDOM).map(RuleKind::Random));
    let all = texts.chain(rest.enumerate().map(|(at, kind)| (kind, at)));
    all.map(|(kind, text)| PlayRule { kind, text, n_picked: 0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_every_way_once() {
        let (mut chance, mut seen) = (Chance::every(), Vec::new());
        loop {
            // The second number is only picked where the first is 1, as in a play.
            let first = chance.pick(3, None);
            let second = if first == 1 { chance.pick(2, None) } else { 9 };
            seen.push((first, second));
            if !chance.next() {
                break;
            }
        }
        assert_eq!(seen, [(0, 9), (1, 0), (1, 1), (2, 9)]);
    }
}
