//! Time to first token, by where the memory is, and with another active agent.

use super::lab::{Ask, Bench, Lab, Player, Timed, wait_for_all};
use super::report::{Figure, Figures, Row, median};
use super::speed::{at_least_one, counts, measured, ordinal};

/// Time to first token: cold, hot (in memory) and warm (from disk, in a newly opened engine)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench ttft --shape 1b --context 1024,16384")]
pub(super) struct Ttft {
    /// Tokens in the prompt that is read cold
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [1024, 2048, 4096, 8192, 16384],
        value_parser = at_least_one
    )]
    context: Vec<usize>,
    /// New tokens of each turn after it
    #[arg(long, value_name = "N", default_value_t = 32)]
    extend: usize,
}

/// Two agents at once compared with one alone, and one that arrives while another speaks
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench concurrent --context 1024,4096 --tokens 64")]
pub(super) struct Concurrent {
    /// Tokens in each agent's prompt
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [1024, 4096],
        value_parser = at_least_one
    )]
    context: Vec<usize>,
    /// Tokens that each agent generates
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
    /// Prompt of the agent that arrives later
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    late: usize,
    /// New tokens of warm and hot turns
    #[arg(long, value_name = "N", default_value_t = 32)]
    extend: usize,
}

/// Turns of one context length.
#[derive(Default)]
struct ByState {
    cold: Vec<Timed>,
    hot: Vec<Timed>,
    warm: Vec<Timed>,
    again: Vec<Timed>,
}

impl Ttft {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let folder = tempfile::tempdir()?;
        let mut agents: Vec<(usize, Player, Timed)> = Vec::new();
        let mut lengths: Vec<ByState> = self.context.iter().map(|_| ByState::default()).collect();
        let lab = bench.open(Some(folder.path()))?;
        for (at, context) in self.context.iter().enumerate() {
            for n in bench.repeats() {
                bench.show_activity(format!("{context} tokens, cold and hot, {} time", ordinal(n)));
                let mut agent = bench.agent();
                let text = bench.text(&agent, *context)?;
                let cold = timed_turn(&lab, &mut agent, Ask { text, n_tokens: 1, cold: false })?;
                let hot = self.extend(bench, &lab, &mut agent, &cold)?;
                lab.forget(&agent); // its memory stays on disk
                lengths[at].cold.push(cold);
                lengths[at].hot.push(hot.clone());
                agents.push((at, agent, hot));
            }
        }
        let mut loads = vec![lab.load_ms];
        drop(lab);
        let lab = bench.open(Some(folder.path()))?;
        for (at, mut agent, last) in agents {
            bench.show_activity(format!("{} tokens, warm", self.context[at]));
            let warm = self.extend(bench, &lab, &mut agent, &last)?;
            let again = self.extend(bench, &lab, &mut agent, &warm)?;
            lab.forget(&agent);
            lengths[at].warm.push(warm);
            lengths[at].again.push(again);
        }
        loads.push(lab.load_ms);
        let rows = lengths.iter().map(|turns| turns.row(&loads)).collect();
        let notes = vec![
            format!(
                "Hot, warm and next are turns with {} new tokens: in the process that read the context, in a \
                 new engine on the same cache folder, and the turn after that.",
                self.extend
            ),
            "Load: opening the model and a first short turn, not included in other figures. Warm files were \
             written by this process, so they are in the page cache."
                .to_owned(),
        ];
        Ok(Figures { rows, notes })
    }

    fn extend(
        &self,
        bench: &mut Bench,
        lab: &Lab,
        agent: &mut Player,
        last: &Timed,
    ) -> anyhow::Result<Timed> {
        let text = bench.more(agent, last, self.extend)?;
        timed_turn(lab, agent, Ask { text, n_tokens: 1, cold: false })
    }
}

