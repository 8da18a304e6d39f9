//! The status page's data as JSON: everything once, then the changes.
//!
//! A page gets only its own tenant's memories, requests and turns.

use super::super::App;
use super::super::agents::KnownAgent;
use super::super::live::{ActiveRequest, Live, RequestStage};
use super::super::models::Models;
use super::super::sessions::{Sessions, run_of};
use greenroom_engine::{EngineStatus, SessionStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Minimum interval between requests to the engines.
pub(super) const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of turns that a page gets when it opens.
const MAX_TURNS: usize = 500;
/// Hexadecimal digits of a hash in the name of a memory, and how many of them are shown.
const HASH: usize = 32;
const SHOWN_DIGITS: usize = 6;

/// The engines' states, requested once for all pages.
#[derive(Debug, Default)]
pub(in crate::server) struct Glance(Mutex<Option<(Instant, Seen)>>);

/// The state of each model that is open, by its name.
type Seen = Arc<Vec<(String, EngineStatus)>>;

/// The memories at one moment.
#[derive(Debug)]
pub(super) struct Looked {
    engines: Seen,
    /// The tenant's agents, in RAM or not.
    agents: Vec<KnownAgent>,
}

impl Looked {
    /// The current memories, or those of at most [`STATUS_EVERY`] ago.
    pub(super) async fn now(app: &App, tenant: &str) -> Arc<Self> {
        let engines = app.window.look(&app.models).await;
        Arc::new(Self { engines, agents: app.roster.known_agents(tenant) })
    }
}

impl Glance {
    /// The engines' states, at most [`STATUS_EVERY`] old.
    async fn look(&self, models: &Models) -> Seen {
        let mut latest = self.0.lock().await;
        if let Some((at, seen)) = &*latest
            && at.elapsed() < STATUS_EVERY
        {
            return seen.clone();
        }
        let mut seen = Vec::new();
        for served in models.at_hand() {
            // An engine that has ended is no longer open.
            if let Ok(status) = served.engine().status().await {
                seen.push((served.name.clone(), status));
            }
        }
        seen.sort_by(|(a, _), (b, _)| a.cmp(b));
        let seen = Arc::new(seen);
        *latest = Some((Instant::now(), seen.clone()));
        seen
    }
}

/// What a tenant can see.
pub(super) struct TenantView<'a> {
    live: &'a Live,
    sessions: &'a Sessions,
    tenant: &'a str,
    /// True if keys are required: other tenants may have memories too.
    is_keyed: bool,
    /// Names of all models.
    models: Vec<&'a str>,
    looked: &'a Arc<Looked>,
}

impl<'a> TenantView<'a> {
    pub(super) fn of(app: &'a App, tenant: &'a str, looked: &'a Arc<Looked>) -> Self {
        let models = app.models.names().collect();
        Self {
            live: &app.live,
            sessions: &app.sessions,
            tenant,
            is_keyed: app.tenants.are_asked(),
            models,
            looked,
        }
    }
}

/// What a page has received.
#[derive(Debug, Default)]
pub(super) struct PageState {
    is_begun: bool,
    /// The state that `memories` and `names` belong to.
    looked: Option<Arc<Looked>>,
    /// Names of agents by those of their memories.
    names: BTreeMap<String, String>,
    requests: Vec<Value>,
    memories: BTreeMap<String, MemoryView>,
    /// Number of the latest turn.
    latest: u64,
    spent: PageTokens,
    totals: Value,
}

/// A memory as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct MemoryView {
    /// Unique for each memory: model, run and agent, separated by U+001F.
    id: String,
    name: String,
    /// The run of a scenario that it belongs to; `None`: it is the server's own.
    run: Option<String>,
    model: String,
    tokens: usize,
    /// Tokens whose keys and values are in RAM.
    hot: usize,
    bytes: u64,
    /// True if all of it is on disk; `None`: it is not in RAM, and what is on disk is known only when it is
    /// requested.
    is_saved: Option<bool>,
    is_at_work: bool,
}

