//! Strategies: rules that answer instead of the model, and what they depend on.
//!
//! A strategy knows what its agent has heard, and no more; nothing of it depends on time or scheduling. A
//! run, a replay and `check` all ask [`Strategy::reply`].

use super::choice::Choice;
use super::plan::Turn;
use super::{Agent, Phase, Scenario};

/// A strategy that answers instead of the model. It names options by their result or their text.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// The first option, then what another player chose last.
    TitForTat,
    /// The first option until an agent chooses another, then the last one for ever.
    Grim,
    /// The same reply every time: an option, or, where there is no choice, the text itself.
    Always(String),
    /// The first option with this probability, else one of the others.
    Random(f64),
    /// One after the other, and again from the start.
    List(Vec<String>),
    /// A reply for each turn, by its path.
    Script(Vec<(String, String)>),
    /// One for each phase, by its name; none of them is itself of this kind.
    ByPhase(Vec<(String, Self)>),
    /// A human at the terminal.
    Human,
}

/// What an agent's strategy remembers when it is its turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recalled {
    /// The choice of another among the same options that the agent has heard last, by index.
    pub last: Option<usize>,
    /// True if the agent has heard a choice of another that was not the first option.
    pub has_defected: bool,
    /// Replies that the strategy has given before.
    pub n_replies: usize,
}

/// The options that a strategy chooses from.
#[derive(Clone, Copy, Debug)]
pub struct StrategyOffer<'a> {
    /// The choice.
    pub choice: &'a Choice,
    /// Those that are open, by index.
    pub open: &'a [usize],
    /// Those that the agent has ranked higher.
    pub ranked: &'a [usize],
}

/// Reason why a strategy has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    /// There is nothing to choose from.
    #[error("there is no option left to choose")]
    NothingOpen,
    /// The reply is not an option at all.
    #[error("the strategy answers `{wanted}`, which is not an option; expected one of {}", texts(.options))]
    NotAnOption {
        /// The reply.
        wanted: String,
        /// The texts of the options.
        options: Vec<String>,
    },
    /// The reply is an option that is not open at this turn.
    #[error("the strategy answers `{wanted}`, which is not open at this turn; open: {}", texts(.open))]
    NotOpen {
        /// The reply.
        wanted: String,
        /// The texts of the options that are open.
        open: Vec<String>,
    },
    /// A script, or a mapping by phase, has no entry for the turn.
    #[error("the strategy has no entry for this turn")]
    NoEntry,
}