/// A turn that becomes part of the history.
fn timed_turn(lab: &Lab, agent: &mut Player, ask: Ask) -> anyhow::Result<Timed> {
    let timed = lab.turn(agent, ask)?;
    agent.remember(&timed);
    Ok(timed)
}

impl ByState {
    fn row(&self, loads: &[f64]) -> Row {
        let ttft = |turns: &[Timed]| median(&turns.iter().map(Timed::ttft_ms).collect::<Vec<_>>());
        let (reused, _) = counts(&self.warm);
        let (_, context) = counts(&self.cold);
        let read = self.warm.first().map_or(0, |turn| turn.usage.bytes_read);
        vec![
            ("context", context),
            ("cold_ms", measured(&self.cold, Timed::ttft_ms)),
            ("hot_ms", measured(&self.hot, Timed::ttft_ms)),
            ("warm_ms", measured(&self.warm, Timed::ttft_ms)),
            ("next_ms", measured(&self.again, Timed::ttft_ms)),
            ("cold_to_warm", Figure::Ratio(ttft(&self.cold) / ttft(&self.warm))),
            ("warm_reused", reused),
            ("warm_read", Figure::Bytes(read)),
            ("load_ms", Figure::Measured(loads.to_vec())),
        ]
    }
}

/// Place of the agents' memory when they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Cold,
    Hot,
    Warm,
}

/// Agents asked together: their turns, each time.
type Rounds = Vec<Vec<Timed>>;

impl Concurrent {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let folder = tempfile::tempdir()?;
        let lab = bench.open(Some(folder.path()))?;
        let mut figures = Figures::default();
        for context in &self.context {
            let mut rounds: [[Rounds; 3]; 2] = Default::default();
            for n in bench.repeats() {
                for (n_agents, by_state) in (1..).zip(&mut rounds) {
                    bench.show_activity(format!("{n_agents} of {context} tokens, {} time", ordinal(n)));
                    let played = self.play(bench, &lab, *context, n_agents)?;
                    by_state.iter_mut().zip(played).for_each(|(rounds, round)| rounds.push(round));
                }
            }
            let [alone, together] = &rounds;
            for (state, (alone, together)) in
                [State::Cold, State::Hot, State::Warm].into_iter().zip(alone.iter().zip(together))
            {
                figures.rows.push(concurrent_row(state, alone, together));
            }
        }
        figures.rows.push(self.staggered(bench, &lab)?);
        figures.notes.push(format!(
            "System tokens/s: all tokens generated, divided by the time from submission to the end of the \
             last turn. Hot and warm turns read {} new tokens; warm ones are read back from disk (page \
             cache) by the same process.",
            self.extend
        ));
        figures.notes.push(format!(
            "Staggered: A generates {} tokens after {} of history; B, with {} new ones, arrives at A's first \
             token. Times to B's first token are from its arrival: both at once, or after A's end.",
            self.tokens,
            self.context.first().copied().unwrap_or(0),
            self.late
        ));
        Ok(figures)
    }

    /// New agents asked cold, then hot, then warm: the turns of each.
    fn play(
        &self,
        bench: &mut Bench,
        lab: &Lab,
        context: usize,
        n_agents: usize,
    ) -> anyhow::Result<[Vec<Timed>; 3]> {
        let mut agents: Vec<Player> = (0..n_agents).map(|_| bench.agent()).collect();
        let mut last: Vec<Timed> = Vec::new();
        let mut play = |state: State| -> anyhow::Result<Vec<Timed>> {
            let mut asks = Vec::new();
            for (i, agent) in agents.iter().enumerate() {
                let text = match last.get(i) {
                    Some(last) => bench.more(agent, last, self.extend)?,
                    None => bench.text(agent, context)?,
                };
                if state == State::Warm {
                    lab.forget(agent);
                }
                asks.push((agent, Ask { text, n_tokens: self.tokens, cold: false }));
            }
            last = lab.together(asks)?;
            agents.iter_mut().zip(&last).for_each(|(agent, timed)| agent.remember(timed));
            Ok(last.clone())
        };
        let played = [play(State::Cold)?, play(State::Hot)?, play(State::Warm)?];
        agents.iter().for_each(|agent| lab.forget(agent));
        Ok(played)
    }

    /// A late agent's wait, and its cost for the agent that is speaking.
    fn staggered(&self, bench: &mut Bench, lab: &Lab) -> anyhow::Result<Row> {
        let context = self.context.first().copied().unwrap_or(1024);
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        let (mut at_once, mut after) = (Vec::new(), Vec::new());
        for n in bench.repeats() {
            bench.show_activity(format!("a late arrival, {} time", ordinal(n)));
            let (a, primed) = bench.primed(lab, context)?;
            let speak = |text| Ask { text, n_tokens: self.tokens, cold: false };
            // B after A: it waits from A's first token on.
            let timed = lab.turn(&a, speak(bench.more(&a, &primed, self.extend)?))?;
            let b = bench.agent();
            let late = Ask { text: bench.text(&b, self.late)?, n_tokens: 1, cold: false };
            let waited = lab.turn(&b, late)?;
            alone.push(timed.decode_rate());
            after.push((timed.done - timed.first).as_secs_f64() * 1e3 + waited.ttft_ms());
            // B beside A.
            let mut first = lab.submit(&a, speak(bench.more(&a, &primed, self.extend)?))?;
            let c = bench.agent();
            let late = Ask { text: bench.text(&c, self.late)?, n_tokens: 1, cold: false };
            first.wait_for_text()?;
            let second = lab.submit(&c, late)?;
            let turns = wait_for_all(vec![first, second])?;
            beside.push(turns[0].decode_rate());
            at_once.push(turns[1].ttft_ms());
            [&a, &b, &c].into_iter().for_each(|agent| lab.forget(agent));
        }
        let ratio = median(&after) / median(&at_once);
        Ok(vec![
            ("late", Figure::Text(format!("{} while A speaks", self.late))),
            ("b_ttft_at_once_ms", Figure::Measured(at_once)),
            ("b_ttft_after_a_ms", Figure::Measured(after)),
            ("after_to_at_once", Figure::Ratio(ratio)),
            ("a_alone_tokens_per_s", Figure::Measured(alone)),
            ("a_with_b_tokens_per_s", Figure::Measured(beside)),
        ])
    }
}

