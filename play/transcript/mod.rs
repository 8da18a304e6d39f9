//! The record of a run: JSONL, one event a line, in plan order, each line chained to the one before by hash.
//!
//! It holds what was read and said, nothing of how it was computed: no time, no absolute path, no machine.
//! Equal runs write equal files.

mod drift;
mod odds;
mod read;
mod record;
mod write;

use greenroom_scenario::Scenario;

pub use drift::{Cause, Drift};
pub use odds::Odds;
pub use read::{ReadError, Recorded, Transcript};
pub use record::{
    AgentRecord, AssertionRecord, CallRecord, ChoiceRecord, Continues, Footer, Forked, FormRecord, Header,
    InterTurnRecord, Line, Met, ModelRecord, NamedRecord, OptionRecord, OutcomeRecord, Rejected, RouteRecord,
    SaidRecord, ScenarioRecord, SeedBefore, SettingsBefore, StateRecord, ToldRecord, TurnRecord,
    VerdictRecord, chain, choice_record, form_record,
};
pub use write::{Recorder, same_settings};

/// Version of the format.
pub const FORMAT: u32 = 2;
/// Version of the rules that a recording depends on besides its format: which line breaks of templates stay,
/// what strategies remember, and what is read in a reply in free text. Headers of version 1 don't name it.
pub const RULES: u32 = 2;

/// The rules of a recording of a scenario, as its header has them.
pub fn rules_of(scenario: &Scenario) -> Option<u32> {
    (!scenario.by_first_rules).then_some(RULES)
}

/// Name and version of the program that writes transcripts.
pub const PROGRAM: &str = concat!("greenroom ", env!("CARGO_PKG_VERSION"));
/// Name of the file in a run's folder.
pub const FILE: &str = "transcript.jsonl";

/// Path of the line with what a full memory starts over with before the turn `path`.
pub fn summary_of(path: &str) -> String {
    format!("{path}{SUMMARY}")
}

/// Path of the line of the call number `n`, from 1, of those before the turn `path`.
pub fn call_of(path: &str, n: usize) -> String {
    format!("{path}.call{n}")
}

/// Path of the turn after such a line.
pub fn turn_of(aside: &str) -> &str {
    aside.rsplit_once('.').map_or(aside, |(turn, _)| turn)
}

/// True if a path is that of a line with what a full memory starts over with.
pub fn is_summary(path: &str) -> bool {
    path.ends_with(SUMMARY)
}

/// What the path of such a line ends in.
const SUMMARY: &str = ".summary";
