//! What a turn costs as an agent's history grows, and as more agents are at rest.

use super::lab::{Ask, Bench, Player, Timed};
use super::report::{Entry, Figures, median};
use super::speed::at_least_one;

/// New tokens of a turn that is measured.
const NEW: usize = 32;

/// Cost of a turn by length of history, and by number of agents at rest
///
/// What is not the model's own work should not grow with either.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab bench growth --shape tiny --history 1024,32768 --idle 0,10000"
)]
pub(super) struct Args {
    /// Tokens that an agent has read, in rising order
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1024, 4096, 16_384, 65_536, 131_072])]
    history: Vec<usize>,
    /// Numbers of agents at rest, in rising order; each has read some fifty tokens, and is expected to speak
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 10, 100, 1_000, 10_000])]
    idle: Vec<usize>,
    /// Tokens that a turn generates
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let lab = bench.open(None)?;
        let mut figures = Figures::default();
        let mut agent = bench.agent();
        let most = bench.info().context_length.saturating_sub(NEW + self.tokens + 16);
        for history in self.history.iter().copied().filter(|n| *n <= most) {
            bench.say(format!("reading {history} tokens of history"));
            let text = bench.text(&agent, history.saturating_sub(1))?;
            agent.remember(&lab.turn(&agent, Ask { text, n_tokens: 1, cold: false })?);
            let turns = self.turns(bench, &lab, &agent, history)?;
            let first = |turn: &Timed| turn.ttft_ms();
            figures.rows.push(vec![
                ("history", Entry::Count(turns[0].usage.reused)),
                ("new_tokens", Entry::Count(turns[0].computed())),
                ("first_token_ms", Entry::Measured(turns.iter().map(first).collect())),
                ("ms_per_token", Entry::Measured(turns.iter().map(ms_per_token).collect())),
            ]);
        }
        lab.forget(&agent);
        let (agent, primed) = bench.primed(&lab, 64)?;
        let mut idle: Vec<Player> = Vec::new();
        let mut alone = None;
        for n in &self.idle {
            while idle.len() < *n {
                bench.say(format!("agent {} of {n} comes to rest", idle.len() + 1));
                let mut player = bench.agent();
                player.next_use = Some(1_000 + idle.len() as u64);
                let text = bench.text(&player, 48)?;
                lab.turn(&player, Ask { text, n_tokens: 1, cold: false })?;
                idle.push(player);
            }
            let turns = self.turns(bench, &lab, &agent, primed.read() + 1)?;
            let rates: Vec<f64> = turns.iter().map(Timed::decode_rate).collect();
            let one = *alone.get_or_insert(median(&rates));
            let first = turns.iter().map(Timed::ttft_ms).collect();
            figures.rows.push(vec![
                ("idle_agents", Entry::Count(idle.len())),
                ("first_token_ms", Entry::Measured(first)),
                ("tokens_per_s", Entry::Measured(rates.clone())),
                ("to_none", Entry::Ratio(median(&rates) / one)),
            ]);
        }
        let skipped = self.history.iter().filter(|n| **n > most).count();
        if skipped > 0 {
            figures.notes.push(format!("{skipped} lengths of history do not fit in the model's context."));
        }
        Ok(figures)
    }

    /// Turns of an agent that has read `history` tokens; none of them stands.
    fn turns(
        &self,
        bench: &mut Bench,
        lab: &super::lab::Lab,
        agent: &Player,
        history: usize,
    ) -> anyhow::Result<Vec<Timed>> {
        let mut turns = Vec::new();
        for _ in bench.repeats() {
            bench.say(format!("a turn behind {history} tokens"));
            let text = bench.text(agent, history + NEW)?;
            turns.push(lab.turn(agent, Ask { text, n_tokens: self.tokens, cold: false })?);
        }
        Ok(turns)
    }
}

fn ms_per_token(turn: &Timed) -> f64 {
    1e3 / turn.decode_rate()
}