fn concurrent_row(state: State, alone: &Rounds, together: &Rounds) -> Row {
    let rates = |rounds: &Rounds| rounds.iter().map(|round| system_rate(round)).collect::<Vec<_>>();
    let ttft = |rounds: &Rounds, agent: usize| {
        Figure::Measured(rounds.iter().filter_map(|round| round.get(agent)).map(Timed::ttft_ms).collect())
    };
    let (one, two) = (rates(alone), rates(together));
    let first = alone.first().and_then(|round| round.first());
    let before = first.map_or(0, Timed::read);
    let state = match state {
        State::Cold => "cold",
        State::Hot => "hot",
        State::Warm => "warm",
    };
    vec![
        ("cache", Figure::Text(state.to_owned())),
        ("context", Figure::Count(before)),
        ("one_tokens_per_s", Figure::Measured(one.clone())),
        ("two_tokens_per_s", Figure::Measured(two.clone())),
        ("two_to_one", Figure::Ratio(median(&two) / median(&one))),
        ("one_ttft_ms", ttft(alone, 0)),
        ("a_ttft_ms", ttft(together, 0)),
        ("b_ttft_ms", ttft(together, 1)),
    ]
}

/// All tokens of turns submitted at once, a second of the time until the last has ended.
fn system_rate(turns: &[Timed]) -> f64 {
    let generated: usize = turns.iter().map(|turn| turn.usage.generated).sum();
    let wall = turns.iter().map(|turn| turn.done - turn.submitted).max().unwrap_or_default();
    generated as f64 / wall.as_secs_f64()
}
