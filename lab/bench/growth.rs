//! What a turn costs as an agent's history grows, as more agents are at rest, and on more cores.

use super::lab::{Ask, Bench, Lab, Player, Timed};
use super::plot::Plot;
use super::report::{Figure, Figures, median};
use super::speed::at_least_one;
use anyhow::Context as _;
use greenroom::backend::EmbeddedConfig;
use std::path::PathBuf;

/// New tokens of a measured turn.
const NEW: usize = 32;
/// New tokens of a turn for comparing cores.
const LONG: usize = 512;
/// Numbers of cores that are modelled where there are fewer.
const MODELLED: [usize; 4] = [2, 4, 8, 16];

/// Cost of a turn by length of history, by number of idle agents, and by cores
///
/// Work outside the model should not grow with the first two. Core counts beyond those of this machine are
/// extrapolated with Amdahl's law, from the serial part measured with all cores here.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab bench growth --shape tiny --history 1024,32768 --idle 0,10000 \
                  --plots growth"
)]
pub(super) struct Args {
    /// Tokens that an agent has read, in ascending order
    #[arg(
        long, value_name = "N", value_delimiter = ',',
        default_values_t = [1024, 4096, 16_384, 65_536, 131_072]
    )]
    history: Vec<usize>,
    /// Numbers of idle agents, in ascending order; each has read about fifty tokens and has a turn ahead
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 10, 100, 1_000, 10_000])]
    idle: Vec<usize>,
    /// Tokens that a turn generates
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
    /// Write history.svg, idle.svg and cores.svg to this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut figures = Figures::default();
        let lab = bench.open(None)?;
        let plots = [
            ("history", self.history(bench, &lab, &mut figures)?),
            ("idle", self.idle(bench, &lab, &mut figures)?),
            ("cores", self.cores(bench, &mut figures)?),
        ];
        if let Some(folder) = &self.plots {
            std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
            for (name, plot) in plots {
                plot.draw(&folder.join(name).with_extension("svg"))?;
            }
        }
        Ok(figures)
    }

    fn history(&self, bench: &mut Bench, lab: &Lab, figures: &mut Figures) -> anyhow::Result<Plot> {
        let mut agent = bench.agent();
        let most = bench.info().context_length.saturating_sub(NEW + self.tokens + 16);
        let (mut first_ms, mut each_ms) = (Vec::new(), Vec::new());
        for history in self.history.iter().copied().filter(|n| *n <= most) {
            bench.show_activity(format!("reading {history} tokens of history"));
            let text = bench.text(&agent, history.saturating_sub(1))?;
            agent.remember(&lab.turn(&agent, Ask { text, n_tokens: 1, cold: false })?);
            let turns = self.turns(bench, lab, &agent, history)?;
            let [first, each] =
                [Timed::ttft_ms, ms_per_token].map(|of| turns.iter().map(of).collect::<Vec<_>>());
            first_ms.push((history as f64, median(&first) / NEW as f64));
            each_ms.push((history as f64, median(&each)));
            figures.rows.push(vec![
                ("history", Figure::Count(turns[0].usage.reused)),
                ("new_tokens", Figure::Count(turns[0].computed())),
                ("first_token_ms", Figure::Measured(first)),
                ("ms_per_token", Figure::Measured(each)),
            ]);
        }
        lab.forget(&agent);
        let skipped = self.history.iter().filter(|n| **n > most).count();
        if skipped > 0 {
            figures.notes.push(format!("{skipped} lengths of history do not fit in the model's context."));
        }
        Ok(Plot {
            title: format!("{}: a turn by length of history", bench.info().name),
            axes: ["tokens of history", "ms per token"],
            lines: vec![("generated", each_ms), ("read, of 32 new ones", first_ms)],
        })
    }

    fn idle(&self, bench: &mut Bench, lab: &Lab, figures: &mut Figures) -> anyhow::Result<Plot> {
        let (agent, primed) = bench.primed(lab, 64)?;
        let mut idle: Vec<Player> = Vec::new();
        let (mut alone, mut line) = (None, Vec::new());
        for n in &self.idle {
            while idle.len() < *n {
                bench.show_activity(format!("agent {} of {n} becomes idle", idle.len() + 1));
                let mut player = bench.agent();
                player.next_use = Some(1_000 + idle.len() as u64);
                let text = bench.text(&player, 48)?;
                lab.turn(&player, Ask { text, n_tokens: 1, cold: false })?;
                idle.push(player);
            }
            let turns = self.turns(bench, lab, &agent, primed.read() + 1)?;
            let rates: Vec<f64> = turns.iter().map(Timed::decode_rate).collect();
            let one = *alone.get_or_insert(median(&rates));
            let first = turns.iter().map(Timed::ttft_ms).collect();
            line.push((*n.max(&1) as f64, median(&rates) / one));
            figures.rows.push(vec![
                ("idle_agents", Figure::Count(idle.len())),
                ("first_token_ms", Figure::Measured(first)),
                ("tokens_per_s", Figure::Measured(rates.clone())),
                ("to_none", Figure::Ratio(median(&rates) / one)),
            ]);
        }
        Ok(Plot {
            title: format!("{}: tokens per second beside idle agents", bench.info().name),
            axes: ["idle agents", "to an empty engine"],
            lines: vec![("generated", line)],
        })
    }

    fn cores(&self, bench: &mut Bench, figures: &mut Figures) -> anyhow::Result<Plot> {
        let here = std::thread::available_parallelism().map_or(1, usize::from);
        let measured: Vec<usize> = std::iter::once(1).chain(MODELLED).filter(|n| *n <= here).collect();
        let mut rates: Vec<[f64; 2]> = Vec::new();
        for n in &measured {
            bench.show_activity(format!("on {n} cores"));
            let lab = bench.open_with(&EmbeddedConfig { threads: Some(*n), ..bench.config(None) })?;
            let (agent, primed) = bench.primed(&lab, 64)?;
            let mut all = [Vec::new(), Vec::new()];
            for _ in bench.repeats() {
                let text = bench.more(&agent, &primed, LONG)?;
                let turn = lab.turn(&agent, Ask { text, n_tokens: self.tokens, cold: false })?;
                all[0].push(turn.prefill_rate());
                all[1].push(turn.decode_rate());
            }
            rates.push(all.each_ref().map(|rates| median(rates)));
            figures.rows.push(core_row(*n, "measured", all.map(Figure::Measured)));
        }
        let mut speedups = [0, 1].map(|of| {
            let speedup = |(n, rate): (&usize, &[f64; 2])| (*n as f64, rate[of] / rates[0][of]);
            measured.iter().zip(&rates).map(speedup).collect::<Vec<_>>()
        });
        for n in MODELLED.into_iter().filter(|n| *n > here && measured.len() > 1) {
            let modelled = [0, 1].map(|of| {
                let (most, speedup) = speedups[of][measured.len() - 1];
                let alone = serial_part(most, speedup);
                1.0 / (alone + (1.0 - alone) / n as f64)
            });
            let entry = |of: usize| Figure::Measured(vec![modelled[of] * rates[0][of]]);
            figures.rows.push(core_row(n, "modelled", [entry(0), entry(1)]));
            speedups.iter_mut().zip(modelled).for_each(|(line, speedup)| line.push((n as f64, speedup)));
        }
        let [prefill, decode] = speedups;
        Ok(Plot {
            title: format!("{}: by cores (more than {here}: extrapolated)", bench.info().name),
            axes: ["cores", "to one core"],
            lines: vec![("read", prefill), ("generated", decode)],
        })
    }

    /// Turns of an agent that has read `history` tokens; none of them is kept.
    fn turns(
        &self,
        bench: &mut Bench,
        lab: &Lab,
        agent: &Player,
        history: usize,
    ) -> anyhow::Result<Vec<Timed>> {
        let mut turns = Vec::new();
        for _ in bench.repeats() {
            bench.show_activity(format!("a turn after {history} tokens"));
            let text = bench.text(agent, history + NEW)?;
            turns.push(lab.turn(agent, Ask { text, n_tokens: self.tokens, cold: false })?);
        }
        Ok(turns)
    }
}

fn core_row(n: usize, how: &str, [prefill, decode]: [Figure; 2]) -> super::report::Row {
    vec![
        ("how", Figure::Text(how.to_owned())),
        ("cores", Figure::Count(n)),
        ("prefill_tokens_per_s", prefill),
        ("decode_tokens_per_s", decode),
    ]
}

/// The part of one core's time that `n` cores don't share, if they are `speedup` times as fast (Amdahl 1967).
fn serial_part(n: f64, speedup: f64) -> f64 {
    ((n / speedup - 1.0) / (n - 1.0)).clamp(0.0, 1.0)
}

fn ms_per_token(turn: &Timed) -> f64 {
    1e3 / turn.decode_rate()
}

#[cfg(test)]
mod tests {
    use super::serial_part;

    #[test]
    fn amdahls_law() {
        assert!(serial_part(2.0, 2.0).abs() < 1e-9 && (serial_part(4.0, 1.0) - 1.0).abs() < 1e-9);
        let alone = serial_part(2.0, 1.6);
        assert!((1.0 / (alone + (1.0 - alone) / 2.0) - 1.6).abs() < 1e-9);
    }
}