impl MemoryView {
    fn in_ram(model: &str, session: &SessionStatus, name: String) -> Self {
        let SessionStatus { key, tokens, bytes_in_memory, tokens_in_memory, is_at_work, is_saved, .. } =
            session;
        Self {
            id: Self::id(model, &key.run, &key.agent),
            name,
            run: Some(key.run.clone()).filter(|run| *run != run_of(model)),
            model: model.to_string(),
            tokens: *tokens,
            hot: *tokens_in_memory,
            bytes: *bytes_in_memory,
            is_saved: Some(*is_saved),
            is_at_work: *is_at_work,
        }
    }

    fn elsewhere(agent: &KnownAgent) -> Self {
        Self {
            id: Self::id(&agent.model, &run_of(&agent.model), &agent.memory),
            name: agent.name.clone(),
            run: None,
            model: agent.model.clone(),
            tokens: agent.tokens,
            hot: 0,
            bytes: 0,
            is_saved: None,
            is_at_work: false,
        }
    }

    fn id(model: &str, run: &str, memory: &str) -> String {
        [model, run, memory].join("\u{1f}")
    }
}

/// Tokens of the turns that a page has received, and of earlier remembered ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PageTokens {
    turns: u64,
    reused: u64,
    computed: u64,
    generated: u64,
}

impl PageState {
    /// Everything that has changed since the last call; `None`: nothing.
    pub(super) fn change(&mut self, view: &TenantView<'_>) -> Option<Value> {
        let mut change = Map::new();
        if !self.is_begun {
            change.insert("full".to_string(), true.into());
        }
        self.memories(view, &mut change);
        self.turns(view, &mut change);
        let requests = view.live.requests(view.tenant);
        self.totals(view, &requests, &mut change);
        self.requests(view, &requests, &mut change);
        self.is_begun = true;
        (!change.is_empty()).then_some(Value::Object(change))
    }

    fn turns(&mut self, view: &TenantView<'_>, change: &mut Map<String, Value>) {
        let past = view.live.past(view.tenant, self.latest);
        let Some(latest) = past.last() else { return };
        self.latest = latest.number;
        for turn in &past {
            self.spent.turns += 1;
            self.spent.reused += turn.reused as u64;
            self.spent.computed += (turn.prefilled + turn.recomputed) as u64;
            self.spent.generated += turn.generated as u64;
        }
        let told = past.iter().skip(past.len().saturating_sub(MAX_TURNS));
        let told: Vec<Value> = told.map(|turn| self.named(view, turn, &turn.memory)).collect();
        change.insert("past".to_string(), told.into());
    }

    fn requests(
        &mut self,
        view: &TenantView<'_>,
        requests: &[ActiveRequest],
        change: &mut Map<String, Value>,
    ) {
        let named = |request: &ActiveRequest| self.named(view, request, &request.memory);
        let new: Vec<Value> = requests.iter().map(named).collect();
        if self.is_begun && new == self.requests {
            return;
        }
        let mut told = new.clone();
        for (value, request) in told.iter_mut().zip(requests) {
            let age = request.since.elapsed().as_millis();
            value["age_ms"] = u64::try_from(age).unwrap_or(u64::MAX).into();
        }
        self.requests = new;
        change.insert("requests".to_string(), told.into());
    }

    fn memories(&mut self, view: &TenantView<'_>, change: &mut Map<String, Value>) {
        if self.looked.as_ref().is_some_and(|looked| Arc::ptr_eq(looked, view.looked)) {
            return;
        }
        self.looked = Some(view.looked.clone());
        let Looked { engines, agents } = &**view.looked;
        self.names = agents.iter().map(|agent| (agent.memory.clone(), agent.name.clone())).collect();
        let mut new: BTreeMap<String, MemoryView> =
            agents.iter().map(MemoryView::elsewhere).map(|memory| (memory.id.clone(), memory)).collect();
        for (model, status) in engines.iter() {
            for session in status.sessions.iter().filter(|session| session.key.tenant == view.tenant) {
                let memory = MemoryView::in_ram(model, session, self.shown_name(view, &session.key.agent));
                new.insert(memory.id.clone(), memory);
            }
        }
        let is_new = |memory: &&MemoryView| self.memories.get(&memory.id) != Some(*memory);
        let changed: Vec<&MemoryView> = new.values().filter(is_new).collect();
        let gone: Vec<&String> = self.memories.keys().filter(|id| !new.contains_key(id.as_str())).collect();
        if !changed.is_empty() {
            change.insert("memories".to_string(), json!(changed));
        }
        if !gone.is_empty() {
            change.insert("gone".to_string(), json!(gone));
        }
        self.memories = new;
    }

