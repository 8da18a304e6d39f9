//! Commands that another program calls, which gets back what they would print. All rules are the program's.

use super::host::Host;
use super::machine::Machine;
use super::serve::name_of;
use super::{Cli, failed};
use crate::backend::Pool;
use crate::server::{self, Doors, Models, Queue, Roster, Service, Sessions, StoredResponses, Tenants};
use crate::terminal::output::captured;
use clap::Parser as _;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// What a called command did.
#[derive(Debug)]
pub struct Called {
    /// The exit code of the program.
    pub exit: u8,
    /// What it would have printed to standard output.
    pub out: String,
    /// What it would have printed to standard error.
    pub err: String,
}

/// Calls a command with the arguments of the program, without the program's name, on this thread.
pub fn call(args: impl IntoIterator<Item = OsString>, host: Host) -> Called {
    let args = [OsString::from("greenroom")].into_iter().chain(args);
    let (exit, written) = captured(|| match Cli::try_parse_from(args) {
        Ok(cli) => cli.command.hosted(host).run().unwrap_or_else(|error| failed(&error)) as u8,
        Err(shown) => super::print_clap_error(&shown),
    });
    Called { exit, out: written.out, err: written.err }
}

/// Requests of a program that are answered at once, and that may wait; it has no other clients to share with.
const PARALLEL: usize = 256;
const QUEUE: usize = 100_000;
/// The longest that a request may take, and its most bytes.
const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_BODY: usize = 1 << 28;

/// A model that a program has opened for its calls.
pub struct Opened {
    /// The model, and others that scenarios name.
    pub pool: Arc<Pool>,
    /// The model as it was named.
    pub model: String,
}

/// Flags for the model and its memories, as `greenroom run` has them.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true)]
struct Flags {
    #[command(flatten)]
    machine: Machine,
}

impl Opened {
    /// The server of this model for the program itself, with the same memories as `greenroom serve`. `None`: the
    /// model is an engine elsewhere.
    ///
    /// # Errors
    /// What earlier requests left can't be read.
    pub fn service(&self) -> anyhow::Result<Option<Service>> {
        let Some(embedded) = self.pool.embedded() else { return Ok(None) };
        let config = self.pool.config().clone();
        let folder = config.cache_dir.as_ref().map(|folder| folder.join("server"));
        let (sessions, kept) =
            (Sessions::open(folder.as_deref())?, StoredResponses::open(folder.as_deref())?);
        let (tenants, roster) = (Tenants::one(&config.tenant), Roster::open(folder.as_deref())?);
        let file = config.model.clone();
        Ok(Some(Service::new(server::Config {
            models: Models::of(&name_of(&self.model), file, embedded, config),
            sessions,
            kept,
            roster,
            tenants,
            queue: Queue::new(PARALLEL, QUEUE),
            timeout: TIMEOUT,
            max_body: MAX_BODY,
            doors: Doors::new(Vec::new(), Vec::new(), false, false)?,
            date: None,
        })))
    }
}

/// Opens a model with the flags of the program that concern it: `--model`, `--device`, `--kv`, `--cache-dir` and so
/// on.
///
/// # Errors
/// A flag is wrong, or the model can't be found or opened.
pub fn open(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Opened> {
    let Flags { machine } = Flags::try_parse_from(args)
        .map_err(|error| anyhow::anyhow!("{}", error.to_string().trim_start_matches("error: ").trim_end()))?;
    let given = super::casting::by_name(&machine.model.given)?;
    let model = given.get("").map_or("understudy", String::as_str).to_string();
    let others: BTreeSet<String> = given.into_values().collect();
    let pool = machine.open_pool(&others, &model, true)?;
    Ok(Opened { pool: Arc::new(pool), model })
}
