//! A response as it is generated, event by event. A request without a stream uses the same code, so both give
//! the same response.

use super::super::words::{diagnostics, explained};
use super::events::ResponseEvents;
use super::input::Item;
use super::kept::ResponseRecord;
use super::output::ResponseObject;
use super::request::ResponsesBody;
use crate::server::App;
use crate::server::answer::CompletedReply;
use crate::server::ask::{AdmittedAsk, ReplyPiece};
use crate::server::dialogue::Dialogue;
use crate::server::error::Refusal;
use crate::server::stream::{EventEncoder, Frame};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum number of pieces that wait to be taken.
const MAX_WAITING: usize = 64;

/// An unfinished response, and what to do with it.
pub(super) struct ResponseStream {
    app: Arc<App>,
    tenant: String,
    dialogue: Dialogue,
    /// Its whole input, including earlier responses, except the instructions.
    input: Vec<Item>,
    explains: bool,
    compares: Option<String>,
    events: ResponseEvents,
}

impl ResponseStream {
    pub(super) fn new(
        app: Arc<App>,
        tenant: &str,
        body: &ResponsesBody,
        input: Vec<Item>,
        dialogue: Dialogue,
    ) -> Self {
        Self {
            app,
            tenant: tenant.to_string(),
            dialogue,
            input,
            explains: body.greenroom,
            compares: body.compares(),
            events: ResponseEvents::new(body.begin(), body.has_logprobs()),
        }
    }

    /// The whole response.
    ///
    /// # Errors
    /// As [`AdmittedAsk::play`].
    pub(super) async fn whole(mut self, admitted: AdmittedAsk) -> Result<ResponseObject, Refusal> {
        let (pieces, mut said) = mpsc::channel(MAX_WAITING);
        let playing = async move { admitted.play(Some(&pieces)).await };
        let listening = async {
            while let Some((index, piece)) = said.recv().await {
                self.piece(index, piece);
            }
        };
        let (played, ()) = tokio::join!(playing, listening);
        played?;
        self.end();
        Ok(self.events.response)
    }

    /// Adds how the prompt matched the memory, and why it did not match better.
    fn account(&mut self, answer: &CompletedReply) {
        let response = &mut self.events.response;
        self.app.recent.keep(&self.tenant, &response.id, &response.model, &self.dialogue, answer);
        if self.explains {
            response.greenroom = Some(explained(answer));
        }
        if !answer.warnings.is_empty() {
            response.greenroom.get_or_insert_default()["warnings"] = serde_json::json!(answer.warnings);
        }
        if let Some(earlier) = &self.compares {
            let asked = (&*self.app, self.tenant.as_str(), response.model.as_str());
            response.prompt_cache_diagnostics = Some(diagnostics(asked, earlier, &self.dialogue, answer));
        }
    }
}

impl EventEncoder for ResponseStream {
    fn begin(&mut self) -> Vec<Frame> {
        self.events.begin()
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        if let ReplyPiece::Ended(answer) = &piece {
            self.account(answer);
        }
        self.events.piece(piece)
    }

    fn end(&mut self) -> Vec<Frame> {
        let response = &self.events.response;
        if response.store {
            let input = std::mem::take(&mut self.input);
            self.app.kept.put(ResponseRecord {
                tenant: self.tenant.clone(),
                input,
                response: response.clone(),
            });
        }
        self.events.end()
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        self.events.fail(refusal)
    }
}
