//! `greenroom-lab kv-config`: measures how sensitive each layer's keys and values are, and assigns bits where
//! they matter most.

use crate::quality::{QualityCommon, Subject, TextArgs};
use anyhow::{bail, ensure};
use greenroom::backend::{KvConfig, LayerBits};
use greenroom::commands::Exit;
use greenroom::files;
use greenroom::terminal::table;
use greenroom_engine::{KvChoice, KvFormat, KvLayer};
use std::path::{Path, PathBuf};

/// Choose the bits of each layer's keys and values by their effect on a text, for `run --kv FILE`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab kv-config --model model.gguf --target-bits 5 --out kv_config.json\n\
                  \nThe keys or values of one layer at a time are read in 4 bits, all others in f16; the \
                  change in the text's log-probabilities is their sensitivity. All begin with 4 bits; the \
                  most sensitive for their size get 8, then 16."
)]
pub(super) struct Args {
    #[command(flatten)]
    common: QualityCommon,
    #[command(flatten)]
    text: TextArgs,
    /// Average bits per cached number, including scales and means: 4 bits take 4.2, 8 bits 8.2
    #[arg(long, value_name = "B", default_value_t = 5.5)]
    target_bits: f64,
    /// Tokens of the text to read
    #[arg(
        long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(300..)
    )]
    tokens: u32,
    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "kv_config.json")]
    out: PathBuf,
}

/// Keys or values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    K,
    V,
}

/// Keys or values of one layer, and the effect of 4 bits on them.
struct Candidate {
    layer: usize,
    side: Side,
    /// Mean change of a token's log-probability, in nats.
    sensitivity: f64,
    format: KvFormat,
}

impl Candidate {
    /// The next finer format, its gain and its cost in bits per number.
    fn upgrade(&self) -> Option<(KvFormat, f64)> {
        // Eight bits round sixteen times finer.
        match self.format {
            KvFormat::Q4 => Some((KvFormat::Q8, self.sensitivity)),
            KvFormat::Q8 => Some((KvFormat::F16, self.sensitivity / 16.0)),
            KvFormat::F16 => None,
        }
    }
}

fn choice(layers: &[KvLayer]) -> KvChoice {
    KvChoice::Mixed(layers.to_vec())
}

fn set(layers: &mut [KvLayer], layer: usize, side: Side, format: KvFormat) {
    match side {
        Side::K => layers[layer].k = format,
        Side::V => layers[layer].v = format,
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if args.out.exists() {
        bail!("{} already exists; remove it, or choose another name with --out", args.out.display());
    }
    let subject = args.common.open()?;
    let mut ids = subject.engine.begin(&subject.read(args.text.text.as_deref(), args.text.special)?);
    ids.truncate((args.tokens as usize).min(subject.context()));
    ensure!(
        ids.len() >= 300,
        "the text has {} tokens; expected at least 300, so that it is longer than the first sealed block",
        ids.len()
    );
    let n_layers = subject.prompter.model().n_layers;
    let f16 = vec![KvLayer { k: KvFormat::F16, v: KvFormat::F16 }; n_layers];
    let exact = subject.logprobs(&ids, &choice(&f16))?;
    let mut candidates = measure(&subject, &ids, &exact, &f16)?;
    let bits = |layers: &[KvLayer]| subject.bits(&choice(layers));
    let q4 = vec![KvLayer { k: KvFormat::Q4, v: KvFormat::Q4 }; n_layers];
    let (least, most) = (bits(&q4)?, bits(&f16)?);
    ensure!(
        (least..=most).contains(&args.target_bits),
        "--target-bits {} is out of range; expected {least:.2} to {most:.0} for this model",
        args.target_bits
    );
    let layers = spend(&mut candidates, q4.clone(), args.target_bits, &bits)?;
    let config = KvConfig {
        model: subject.prompter.model().name.clone(),
        bits: (bits(&layers)? * 1e3).round() / 1e3,
        layers: layers.iter().map(|layer| LayerBits::from(*layer)).collect(),
    };
    write(&args.out, &config)?;
    report(&subject, &ids, &candidates, [("f16", &f16), ("q4", &q4), ("mixed", &layers)])?;
    println!(
        "wrote {} ({:.2} bits per number); use it with --kv {}",
        args.out.display(),
        config.bits,
        args.out.display()
    );
    Ok(Exit::Pass)
}

/// The sensitivity of each layer's keys and values.
fn measure(subject: &Subject, ids: &[u32], exact: &[f64], f16: &[KvLayer]) -> anyhow::Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for layer in 0..f16.len() {
        for side in [Side::K, Side::V] {
            subject.say(format!("layer {layer} of {}: {side:?} in 4 bits", f16.len()));
            let mut layers = f16.to_vec();
            set(&mut layers, layer, side, KvFormat::Q4);
            if subject.prompter.kv_name(&choice(&layers))? == "f16" {
                continue; // values that are a view of the keys
            }
            let found = subject.logprobs(ids, &choice(&layers))?;
            let off: f64 = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).sum();
            let sensitivity = off / exact.len() as f64;
            candidates.push(Candidate { layer, side, sensitivity, format: KvFormat::Q4 });
        }
    }
    subject.done();
    Ok(candidates)
}

