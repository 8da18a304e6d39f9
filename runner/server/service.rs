//! The server without a socket: requests of the program that it is part of.

use super::{App, Config, Router, app, on_known_path, router};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HOST};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::Stream as _;
use tower::ServiceExt as _;

/// A server for one program: its queue, sessions and agents are those of `greenroom serve`.
#[derive(Clone)]
pub struct Service {
    router: Router,
    /// Ends waiting requests when the last of its copies is dropped.
    _ending: Arc<tokio::sync::watch::Sender<bool>>,
}

/// An answer: its status, and its body as it comes.
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    body: BodyDataStream,
}

impl Answer {
    /// The next piece of the body.
    pub async fn next(&mut self) -> Option<anyhow::Result<Bytes>> {
        let piece = poll_fn(|context| Pin::new(&mut self.body).poll_next(context)).await?;
        Some(piece.map_err(anyhow::Error::from))
    }
}

impl Service {
    /// A server with these settings.
    pub fn new(config: Config) -> Self {
        let (ending, ended) = tokio::sync::watch::channel(false);
        let app: Arc<App> = app(config, ended);
        Self { router: router(app), _ending: Arc::new(ending) }
    }

    /// Answers a request with a body of JSON, within a runtime of tokio.
    ///
    /// # Errors
    /// The method or the path can't be part of a request.
    pub async fn request(&self, method: &str, path: &str, body: String) -> anyhow::Result<Answer> {
        let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        let request = request.header(CONTENT_TYPE, "application/json").body(Body::from(body))?;
        // A router is never not ready.
        let response = match self.router.clone().oneshot(on_known_path(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        Ok(Answer { status: response.status().as_u16(), body: response.into_body().into_data_stream() })
    }
}
