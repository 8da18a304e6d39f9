//! `greenroom import`: converts another engine's scenario.

use super::Exit;
use crate::files::{self, FileKind};
use crate::import::{ImportFormat, import};
use crate::rehearsal::load;
use crate::terminal::{counted, printable};
use anyhow::Context as _;
use std::path::PathBuf;

/// Convert a ChatArena (JSON) or AgentVerse (YAML) scenario to a Greenroom scenario
///
/// What has no counterpart is listed in comments at the top of the scenario, and on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom import examples/nlp-classroom.json -o classroom.yaml")]
pub(super) struct Args {
    /// The other engine's file
    file: PathBuf,
    /// Its format: chatarena or agentverse [default: detected from its content]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    from: Option<ImportFormat>,
    /// Write to a new file [default: standard output]
    #[arg(long, short, value_name = "OUT.yaml")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let name = args.file.display().to_string();
    let bytes = files::read(&args.file, FileKind::Import).with_context(|| format!("can't read {name}"))?;
    let imported = match String::from_utf8(bytes) {
        Ok(text) => import(&name, &text, args.from),
        Err(error) => {
            eprintln!("error: {name}: {error}; expected UTF-8 text");
            return Ok(Exit::Invalid);
        }
    };
    let imported = match imported {
        Ok(imported) => imported,
        Err(refused) => {
            eprintln!("error: {name}: {}", printable(&refused.to_string()));
            return Ok(Exit::Invalid);
        }
    };
    imported.notes.iter().for_each(|note| eprintln!("note: {}", printable(note)));
    let out = args.out.as_ref().map_or("standard output".into(), |out| out.display().to_string());
    match &args.out {
        Some(out) => {
            let written = files::write_new(out, &imported.yaml);
            written.with_context(|| format!("can't write {}", out.display()))?;
        }
        None => print!("{}", imported.yaml),
    }
    let loaded = load(&out, &imported.yaml, &[]);
    eprint!("{}", loaded.report.render(false));
    let Some(scenario) = loaded.scenario else {
        eprintln!("{out}: {}, to be fixed by hand", counted(loaded.report.n_errors(), "error"));
        return Ok(Exit::Invalid);
    };
    let (agents, phases) = (counted(scenario.agents.len(), "agent"), counted(scenario.phases.len(), "phase"));
    eprintln!("{out}: {agents}, {phases}, {}", counted(imported.notes.len(), "note"));
    Ok(Exit::Pass)
}
