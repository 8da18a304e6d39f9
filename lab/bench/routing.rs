//! Experts who have each read an article, and questions that go to some of them.

use super::lab::{Ask, Bench, Player, Timed};
use super::report::{Figure, Figures, Row, median};
use super::speed::{at_least_one, counts, measured};

/// Experts primed with articles, then asked: time to first token cold, warm and hot
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench routing --shape 1b --context 4096")]
pub(super) struct Args {
    /// Tokens in each expert's article
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    context: usize,
    /// Number of experts; half as many questions go to two experts each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    experts: usize,
    /// Number of questions asked again
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeated: usize,
    /// New tokens in a question
    #[arg(long, value_name = "N", default_value_t = 32)]
    question: usize,
    /// Tokens in an answer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    tokens: usize,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let folder = tempfile::tempdir()?;
        let lab = bench.open(Some(folder.path()))?;
        let (mut priming, mut warm, mut hot) = (Vec::new(), Vec::new(), Vec::new());
        for _ in bench.repeats() {
            let mut experts: Vec<(Player, Timed)> = Vec::new();
            for n in 0..self.experts {
                bench.show_activity(format!("expert {} of {} reads", n + 1, self.experts));
                let mut agent = bench.agent();
                let text = bench.text(&agent, self.context)?;
                let read = lab.turn(&agent, Ask { text, n_tokens: self.tokens, cold: false })?;
                agent.remember(&read);
                lab.forget(&agent); // from RAM: the answer begins with the files
                priming.push(read.clone());
                experts.push((agent, read));
            }
            bench.show_activity("questions");
            let mut ask = |(agent, last): &mut (Player, Timed)| -> anyhow::Result<Timed> {
                let text = bench.more(agent, last, self.question)?;
                *last = lab.turn(agent, Ask { text, n_tokens: self.tokens, cold: false })?;
                agent.remember(last);
                Ok(last.clone())
            };
            for expert in &mut experts {
                warm.push(ask(expert)?);
            }
            for expert in experts.iter_mut().take(self.repeated) {
                hot.push(ask(expert)?);
            }
            experts.iter().for_each(|(agent, _)| lab.forget(agent));
        }
        let cold = ttft(&priming);
        let rows = [("priming, cold", priming), ("questions, warm", warm), ("repeated, hot", hot)];
        let rows = rows.into_iter().filter(|(_, turns)| !turns.is_empty());
        let rows = rows.map(|(phase, turns)| row(phase, &turns, cold)).collect();
        let notes = vec![format!(
            "{} experts, each asked once after its memory was dropped from RAM (its files are in the page \
             cache), {} of them again.",
            self.experts, self.repeated
        )];
        Ok(Figures { rows, notes })
    }
}

fn ttft(turns: &[Timed]) -> f64 {
    median(&turns.iter().map(Timed::ttft_ms).collect::<Vec<_>>())
}

fn row(phase: &str, turns: &[Timed], cold: f64) -> Row {
    let (reused, computed) = counts(turns);
    vec![
        ("phase", Figure::Text(phase.to_owned())),
        ("turns", Figure::Count(turns.len())),
        ("reused", reused),
        ("computed", computed),
        ("ttft_ms", measured(turns, Timed::ttft_ms)),
        ("cold_to_this", Figure::Ratio(cold / ttft(turns))),
    ]
}
