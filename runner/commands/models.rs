//! `greenroom models`: what a model file contains, and the memory that it needs.

use super::{Exit, parse_size};
use crate::backend::worded;
use crate::backend::{Kv, about, locate, source};
use crate::hub::{CATALOG, HubCache};
use crate::sampling::suggested;
use crate::terminal::{bytes, table};
use greenroom_engine::PromptEncoder;
use std::path::PathBuf;

/// Describe models: family, shapes, cache size, longest context, chat template
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom models understudy ~/models/*.gguf --memory 8G --agents 5")]
pub(super) struct Args {
    /// GGUF files, names that `pull` lists, hf:ORG/REPO/FILE.gguf, or `understudy` [default: understudy, and
    /// a list of downloaded models]
    models: Vec<String>,
    /// Memory for the caches of all agents
    #[arg(long, default_value = "2G", value_name = "SIZE", value_parser = parse_size)]
    memory: u64,
    /// Agents that share this memory
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    agents: u32,
    /// More formats to show: a file from `greenroom-lab kv-config`
    #[arg(long, value_name = "KV")]
    kv: Option<Kv>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let understudy = ["understudy".to_owned()];
    let models = if args.models.is_empty() { &understudy[..] } else { &args.models };
    let mut exit = Exit::Pass;
    for name in models {
        let opened = locate(name).and_then(|file| Ok(PromptEncoder::open(&source(&file))?));
        if let Err(error) = opened.and_then(|prompter| show(&prompter, &args)) {
            eprintln!("{name}: {:#}", about(name, error));
            exit = Exit::Environment;
        }
    }
    if args.models.is_empty() {
        show_downloaded();
    }
    Ok(exit)
}

/// The GGUF files in Hugging Face's cache, by the names that `--model` takes: short ones first.
fn show_downloaded() {
    let Ok(cache) = HubCache::open() else { return };
    let short = CATALOG.iter().filter_map(|entry| Some((entry.name.to_owned(), entry.address().ok()?)));
    let long = cache.addresses().into_iter().map(|address| (address.to_string(), address));
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for (name, address) in short.chain(long) {
        let path = cache.find(&address).filter(|path| found.iter().all(|(_, other)| other != path));
        found.extend(path.map(|path| (name, path)));
    }
    let size = |path: &PathBuf| std::fs::metadata(path).map_or("-".into(), |file| bytes(file.len()));
    let rows: Vec<_> = found.iter().map(|(name, path)| vec![name.clone(), size(path)]).collect();
    let folder = cache.folder().display();
    if rows.is_empty() {
        println!("\nno other models in {folder}; `greenroom pull` downloads one");
    } else {
        println!("\nin {folder}:\n{}", table(&["model", "size"], rows, 1));
    }
}

fn show(prompter: &PromptEncoder, args: &Args) -> anyhow::Result<()> {
    let info = prompter.model();
    println!(
        "{} ({}, {:.1} M parameters, {})",
        info.name,
        info.family,
        info.n_params as f64 / 1e6,
        bytes(info.file_bytes)
    );
    println!(
        "  {} layers, width {}, {} heads, {} key/value heads of width {}, {} tokens in the vocabulary",
        info.n_layers, info.d_model, info.n_heads, info.n_kv_heads, info.head_dim, info.n_vocab
    );
    println!("  context {} tokens", info.context_length);
    println!("  identity {}, numerics {}", info.identity.chars().take(16).collect::<String>(), info.numerics);
    let sampling = suggested(&info.sampling);
    if !sampling.is_empty() {
        println!("  default sampling: {}", sampling.words());
    }
    info.template_audit.iter().for_each(|line| println!("  template: {line}"));
    capacity(prompter, args)
}

/// Shows the bytes that a token takes in each format, and the longest context for each of the agents.
fn capacity(prompter: &PromptEncoder, args: &Args) -> anyhow::Result<()> {
    let own = Kv::default();
    let default = prompter.kv_name(own.choice()).map_err(worded)?;
    let mut kvs = vec![];
    for word in ["f16", "q8", "q4"] {
        kvs.push(word.parse::<Kv>()?);
    }
    if !kvs.iter().any(|kv| kv.word() == default) {
        kvs.push(own);
    }
    kvs.extend(args.kv.clone());
    let share = args.memory / u64::from(args.agents);
    let context = prompter.model().context_length as u64;
    let (mut rows, mut states) = (Vec::new(), Vec::new());
    for kv in kvs {
        let (name, cost) =
            (prompter.kv_name(kv.choice()).map_err(worded)?, prompter.kv_cost(kv.choice()).map_err(worded)?);
        let longest = cost.longest(share);
        let windowed = match cost.windowed {
            0 => "-".to_owned(),
            bytes => format!("{bytes} B, up to {} tokens", cost.window),
        };
        let name = if name == default { format!("{name} (default)") } else { name };
        if cost.state > 0 {
            let [live, token] = cost.live.map(bytes);
            let sealed = bytes(cost.state);
            states.push(format!("  state in {name}: {sealed}; during a turn {live}, and {token} a token"));
        }
        rows.push(vec![
            name,
            format!("{} B", cost.global),
            windowed,
            bytes(cost.most(context.min(32_768))),
            if longest >= context { format!("{context} (all)") } else { longest.to_string() },
        ]);
    }
    let at = format!("{} tokens", context.min(32_768));
    let fits = format!("max context for {} in {}", args.agents, bytes(args.memory));
    let shown = table(&["cache", "per token", "in windows", &at, &fits], rows, 1);
    shown.lines().for_each(|line| println!("  {line}"));
    // Of recurrent layers, for each agent.
    states.iter().for_each(|line| println!("{line}"));
    Ok(())
}
