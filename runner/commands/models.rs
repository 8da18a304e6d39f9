//! `greenroom models`: what a model file contains, and the memory that it needs; the models on this machine.

use super::machine::fits;
use super::{Exit, parse_size};
use crate::backend::worded;
use crate::backend::{Kv, about, locate, source};
use crate::hub::{CATALOG, HubCache};
use crate::sampling::suggested;
use crate::stores::{Store, StoredModel, is_model};
use crate::terminal::{bytes, table};
use greenroom_engine::{ModelHeader, PromptEncoder};
use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Describe models: family, shapes, cache size, longest context, chat template; or list those on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom models understudy ~/models/*.gguf --memory 8G --agents 5\n\
                        The list has models of the Hugging Face cache, Ollama, LM Studio and llama.cpp, by the \
                        names that --model takes.\n\
                        Environment: HF_HUB_CACHE, HF_HOME, OLLAMA_MODELS, LLAMA_CACHE")]
pub(super) struct Args {
    /// GGUF files, names that `pull` lists, hf:ORG/REPO/FILE.gguf, ollama:NAME[:TAG],
    /// lmstudio:ORG/REPO[/FILE.gguf], llama.cpp:ORG/REPO[:QUANT], or `understudy` [default: understudy, and a
    /// list of the models on this machine]
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
    /// Print the list of the models on this machine as JSON
    #[arg(long, conflicts_with_all = ["models", "memory", "agents", "kv"])]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if args.json {
        let (found, notes) = downloaded();
        notes.iter().for_each(|note| eprintln!("note: {note}"));
        println!("{}", serde_json::to_string_pretty(&found.iter().map(Listed::of).collect::<Vec<_>>())?);
        return Ok(Exit::Pass);
    }
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

/// A model on this machine.
struct Found {
    source: &'static str,
    /// As `--model` takes it.
    name: String,
    file: anyhow::Result<PathBuf>,
}

/// An entry of the list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    source: &'static str,
    file: Option<&'a Path>,
    #[serde(flatten)]
    contents: Option<Contents>,
    /// The reason why it can't be read, or is not supported.
    refusal: Option<String>,
}

/// What its header says.
#[derive(Debug, Serialize)]
struct Contents {
    family: String,
    weights: String,
    parameters: u64,
    bytes: u64,
    /// True if it fits in this machine's memory; `None`: not known.
    fits: Option<bool>,
}

/// Models on this machine by the names that `--model` takes, and notes about those that can't be listed.
fn downloaded() -> (Vec<Found>, Vec<String>) {
    let mut found = in_hub();
    let known: HashSet<PathBuf> =
        found.iter().filter_map(|model| model.file.as_ref().ok().cloned()).collect();
    let mut notes = Vec::new();
    for store in Store::ALL {
        let stored = store.models();
        // llama.cpp and the Hub's clients share a cache.
        let is_new = |model: &Found| !model.file.as_ref().is_ok_and(|path| known.contains(path));
        let model = |model: &StoredModel| Found {
            source: store.program(),
            name: format!("{}{}", store.prefix(), model.name),
            file: model.file(),
        };
        found.extend(stored.models.iter().map(model).filter(is_new));
        notes.extend(stored.unread);
    }
    (found, notes)
}

/// Prints them as a table.
fn show_downloaded() {
    let (found, notes) = downloaded();
    if found.is_empty() {
        println!(
            "\nno other models in the caches of Hugging Face, Ollama, LM Studio and llama.cpp; `greenroom pull` \
             downloads one"
        );
    } else {
        let head =
            ["model", "source", "family", "weights", "supported", "fits in memory", "parameters", "size"];
        println!("\n{}", table(&head, found.iter().map(|found| Listed::of(found).row()).collect(), 6));
    }
    notes.iter().for_each(|note| println!("note: {note}"));
}

/// The GGUF files in Hugging Face's cache: those with short names first, each once.
fn in_hub() -> Vec<Found> {
    let Ok(cache) = HubCache::open() else { return vec![] };
    let short = CATALOG.iter().filter_map(|entry| Some((entry.name.to_owned(), entry.address().ok()?)));
    let long = cache.addresses().into_iter().map(|address| (address.to_string(), address));
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for (name, address) in short.chain(long).filter(|(_, address)| is_model(&address.file)) {
        let path = cache.find(&address).filter(|path| seen.insert(path.clone()));
        found.extend(path.map(|path| Found { source: "Hugging Face", name, file: Ok(path) }));
    }
    found
}

impl<'a> Listed<'a> {
    fn of(found: &'a Found) -> Self {
        // The file's name says less than the model's.
        let reason = |error: anyhow::Error, path: &Path| {
            let said = format!("{:#}", about(&path.display().to_string(), error));
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            said.strip_prefix(&format!("{file} is ")).map_or(said.clone(), str::to_owned)
        };
        let header = match &found.file {
            Ok(path) => ModelHeader::read(path).map_err(|error| reason(error.into(), path)),
            Err(error) => Err(format!("{error:#}")),
        };
        let (contents, refusal) = match header {
            Ok(ModelHeader { family, weights, n_params: parameters, file_bytes: bytes, refusal }) => {
                (Some(Contents { family, weights, parameters, bytes, fits: fits(bytes) }), refusal)
            }
            Err(why) => (None, Some(why)),
        };
        let file = found.file.as_deref().ok();
        Self { name: &found.name, source: found.source, file, contents, refusal }
    }

    /// Its cells. A file that can't be read has its reason in place of what it contains.
    fn row(self) -> Vec<String> {
        let named = [self.name.to_owned(), self.source.to_owned()];
        let cells = match self.contents {
            Some(Contents { family, weights, parameters, bytes: size, fits }) => {
                let supported = self.refusal.map_or("yes".into(), |why| format!("not supported: {why}"));
                let fits = fits.map_or("-", |fits| if fits { "yes" } else { "no" });
                let parameters = format!("{:.1} M", parameters as f64 / 1e6);
                [family, weights, supported, fits.into(), parameters, bytes(size)]
            }
            None => {
                let why = self.refusal.unwrap_or_default();
                ["-".into(), "-".into(), why, "-".into(), "-".into(), "-".into()]
            }
        };
        named.into_iter().chain(cells).collect()
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
