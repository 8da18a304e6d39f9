//! `greenroom serve`: answers clients over HTTP.

use super::machine::{Machine, loading};
use super::stop::stopped;
use super::{Exit, parse_size};
use crate::server::{Config, Doors, Models, Names, Queue, Roster, Sessions, StoredResponses, Tenants, serve};
use crate::stores::Store;
use anyhow::{Context as _, bail, ensure};
use jiff::civil::Date;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What `--model` means to a server.
const MODEL: &str = "Model to serve: a GGUF file, a name that `models` or `pull` lists, hf:ORG/REPO/FILE.gguf, \
                     ollama:NAME, or the bundled `understudy`; clients ask for it by NAME, else by its file's name (repeatable) \
                     [default: understudy]";

/// Serve OpenAI's, Anthropic's and Ollama's APIs, with memories that persist
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("given", |model| model.help(MODEL)),
    after_help = "Example: greenroom serve --model small=smollm2-135m-instruct --listen 127.0.0.1:8080"
)]
pub(super) struct Args {
    /// Address to listen on; requires --keys unless local
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// YAML file of client keys and their tenants, see docs/server.md
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Requests to answer at once
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
    /// Requests that may wait; further ones get 429
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: u16,
    /// Seconds that a request may take, including waiting
    #[arg(
        long, default_value_t = 600, value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    timeout: u32,
    /// Maximum size of a request body
    #[arg(long, default_value = "8M", value_name = "SIZE", value_parser = parse_size)]
    max_body: u64,
    /// Maximum size of the weights loaded at once; other models are loaded on request and replace the least
    /// recently used one [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    model_memory: Option<u64>,
    /// Another name of a model: NAME, or NAME=MODEL if several are served (repeatable)
    #[arg(long, value_name = "NAME[=MODEL]")]
    alias: Vec<String>,
    /// Let the only model answer to any name
    #[arg(long)]
    any_model: bool,
    /// Answer requests that call this machine by this name, too (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
    /// Answer pages of this origin, such as https://example.com (repeatable); `*` for all requires --keys
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// The date in the prompts of chat templates that print one [default: the day on which a conversation
    /// begins]
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<Date>,
    #[command(flatten)]
    machine: Machine,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { listen, keys, parallel, queue, timeout, max_body, model_memory, .. } = args;
    let Args { alias, any_model, allow_host, allow_origin, date, machine, .. } = args;
    let is_open = !listen.ip().is_loopback();
    ensure!(
        !is_open || keys.is_some(),
        "{} can be reached from other machines, where anybody could use it; restrict access with --keys \
         FILE, or listen on 127.0.0.1",
        listen.ip()
    );
    let doors = Doors::new(allow_host, allow_origin, keys.is_some(), is_open)?;
    let tenants = match &keys {
        Some(path) => Tenants::read(path)?,
        None => Tenants::one(&machine.tenant),
    };
    let mut given = BTreeMap::new();
    for (name, model) in &machine.model.given {
        let name = name.clone().unwrap_or_else(|| name_of(model));
        if let Some(other) = given.insert(name.clone(), model.clone()) {
            bail!(
                "--model {other} and --model {model} would both be served as `{name}`; name one of them by NAME={model}"
            );
        }
    }
    if given.is_empty() {
        given.insert("understudy".to_string(), "understudy".to_string());
    }
    let names = Names { aliases: aliases(alias, &given)?, any: any_model };
    let models: BTreeSet<String> = given.values().cloned().collect();
    let config = machine.config(&models, models.first().map_or("understudy", String::as_str))?;
    let folder = config.cache_dir.as_ref().map(|folder| folder.join("server"));
    let sessions = Sessions::open(folder.as_deref())?;
    let kept = StoredResponses::open(folder.as_deref())?;
    let roster = Roster::open(folder.as_deref())?;
    let models = Models::open(config, &given, names, model_memory, Box::new(|| Box::new(loading(false))))?;
    let queue = Queue::new(parallel.into(), queue.into());
    let (timeout, max_body) = (Duration::from_secs(timeout.into()), usize::try_from(max_body)?);
    let config = Config { models, sessions, kept, roster, tenants, queue, timeout, max_body, doors, date };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("can't listen on {listen}"))?;
        let stop = stopped(); // signals are caught before the line that a service manager waits for
        println!("listening on http://{}/v1 (Ctrl-C to stop)", listener.local_addr()?);
        crate::terminal::output::flush();
        serve(config, listener, stop).await.context("the server failed")
    })?;
    Ok(Exit::Pass)
}

/// Models by their other names.
fn aliases(
    given: Vec<String>,
    models: &BTreeMap<String, String>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let only = models.keys().next().filter(|_| models.len() == 1);
    let named = given.into_iter().map(|alias| match (alias.split_once('='), only) {
        (Some((alias, model)), _) => Ok((alias.to_string(), model.to_string())),
        (None, Some(only)) => Ok((alias, only.clone())),
        (None, None) => bail!("--alias {alias}: several models are served; expected --alias {alias}=MODEL"),
    });
    named.collect()
}

/// The default name of a model: that of its file, or the last part of its name in another program's store.
pub(super) fn name_of(model: &str) -> String {
    let model = Store::of(model).map_or(model, |(_, name)| name);
    let file = model.rsplit('/').next().unwrap_or(model);
    file.strip_suffix(".gguf").unwrap_or(file).to_string()
}
