//! `greenroom migrate`: scenarios of earlier editions, rewritten in today's language.

use super::Exit;
use crate::files::{self, FileKind};
use crate::scenario::{self, Migrated, Older};
use anyhow::{Context as _, bail};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Rewrite scenarios of earlier editions in today's language
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom migrate scenarios/*.yaml\n\
                        Comments stay, and so does the style of what does not change. `run` and `replay` read \
                        earlier editions too;\nthey convert them in memory.")]
pub(super) struct Args {
    /// Scenario files; `-` reads one from standard input and writes it to standard output
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Change nothing; the exit code is 3 if a file is of an earlier edition
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if args.files.iter().any(|file| file == Path::new("-")) {
        if args.files.len() > 1 || args.check {
            bail!("`-` stands alone: a scenario from standard input is written to standard output");
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("can't read standard input")?;
        let migrated = scenario::migrate("standard input", &text);
        let text = match migrated {
            Ok(migrated) => migrated.map_or(text, |migrated| migrated.text),
            Err(report) => {
                eprint!("{}", report.render(false));
                return Ok(Exit::Invalid);
            }
        };
        print!("{text}");
        return Ok(Exit::Pass);
    }
    let (mut n_older, mut is_broken) = (0, false);
    for file in &args.files {
        let shown = file.display();
        let text = files::read_text(file, FileKind::Scenario)
            .with_context(|| format!("can't read the scenario {shown}"))?;
        match scenario::migrate(&shown.to_string(), &text) {
            Err(report) => {
                eprint!("{}", report.render(false));
                is_broken = true;
            }
            Ok(None) => println!("{shown}: up to date"),
            Ok(Some(Migrated { text: new, changes })) => {
                n_older += 1;
                if !args.check {
                    // What a link leads to is rewritten, and the link stays.
                    let file = std::fs::canonicalize(file);
                    files::replace(&file.with_context(|| format!("can't write {shown}"))?, &new)?;
                }
                let (before, after) = (text.lines().count(), new.lines().count());
                let done = if args.check { "is of an earlier edition" } else { "rewritten" };
                println!("{shown}: {done}: {} ({before} lines, now {after})", summary(&changes));
            }
        }
    }
    Ok(match (is_broken, args.check && n_older > 0) {
        (true, _) => Exit::Invalid,
        (_, true) => Exit::Drift,
        _ => Exit::Pass,
    })
}

/// What changed, each kind once, with how often.
fn summary(changes: &[Older]) -> String {
    let mut kinds: Vec<(&str, &str, usize)> = Vec::new();
    for Older { name, now, .. } in changes {
        match kinds.iter_mut().find(|(known, as_now, _)| known == name && as_now == now) {
            Some((.., n)) => *n += 1,
            None => kinds.push((name, now, 1)),
        }
    }
    let words = kinds.into_iter().map(|(name, now, n)| {
        let times = if n > 1 { format!(" ({n} times)") } else { String::new() };
        if now.is_empty() { format!("{name} removed{times}") } else { format!("{name} → {now}{times}") }
    });
    words.collect::<Vec<_>>().join(", ")
}
