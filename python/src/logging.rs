//! Warnings of the program as records of Python's `logging`, by the logger `greenroom`.

use pyo3::prelude::*;
use std::fmt::{Debug, Write as _};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Sends warnings there from now on.
pub(crate) fn begin() {
    // A second subscriber is refused; the first one serves.
    let _ = tracing_subscriber::registry().with(ToPython.with_filter(LevelFilter::WARN)).try_init();
}

struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        // Where Python shuts down, or its logging fails, nobody is left to read it.
        let _ = Python::try_attach(|py| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("greenroom",))?;
            logger.call_method1(method, ("%s", message.0)).map(drop)
        });
    }
}

/// The message of an event, and its fields.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String can't fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
