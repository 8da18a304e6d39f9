//! Plan of the next pass: a row for every turn that decodes, and a bounded chunk of prompts. No tensors.
//!
//! Chunking of prompts changes no result (see the exactness matrix), so it follows the clock: a pass takes
//! about a second alone, and a quarter of one while others decode, whatever the model, the depth and the
//! machine. The papers size chunks by the cache's length, for their memory.

use std::time::Duration;

/// Load of a running turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Tokens known but not fed: the rest of a prompt, or one sampled token.
    pub(crate) pending: usize,
    /// True if the turn has read its prompt.
    pub(crate) decoding: bool,
    /// True if the turn found its own memory, so it has little to prefill.
    pub(crate) warm: bool,
}

/// Plans one pass: how many tokens each turn feeds.
///
/// Every decoding turn feeds its token. Prompts share at most `chunk` rows: warm turns that fit go first;
/// then the others in turn order from `cursor` on, with at least [`MIN_CHUNK_ROWS`] rows, so that a long
/// prompt neither stops the others nor is starved by them.
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
        left = left.max(MIN_CHUNK_ROWS.min(chunk));
    }
    for turn in long {
        feed[turn] = loads[turn].pending.min(left);
        left -= feed[turn];
    }
    feed
}

/// Rows of the smallest chunk: what the kernels take together.
const MIN_CHUNK_ROWS: usize = 16;

/// Pace of prefill: rows of prompts that a pass takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    most: usize,
    /// Seconds of a row; `None` before the first measurement.
    row: Option<f64>,
    /// Seconds of a pass of one row, and of each further row.
    step: Option<f64>,
    beside: Option<f64>,
}

impl Pace {
    /// Seconds that a pass may take when no turn decodes: progress is shown once a pass.
    const MAX_SECONDS_ALONE: f64 = 1.0;
    /// Seconds that it may take while others wait for their next token.
    const MAX_SECONDS_SHARED: f64 = 0.25;

    /// Initial cost of a further row, before it is measured, in passes of one row.
    const INITIAL_ROW_COST: f64 = 0.25;

    /// `most` rows at most.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), row: None, step: None, beside: None }
    }

    /// Rows of the next chunk; `shared`: others decode in the same pass.
    pub(crate) fn chunk(&self, shared: bool) -> usize {
        let seconds = if shared { Self::MAX_SECONDS_SHARED } else { Self::MAX_SECONDS_ALONE };
        let rows = self.row.map_or(4 * MIN_CHUNK_ROWS, |row| (seconds / row) as usize);
        (rows / MIN_CHUNK_ROWS * MIN_CHUNK_ROWS).max(MIN_CHUNK_ROWS).min(self.most)
    }

    /// Milliseconds of a row of a prompt; 0 before the first measurement.
    pub(crate) fn row_ms(&self) -> f64 {
        self.row.map_or(0.0, |row| row * 1e3)
    }

    /// Records the time of a pass in which `n_turns` decoded, with this many rows in all.
    pub(crate) fn learn_step(&mut self, n_turns: usize, rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        let mix = |old: &mut Option<f64>, new: f64| *old = Some(old.map_or(new, |old| 0.8 * old + 0.2 * new));
        match self.step {
            _ if rows == 1 => {
                mix(&mut self.step, took);
                // What was once too dear is tried again some time.
                if let (Some(beside), Some(step)) = (&mut self.beside, self.step) {
                    *beside += 0.02 * (Self::INITIAL_ROW_COST * step - *beside);
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
            _ => Self::INITIAL_ROW_COST,
        };
        let n = n_turns.max(1) as f64;
        cost * n / (1.0 + cost * (n - 1.0))
    }

    /// A pass with `rows` rows of prompts took so long.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration) {
        if rows >= MIN_CHUNK_ROWS {
            let row = (took.as_secs_f64() / rows as f64).max(1e-9);
            self.row = Some(self.row.map_or(row, |old| 0.5 * old + 0.5 * row));
        }
    }
}

/// How to decide whether a guess is worth its row: by the clock, or by given figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guessing {
    /// Costs of a further row, in the time of a token, taken in turn; empty: as measured.
    pub(crate) row_costs: &'static [f64],
    /// Seconds of a token; `None`: as measured.
    pub(crate) token_s: Option<f64>,
}

impl Guessing {
    /// Guesses near and far, however fast the machine is.
    #[cfg(test)]
    pub(crate) const NEAR_AND_FAR: Self = Self { row_costs: &[0.02, 0.1, 0.3, 0.6], token_s: Some(1.0) };

    /// What one more row costs in the `n`-th pass, where `n_turns` decode, in the time that a token takes
    /// there.
    pub(crate) fn row_cost(&self, pace: &Pace, n_turns: usize, n: usize) -> f64 {
        match self.row_costs {
            [] => pace.cost_beside(n_turns),
            costs => costs[n % costs.len()],
        }
    }

    /// Seconds of a token; `None` before the first measurement.
    pub(crate) fn token_s(&self, pace: &Pace) -> Option<f64> {
        pace.step_s().map(|measured| self.token_s.unwrap_or(measured))
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
    fn guesses_cost_what_was_measured_unless_figures_are_given() {
        let mut pace = Pace::new(512);
        let (measured, given) = (Guessing::default(), Guessing::NEAR_AND_FAR);
        assert_eq!((measured.token_s(&pace), given.token_s(&pace)), (None, None));
        (0..9).for_each(|_| pace.learn_step(1, 1, Duration::from_millis(20)));
        assert_eq!((measured.token_s(&pace), given.token_s(&pace)), (Some(0.02), Some(1.0)));
        for n in 0..8 {
            assert_eq!(measured.row_cost(&pace, 2, n), pace.cost_beside(2));
            assert_eq!(given.row_cost(&pace, 2, n), [0.02, 0.1, 0.3, 0.6][n % 4]);
        }
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
