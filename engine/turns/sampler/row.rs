//! A row of logits with the few that penalties and exclusions change, and passes over it that copy no more
//! than a piece at a time.

use crate::Sampling;
use crate::device::{Below, LOGITS_PER_PIECE, maxima, weights_below};
use crate::turns::dry::Said;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Logits after a reply, `[n_vocab]`, some of them changed.
pub(crate) struct Row<'a> {
    logits: &'a [f32],
    changed: BTreeMap<u32, f32>,
    /// Tokens of the reply so far: the number of the draw.
    n: usize,
}

impl<'a> Row<'a> {
    /// Logits with all penalties; `reply` are the reply's tokens so far, `said` those and all earlier ones.
    ///
    /// The repetition penalty considers the reply alone: others' words, above all names, may be repeated.
    pub(crate) fn new(logits: &'a [f32], reply: &[u32], said: &Said, sampling: &Sampling) -> Self {
        let mut row = Self { logits, changed: BTreeMap::new(), n: reply.len() };
        for id in used(reply, said, sampling) {
            row.change(id, |logit| repeated(logit, sampling.repetition_penalty));
        }
        for (id, penalty) in sampling.dry.map(|dry| said.penalties(dry)).unwrap_or_default() {
            row.change(id, |logit| logit - penalty);
        }
        for (id, added) in added(reply, sampling) {
            row.change(id, |logit| logit + added);
        }
        row
    }

    /// Takes a token out: it can't be drawn.
    pub(crate) fn exclude(&mut self, id: u32) {
        // A row that is not one of probabilities stays recognizable.
        self.change(id, |logit| if logit < f32::INFINITY { f32::NEG_INFINITY } else { logit });
    }

    fn change(&mut self, id: u32, to: impl Fn(f32) -> f32) {
        if let Some(logit) = self.get(id) {
            self.changed.insert(id, to(logit));
        }
    }

    /// Number of the draw.
    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// Logit of a token, as it is now.
    pub(super) fn get(&self, id: u32) -> Option<f32> {
        self.changed.get(&id).or_else(|| self.logits.get(id as usize)).copied()
    }

    /// All logits, as they are now.
    pub(crate) fn all(&self) -> Cow<'_, [f32]> {
        let mut logits = Cow::Borrowed(self.logits);
        for (id, logit) in &self.changed {
            logits.to_mut()[*id as usize] = *logit;
        }
        logits
    }

    /// The greatest logit of each piece, NaN where one of its logits is.
    pub(super) fn maxima(&self) -> Vec<f32> {
        self.with_changes(maxima)
    }

    /// The sum of weights below a threshold, with a relative error of [`ERROR`](crate::device::ERROR) at
    /// most.
    pub(super) fn weights_below(&self, below: Below) -> f64 {
        self.with_changes(|logits| weights_below(logits, below)).into_iter().map(f64::from).sum()
    }

    /// Figures of all pieces; those in which logits are changed are computed again.
    fn with_changes(&self, figures: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
        let mut all = figures(self.logits);
        let mut changed = self.changed.keys().map(|id| *id as usize / LOGITS_PER_PIECE).collect::<Vec<_>>();
        changed.dedup();
        for i in changed {
            let mut buffer = [0.0; LOGITS_PER_PIECE];
            all[i] = figures(self.piece(i, &mut buffer))[0];
        }
        all
    }

    fn piece<'b>(&self, i: usize, buffer: &'b mut [f32; LOGITS_PER_PIECE]) -> &'b [f32] {
        let start = i * LOGITS_PER_PIECE;
        let logits = &self.logits[start..self.logits.len().min(start + LOGITS_PER_PIECE)];
        buffer[..logits.len()].copy_from_slice(logits);
        for (id, logit) in self.changed.range(start as u32..(start + LOGITS_PER_PIECE) as u32) {
            buffer[*id as usize - start] = *logit;
        }
        &buffer[..logits.len()]
    }

    /// Tokens whose logit is at least `least`, in the order of their ids; `None`: there are more than `most`.
    /// `maxima` are those of the pieces.
    pub(super) fn at_least(&self, least: f32, maxima: &[f32], most: usize) -> Option<Vec<(u32, f32)>> {
        let mut found = Vec::new();
        let mut buffer = [0.0; LOGITS_PER_PIECE];
        for (i, _) in maxima.iter().enumerate().filter(|(_, max)| **max >= least) {
            let ids = (i * LOGITS_PER_PIECE) as u32..;
            found.extend(ids.zip(self.piece(i, &mut buffer).iter().copied()).filter(|(_, x)| *x >= least));
            if found.len() > most {
                return None;
            }
        }
        Some(found)
    }
}

/// Tokens that the repetition penalty is for.
pub(super) fn used(reply: &[u32], said: &Said, sampling: &Sampling) -> BTreeSet<u32> {
    let n = if sampling.repetition_penalty == 1.0 { 0 } else { sampling.repetition_window };
    let latest = &reply[reply.len().saturating_sub(n)..];
    latest.iter().flat_map(|id| said.spellings(*id)).collect()
}

/// What is added to the logits of some tokens: a bias, less the penalties of what the reply has used.
pub(super) fn added(reply: &[u32], sampling: &Sampling) -> BTreeMap<u32, f32> {
    let Sampling { frequency_penalty, presence_penalty, .. } = *sampling;
    let mut added = sampling.bias.clone();
    if frequency_penalty != 0.0 || presence_penalty != 0.0 {
        let mut used = BTreeMap::<u32, usize>::new();
        reply.iter().for_each(|id| *used.entry(*id).or_default() += 1);
        for (id, n) in used {
            *added.entry(id).or_default() -= presence_penalty + frequency_penalty * n as f32;
        }
    }
    added
}

/// The logit of a token that was said before (Keskar et al. 2019).
pub(super) fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit >= 0.0 { logit / penalty } else { logit * penalty }
}
