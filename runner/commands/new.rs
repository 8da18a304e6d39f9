//! `greenroom new`: a scenario to start from.

use super::Exit;
use crate::files::{self, FileKind};
use crate::scenario::parse;
use crate::scenario::schema::json_schema;
use anyhow::{Context as _, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Write a scenario to start from, and the schema that editors use to complete it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom new harbour --template debate\n\
                  Templates: blank, two agents talk; dilemma, two agents choose; a payoff matrix; gossip, \
                  secrets told in private;\ndebate, a moderator and a vote; experts, questions go to those \
                  who have read about them")]
pub(super) struct Args {
    /// Name of the scenario: letters, digits, `-` and `_`, after an optional folder; NAME.yaml is written
    #[arg(value_name = "NAME")]
    name: PathBuf,
    /// Template to start from
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    template: StarterTemplate,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum StarterTemplate {
    #[default]
    Blank,
    Dilemma,
    Gossip,
    Debate,
    Experts,
}

impl StarterTemplate {
    fn text(self) -> &'static str {
        match self {
            Self::Blank => include_str!("../../templates/scenarios/blank.yaml"),
            Self::Dilemma => include_str!("../../templates/scenarios/dilemma.yaml"),
            Self::Gossip => include_str!("../../templates/scenarios/gossip.yaml"),
            Self::Debate => include_str!("../../templates/scenarios/debate.yaml"),
            Self::Experts => include_str!("../../templates/scenarios/experts.yaml"),
        }
    }
}

/// Name of the schema's file, next to the scenario.
const SCHEMA: &str = "schema.json";

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let name = args.name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let id = name.strip_suffix(".yaml").unwrap_or(name);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if id.is_empty() || id.len() > 100 || !id.chars().all(is_plain) {
        eprintln!(
            "error: `{id}` is not a valid scenario name; expected 1 to 100 letters, digits, `-` and `_`, \
             e.g. `greenroom new harbour`"
        );
        return Ok(Exit::Invalid);
    }
    let folder = args.name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    let file = folder.join(format!("{id}.yaml"));
    let text = args.template.text().replace("id: NAME", &format!("id: {}", quoted(id))).replace("NAME", id);
    match files::write_new(&file, text) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} already exists; choose another name, or remove it", file.display())
        }
        written => written.with_context(|| format!("can't write {}", file.display()))?,
    }
    let shown = file.strip_prefix(".").unwrap_or(&file).display();
    if write_schema(&folder.join(SCHEMA))? {
        println!("Wrote {shown}, and {SCHEMA} beside it for editors. Next steps:\n");
    } else {
        println!(
            "Wrote {shown}. The {SCHEMA} beside it is not Greenroom's and was not changed. Next steps:\n"
        );
    }
    println!("  greenroom check {shown} --dry-run    shows what will happen, without playing");
    println!("  greenroom run {shown}");
    Ok(Exit::Pass)
}

/// An id in the form that YAML reads as a text: `2026` and `true` must be quoted.
fn quoted(id: &str) -> String {
    if parse(id).is_ok_and(|value| value.is_string()) { id.to_string() } else { format!("\"{id}\"") }
}

/// Writes the schema, or updates it. False: another file has that name, and is kept.
fn write_schema(file: &Path) -> anyhow::Result<bool> {
    let is_ours = match files::read_text(file, FileKind::Schema) {
        Ok(text) => json_schema().get("title").is_some_and(|title| text.contains(&title.to_string())),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    if is_ours {
        files::write(file, serde_json::to_string_pretty(json_schema())? + "\n")?;
    }
    Ok(is_ours)
}
