//! Servers that are programs: a message a line on their standard streams.

use super::messages::{self, Failure, Incoming, MAX_MESSAGE};
use crate::tools::program::Process;
use crate::tools::streams::ServerStreams;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};

/// A running program; it ends with this value.
pub(super) struct ProcessTransport {
    process: tokio::sync::Mutex<Process>,
    outgoing: mpsc::UnboundedSender<String>,
    heard: Arc<Heard>,
}

/// Those who wait for responses, by the numbers of their requests.
type Waiting = BTreeMap<u64, oneshot::Sender<Result<Value, String>>>;

/// What is heard of a program.
#[derive(Default)]
struct Heard {
    streams: ServerStreams,
    /// `None`: the program's output has ended.
    waiting: Mutex<Option<Waiting>>,
}

impl ProcessTransport {
    /// Starts a program in a folder.
    ///
    /// # Errors
    /// It can't be started.
    pub(super) fn start(line: &[String], folder: &Path) -> anyhow::Result<Self> {
        let mut process = Process::start(line, folder).map_err(anyhow::Error::msg)?;
        let child = &mut process.child;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("it has no pipes");
        };
        let heard = Arc::new(Heard { waiting: Mutex::new(Some(BTreeMap::new())), ..Heard::default() });
        let hearing = heard.clone();
        tokio::spawn(async move { hearing.streams.hear_error(stderr).await });
        let (outgoing, lines) = mpsc::unbounded_channel();
        tokio::spawn(write(stdin, lines));
        tokio::spawn(hear(stdout, heard.clone(), outgoing.clone()));
        Ok(Self { process: process.into(), outgoing, heard })
    }

    /// Sends a request, and waits for its result.
    pub(super) async fn request(&self, id: u64, message: &Value) -> Result<Value, Failure> {
        let (responder, response) = oneshot::channel();
        match &mut *self.heard.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => _ = waiting.insert(id, responder),
            // The receiver learns that nobody will answer.
            None => drop(responder),
        }
        self.send(message);
        match response.await {
            Ok(outcome) => outcome.map_err(Failure::Refused),
            Err(_) => Err(self.end().await),
        }
    }

    /// Sends a message that has no response.
    pub(super) fn notify(&self, message: &Value) -> Result<(), Failure> {
        self.send(message);
        Ok(())
    }

    fn send(&self, message: &Value) {
        // Where nobody reads any more, the end of the output tells it.
        let _ = self.outgoing.send(format!("{message}\n"));
    }

    /// The failure of a request to a program whose output has ended.
    async fn end(&self) -> Failure {
        match self.process.lock().await.end().await {
            Some(status) => Failure::Ended(self.heard.streams.end(status).await),
            None => Failure::Broken("it closed its standard output".into()),
        }
    }

    /// True if something that it wrote since the last call of this was not UTF-8.
    pub(super) fn was_odd(&self) -> bool {
        self.heard.streams.was_odd()
    }

    /// The last line of output that was no message, as the end of a reason.
    pub(super) fn stray(&self) -> String {
        self.heard.streams.stray()
    }
}

/// Writes lines to a program. A task of its own does, so that a request that is given up leaves no half of a
/// line.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(line.as_bytes()).await.is_err() {
            break;
        }
    }
}

/// Hands over the responses in a program's output to those who wait for them, to its end.
async fn hear(stdout: ChildStdout, heard: Arc<Heard>, outgoing: mpsc::UnboundedSender<String>) {
    let take = |line: &str| {
        for message in serde_json::from_str(line).map(messages::read).unwrap_or_default() {
            match message {
                Incoming::Response { id: Some(id), outcome } => heard.hand_over(id, outcome),
                Incoming::Request(answer) => _ = outgoing.send(format!("{answer}\n")),
                Incoming::Response { id: None, .. } | Incoming::Other => {}
            }
        }
    };
    heard.streams.hear(stdout, MAX_MESSAGE, take).await;
    *heard.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

impl Heard {
    fn hand_over(&self, id: u64, outcome: Result<Value, String>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(responder) = waiting.as_mut().and_then(|waiting| waiting.remove(&id)) {
            // A request that was given up has no receiver.
            let _ = responder.send(outcome);
        }
    }
}
