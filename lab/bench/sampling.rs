//! Time of a draw by settings: on rows of logits alone, and as part of a decoded token.

use super::lab::{Ask, Bench};
use super::report::{Figure, Figures, median};
use super::speed::{at_least_one, measured};
use greenroom_engine::{Dry, Isa, Sampling, probes};
use std::time::Instant;

/// Time per token by sampling settings, compared with greedy
///
/// First the sampler alone, on one thread, on two kinds of logits: like those of a trained model, and flat
/// (those of random weights). Then whole tokens of a model, decoded one by one without drafting.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench sampling --model gemma-3-270m-it --tokens 96 --repeat \
                  5\n         GREENROOM_ISA=avx2 greenroom-lab bench sampling --vocabulary 262144")]
pub(super) struct Args {
    /// Sizes of vocabularies for the sampler alone
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [32_000, 152_000, 262_144],
        value_parser = at_least_one
    )]
    vocabulary: Vec<usize>,
    /// Draws of each measurement of the sampler alone
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    draws: usize,
    /// Tokens to decode
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    tokens: usize,
}

/// Settings by name; the first are greedy.
fn settings() -> [(&'static str, Sampling); 9] {
    let hot = Sampling { temperature: 1.0, seed: 1, ..Sampling::default() };
    [
        ("greedy", Sampling { temperature: 0.0, ..hot.clone() }),
        ("temperature 1", hot.clone()),
        ("temperature 0.7, top_p 0.9", Sampling { temperature: 0.7, top_p: 0.9, ..hot.clone() }),
        ("top_k 40", Sampling { top_k: 40, ..hot.clone() }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..hot.clone() }),
        ("top_k 40, top_p 0.9, min_p 0.05", Sampling { top_k: 40, top_p: 0.9, min_p: 0.05, ..hot.clone() }),
        ("repetition penalty 1.1", Sampling { repetition_penalty: 1.1, ..hot.clone() }),
        ("DRY", Sampling { dry: Some(Dry::default()), ..hot.clone() }),
        ("temperature 2", Sampling { temperature: 2.0, ..hot }),
    ]
}

/// Logits that look random: `peaked` as those of a trained model, with a few likely tokens, or flat.
fn logits(n: usize, peaked: bool) -> Vec<f32> {
    let number = |i: usize| {
        let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 24) as f32
    };
    let normal = |i: usize| (0..6).map(|j| number(i * 6 + j) - 0.5).sum::<f32>() * 1.41;
    (0..n)
        .map(|i| if peaked { 2.2 * normal(i) - 2.5 * (number(i + 7 * n) + 1e-6).ln() } else { normal(i) })
        .collect()
}

/// Microseconds of one call.
pub(super) fn microseconds<T>(n: usize, mut call: impl FnMut() -> T) -> f64 {
    std::hint::black_box(call());
    let began = Instant::now();
    for _ in 0..n {
        std::hint::black_box(call());
    }
    began.elapsed().as_secs_f64() * 1e6 / n as f64
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut figures = Figures::default();
        for n in &self.vocabulary {
            for (word, peaked) in [("peaked", true), ("flat", false)] {
                bench.show_activity(format!("draws from {n} {word} logits"));
                self.draw(bench, (word, logits(*n, peaked)), &mut figures);
            }
        }
        self.decode(bench, &mut figures)?;
        figures.notes.push(format!("Instruction set: {}. A draw uses one thread.", Isa::detect().name()));
        figures.notes.push(
            "Under a grammar: every token drawn is forbidden, and another one is drawn among half of the \
             vocabulary."
                .to_owned(),
        );
        Ok(figures)
    }

    /// The sampler alone.
    fn draw(&self, bench: &Bench, (word, logits): (&str, Vec<f32>), figures: &mut Figures) {
        let reply: Vec<u32> = (0..256).map(|i| (i * i % 97) as u32).collect();
        let mut add = |name: &str, times: Vec<f64>| {
            figures.rows.push(vec![
                ("settings", Figure::Text(name.to_owned())),
                ("logits", Figure::Text(word.to_owned())),
                ("vocabulary", Figure::Count(logits.len())),
                ("us_per_draw", Figure::Measured(times)),
            ]);
        };
        let timed = |time: &dyn Fn() -> f64| bench.repeats().map(|_| time()).collect();
        for (name, sampling) in settings() {
            let time =
                || microseconds(self.draws, probes::sampler(logits.clone(), reply.clone(), sampling.clone()));
            add(name, timed(&time));
        }
        let hot = Sampling { temperature: 1.0, ..Sampling::default() };
        let masked = || microseconds(self.draws, probes::masked_sampler(logits.clone(), hot.clone()));
        add("temperature 1, under a grammar", timed(&masked));
        let logprobs = || microseconds(self.draws, probes::logprobs(logits.clone(), 5));
        add("greedy, with 5 log-probabilities", timed(&logprobs));
    }

    /// Whole tokens of a model; settings take turns, so that a slow minute meets all of them.
    fn decode(&self, bench: &mut Bench, figures: &mut Figures) -> anyhow::Result<()> {
        let lab = bench.open_without_guesses(None)?;
        let (agent, primed) = bench.primed(&lab, 64)?;
        let settings = settings();
        let mut turns: Vec<Vec<_>> = settings.iter().map(|_| Vec::new()).collect();
        for n in bench.repeats() {
            for ((name, sampling), turns) in settings.iter().zip(&mut turns) {
                bench.show_activity(format!("decoding with {name}, measurement {}", n + 1));
                let text = bench.more(&agent, &primed, 16)?;
                let ask = Ask { text, n_tokens: self.tokens, cold: false };
                turns.push(lab.turn_with(&agent, ask, sampling.clone())?);
            }
        }
        let ms = |turn: &super::lab::Timed| 1e3 / turn.decode_rate();
        let greedy = median(&turns[0].iter().map(ms).collect::<Vec<_>>());
        for ((name, _), turns) in settings.iter().zip(&turns) {
            let here = median(&turns.iter().map(ms).collect::<Vec<_>>());
            figures.rows.push(vec![
                ("settings", Figure::Text((*name).to_owned())),
                ("tokens", Figure::Count(turns.first().map_or(0, |turn| turn.usage.generated))),
                ("ms_per_token", measured(turns, ms)),
                ("to_greedy", Figure::Ratio(here / greedy)),
            ]);
        }
        Ok(())
    }
}