/// Refines the candidate with the largest gain for its cost, as long as the average stays within `target`.
fn spend(
    candidates: &mut [Candidate],
    mut layers: Vec<KvLayer>,
    target: f64,
    bits: &dyn Fn(&[KvLayer]) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<KvLayer>> {
    loop {
        let before = bits(&layers)?;
        let mut best: Option<(f64, usize, KvFormat, Vec<KvLayer>)> = None;
        for (i, candidate) in candidates.iter().enumerate() {
            let Some((format, gain)) = candidate.upgrade() else { continue };
            let mut finer = layers.clone();
            set(&mut finer, candidate.layer, candidate.side, format);
            let after = bits(&finer)?;
            let worth = gain / (after - before);
            if after <= target && best.as_ref().is_none_or(|(most, ..)| worth > *most) {
                best = Some((worth, i, format, finer));
            }
        }
        let Some((_, i, format, finer)) = best else { return Ok(layers) };
        candidates[i].format = format;
        layers = finer;
    }
}

fn write(path: &Path, config: &KvConfig) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(config)?;
    files::write_to(path, text + "\n")
}

fn report(
    subject: &Subject,
    ids: &[u32],
    candidates: &[Candidate],
    compared: [(&str, &Vec<KvLayer>); 3],
) -> anyhow::Result<()> {
    let rows = candidates.iter().map(|c| {
        let bits = match c.format {
            KvFormat::Q4 => "4",
            KvFormat::Q8 => "8",
            KvFormat::F16 => "16",
        };
        vec![
            format!("{}", c.layer),
            format!("{:?}", c.side),
            format!("{:.5}", c.sensitivity),
            bits.to_owned(),
        ]
    });
    println!(
        "{}",
        table(&["layer", "", "4 bits change a log-probability by", "chosen bits"], rows.collect(), 2)
    );
    for (name, layers) in compared {
        let logprobs = subject.logprobs(ids, &choice(layers))?;
        let perplexity = libm::exp(-logprobs.iter().sum::<f64>() / logprobs.len() as f64);
        println!("{name}: {:.2} bits, perplexity {perplexity:.4}", subject.bits(&choice(layers))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_they_count_within_the_target() {
        let candidate =
            |layer, side, sensitivity| Candidate { layer, side, sensitivity, format: KvFormat::Q4 };
        let mut candidates = [(0, Side::K, 0.1), (0, Side::V, 0.5), (1, Side::K, 9.0), (1, Side::V, 0.2)]
            .map(|(l, s, x)| candidate(l, s, x));
        let q4 = vec![KvLayer { k: KvFormat::Q4, v: KvFormat::Q4 }; 2];
        let bits = |layers: &[KvLayer]| {
            let of = |format| match format {
                KvFormat::Q4 => 4.5,
                KvFormat::Q8 => 8.5,
                KvFormat::F16 => 16.0,
            };
            Ok(layers.iter().map(|layer| of(layer.k) + of(layer.v)).sum::<f64>() / 4.0)
        };
        let layers = spend(&mut candidates, q4, 6.6, &bits).unwrap();
        assert_eq!((layers[1].k, layers[0].v), (KvFormat::Q8, KvFormat::Q8));
        assert_eq!((layers[0].k, layers[1].v), (KvFormat::Q4, KvFormat::Q4));
        assert!(bits(&layers).unwrap() <= 6.6);
    }
}
