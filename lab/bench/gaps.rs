//! Time between an agent's tokens while another is saved and a third is restored.

use super::lab::{Ask, Bench, Lab, Player, Timed};
use super::report::{Figure, Figures, Row, median};
use super::speed::at_least_one;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Time between an agent's tokens: alone, beside others in memory, and beside others that are saved and
/// restored
///
/// Beside it, two other agents take short turns, one right after the other: either both stay in memory, or
/// one is saved and the other restored from disk each time.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab bench gaps --model smollm2-135m-instruct --context 2048 --tokens 512"
)]
pub(super) struct Args {
    /// Tokens that each agent has read
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = at_least_one)]
    context: usize,
    /// Tokens that the first one generates
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    tokens: usize,
    /// New tokens of the others' turns
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    extend: usize,
}

/// Load beside the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    InMemory,
    OnDisk,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut rows = Vec::new();
        for (word, beside) in [
            ("nobody", Beside::Nobody),
            ("two in memory", Beside::InMemory),
            ("one saved, one restored", Beside::OnDisk),
        ] {
            bench.show_activity(format!("beside: {word}"));
            rows.push(self.measure(bench, word, beside)?);
        }
        let notes =
            vec!["Gaps are between pieces of text as they arrive; first tokens are not included.".to_owned()];
        Ok(Figures { rows, notes })
    }

    fn measure(&self, bench: &mut Bench, word: &str, beside: Beside) -> anyhow::Result<Row> {
        let folder = tempfile::tempdir()?;
        let lab = bench.open_without_guesses((beside != Beside::InMemory).then(|| folder.path()))?;
        let (speaker, primed) = bench.primed(&lab, self.context)?;
        let mut others = Vec::new();
        for _ in 0..2 {
            let (player, primed) = bench.primed(&lab, self.context)?;
            let text = bench.more(&player, &primed, self.extend)?;
            others.push((player, text));
        }
        let (mut gaps, mut n_turns, mut restored) = (Vec::new(), 0, 0);
        for _ in bench.repeats() {
            let text = bench.more(&speaker, &primed, self.extend)?;
            let ask = Ask { text, n_tokens: self.tokens, cold: false };
            let over = AtomicBool::new(false);
            let (times, turns) = thread::scope(|scope| {
                let beside = scope.spawn(|| turns_beside(&lab, &others, beside, &over));
                let times = lab.submit(&speaker, ask).and_then(super::lab::Pending::times);
                over.store(true, Ordering::Relaxed);
                let turns =
                    beside.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the turns beside it failed")));
                Ok::<_, anyhow::Error>((times?, turns?))
            })?;
            gaps.extend(times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3));
            n_turns += turns.len();
            restored += turns.iter().filter(|turn| turn.usage.bytes_read > 0).count();
        }
        gaps.sort_by(f64::total_cmp);
        let quantile =
            |of: f64| gaps.get(((gaps.len() as f64 - 1.0) * of).round() as usize).copied().unwrap_or(0.0);
        let p99 = quantile(0.99);
        Ok(vec![
            ("beside", Figure::Text(word.to_owned())),
            ("gaps", Figure::Count(gaps.len())),
            ("turns_beside", Figure::Count(n_turns)),
            ("restored", Figure::Count(restored)),
            ("median_ms", Figure::Measured(vec![median(&gaps)])),
            ("p99_ms", Figure::Measured(vec![p99])),
            ("most_ms", Figure::Measured(vec![quantile(1.0)])),
            ("p99_to_median", Figure::Ratio(p99 / median(&gaps))),
        ])
    }
}

/// Turns of the others, until the speaker's is over. None is kept: each is rolled back to its beginning.
fn turns_beside(
    lab: &Lab,
    others: &[(Player, String)],
    beside: Beside,
    over: &AtomicBool,
) -> anyhow::Result<Vec<Timed>> {
    let mut turns = Vec::new();
    while beside != Beside::Nobody && !over.load(Ordering::Relaxed) {
        for (at, (player, text)) in others.iter().enumerate() {
            if beside == Beside::OnDisk && at == 1 {
                lab.forget(player);
            }
            turns.push(lab.turn(player, Ask { text: text.clone(), n_tokens: 1, cold: false })?);
        }
    }
    Ok(turns)
}
