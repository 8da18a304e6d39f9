//! `greenroom models`: what a model file holds, and what a token of memory costs with it.

use super::Exit;
use crate::backend::{locate, source};
use crate::terminal::bytes;
use greenroom_engine::Prompter;

/// Describe models: family, shapes, context, bytes of cache a token, what the chat template does to history
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom models understudy ~/models/*.gguf")]
pub(super) struct Args {
    /// GGUF paths, hf:ORG/REPO/FILE.gguf, or `understudy` [default: understudy]
    models: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let models = if args.models.is_empty() { vec!["understudy".to_string()] } else { args.models };
    let mut exit = Exit::Pass;
    for name in models {
        match locate(&name).and_then(|file| Ok(Prompter::open(&source(&file))?)) {
            Ok(prompter) => show(prompter.model()),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                exit = Exit::Environment;
            }
        }
    }
    Ok(exit)
}

fn show(info: &greenroom_engine::ModelInfo) {
    println!(
        "{} ({}, {:.1} M parameters, {})",
        info.name,
        info.family,
        info.n_params as f64 / 1e6,
        bytes(info.file_bytes)
    );
    println!(
        "  {} layers, width {}, {} heads over {} key/value heads of {}, {} tokens in the vocabulary",
        info.n_layers, info.d_model, info.n_heads, info.n_kv_heads, info.head_dim, info.n_vocab
    );
    println!("  context {} tokens", info.context_length);
    let [f16, q8, q4] = info.kv_bytes_per_token;
    println!("  cache a token: f16 {f16:.0} bytes, q8 {q8:.0}, q4 {q4:.0}");
    println!("  identity {} with {}", info.identity.chars().take(16).collect::<String>(), info.numerics);
    info.template_audit.iter().for_each(|line| println!("  template: {line}"));
}
