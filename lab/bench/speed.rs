//! Tokens a second: reading a prompt, generating alone, generating together.

use super::lab::{Ask, Bench, Player, Timed};
use super::peer::Peer;
use super::report::{Figure, Figures, Row, median};
use greenroom_engine::Sampling;
use std::time::Duration;

/// Tokens of a prompt whose reading is not measured.
const SHORT: usize = 16;

/// Tokens per second when reading a prompt, after a history in memory
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench prefill --shape 1b --tokens 512 --depth 0,4096 --kv \
                  q4\n         greenroom-lab bench prefill --depth 0,2048 --peer candle")]
pub(super) struct Prefill {
    /// New tokens in the prompt
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [512])]
    tokens: Vec<usize>,
    /// Tokens already in the session
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 4096])]
    depth: Vec<usize>,
    /// Also time another engine on the same file, in turn
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) peer: Option<Peer>,
}

/// Tokens per second when generating, excluding the first token
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench decode --model understudy --depth 0,4096\n         \
    greenroom-lab bench decode --depth 0,2048 --peer candle")]
pub(super) struct Decode {
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
    /// Tokens already in the session
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 512, 4096])]
    depth: Vec<usize>,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    temperature: f32,
    /// Share of the probability that tokens are drawn from
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    top_p: f32,
    /// Also time another engine on the same file, in turn
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) peer: Option<Peer>,
}

/// Tokens per second when several sequences generate together
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench batch --sequences 1,4 --depth 512")]
pub(super) struct Batch {
    /// Numbers of sequences
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8],
        value_parser = at_least_one
    )]
    sequences: Vec<usize>,
    /// Tokens that each sequence generates
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
    /// Tokens already in each session
    #[arg(long, value_name = "N", default_value_t = 512)]
    depth: usize,
    /// Give all sessions the same tokens
    #[arg(long)]
    alike: bool,
}

/// Parses a count that is not 0.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

impl Prefill {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut rival = self.peer.map(|peer| peer.open(bench)).transpose()?;
        if let Some(rival) = &rival {
            let mut all = self.depth.iter().flat_map(|depth| self.tokens.iter().map(move |n| (*depth, *n)));
            all.try_for_each(|(depth, n)| rival.check(depth, n, 0))?;
        }
        let lab = bench.open(None)?;
        let mut figures = Figures::default();
        for depth in &self.depth {
            bench.show_activity(format!("reading {depth} tokens of history"));
            let primed = if *depth == 0 { None } else { Some(bench.primed(&lab, *depth)?) };
            for tokens in &self.tokens {
                let (mut turns, mut theirs) = (Vec::new(), Vec::new());
                for n in bench.repeats() {
                    bench.show_activity(format!("prefill of {tokens} at depth {depth}, {} time", ordinal(n)));
                    let turn = match &primed {
                        Some((agent, timed)) => {
                            let text = bench.more(agent, timed, *tokens)?;
                            lab.turn(agent, Ask { text, n_tokens: 1, cold: false })?
                        }
                        None => {
                            let agent = bench.agent();
                            let text = bench.text(&agent, *tokens)?;
                            let timed = lab.turn(&agent, Ask { text, n_tokens: 1, cold: true })?;
                            lab.forget(&agent);
                            timed
                        }
                    };
                    if let Some(rival) = &mut rival {
                        bench.show_activity(format!("the same with candle, {} time", ordinal(n)));
                        theirs.push(rival.prefill(turn.usage.reused, turn.computed())?);
                    }
                    turns.push(turn);
                }
                let (reused, computed) = counts(&turns);
                let mut row = vec![
                    ("depth", reused),
                    ("tokens", computed),
                    ("ttft_ms", measured(&turns, Timed::ttft_ms)),
                    ("tokens_per_s", measured(&turns, Timed::prefill_rate)),
                ];
                beside(&mut row, &turns, Timed::prefill_rate, theirs);
                figures.rows.push(row);
            }
            if let Some((agent, _)) = &primed {
                lab.forget(agent);
            }
        }
        figures.notes.extend(rival.map(|rival| rival.note()));
        Ok(figures)
    }
}

impl Decode {
    /// Settings of a repetition: each draws other tokens.
    fn sampling(&self, repetition: u16) -> Sampling {
        let (temperature, top_p) = (self.temperature, self.top_p);
        Sampling { temperature, top_p, seed: repetition.into(), ..Sampling::default() }
    }

    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut rival = self.peer.map(|peer| peer.open(bench)).transpose()?;
        if let Some(rival) = &rival {
            self.depth.iter().try_for_each(|depth| rival.check(0, depth + SHORT, self.tokens))?;
        }
        let lab = bench.open(None)?;
        let mut figures = Figures::default();
        for depth in &self.depth {
            bench.show_activity(format!("reading {depth} tokens of history"));
            let (agent, primed) = bench.primed(&lab, *depth)?;
            let (mut turns, mut theirs) = (Vec::new(), Vec::new());
            for n in bench.repeats() {
                bench.show_activity(format!("decoding at depth {depth}, {} time", ordinal(n)));
                let text = bench.more(&agent, &primed, SHORT)?;
                let ask = Ask { text, n_tokens: self.tokens, cold: false };
                let turn = lab.turn_with(&agent, ask, self.sampling(n))?;
                if let Some(rival) = &mut rival {
                    bench.show_activity(format!("the same with candle, {} time", ordinal(n)));
                    theirs.push(rival.decode(turn.read(), turn.usage.generated)?);
                }
                turns.push(turn);
            }
            lab.forget(&agent);
            let mut row = vec![
                ("depth", Figure::Count(turns.first().map_or(0, Timed::read))),
                ("tokens", Figure::Count(turns.first().map_or(0, |turn| turn.usage.generated))),
                ("tokens_per_s", measured(&turns, Timed::decode_rate)),
                ("ms_per_token", measured(&turns, |turn| 1e3 / turn.decode_rate())),
            ];
            beside(&mut row, &turns, Timed::decode_rate, theirs);
            figures.rows.push(row);
        }
        figures.notes.extend(rival.map(|rival| rival.note()));
        Ok(figures)
    }
}

