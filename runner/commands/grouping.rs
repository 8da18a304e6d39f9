//! What the figures of an experiment are over: `--by`, `--over`.

use crate::scenario::Scenario;
use crate::statistics::Grouping;

#[derive(Debug, clap::Args)]
pub(super) struct GroupingArgs {
    /// Divide figures by a variable, a column of the cases, or a choice (PHASE/AGENT; repeatable)
    #[arg(long = "by", value_name = "NAME")]
    by: Vec<String>,
    /// Pool choices and payoffs over the agents of a phase
    #[arg(long, value_name = "WHAT")]
    over: Option<Over>,
}

/// What figures are pooled over, besides cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Over {
    // All agents who are asked the same. (A comment of the documentation would make --help long.)
    Agents,
}

impl GroupingArgs {
    /// The flag that was given, if any was.
    pub(super) fn given(&self) -> Option<&'static str> {
        let by = (!self.by.is_empty()).then_some("--by");
        by.or(self.over.map(|_| "--over"))
    }

    /// The grouping, if the scenarios of the experiment have what it names; else the mistake.
    pub(super) fn of<'a>(
        &self,
        scenarios: impl Iterator<Item = &'a Scenario> + Clone,
    ) -> Result<Grouping, String> {
        let grouping = Grouping { by: self.by.clone(), over_agents: self.over == Some(Over::Agents) };
        grouping.check(scenarios).map_err(|mistake| format!("--by: {mistake}"))?;
        Ok(grouping)
    }
}
