//! `greenroom serve`: answers clients over HTTP.

use super::machine::{Machine, loading};
use super::stop::stopped;
use super::{Exit, casting};
use crate::server::{App, Models, Sessions, serve};
use anyhow::{Context as _, ensure};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Answer clients that speak OpenAI's API, with memories that last
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom serve --model small=smollm2-135m --listen 127.0.0.1:8080")]
pub(super) struct Args {
    /// Address to listen at; it must be this machine's own (127.0.0.1, [::1])
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    machine: Machine,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let Args { listen, machine } = args;
    ensure!(
        listen.ip().is_loopback(),
        "{} can be reached from other machines, and nobody is asked who he is: listen at 127.0.0.1",
        listen.ip()
    );
    let mut given = casting::by_name(&machine.model.given)?;
    if let Some(model) = given.remove("") {
        given.insert(name_of(&model), model);
    }
    if given.is_empty() {
        given.insert("understudy".to_string(), "understudy".to_string());
    }
    let models: BTreeSet<String> = given.values().cloned().collect();
    let config = machine.config(&models, models.first().map_or("understudy", String::as_str))?;
    let sessions = Sessions::open(config.cache_dir.as_deref())?;
    let app = App { models: Models::open(&config, &given, &|| Box::new(loading(false)))?, sessions };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("can't listen at {listen}"))?;
        println!("listening at http://{}/v1 (Ctrl-C ends it)", listener.local_addr()?);
        crate::terminal::output::flush();
        serve(app, listener, stopped()).await.context("the server broke off")
    })?;
    Ok(Exit::Pass)
}

/// The name of a model that was given none: that of its file.
fn name_of(model: &str) -> String {
    let file = model.rsplit('/').next().unwrap_or(model);
    file.strip_suffix(".gguf").unwrap_or(file).to_string()
}
