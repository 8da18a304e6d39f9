//! `greenroom schema`: what a scenario file may hold, for editors and for people. Both come from the Rust types.

use super::Exit;
use crate::scenario::schema::json_schema;
use serde_json::Value;
use std::fmt::Write as _;

/// Print the JSON Schema of scenario files, or the reference of all fields
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom schema > schema.json\n\
Then `# yaml-language-server: $schema=schema.json` at the head of a scenario makes editors complete and check it.")]
pub(super) struct Args {
    /// What to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    /// JSON Schema
    #[default]
    Json,
    /// The reference, as docs/reference.md has it
    Markdown,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    match args.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(json_schema())?),
        Format::Markdown => print!("{}", reference(json_schema().as_value())),
    }
    Ok(Exit::Pass)
}

/// Sections of the reference: a type of the schema, its heading, and where it stands in a file.
const SECTIONS: &[(&str, &str, &str)] = &[
    ("WrittenAgent", "An agent", "`agents.KEY`"),
    ("WrittenPhase", "A phase", "`phases[n]`"),
    ("WrittenTurn", "A turn of a written-out order", "`phases[n].turns[n]`"),
    ("WrittenInteraction", "An interaction", "`phases[n].interactions[n]`"),
    ("LongChoice", "A choice in its long form", "`choice`, `parse_choice`"),
    ("WrittenPayoff", "The payoff", "`payoff`"),
    ("LongAssertion", "An assertion in its long form", "`assertions[n]`"),
];

/// Results that templates and expressions see, in the reference's words.
const RESULTS: &str = "\
## Results

Templates of later phases (`{{ … }}`), `when`, `until`, `outcome` and `assertions` see what a phase came to by its name:

| name | value |
|---|---|
| `PHASE.played` | whether it was played |
| `PHASE.rounds` | rounds that were played |
| `PHASE.choices.AGENT` | the agent's latest choice; null: none, or invalid |
| `PHASE.history.AGENT` | all its choices, oldest first |
| `PHASE.votes.OPTION` | how often the option was chosen; in a ranking, for the first place |
| `PHASE.decision` | what a `decision_mode` decided; null: nothing |
| `PHASE.tied` | whether options were level, so that nothing was decided |
| `PHASE.invalid` | choices that could not be read as an option |
| `PHASE.said.AGENT` | all that the agent said, a line each |
| `PHASE.messages[AGENT]` | the phase as that agent heard it; `${PHASE.messages[AGENT]}` is the same |
| `payoffs.AGENT` | the sum of the agent's payoffs so far; null: nothing could be valued |
| `outcome.NAME` | an outcome that stands above; in outcomes and assertions |

Templates also have the variables, the agents by key (`KEY.display_name`, `KEY.role`), `me`, `others`, `cast`, `phase` and `scenario`.
";

fn reference(schema: &Value) -> String {
    let mut out = String::from(
        "# Reference\n\nEvery field of a scenario file. Made by `greenroom schema --format markdown` from the program's types.\n",
    );
    section(&mut out, "A scenario", "the file itself", schema);
    for (name, heading, place) in SECTIONS {
        section(&mut out, heading, place, &schema["$defs"][*name]);
    }
    let strategy = &schema["$defs"]["WrittenStrategy"];
    // Writing to a String can't fail.
    let _ = writeln!(out, "\n## A strategy\n\n`agents.KEY.strategy`. {}\n", line(strategy));
    out + RESULTS
}

fn section(out: &mut String, heading: &str, place: &str, schema: &Value) {
    let _ = writeln!(
        out,
        "\n## {heading}\n\n{place}. {}\n\n| field | values | meaning |\n|---|---|---|",
        line(schema)
    );
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let needed = if required.contains(&name.as_str()) { " (needed)" } else { "" };
        let _ = writeln!(out, "| `{name}`{needed} | {} | {} |", kind(field), line(field));
    }
}

/// A description on one line, as a table's cell can hold it.
fn line(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace('\n', " ").replace('|', "\\|")
}

/// What a field may be, in words.
fn kind(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    let named = |schema: &Value| {
        let name = schema["$ref"].as_str()?.rsplit('/').next()?;
        Some(match name {
            "Expression" => "expression".to_string(),
            "OneOrMany" => "key or list of keys".to_string(),
            "WrittenChoice" => "options".to_string(),
            "WrittenStrategy" => "strategy".to_string(),
            "WrittenPayoff" => "payoff".to_string(),
            "WrittenOptions" => "list or mapping".to_string(),
            "WrittenAssertion" => "assertion".to_string(),
            "WrittenAgent" => "agent".to_string(),
            "WrittenPhase" => "phase".to_string(),
            "WrittenTurn" => "turn".to_string(),
            "WrittenInteraction" => "interaction".to_string(),
            _ => "text, number or truth value".to_string(),
        })
    };
    let first = field["anyOf"].get(0).unwrap_or(field);
    if let Some(name) = named(first) {
        return name;
    }
    let types = field["type"].as_array().cloned().unwrap_or_else(|| vec![field["type"].clone()]);
    match types.iter().filter_map(Value::as_str).find(|kind| *kind != "null") {
        Some("string") => "text".into(),
        Some("integer") => "whole number".into(),
        Some("number") => "number".into(),
        Some("boolean") => "`true`, `false`".into(),
        Some("array") => format!("list of {}s", kind(&field["items"])),
        Some("object") => format!("mapping to {}s", kind(&field["additionalProperties"])),
        _ => "anything".into(),
    }
}
