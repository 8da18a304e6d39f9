//! Scoring, comparing and ranking as jobs: the engine's thread runs them a pass at a time, between passes
//! over turns. A job whose receiver is dropped ends at its next figure.

use super::compare::Comparison;
use super::distribution::{argmax, logprob};
use super::scratch::ScratchSequence;
use crate::memory::pass::Wanted;
use crate::{Error, ErrorKind, FormatDivergence, RankedOption, Ranking, Result, TokenScore};
use std::sync::mpsc::{SendError, Sender};

/// Something that takes many passes.
pub(crate) trait Job: Send {
    /// One pass; `true`: it was the last one.
    ///
    /// # Errors
    /// It fails, or its receiver was dropped.
    fn step(&mut self) -> Result<bool>;

    /// Reports the failure to the caller.
    fn fail(&self, e: Error);
}

/// The error when the caller has gone.
fn nobody_listens<T>(_: SendError<T>) -> Error {
    Error::new(ErrorKind::Closed, "the receiver of the figures has gone")
}

/// Log-probabilities of `ids[1..]`, from an empty cache.
pub(crate) struct Scoring {
    pub(crate) scratch: ScratchSequence,
    pub(crate) ids: Vec<u32>,
    pub(crate) scores: Sender<Result<TokenScore>>,
}

impl Job for Scoring {
    fn step(&mut self) -> Result<bool> {
        let Self { scratch, ids, scores } = self;
        scratch.step(ids, Wanted::All, &mut |pos, logits| {
            let Some(&id) = ids.get(pos + 1) else { return Ok(()) };
            let (logprob, top) = (logprob(logits, id), argmax(logits));
            scores.send(Ok(TokenScore { pos: pos + 1, id, logprob, top })).map_err(nobody_listens)
        })
    }

    fn fail(&self, e: Error) {
        let _ = self.scores.send(Err(e));
    }
}

/// Sender of a comparison's figures: position, and one for each format.
pub(crate) type Figures = Sender<Result<(usize, Vec<FormatDivergence>)>>;

/// A text with empty caches of several formats.
pub(crate) struct Comparing {
    pub(crate) comparison: Comparison,
    pub(crate) figures: Figures,
}

impl Job for Comparing {
    fn step(&mut self) -> Result<bool> {
        let Self { comparison, figures } = self;
        comparison.step(&mut |pos, found| figures.send(Ok((pos, found.to_vec()))).map_err(nobody_listens))
    }

    fn fail(&self, e: Error) {
        let _ = self.figures.send(Err(e));
    }
}

/// Job that computes how likely each option is as the reply to a prompt, which is read once.
pub(crate) struct Ranker {
    scratch: ScratchSequence,
    prompt: Vec<u32>,
    /// Prompt and option.
    options: Vec<Vec<u32>>,
    /// Logits of the prompt's last token, once it was read.
    first: Vec<f32>,
    ranked: Vec<RankedOption>,
    /// The option that is being read.
    current: RankedOption,
    answer: Sender<Result<Ranking>>,
}

impl Ranker {
    /// `options` are the ids of each, after the prompt, which has borders of recurrent layers' states.
    pub(crate) fn new(
        mut scratch: ScratchSequence,
        (prompt, borders): (Vec<u32>, Vec<usize>),
        options: &[Vec<u32>],
        answer: Sender<Result<Ranking>>,
    ) -> Self {
        let options = options.iter().map(|option| [&prompt[..], option].concat()).collect();
        scratch.sequence.states_mut().into_iter().for_each(|states| states.set_borders(borders.clone()));
        let (first, ranked, current) = (Vec::new(), Vec::new(), RankedOption { logprob: 0.0, greedy: true });
        Self { scratch, prompt, options, first, ranked, current, answer }
    }
}

/// Records the logits at a position of an option.
fn see(current: &mut RankedOption, ids: &[u32], pos: usize, logits: &[f32]) {
    if let Some(&id) = ids.get(pos + 1) {
        current.logprob += logprob(logits, id);
        current.greedy &= argmax(logits) == id;
    }
}

impl Job for Ranker {
    fn step(&mut self) -> Result<bool> {
        let Self { scratch, prompt, options, first, ranked, current, answer } = self;
        if first.is_empty() {
            scratch.step(prompt, Wanted::Last, &mut |_, logits| {
                *first = logits.to_vec();
                Ok(())
            })?;
            if !first.is_empty() && scratch.sequence.states().is_some() {
                scratch.sequence.hold(); // windows stay as the turn's beginning does
            }
        } else if let Some(ids) = options.get(ranked.len()) {
            if scratch.sequence.len() == prompt.len() {
                *current = RankedOption { logprob: 0.0, greedy: true };
                see(current, ids, prompt.len() - 1, first);
                scratch.sequence.begin_turn();
            }
            let is_over = scratch.step(ids, Wanted::All, &mut |pos, logits| {
                see(current, ids, pos, logits);
                Ok(())
            })?;
            if is_over {
                scratch.sequence.truncate(prompt.len(), &mut scratch.arena);
                ranked.push(*current);
            }
        }
        if first.is_empty() || ranked.len() < options.len() {
            return Ok(false);
        }
        let _ = answer.send(Ok(Ranking { prompt_tokens: prompt.len(), options: std::mem::take(ranked) }));
        Ok(true)
    }

    fn fail(&self, e: Error) {
        let _ = self.answer.send(Err(e));
    }
}
