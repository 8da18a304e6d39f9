//! `greenroom graph`: the plan of a scenario as a drawing.

use super::{Exit, PathBounds, open_scenario};
use crate::diagnostic::printable;
use crate::drawing;
use crate::scenario::parse_override;
use std::path::PathBuf;

/// Print the graph of turns: solid edges are memories, dashed edges are what is heard
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom graph scenarios/gossip.yaml --format svg > gossip.svg")]
pub(super) struct Args {
    /// The scenario
    file: PathBuf,
    /// Output format: dot (Graphviz), mermaid or svg (a picture)
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    format: GraphFormat,
    /// Set a variable to another value (repeatable)
    #[arg(long = "set", value_name = "K=V", value_parser = parse_override)]
    overrides: Vec<(String, serde_json::Value)>,
    #[command(flatten)]
    bounds: PathBounds,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum GraphFormat {
    /// Graphviz
    #[default]
    Dot,
    /// Mermaid
    Mermaid,
    /// A picture
    Svg,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let Some(scenario) = open_scenario(&args.file, &args.bounds, &args.overrides, false)? else {
        return Ok(Exit::Invalid);
    };
    let plan = scenario.plan();
    match args.format {
        GraphFormat::Dot => print!("{}", printable(&plan.dot(&scenario))),
        GraphFormat::Mermaid => print!("{}", printable(&plan.mermaid(&scenario))),
        GraphFormat::Svg => match drawing::svg(plan, &scenario, None) {
            Some(picture) => print!("{picture}"),
            None => {
                let (n_turns, most) = (plan.n_turns(), drawing::MAX_TURNS);
                eprintln!(
                    "error: the plan has {n_turns} turns, but a picture shows at most {most}; use `--format \
                     dot`"
                );
                return Ok(Exit::Invalid);
            }
        },
    }
    Ok(Exit::Pass)
}
