//! State of the engine, computed on request.

use super::Worker;
use crate::EngineStatus;
use std::collections::HashSet;

impl Worker {
    /// Active turns, waiting turns, and what is in memory.
    pub(super) fn status(&self) -> EngineStatus {
        let mut sessions = self.memory.sessions();
        let known: HashSet<_> = sessions.iter().map(|status| status.key.clone()).collect();
        let at_work = self.at_work().filter(|turn| !known.contains(&turn.request.session));
        sessions.extend(at_work.map(|turn| {
            let status = turn.session.status(&turn.request.session, &self.memory.arena);
            let next_use = turn.request.next_use;
            crate::SessionStatus { is_at_work: true, is_saved: false, next_use, ..status }
        }));
        sessions.sort_by(|a, b| a.key.cmp(&b.key));
        EngineStatus {
            active: self.at_work().count(),
            waiting: self.waiting.iter().filter(|waiting| !waiting.events.is_closed()).count(),
            memory_bytes: self.memory.all_bytes(),
            budget_bytes: self.memory.budget(),
            token_ms: self.memory.token_ms,
            sessions,
        }
    }
}