impl Batch {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let lab = bench.open(None)?;
        let n_most = self.sequences.iter().copied().max().unwrap_or(0);
        let mut agents = Vec::new();
        for n in 0..n_most {
            bench.show_activity(format!(
                "reading {} tokens of history, agent {} of {n_most}",
                self.depth,
                n + 1
            ));
            let same = agents.first().map(|(agent, _): &(Player, Timed)| agent.first_text().to_owned());
            agents.push(match same.filter(|_| self.alike) {
                None => bench.primed(&lab, self.depth)?,
                Some(text) => {
                    let mut agent = bench.agent();
                    let timed = lab.turn(&agent, Ask { text, n_tokens: 1, cold: false })?;
                    agent.remember(&timed);
                    (agent, timed)
                }
            });
        }
        let mut figures = Figures::default();
        let mut alone = None;
        for n in &self.sequences {
            let (mut rates, mut sooner, mut n_tokens) = (Vec::new(), Vec::new(), 0);
            for time in bench.repeats() {
                bench.show_activity(format!("{n} sequences, {} time", ordinal(time)));
                let mut asks = Vec::new();
                for (agent, primed) in &agents[..*n] {
                    let text = bench.more(agent, primed, SHORT)?;
                    asks.push((agent, Ask { text, n_tokens: self.tokens, cold: false }));
                }
                let turns = lab.together(asks.clone())?;
                n_tokens = turns.iter().map(|turn| turn.usage.generated).sum();
                rates.push(rate_together(&turns));
                let mut one_by_one = Duration::ZERO;
                for (agent, ask) in asks {
                    let turn = lab.turn(agent, ask)?;
                    one_by_one += turn.done - turn.submitted;
                }
                sooner.push(one_by_one.as_secs_f64() / wall(&turns).as_secs_f64());
            }
            let rate = median(&rates);
            let one = *alone.get_or_insert(rate / *n as f64);
            figures.rows.push(vec![
                ("sequences", Figure::Count(*n)),
                ("tokens", Figure::Count(n_tokens)),
                ("tokens_per_s", Figure::Measured(rates.clone())),
                ("each_tokens_per_s", Figure::Measured(rates.iter().map(|rate| rate / *n as f64).collect())),
                ("to_one", Figure::Ratio(rate / one)),
                ("one_by_one_to_together", Figure::Ratio(median(&sooner))),
            ]);
        }
        let note = match self.sequences.first() {
            Some(1) => {
                "Rates cover the time in which all sequences generate; to one: ratio of the total to that of \
                 one sequence."
            }
            _ => {
                "Rates cover the time in which all sequences generate; to one: ratio of the total to one \
                 sequence's share of the first row."
            }
        };
        figures.notes.push(note.to_owned());
        figures.notes.push(
            "One by one to together: ratio of wall times of the same turns, including short questions."
                .to_owned(),
        );
        Ok(figures)
    }
}

/// Adds a peer's rates for comparison, if there is one.
fn beside(row: &mut Row, turns: &[Timed], rate: impl Fn(&Timed) -> f64, theirs: Vec<f64>) {
    if !theirs.is_empty() {
        let ours: Vec<f64> = turns.iter().map(rate).collect();
        let ratio = median(&ours) / median(&theirs);
        row.extend([("candle_tokens_per_s", Figure::Measured(theirs)), ("to_candle", Figure::Ratio(ratio))]);
    }
}

/// Tokens a second of all turns in the time in which all of them generate.
fn rate_together(turns: &[Timed]) -> f64 {
    // Each turn's tokens are spread evenly over its own time, so in any common interval the total is the sum
    // of the rates.
    turns.iter().map(Timed::decode_rate).sum()
}

/// Time from the first turn's submission to the last one's end.
fn wall(turns: &[Timed]) -> Duration {
    let submitted = turns.iter().map(|turn| turn.submitted).min();
    let done = turns.iter().map(|turn| turn.done).max();
    done.zip(submitted).map_or(Duration::ZERO, |(done, submitted)| done - submitted)
}

/// A figure of all turns.
pub(super) fn measured(turns: &[Timed], figure: impl Fn(&Timed) -> f64) -> Figure {
    Figure::Measured(turns.iter().map(figure).collect())
}

/// Prompt tokens actually reused and computed; all turns of a row have the same.
pub(super) fn counts(turns: &[Timed]) -> (Figure, Figure) {
    let first = turns.first();
    (
        Figure::Count(first.map_or(0, |turn| turn.usage.reused)),
        Figure::Count(first.map_or(0, Timed::computed)),
    )
}

/// `1st`, `2nd`, `3rd`, `4th` … for an index from 0.
pub(super) fn ordinal(index: u16) -> String {
    let n = index + 1;
    let end = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}
