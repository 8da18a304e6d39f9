//! Agents as files: a line of JSON with the definition and the conversation, followed by the memory as the
//! engine exports it.
//!
//! Nothing is buffered in memory or on disk: the engine's thread writes directly to the answer, and reads
//! from the request. A file is checked, never trusted. Its first line has the conversation; if the keys and
//! values after it belong to something else, the engine does not use them and prefills what differs.

use super::super::error::Refusal;
use super::super::{AuthTenant, Shared, sessions};
use super::agent::{Definition, NamedAgent, PastReply, PastTurn};
use super::api::{fits, is_name, key};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::{Date, Engine, Imported, Meter, SessionKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

/// Version of the first line.
const VERSION: u32 = 1;
/// Maximum bytes of the first line.
const MAX_HEAD_BYTES: u64 = 32 << 20;
/// Bytes of a piece of an answer.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for the other side.
const MAX_WAITING: usize = 8;

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    greenroom_agent: u32,
    definition: Definition,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date: Option<Date>,
    past: Vec<PastTurn>,
}

/// `GET /v1/agents/{name}/export`: the agent is locked until everything is written.
pub(super) async fn export(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    tenant.ask()?;
    let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
    let served = app.models.get(&held.agent.definition.model).await?;
    let memory = sessions::key(&tenant.name, &held.agent.definition.model, held.agent.remembers_in());
    let (definition, date, past) = (held.agent.definition.clone(), held.agent.date, held.agent.past.clone());
    let past_is_empty = past.is_empty();
    let head = serde_json::to_vec(&Head { greenroom_agent: VERSION, definition, date, past });
    let head = head.map_err(|error| Refusal::internal(error.to_string()))?;
    let (pieces, mut written) = mpsc::channel(MAX_WAITING);
    tokio::task::spawn_blocking(move || {
        let _held = held;
        // The first line leaves the buffer together with the memory's beginning, so that a refusal can
        // replace both.
        let room = head.len() + 1 + PIECE_BYTES;
        let mut file = BufWriter::with_capacity(room, ChunkWriter(pieces.clone()));
        let exported =
            file.write_all(&head).and_then(|()| file.write_all(b"\n")).map_err(|error| broken(&error));
        let exported = exported.and_then(|()| match past_is_empty {
            true => Ok(()),
            false => Ok(served.engine().export(&memory, &mut file).map(drop)?),
        });
        let exported = exported.and_then(|()| file.flush().map_err(|error| broken(&error)));
        if let Err(refusal) = exported {
            // What is left in the buffer is not sent.
            let _ = file.into_parts();
            let _ = pieces.blocking_send(Err(refusal));
        }
    });
    let first = written.recv().await.ok_or_else(|| Refusal::internal("the export failed"))??;
    let rest = ReceiverStream::new(written).map(|piece: Result<Bytes, Refusal>| {
        piece.map_err(|refusal| io::Error::other(refusal.message().to_string()))
    });
    let body = Body::from_stream(tokio_stream::once(Ok(first)).chain(rest));
    Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// `PUT /v1/agents/{name}/import`: the agent must not exist yet.
pub(super) async fn import(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    is_name("name", &name)?;
    tenant.ask()?;
    let taken = Refusal::conflict(format!("the agent `{name}` already exists"));
    if app.roster.find(&tenant.name, &name).is_ok() {
        return Err(taken);
    }
    let runtime = tokio::runtime::Handle::current();
    let (pieces, read) = mpsc::channel(MAX_WAITING);
    let reading = tokio::task::spawn_blocking(move || {
        let mut file = BufReader::new(Arriving { pieces: read, piece: Bytes::new() });
        let Head { definition, date, past, .. } = Head::read(&mut file)?;
        let served = runtime.block_on(app.models.get(&definition.model))?;
        checked(served.engine(), &definition, &past)?;
        let agent = NamedAgent { past, ..NamedAgent::new(definition, date) };
        let imported = import_memory(served.engine(), &key(&tenant, &agent), &tenant.meter(), &mut file)?;
        if !app.roster.add(&tenant.name, &name, agent)? {
            return Err(taken);
        }
        Ok(json!({ "name": name, "memory": imported }))
    });
    pass_on(body.into_data_stream(), &pieces).await;
    drop(pieces);
    let described = reading.await.map_err(|error| Refusal::internal(error.to_string()))??;
    Ok((StatusCode::CREATED, Json(described)))
}

/// Imports the memory after the first line, and reports the result; an agent that has not spoken has none.
/// The engine reads again what it can't import.
fn import_memory(
    engine: &Engine,
    key: &SessionKey,
    meter: &Meter,
    from: &mut impl BufRead,
) -> Result<Value, Refusal> {
    if from.fill_buf().map_err(|error| broken(&error))?.is_empty() {
        return Ok(json!({ "tokens": 0, "is_verbatim": true, "reason": null }));
    }
    let Imported { tokens, is_verbatim, reason } = engine.import(from, key, false)?;
    if !is_verbatim {
        meter.add(tokens);
    }
    Ok(json!({ "tokens": tokens, "is_verbatim": is_verbatim, "reason": reason }))
}

/// Refuses a conversation that can't belong to this model, or can't be recorded.
fn checked(engine: &Engine, definition: &Definition, past: &[PastTurn]) -> Result<(), Refusal> {
    fits("definition", definition)?;
    let n_vocab = engine.model().n_vocab;
    for (at, turn) in past.iter().enumerate() {
        let place = format!("past[{at}]");
        fits(&place, turn)?;
        let is_known = turn.ids.iter().all(|id| (*id as usize) < n_vocab);
        let is_said = match &turn.said {
            // The ids of a choice may begin with a space that its text has not.
            PastReply::Text(text) => is_known && engine.decode(&turn.ids).trim_start() == text.trim_start(),
            PastReply::Call { .. } | PastReply::CutCall(_) => is_known,
        };
        if !is_said {
            return Err(Refusal::field(&place, "the reply's ids do not match its text in this model"));
        }
    }
    Ok(())
}

impl Head {
    fn read(file: &mut impl BufRead) -> Result<Self, Refusal> {
        let mut line = Vec::new();
        file.take(MAX_HEAD_BYTES).read_until(b'\n', &mut line).map_err(|error| broken(&error))?;
        let head: Self = super::super::body::read(&line)?;
        if head.greenroom_agent != VERSION {
            let found = head.greenroom_agent;
            return Err(Refusal::request(format!("the file has version {found}; expected {VERSION}")));
        }
        Ok(head)
    }
}

fn broken(error: &io::Error) -> Refusal {
    Refusal::request(format!("the transfer failed: {error}"))
}

/// Passes on a body's chunks, until it ends or the receiver is gone.
async fn pass_on(
    mut body: impl Stream<Item = Result<Bytes, axum::Error>> + Unpin,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
) {
    while let Some(piece) = body.next().await {
        let is_broken = piece.is_err();
        if pieces.send(piece.map_err(io::Error::other)).await.is_err() || is_broken {
            return;
        }
    }
}

/// Writes into an answer, piece by piece.
struct ChunkWriter(mpsc::Sender<Result<Bytes, Refusal>>);

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads from a request, piece by piece.
struct Arriving {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece?,
            }
        }
        let n = to.len().min(self.piece.len());
        to[..n].copy_from_slice(&self.piece.split_to(n));
        Ok(n)
    }
}
