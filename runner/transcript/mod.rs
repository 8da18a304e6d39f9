//! The record of a run: JSONL, one event a line, in plan order, each line chained to the one before by hash.
//!
//! It holds what was read and said, nothing of how it was computed: no time, no absolute path, no machine.
//! Equal runs write equal files.

mod drift;
mod read;
mod record;
mod write;

pub use drift::{Cause, Drift};
pub use read::{ReadError, Recorded, Transcript};
pub use record::{
    AgentRecord, Continues, Footer, Header, Line, ModelRecord, SamplingRecord, ScenarioRecord, TurnRecord,
};
pub use write::Recorder;

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Name of the file in a run's folder.
pub const FILE: &str = "transcript.jsonl";
