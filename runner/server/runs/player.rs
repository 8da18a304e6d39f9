//! A served model as the backend of one run: the sessions belong to the tenant, and end with the run.

use super::super::models::Served;
use super::super::tenants::Tenant;
use crate::backend::{Backend, BoxFuture, Embedded, ModelCard, Reply, Request, Session, Sink};
use crate::scenario::Hints;
use anyhow::bail;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A model that plays.
pub(super) struct Player {
    backend: Embedded,
    tenant: Arc<Tenant>,
    /// Players for the models that the scenario names, and for its own under the empty name.
    named: BTreeMap<String, Arc<dyn Backend>>,
    /// The memories that the run has made.
    sessions: Mutex<BTreeSet<Session>>,
    /// Keeps the model from being closed.
    _served: Arc<Served>,
}

impl Player {
    pub(super) fn new(
        served: Arc<Served>,
        tenant: Arc<Tenant>,
        named: BTreeMap<String, Arc<dyn Backend>>,
    ) -> Self {
        let backend = served.backend.for_tenant(&tenant.name, Some(tenant.meter()));
        Self { backend, tenant, named, sessions: Mutex::default(), _served: served }
    }

    async fn answer(&self, request: Request, sink: Sink) -> anyhow::Result<Reply> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(request.session.clone());
        self.backend.reply(request, sink).await
    }
}

impl Drop for Player {
    /// The run can't be continued, so its memories are removed, also from disk.
    fn drop(&mut self) {
        let sessions = self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (sessions, backend) =
            (std::mem::take(sessions), self.backend.for_tenant(&self.tenant.name, None));
        // This may run in an async runtime, which must not wait for the disk.
        let remover = std::thread::Builder::new().name("greenroom-remover".to_owned());
        let removing = remover.spawn(move || sessions.iter().for_each(|session| backend.remove(session)));
        if let Err(error) = removing {
            tracing::warn!("can't remove a run's memories: {error}");
        }
    }
}

impl Backend for Player {
    fn card(&self) -> ModelCard {
        self.backend.card()
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(self.answer(request, sink))
    }

    fn forget(&self, session: &Session) {
        self.backend.forget(session);
    }

    fn hint_next_use(&self, session: &Session, next_use: u64) {
        self.backend.hint_next_use(session, next_use);
    }

    fn named(&self, name: &str, model: &str) -> anyhow::Result<Option<Arc<dyn Backend>>> {
        match self.named.get(name) {
            Some(player) => Ok(Some(player.clone())),
            None => bail!("this run has no model `{name}` ({model})"),
        }
    }

    fn suggested_sampling(&self) -> Hints {
        self.backend.suggested_sampling()
    }

    fn text(&self, ids: &[u32]) -> String {
        self.backend.text(ids)
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        self.backend.overflows(request)
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.backend.fills_half(request)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.backend.embed(texts)
    }
}