    fn totals(&mut self, view: &TenantView<'_>, requests: &[ActiveRequest], change: &mut Map<String, Value>) {
        let of_tenant = self.memories.values().fold(0u64, |sum, memory| sum.saturating_add(memory.bytes));
        // All engines share a budget, and each reports the total of all.
        let engines = &view.looked.engines;
        let of_all = engines.iter().map(|(_, status)| status.memory_bytes).max().unwrap_or(0);
        let waiting = requests.iter().filter(|request| request.stage == RequestStage::Waiting).count();
        let is_open = |name: &str| engines.iter().any(|(open, _)| open == name);
        let models: Vec<Value> =
            view.models.iter().map(|name| json!({ "name": name, "is_open": is_open(name) })).collect();
        let totals = json!({
            "memory_bytes": if view.is_keyed { of_tenant } else { of_all },
            "budget_bytes": engines.iter().map(|(_, status)| status.budget_bytes).max().unwrap_or(0),
            "at_work": requests.len() - waiting,
            "waiting": waiting,
            "spent": self.spent,
            "models": models,
            "is_keyed": view.is_keyed,
        });
        if totals != self.totals {
            change.insert("totals".to_string(), totals.clone());
            self.totals = totals;
        }
    }

    /// A value with the name under which its memory is shown.
    fn named(&self, view: &TenantView<'_>, value: &impl Serialize, memory: &str) -> Value {
        let mut value = serde_json::to_value(value).unwrap_or_default();
        value["name"] = self.shown_name(view, memory).into();
        value
    }

    /// A memory's displayed name: its agent's, the first words of its conversation, or its own. After `#` and `?` comes what is asked of it
    /// besides its turns.
    fn shown_name(&self, view: &TenantView<'_>, memory: &str) -> String {
        let (own, more) = memory.split_at(memory.find(['#', '?']).unwrap_or(memory.len()));
        let known = self.names.get(own).cloned().or_else(|| view.sessions.title(own));
        known.unwrap_or_else(|| short(own)) + more
    }
}

