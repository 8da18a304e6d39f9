//! Answers piece by piece, in the format of an API's [`EventEncoder`]: as server-sent events, or as lines of JSON.

use super::ask::{AdmittedAsk, PieceSender, ReplyPiece};
use super::error::Refusal;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of pieces that wait for a slow reader; then the request waits for its reader.
const MAX_WAITING: usize = 64;
/// Interval after which an idle stream sends a comment or the API's own sign of life, which also detects closed
/// connections.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Time beyond the limit for sending the end.
const GRACE: Duration = Duration::from_secs(1);

/// An event.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Its name, if the API names events.
    pub(super) name: Option<&'static str>,
    /// JSON, or `[DONE]`.
    pub(super) data: String,
}

impl Frame {
    /// An event without a name.
    pub(super) fn data(value: &Value) -> Self {
        Self { name: None, data: value.to_string() }
    }

    /// An event with a name.
    pub(super) fn named(name: &'static str, value: &Value) -> Self {
        Self { name: Some(name), data: value.to_string() }
    }

    /// The end, in OpenAI's words.
    pub(super) fn done() -> Self {
        Self { name: None, data: "[DONE]".to_string() }
    }

    /// A line of JSON.
    fn line(self) -> Bytes {
        format!("{}\n", self.data).into()
    }

    fn event(self) -> sse::Event {
        let event = sse::Event::default();
        let event = match self.name {
            Some(name) => event.event(name),
            None => event,
        };
        event.data(self.data)
    }
}

/// An answer in an API's format, event by event.
pub(super) trait EventEncoder: Send + 'static {
    /// Events before the first piece.
    fn begin(&mut self) -> Vec<Frame>;
    /// Events of a piece of the reply of a number.
    fn piece(&mut self, index: usize, piece: ReplyPiece) -> Vec<Frame>;
    /// Events after the last piece.
    fn end(&mut self) -> Vec<Frame>;
    /// Events if the answer breaks off.
    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame>;
    /// What is sent while nothing happens; `None`: a comment, which the API's clients do not see.
    fn idle(&self) -> Option<Frame> {
        None
    }
}

/// The answer to an admitted question, as it is generated. If the reader disconnects, it is cancelled.
pub(super) fn respond(admitted: AdmittedAsk, wording: impl EventEncoder) -> Response {
    let limit = admitted.limit();
    respond_by(limit, |pieces| played(admitted, pieces), wording)
}

/// The same in lines of JSON.
pub(super) fn respond_in_lines(admitted: AdmittedAsk, wording: impl EventEncoder) -> Response {
    let limit = admitted.limit();
    let lines = frames(limit, |pieces| played(admitted, pieces), wording, Frame::line);
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

async fn played(admitted: AdmittedAsk, pieces: PieceSender) -> Result<(), Refusal> {
    admitted.play(Some(&pieces)).await.map(drop)
}

/// The same for an answer that `play` gives, piece by piece. A reader who takes longer than the limit is
/// dropped.
pub(super) fn respond_by<P>(
    limit: Duration,
    play: impl FnOnce(PieceSender) -> P + Send + 'static,
    wording: impl EventEncoder,
) -> Response
where
    P: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let keep_alive = match wording.idle() {
        Some(frame) => keep_alive.event(frame.event()),
        None => keep_alive,
    };
    Sse::new(frames(limit, play, wording, Frame::event)).keep_alive(keep_alive).into_response()
}

/// The frames of an answer, each as `written`.
fn frames<P, T: Send + 'static>(
    limit: Duration,
    play: impl FnOnce(PieceSender) -> P + Send + 'static,
    mut wording: impl EventEncoder,
    written: fn(Frame) -> T,
) -> ReceiverStream<Result<T, Infallible>>
where
    P: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let (events, read) = mpsc::channel::<Result<T, Infallible>>(MAX_WAITING);
    let telling = async move {
        let (pieces, mut said) = mpsc::channel(MAX_WAITING);
        let playing = play(pieces);
        tokio::pin!(playing);
        let mut frames = wording.begin();
        let mut is_over = None;
        loop {
            for frame in frames.drain(..) {
                if events.send(Ok(written(frame))).await.is_err() {
                    return;
                }
            }
            if is_over.is_some() {
                return;
            }
            tokio::select! {
                biased;
                () = events.closed() => return,
                Some((index, piece)) = said.recv() => frames = wording.piece(index, piece),
                played = &mut playing => {
                    while let Ok((index, piece)) = said.try_recv() {
                        frames.extend(wording.piece(index, piece));
                    }
                    frames.extend(match &played {
                        Ok(_) => wording.end(),
                        Err(refusal) => wording.fail(refusal),
                    });
                    is_over = Some(());
                }
            }
        }
    };
    tokio::spawn(tokio::time::timeout(limit + GRACE, telling));
    ReceiverStream::new(read)
}
