//! Subjects of figures.

use serde::Serialize;
use std::fmt;

/// The subject of a figure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// A result: its mean; how often it was true; of texts, how often it was `value`.
    Outcome {
        /// Its name.
        outcome: String,
        /// The text whose rate this is.
        value: Option<String>,
    },
    /// The sum of an agent's payoffs.
    Payoff {
        /// The agent's key; null: the mean of all agents.
        agent: Option<String>,
        /// The unit of the payoffs.
        unit: String,
    },
    /// Rate at which a phase decided so.
    Decision {
        /// The phase.
        phase: String,
        /// The decision; null: nothing was decided.
        option: Option<String>,
    },
    /// Rate of runs whose assertions all held, but for those that need only a share of runs.
    Assertions,
    /// Rate of runs in which an assertion held that needs only a share of runs.
    Assertion {
        /// Its name: the expression, and the judge if there is one.
        that: String,
    },
    /// Choices that could not be read as an option.
    Invalid,
    /// Rate at which an option was chosen.
    Choice(AgentOption),
    /// Rate of a question's choices that could not be read as an option; only where there are any.
    InvalidChoice(AgentQuestion),
    /// Mean of the numbers that were chosen where all options are numbers.
    Number(AgentQuestion),
    /// Probability with which an option was drawn, at the run's temperature: what was chosen is drawn from
    /// it, so it varies less.
    Share(AgentOption),
    /// Probability that the model says any of the options, at temperature 1.
    Mass(AgentQuestion),
    /// Rate at which an option was chosen in one round.
    Round {
        /// The question and the option.
        #[serde(flatten)]
        asked: AgentOption,
        /// The round.
        round: usize,
    },
    /// Rate at which agents made these choices in the same round.
    Joint {
        /// The phase.
        phase: String,
        /// The agents' keys.
        agents: Vec<String>,
        /// The rounds that count.
        rounds: Rounds,
        /// Each agent's choice; null: invalid.
        choices: Vec<Option<String>>,
    },
}

/// A question that an agent, or each of several, was asked in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AgentQuestion {
    /// The phase.
    pub phase: String,
    /// The agent's key; null: all agents who were asked.
    pub agent: Option<String>,
    /// `choice`, `vote` or `floor`.
    pub purpose: &'static str,
    /// The requested rank of a ranking.
    pub rank: Option<usize>,
}

/// An option of an agent's choices in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AgentOption {
    /// The question.
    #[serde(flatten)]
    pub question: AgentQuestion,
    /// The option.
    pub option: String,
}

/// The rounds of a phase that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounds {
    /// The last one that a run played.
    Last,
    /// All.
    All,
}

impl Subject {
    /// True of what a run comes to: outcomes, payoffs, decisions, assertions, and whether its choices were
    /// valid.
    pub fn is_result(&self) -> bool {
        match self {
            Self::Outcome { .. }
            | Self::Payoff { .. }
            | Self::Decision { .. }
            | Self::Assertions
            | Self::Assertion { .. }
            | Self::Invalid
            | Self::Number(_) => true,
            Self::Choice(_)
            | Self::InvalidChoice(_)
            | Self::Share(_)
            | Self::Mass(_)
            | Self::Round { .. }
            | Self::Joint { .. } => false,
        }
    }

    /// What this is one value of, if it is: an outcome, a decision or a choice whose rates add up to one.
    pub(super) fn whole(&self) -> Option<String> {
        match self {
            Self::Outcome { outcome, value: Some(_) } => Some(format!("outcome {outcome}")),
            Self::Decision { phase, .. } => Some(format!("decision {phase}")),
            Self::Choice(asked) => Some(format!("choice {}", asked.question)),
            _ => None,
        }
    }

    /// True of what every complete run should have: a cell where none has it is shown too.
    pub(super) fn is_of_every_run(&self) -> bool {
        matches!(self, Self::Outcome { .. } | Self::Payoff { .. })
    }
}

impl fmt::Display for AgentQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.agent {
            Some(agent) => write!(f, "{}/{agent}", self.phase)?,
            None => f.write_str(&self.phase)?,
        }
        match (self.purpose, self.rank) {
            ("choice", _) => Ok(()),
            (purpose, Some(rank)) if rank > 1 => write!(f, ".{purpose}-{rank}"),
            (purpose, _) => write!(f, ".{purpose}"),
        }
    }
}

impl fmt::Display for AgentOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.question, self.option)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome { outcome, value: None } => write!(f, "outcome {outcome}"),
            Self::Outcome { outcome, value: Some(value) } => write!(f, "outcome {outcome} = {value}"),
            Self::Payoff { agent: Some(agent), .. } => write!(f, "payoff {agent}"),
            Self::Payoff { agent: None, .. } => f.write_str("payoff"),
            Self::Decision { phase, option: Some(option) } => write!(f, "decision {phase} = {option}"),
            Self::Decision { phase, option: None } => write!(f, "decision {phase}: nothing"),
            Self::Assertions => f.write_str("all assertions hold"),
            Self::Assertion { that } => write!(f, "assertion {that}"),
            Self::Invalid => f.write_str("invalid choices"),
            Self::Choice(asked) => write!(f, "choice {asked}"),
            Self::InvalidChoice(question) => write!(f, "choice {question}: invalid"),
            Self::Number(question) => write!(f, "number {question}"),
            Self::Share(asked) => write!(f, "share {asked}"),
            Self::Mass(question) => write!(f, "mass {question}"),
            Self::Round { asked, round } => write!(f, "round {round} {asked}"),
            Self::Joint { phase, agents, rounds, choices } => {
                let choices: Vec<&str> = choices.iter().map(|c| c.as_deref().unwrap_or("invalid")).collect();
                let which = if *rounds == Rounds::Last { "last" } else { "all" };
                write!(f, "joint {phase}/{} ({which}) = {}", agents.join("+"), choices.join(" + "))
            }
        }
    }
}
