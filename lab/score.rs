//! `greenroom-lab score`: the likelihood of a text under a model, token by token.

use anyhow::{Context as _, bail};
use greenroom::backend::{Device, EmbeddedConfig, Kv, locate, worded};
use greenroom::commands::Exit;
use greenroom::files::{self, FileKind};
use greenroom_engine as engine;
use std::path::PathBuf;

/// Print each next token's log-probability as JSON lines: {"pos", "id", "logprob", "top"}
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab score --model understudy --text story.txt --kv f16")]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub(super) struct Args {
    /// GGUF file, a name that `greenroom models` or `greenroom pull` lists, hf:ORG/REPO/FILE.gguf, or the
    /// bundled `understudy`
    #[arg(long, default_value = "understudy", value_name = "MODEL")]
    model: String,
    /// A text file
    #[arg(long, value_name = "FILE", group = "input")]
    text: Option<PathBuf>,
    /// Recognise special tokens in the text
    #[arg(long)]
    special: bool,
    /// Token ids, separated by white space
    #[arg(long, value_name = "FILE", group = "input")]
    ids: Option<PathBuf>,
    /// KV cache formats: auto, f16, q8, q8/q4 (keys/values), q4-m, q4, q4-plain (not rotated), or a file from
    /// `kv-config`
    #[arg(long, default_value = "auto", value_name = "KV")]
    kv: Kv,
    /// Device that runs it: auto, cpu, gpu, or gpu:NAME (see `greenroom devices`)
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: Device,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let read = |path: &PathBuf| {
        files::read_text(path, FileKind::Text).with_context(|| format!("can't read {}", path.display()))
    };
    let threads = args.threads.map(usize::from);
    let (device, kv) = (args.device, args.kv);
    let config = EmbeddedConfig { device, kv, threads, ..EmbeddedConfig::new(locate(&args.model)?) };
    let engine = engine::Engine::open(config.engine()).map_err(worded)?;
    let ids = match (&args.ids, &args.text) {
        (Some(path), _) => parse_ids(&read(path)?)?,
        (_, Some(path)) => engine.encode(&read(path)?, args.special)?,
        _ => bail!("expected --text or --ids"),
    };
    engine.score(&ids, None, &mut |score| {
        let engine::TokenScore { pos, id, logprob, top } = score;
        let line = serde_json::json!({ "pos": pos, "id": id, "logprob": logprob, "top": top });
        println!("{line}");
    })?;
    Ok(Exit::Pass)
}

fn parse_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let parse = |word: &str| word.parse().with_context(|| format!("`{word}` is not a token id"));
    text.split_whitespace().map(parse).collect()
}
