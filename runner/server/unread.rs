//! The unread rest of a request's body.
//!
//! An answer that is sent before the whole body is read has two problems: a client that is still sending does
//! not read it, and hyper then closes the connection without notice, although the client may have sent its
//! next request. So the rest is read first; if it is too much, the answer says that the connection closes.

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt as _};

/// Maximum time for reading the rest.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The rest of a body, once its reader has released it.
pub(super) struct Unread(oneshot::Receiver<BodyDataStream>);

/// A body that is returned when it is released.
struct Lent {
    pieces: Option<BodyDataStream>,
    back: Option<oneshot::Sender<BodyDataStream>>,
}

/// Lends a request's body to its reader.
pub(super) fn lend(request: Request) -> (Request, Unread) {
    let (back, rest) = oneshot::channel();
    let lent = |body: Body| Lent { pieces: Some(body.into_data_stream()), back: Some(back) };
    (request.map(|body| Body::from_stream(lent(body))), Unread(rest))
}

impl Unread {
    /// Reads the rest, up to `most` bytes; `false`: there is more. (A reader that still has the body reads
    /// it.)
    pub(super) async fn drain(mut self, most: usize) -> bool {
        let Ok(mut rest) = self.0.try_recv() else { return true };
        let drained = async {
            let mut left = most;
            while let Some(piece) = rest.next().await {
                match piece {
                    Ok(piece) if piece.len() <= left => left -= piece.len(),
                    _ => return false,
                }
            }
            true
        };
        tokio::time::timeout(MAX_TIME, drained).await.unwrap_or(false)
    }
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.as_mut().map_or(Poll::Ready(None), |pieces| Pin::new(pieces).poll_next(context))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(pieces), Some(back)) = (self.pieces.take(), self.back.take()) {
            let _ = back.send(pieces); // nobody waits for it where the client has gone
        }
    }
}