fn texts(of: &[String]) -> String {
    of.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

impl Strategy {
    /// The strategy in a phase of this name; none: it has no entry for it.
    pub fn in_phase(&self, name: &str) -> Option<&Self> {
        match self {
            Self::ByPhase(of) => of.iter().find(|(phase, _)| phase == name).map(|(_, strategy)| strategy),
            same => Some(same),
        }
    }

    /// The strategies of which it consists: itself, or that of each phase, with the phase's name.
    pub fn parts(&self) -> impl Iterator<Item = (Option<&str>, &Self)> {
        let (phases, whole): (&[(String, Self)], _) = match self {
            Self::ByPhase(of) => (of, None),
            whole => (&[], Some((None, whole))),
        };
        let phases = phases.iter().map(|(phase, strategy)| (Some(phase.as_str()), strategy));
        phases.chain(whole)
    }

    /// True if a human answers, in any phase.
    pub fn has_human(&self) -> bool {
        self.parts().any(|(_, part)| *part == Self::Human)
    }

    /// True if it answers at random, so that its reply does not follow from the record.
    pub fn is_random(&self) -> bool {
        matches!(self, Self::Random(_))
    }

    /// The reply at the turn of this path and seed. For a human, who is only asked in a run, it is the first
    /// option.
    ///
    /// # Errors
    /// The reply is not one of the options that are open, or there is none for this turn.
    pub fn reply(
        &self,
        path: &str,
        seed: u64,
        offer: Option<StrategyOffer<'_>>,
        recalled: &Recalled,
    ) -> Result<String, NoReply> {
        let Some(offer) = offer else { return self.speech(path, recalled) };
        let mut open = offer.open.to_vec();
        open.sort_unstable();
        let (Some(first), Some(last)) = (open.first().copied(), open.last().copied()) else {
            return Err(NoReply::NothingOpen);
        };
        let wanted = match self {
            Self::TitForTat => recalled.last.unwrap_or(0),
            Self::Grim if recalled.has_defected => offer.choice.options.len() - 1,
            Self::Grim | Self::Human => 0,
            Self::Random(p) => drawn(*p, seed, &open),
            Self::Always(text) => offer.named(text)?,
            Self::List(texts) => offer.named(&texts[recalled.n_replies % texts.len()])?,
            Self::Script(_) | Self::ByPhase(_) => offer.named(self.entry(path)?)?,
        };
        // What is written out is played as written; but in a ranking it may have its place already.
        let is_written = match self {
            Self::Always(_) | Self::List(_) => !offer.ranked.contains(&wanted),
            Self::Script(_) => true,
            _ => false,
        };
        let chosen = match open.contains(&wanted) {
            true => wanted,
            false if is_written => return Err(offer.not_open(wanted)),
            false if wanted == 0 => first,
            false => last,
        };
        Ok(offer.choice.options[chosen].text.clone())
    }

    /// Returns its text where there is no choice.
    fn speech(&self, path: &str, recalled: &Recalled) -> Result<String, NoReply> {
        match self {
            Self::Always(text) => Ok(text.clone()),
            Self::List(texts) => Ok(texts[recalled.n_replies % texts.len()].clone()),
            Self::Script(_) | Self::ByPhase(_) => self.entry(path).cloned(),
            Self::TitForTat | Self::Grim | Self::Random(_) | Self::Human => Ok(String::new()),
        }
    }

    fn entry(&self, path: &str) -> Result<&String, NoReply> {
        let Self::Script(entries) = self else { return Err(NoReply::NoEntry) };
        let entry = entries.iter().find(|(of, _)| of == path);
        entry.map(|(_, text)| text).ok_or(NoReply::NoEntry)
    }
}

impl StrategyOffer<'_> {
    fn named(&self, wanted: &str) -> Result<usize, NoReply> {
        let all = || self.choice.options.iter().map(|option| option.text.clone()).collect();
        let unknown = || NoReply::NotAnOption { wanted: wanted.to_string(), options: all() };
        self.choice.find(wanted).ok_or_else(unknown)
    }

    fn not_open(&self, wanted: usize) -> NoReply {
        let text = |option: usize| self.choice.options[option].text.clone();
        NoReply::NotOpen { wanted: text(wanted), open: self.open.iter().map(|id| text(*id)).collect() }
    }
}

/// The first of these with probability `p`, else one of the others.
fn drawn(p: f64, seed: u64, open: &[usize]) -> usize {
    let others = &open[1..];
    if uniform(seed, 0) < p || others.is_empty() {
        open[0]
    } else {
        others[(uniform(seed, 1) * others.len() as f64) as usize % others.len()]
    }
}

/// The n-th number in [0, 1) of a turn.
fn uniform(seed: u64, n: u64) -> f64 {
    let hash = blake3::derive_key("greenroom 2026 strategy", &[seed.to_le_bytes(), n.to_le_bytes()].concat());
    let word = hash[..8].iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = |entries: Vec<String>| entries.join("; ");
        match self {
            Self::TitForTat => f.write_str("tit_for_tat"),
            Self::Grim => f.write_str("grim"),
            Self::Human => f.write_str("human"),
            Self::Always(text) => write!(f, "always: {text}"),
            Self::Random(p) => write!(f, "random: {p}"),
            Self::List(texts) => write!(f, "list: {}", texts.join(", ")),
            Self::Script(of) => {
                let of = of.iter().map(|(path, text)| format!("{path}: {text}")).collect();
                write!(f, "script: {}", entries(of))
            }
            Self::ByPhase(of) => {
                let of = of.iter().map(|(phase, strategy)| format!("{phase}: {strategy}")).collect();
                write!(f, "by phase: {}", entries(of))
            }
        }
    }
}

impl Agent {
    /// What answers instead of the model in a phase; none: the model does.
    pub fn strategy_in(&self, phase: &Phase) -> Option<&Strategy> {
        self.strategy.as_ref().map(|strategy| strategy.in_phase(&phase.name).unwrap_or(strategy))
    }

    /// True if a human answers for it, in any phase.
    pub fn is_human(&self) -> bool {
        self.strategy.as_ref().is_some_and(Strategy::has_human)
    }
}

impl Scenario {
    /// What answers a turn instead of the model; none: the model does.
    pub fn strategy_of(&self, turn: &Turn) -> Option<&Strategy> {
        self.agent(turn.speaker).strategy_in(self.phase(turn.phase))
    }

    /// True if a human answers a turn.
    pub fn is_human(&self, turn: &Turn) -> bool {
        self.strategy_of(turn) == Some(&Strategy::Human)
    }
}