/// A name without the hashes that the server adds.
fn short(memory: &str) -> String {
    let parts = memory.rsplit_once('-').and_then(|(head, tail)| Some((head, tail.split_at_checked(HASH)?)));
    let kind = match parts {
        Some(("agent", _)) => "agent",
        Some(("raw", _)) => "prompt",
        Some((head, _)) if is_hash(head) => "dialogue",
        _ => return memory.to_string(),
    };
    match parts {
        Some((_, (hash, number))) if is_hash(hash) => format!("{kind} {}{number}", &hash[..SHOWN_DIGITS]),
        _ => memory.to_string(),
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_engine::SessionKey;

    fn session(tenant: &str, agent: &str, tokens: usize) -> SessionStatus {
        SessionStatus {
            key: SessionKey { tenant: tenant.to_string(), ..SessionKey::new(run_of("small"), agent) },
            tokens,
            bytes_in_memory: 100,
            tokens_in_memory: tokens,
            is_at_work: false,
            next_use: None,
            is_saved: true,
        }
    }

    fn seen(sessions: Vec<SessionStatus>, agents: Vec<KnownAgent>) -> Arc<Looked> {
        let status = EngineStatus {
            active: 0,
            waiting: 0,
            memory_bytes: 1_000,
            budget_bytes: 4_000,
            token_ms: 0.0,
            sessions,
        };
        Arc::new(Looked { engines: Arc::new(vec![("small".to_string(), status)]), agents })
    }

    fn change(told: &mut PageState, live: &Live, looked: &Arc<Looked>) -> Value {
        let sessions = &Sessions::default();
        let models = vec!["big", "small"];
        let view = TenantView { live, sessions, tenant: "ann", is_keyed: true, models, looked };
        told.change(&view).unwrap_or_default()
    }

    #[test]
    fn a_page_gets_everything_once_and_then_changes() {
        let (live, mut told) = (Live::new(), PageState::default());
        let sessions = vec![session("ann", "a", 1), session("ann", "b", 2), session("ben", "c", 3)];
        let first = seen(sessions, Vec::new());
        let all = change(&mut told, &live, &first);
        assert_eq!(all["full"], true);
        assert_eq!(all["memories"].as_array().unwrap().len(), 2, "{all}");
        assert_eq!(all["totals"]["memory_bytes"], 200, "of the tenant alone");
        assert_eq!(all["totals"]["models"][0]["is_open"], false);
        assert_eq!(all["requests"], json!([]));
        assert_eq!(change(&mut told, &live, &first), Value::Null);

        let later = change(&mut told, &live, &seen(vec![session("ann", "b", 5)], Vec::new()));
        assert_eq!(later["memories"].as_array().unwrap().len(), 1);
        assert_eq!(later["memories"][0]["tokens"], 5);
        assert_eq!(later["gone"], json!(["small\u{1f}serve.small\u{1f}a"]));
        assert!(later["full"].is_null() && later["requests"].is_null());
    }

    #[test]
    fn requests_are_shown_as_they_speak_and_to_their_tenant() {
        let (live, mut told) = (Live::new(), PageState::default());
        let none = seen(Vec::new(), Vec::new());
        change(&mut told, &live, &none);
        let (mine, other) = (live.enter("ann", "chat", "small"), live.enter("ben", "chat", "small"));
        mine.remembers("mira");
        assert_eq!(change(&mut told, &live, &none)["totals"]["waiting"], 1);
        mine.says("Good evening.");
        other.says("Good night.");
        let speaking = change(&mut told, &live, &none);
        assert_eq!(speaking["requests"].as_array().unwrap().len(), 1);
        assert_eq!(speaking["requests"][0]["text"], "Good evening.");
        assert_eq!(speaking["requests"][0]["name"], "mira");
        assert_eq!(speaking["requests"][0]["stage"]["stage"], "speaking");
        drop(mine);
        assert_eq!(change(&mut told, &live, &none)["requests"], json!([]));
    }

    #[test]
    fn agents_are_shown_by_their_names_in_ram_or_not() {
        let known = |name: &str, tokens| KnownAgent {
            name: name.to_string(),
            memory: format!("agent-{name}"),
            model: "small".to_string(),
            tokens,
        };
        let agents = vec![known("mira", 7), known("otto", 9)];
        let all = seen(vec![session("ann", "agent-mira", 8), session("ann", "agent-mira?rank1", 8)], agents);
        let memories = change(&mut PageState::default(), &Live::new(), &all)["memories"].clone();
        let told: Vec<(&str, u64, &Value)> = memories
            .as_array()
            .unwrap()
            .iter()
            .map(|memory| {
                (memory["name"].as_str().unwrap(), memory["tokens"].as_u64().unwrap(), &memory["is_saved"])
            })
            .collect();
        assert_eq!(
            told,
            [("mira", 8, &json!(true)), ("mira?rank1", 8, &json!(true)), ("otto", 9, &Value::Null)]
        );
    }

    #[test]
    fn names_made_of_hashes_are_shortened() {
        let (a, b) = ("0".repeat(HASH), format!("abcdef{}", "1".repeat(HASH - 6)));
        let (live, sessions, looked) = (Live::new(), Sessions::default(), seen(Vec::new(), Vec::new()));
        let (tenant, models, looked) = ("ann", Vec::new(), &looked);
        let view = TenantView { live: &live, sessions: &sessions, tenant, is_keyed: true, models, looked };
        let shown = |memory: &str| PageState::default().shown_name(&view, memory);
        assert_eq!(shown(&format!("{a}-{b}.3")), "dialogue abcdef.3");
        assert_eq!(shown(&format!("{a}-{b}.3#1")), "dialogue abcdef.3#1");
        assert_eq!(shown(&format!("raw-{b}.0")), "prompt abcdef.0");
        assert_eq!(shown(&format!("agent-{b}")), "agent abcdef");
        for other in ["mira", "a-b", "", "-", "#", "mira-é0000000000000000000000000000000.", a.as_str()] {
            assert_eq!(shown(other), other);
        }
    }
}
