//! `greenroom report`: a run as one page for a browser.

use super::{Exit, Whereabouts};
use crate::files;
use crate::replay::{other_scenario, transcript_file};
use crate::report::{self, MARK, Sources, html};
use crate::transcript;
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};

/// Bytes at a page's beginning in which the mark is looked for.
const HEAD_BYTES: u64 = 4096;

/// Make one self-contained page of a run: who said, heard and read what, and what the caches saved
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom report runs/gossip-1\n\
The page holds no scripts and loads nothing, so it can be mailed or put on any server.")]
pub(super) struct Args {
    /// The run: its folder or transcript
    run: PathBuf,
    /// The page [default: report.html in the run's folder; beside a transcript of another name, that name with .html]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    near: Whereabouts,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let given = args.output.is_some();
    let output = args.output.unwrap_or_else(|| beside(&transcript_file(&args.run)));
    if (output.is_file() || !given && output.exists()) && !is_report(&output)? {
        bail!("{} is there and is no report: choose another file with -o", output.display());
    }
    let search = args.near.into();
    let sources = Sources::open(&args.run, &search)?;
    let header = &sources.transcript.header.record;
    if let Some(note) = other_scenario(&transcript_file(&args.run), header, &search) {
        eprintln!("note: {}", crate::diagnostic::printable(&note));
    }
    for caveat in &sources.caveats {
        eprintln!("note: {}: {}", caveat.title, crate::diagnostic::printable(&caveat.detail));
    }
    let page = html(&sources)?;
    files::write_to(&output, page)?;
    println!("{}", output.display());
    Ok(Exit::Pass)
}

/// The path of a transcript's page, unless another is given.
fn beside(file: &Path) -> PathBuf {
    if file.file_name().is_some_and(|name| name == transcript::FILE) {
        file.with_file_name(report::FILE)
    } else {
        file.with_extension("html")
    }
}

fn is_report(file: &Path) -> anyhow::Result<bool> {
    let head = files::head(file, HEAD_BYTES).with_context(|| format!("can't read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&head).contains(MARK))
}
