//! Plan of the next pass: a row for every turn that decodes, and a bounded chunk of prompts. No tensors.
//!
//! Chunking of prompts changes no result (see the exactness matrix), so it follows the clock: a pass takes about a second alone, and a
//! quarter of one while others decode, whatever the model, the depth and the machine. The papers' chunks follow the cache's length,
//! for their memory.

use std::time::Duration;

/// Load of a running turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Tokens known but not fed: the rest of a prompt, or one sampled token.
    pub(crate) pending: usize,
    /// True if the turn has read its prompt.
    pub(crate) decoding: bool,
    /// True if the turn found memory of its own: it waits for little.
    pub(crate) warm: bool,
}

/// Plans one pass: how many tokens each turn feeds.
///
/// Every decoding turn feeds its token. Prompts share at most `chunk` rows: warm turns that fit go first; then the others in
/// turn order from `cursor` on, with at least [`LEAST`] rows, so that a long prompt neither stops the others nor is
/// starved by them.
pub(crate) fn plan(loads: &[Load], cursor: usize, chunk: usize) -> Vec<usize> {
    let mut left = chunk.max(1);
    let mut feed: Vec<usize> = loads.iter().map(|l| if l.decoding { l.pending } else { 0 }).collect();
    let turns = (0..loads.len()).map(|i| (cursor + i) % loads.len());
    let (short, long): (Vec<_>, Vec<_>) = turns
        .filter(|turn| !loads[*turn].decoding)
        .partition(|turn| loads[*turn].warm && loads[*turn].pending <= chunk);
    for turn in short {
        feed[turn] = loads[turn].pending.min(left);
        left -= feed[turn];
    }
    if !long.is_empty() {
        left = left.max(LEAST.min(chunk));
    }
    for turn in long {
        feed[turn] = loads[turn].pending.min(left);
        left -= feed[turn];
    }
    feed
}

/// Rows of the smallest chunk: what the kernels take together.
const LEAST: usize = 16;

/// Pace of prefill: rows of prompts that a pass takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    most: usize,
    /// Seconds of a row; `None` before the first measurement.
    row: Option<f64>,
    /// Seconds of a pass of one row, and of each row beside it.
    step: Option<f64>,
    beside: Option<f64>,
}

impl Pace {
    /// Seconds that a pass may take when nobody decodes: progress is shown once a pass.
    const ALONE: f64 = 1.0;
    /// Seconds that it may take while others wait for their next token.
    const SHARED: f64 = 0.25;

    /// What a row beside another one costs before it was measured, in passes of one row.
    const UNKNOWN: f64 = 0.25;

    /// `most` rows at most.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), row: None, step: None, beside: None }
    }

    /// Rows of the next chunk; `shared`: others decode in the same pass.
    pub(crate) fn chunk(&self, shared: bool) -> usize {
        let seconds = if shared { Self::SHARED } else { Self::ALONE };
        let rows = self.row.map_or(4 * LEAST, |row| (seconds / row) as usize);
        (rows / LEAST * LEAST).max(LEAST).min(self.most)
    }

    /// Milliseconds of a row of a prompt; 0 before the first measurement.
    pub(crate) fn row_ms(&self) -> f64 {
        self.row.map_or(0.0, |row| row * 1e3)
    }

    /// A pass in which `n_turns` decoded, with so many rows in all, took so long.
    pub(crate) fn learn_step(&mut self, n_turns: usize, rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        let mix = |old: &mut Option<f64>, new: f64| *old = Some(old.map_or(new, |old| 0.8 * old + 0.2 * new));
        match self.step {
            _ if rows == 1 => {
                mix(&mut self.step, took);
                // What was once too dear is tried again some time.
                if let (Some(beside), Some(step)) = (&mut self.beside, self.step) {
                    *beside += 0.02 * (Self::UNKNOWN * step - *beside);
                }
            }
            Some(step) if rows > n_turns => mix(&mut self.beside, (took - step).max(0.0) / (rows - 1) as f64),
            _ => {}
        }
    }

    /// Seconds of a pass of one row; `None` before the first measurement.
    pub(crate) fn step_s(&self) -> Option<f64> {
        self.step
    }

    /// What one more row costs in a pass where `n_turns` decode, in the time that a token takes there.
    pub(crate) fn cost_beside(&self, n_turns: usize) -> f64 {
        let cost = match (self.step, self.beside) {
            (Some(step), Some(beside)) => (beside / step).clamp(0.02, 1.0),
            _ => Self::UNKNOWN,
        };
        let n = n_turns.max(1) as f64;
        cost * n / (1.0 + cost * (n - 1.0))
    }

    /// A pass with `rows` rows of prompts took so long.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration) {
        if rows >= LEAST {
            let row = (took.as_secs_f64() / rows as f64).max(1e-9);
            self.row = Some(self.row.map_or(row, |old| 0.5 * old + 0.5 * row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn prompt(pending: usize) -> Load {
        Load { pending, decoding: false, warm: false }
    }
    const TOKEN: Load = Load { pending: 1, decoding: true, warm: false };

    #[test]
    fn decoders_always_step_and_prompts_share_a_chunk_in_turn() {
        assert_eq!(plan(&[prompt(300), TOKEN, prompt(10)], 0, 256), [256, 1, 0]);
        assert_eq!(plan(&[prompt(300), TOKEN, prompt(10)], 2, 256), [246, 1, 10]);
        assert_eq!(plan(&[TOKEN, TOKEN], 1, 256), [1, 1]);
        assert_eq!(plan(&[], 0, 256), [0; 0]);
    }

    #[test]
    fn a_warm_turn_skips_the_queue_and_starves_nobody() {
        let warm = |pending| Load { warm: true, ..prompt(pending) };
        assert_eq!(plan(&[prompt(4000), warm(40)], 0, 256), [216, 40]);
        assert_eq!(plan(&[prompt(4000), warm(250), warm(100)], 0, 256), [16, 250, 6]);
        assert_eq!(plan(&[prompt(4000), warm(900)], 0, 256), [256, 0]); // too long to be let through
    }

    #[test]
    fn a_chunk_takes_as_long_as_somebody_waits() {
        let mut pace = Pace::new(512);
        assert_eq!(pace.chunk(false), 64);
        pace.learn(64, Duration::from_millis(320)); // 5 ms a row
        assert_eq!((pace.chunk(false), pace.chunk(true)), (192, 48));
        pace.learn(3, Duration::from_secs(1)); // too few rows to say anything
        assert_eq!(pace.chunk(false), 192);
        pace.learn(192, Duration::from_secs(60)); // a huge model
        assert_eq!((pace.chunk(false), pace.chunk(true)), (16, 16));
        let mut fast = Pace::new(512);
        fast.learn(64, Duration::from_millis(1));
        assert_eq!(fast.chunk(true), 512);
    }
}
