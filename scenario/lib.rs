//! Scenarios: the file as written (`schema`), checked into what it means (`check`), and unrolled into a
//! graph of turns (`plan`, `compile`).
//!
//! Files go through one door (`files`). Later stages trust a [`Scenario`]: every reference in it is resolved
//! and every template parses.

pub mod cases;
mod chance;
mod check;
mod choice;
mod compile;
mod copy;
mod encoding;
pub mod evaluate;
mod excerpt;
pub mod files;
mod form;
pub mod hints;
pub mod language;
mod older;
pub mod papers;
mod parse;
mod passes;
mod phase;
mod plan;
pub mod read;
mod remote;
pub mod render;
pub mod results;
mod scenario;
pub mod schema;
mod share;
mod strategy;
pub mod template;
pub mod tools;

pub use cases::CASE;
pub use cases::{Case, CaseId};
pub use chance::{Chance, drawn_order};
pub use check::{CAST, Steps, is_identifier, name_of, name_span, template_error};
pub use check::{
    Loaded, Overrides, load, open, open_below, open_named, open_text, parse_cast, parse_override,
};
pub use choice::text_of;
pub use choice::{Choice, ChoiceMethod, ChoiceOption, Chosen, Decision};
pub use copy::{Copied, copied, write_copy};
pub use excerpt::Excerpt;
pub use form::{Form, MAX_AGAIN};
pub use greenroom_yaml::{NodePlace, Path, PathStep, Tree, diagnostic, parse, repeated_key};
pub use hints::{Given, Hints, Reasoning, Stops};
pub use older::{Migrated, Older, migrate};
pub use phase::*;
pub use plan::{
    Announced, Audience, Change, Condition, Constraint, Edge, Horizon, Input, Plan, Purpose, RoutePoint,
    Seeds, TimelineId, Trigger, Turn, TurnId, turn_seed,
};
pub use remote::{Api, EngineAddress};
pub use scenario::*;
pub use share::Share;
pub use strategy::{NoReply, Recalled, Strategy, StrategyOffer};
pub use template::FIRST_RULES;
pub use tools::{BuiltIn, Tool, ToolId, ToolKind, ToolSpec};
