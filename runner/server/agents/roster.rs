//! The agents of all tenants, by tenant and name, and the journal in which they outlive the server.
//!
//! A request that changes an agent locks it; others wait in the order in which they came. Reading an agent
//! does not wait. An agent is locked from the beginning of a turn to the line that records it, so a turn that
//! fails or is cancelled leaves no trace.

use super::super::error::Refusal;
use super::super::journal::Journal;
use super::agent::{NamedAgent, PastTurn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// Maximum number of agents of a tenant.
const MAX_AGENTS: usize = 10_000;
/// Maximum number of requests that wait for one agent.
const MAX_WAITING: usize = 64;
/// Time after which a request may be retried if too many were waiting.
const RETRY: Duration = Duration::from_secs(2);

/// All agents.
#[derive(Default)]
pub struct Roster(Mutex<RosterInner>);

#[derive(Default)]
struct RosterInner {
    seats: BTreeMap<AgentKey, Seat>,
    journal: Journal,
}

/// Tenant and name.
type AgentKey = (String, String);

struct Seat {
    agent: NamedAgent,
    door: Door,
}

/// Held by the request that changes an agent. A deleted agent's lock is never reused.
type Door = Arc<tokio::sync::Mutex<()>>;

/// Exclusive use of an agent until this is dropped, except for its pin.
pub(super) struct HeldAgent {
    key: AgentKey,
    pub(super) agent: NamedAgent,
    _door: OwnedMutexGuard<()>,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum RosterLine {
    /// An agent was made, replacing any earlier one of this name. The turns that it begins with follow.
    Put {
        tenant: String,
        name: String,
        agent: NamedAgent,
    },
    /// Its turn of that number, counted from 1.
    Turn {
        tenant: String,
        name: String,
        turn: usize,
        past: PastTurn,
    },
    Pin {
        tenant: String,
        name: String,
        is_pinned: bool,
    },
    Delete {
        tenant: String,
        name: String,
    },
}

/// What is known about an agent without asking an engine.
#[derive(Debug)]
pub(in crate::server) struct KnownAgent {
    pub(in crate::server) name: String,
    pub(in crate::server) memory: String,
    pub(in crate::server) model: String,
    pub(in crate::server) tokens: usize,
}

impl Roster {
    /// What is known about each of a tenant's agents.
    pub(in crate::server) fn known_agents(&self, tenant: &str) -> Vec<KnownAgent> {
        self.list(tenant, |name, agent| KnownAgent {
            name: name.to_string(),
            memory: agent.memory.clone(),
            model: agent.definition.model.clone(),
            tokens: agent.tokens(),
        })
    }

    /// With the journal in a folder; `None`: without a journal.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub fn open(folder: Option<&Path>) -> anyhow::Result<Self> {
        let inner = Mutex::new(RosterInner::default());
        let lock = || inner.lock().unwrap_or_else(PoisonError::into_inner);
        let journal = Journal::open(folder, "agents.jsonl", |line| lock().absorb(line), || lock().lines())?;
        lock().journal = journal;
        Ok(Self(inner))
    }

    /// Adds an agent; `false`: one of this name exists already.
    ///
    /// # Errors
    /// The tenant has as many as it may.
    pub(super) fn add(&self, tenant: &str, name: &str, agent: NamedAgent) -> Result<bool, Refusal> {
        let mut inner = self.lock();
        let key = (tenant.to_string(), name.to_string());
        if inner.seats.contains_key(&key) {
            return Ok(false);
        }
        if inner.of(tenant).count() >= MAX_AGENTS {
            return Err(Refusal::conflict(format!("there are already {MAX_AGENTS} agents; delete some")));
        }
        inner.put(key, agent);
        Ok(true)
    }

    /// The current agent.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn find(&self, tenant: &str, name: &str) -> Result<NamedAgent, Refusal> {
        let key = (tenant.to_string(), name.to_string());
        self.lock().seats.get(&key).map(|seat| seat.agent.clone()).ok_or_else(|| missing(name))
    }

    /// What `tell` returns for each of a tenant's agents, by name.
    pub(super) fn list<T>(&self, tenant: &str, tell: impl Fn(&str, &NamedAgent) -> T) -> Vec<T> {
        self.lock().of(tenant).map(|(name, agent)| tell(name, agent)).collect()
    }

    /// Waits for exclusive use of an agent, no longer than `limit`.
    ///
    /// # Errors
    /// There is none of that name (any more), too many wait for it, or it took too long.
    pub(super) async fn hold(&self, tenant: &str, name: &str, limit: Duration) -> Result<HeldAgent, Refusal> {
        let key = (tenant.to_string(), name.to_string());
        let waits = async {
            loop {
                let door = self.lock().seats.get(&key).map(|seat| seat.door.clone());
                let door = door.ok_or_else(|| missing(name))?;
                // Apart from waiting requests, it is held by the agent's seat, the request that locks the
                // agent, and this one.
                if Arc::strong_count(&door) > MAX_WAITING + 2 {
                    return Err(Refusal::too_many(
                        format!("{MAX_WAITING} requests are already waiting for `{name}`"),
                        RETRY,
                    ));
                }
                let opened = door.lock_owned().await;
                // It may have been deleted meanwhile, and another one made.
                if let Some(agent) = self.agent_of_door(&key, OwnedMutexGuard::mutex(&opened)) {
                    return Ok(HeldAgent { key: key.clone(), agent, _door: opened });
                }
            }
        };
        tokio::time::timeout(limit, waits).await.unwrap_or_else(|_| Err(Refusal::timed_out(limit)))
    }

    fn agent_of_door(&self, key: &AgentKey, door: &Door) -> Option<NamedAgent> {
        let inner = self.lock();
        let seat = inner.seats.get(key).filter(|seat| Arc::ptr_eq(&seat.door, door));
        seat.map(|seat| seat.agent.clone())
    }

    /// Adds a turn and records it; returns its number, counted from 1.
    pub(super) fn push_turn(&self, held: &HeldAgent, past: PastTurn) -> usize {
        let mut inner = self.lock();
        let RosterInner { seats, journal } = &mut *inner;
        let Some(seat) = seats.get_mut(&held.key) else { return 0 };
        seat.agent.past.push(past.clone());
        let ((tenant, name), turn) = (held.key.clone(), seat.agent.past.len());
        journal.append(&[RosterLine::Turn { tenant, name, turn, past }]);
        turn
    }

    /// Replaces an agent by another one with the same name.
    pub(super) fn replace(&self, held: &HeldAgent, agent: NamedAgent) {
        self.lock().put(held.key.clone(), agent);
    }

    /// Pins or unpins an agent, and returns it.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn pin(&self, tenant: &str, name: &str, is_pinned: bool) -> Result<NamedAgent, Refusal> {
        let mut inner = self.lock();
        let RosterInner { seats, journal } = &mut *inner;
        let (tenant, key_name) = (tenant.to_string(), name.to_string());
        let seat = seats.get_mut(&(tenant.clone(), key_name.clone())).ok_or_else(|| missing(name))?;
        seat.agent.is_pinned = is_pinned;
        journal.append(&[RosterLine::Pin { tenant, name: key_name, is_pinned }]);
        Ok(seat.agent.clone())
    }

    /// Removes an agent; the caller must remove its memory.
    pub(super) fn remove(&self, held: &HeldAgent) {
        let mut inner = self.lock();
        let RosterInner { seats, journal } = &mut *inner;
        if seats.remove(&held.key).is_some() {
            let (tenant, name) = held.key.clone();
            journal.append(&[RosterLine::Delete { tenant, name }]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RosterInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RosterInner {
    /// Names and agents of a tenant.
    fn of<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = (&'a str, &'a NamedAgent)> {
        let from = self.seats.range((tenant.to_string(), String::new())..);
        let own = from.take_while(move |((of, _), _)| of.as_str() == tenant);
        own.map(|((_, name), seat)| (name.as_str(), &seat.agent))
    }

    fn put(&mut self, key: AgentKey, agent: NamedAgent) {
        self.journal.append(&lines(&key, &agent));
        self.seats.insert(key, Seat { agent, door: Door::default() });
    }

    fn absorb(&mut self, line: RosterLine) {
        match line {
            RosterLine::Put { tenant, name, agent } => {
                self.seats.insert((tenant, name), Seat { agent, door: Door::default() });
            }
            RosterLine::Turn { tenant, name, turn, past } => {
                let seat = self.seats.get_mut(&(tenant, name));
                // After a lost line, the memory of what follows would belong to another agent.
                if let Some(seat) = seat.filter(|seat| seat.agent.past.len() + 1 == turn) {
                    seat.agent.past.push(past);
                }
            }
            RosterLine::Pin { tenant, name, is_pinned } => {
                if let Some(seat) = self.seats.get_mut(&(tenant, name)) {
                    seat.agent.is_pinned = is_pinned;
                }
            }
            RosterLine::Delete { tenant, name } => drop(self.seats.remove(&(tenant, name))),
        }
    }

    fn lines(&self) -> Vec<RosterLine> {
        self.seats.iter().flat_map(|(key, seat)| lines(key, &seat.agent)).collect()
    }
}

/// The lines of an agent.
fn lines(key: &AgentKey, agent: &NamedAgent) -> Vec<RosterLine> {
    let (tenant, name) = key.clone();
    let turns = agent.past.iter().enumerate().map(|(at, past)| {
        let (tenant, name) = key.clone();
        RosterLine::Turn { tenant, name, turn: at + 1, past: past.clone() }
    });
    [RosterLine::Put { tenant, name, agent: agent.clone() }].into_iter().chain(turns).collect()
}

fn missing(name: &str) -> Refusal {
    Refusal::missing("name", format!("the agent `{name}` does not exist"))
}

#[cfg(test)]
mod tests {
    use super::super::agent::{Definition, PastReply};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn agent() -> NamedAgent {
        let definition = Definition {
            model: "m".to_string(),
            system: Some("You are Ada.".to_string()),
            tools: None,
            temperature: Some(0.7),
            top_p: None,
            max_tokens: None,
            stop: Vec::new(),
        };
        NamedAgent::new(definition, None)
    }

    fn past(heard: &str) -> PastTurn {
        let said =
            PastReply::Call { tool: "look".to_string(), arguments: serde_json::json!({ "at": heard }) };
        PastTurn { heard: heard.to_string(), ids: [1, 2].into(), said, tokens: 9, at: 3 }
    }

    #[tokio::test]
    async fn a_roster_outlives_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let write = async |roster: &Roster| {
            assert!(roster.add("t", "ada", agent()).unwrap());
            assert!(!roster.add("t", "ada", agent()).unwrap());
            let held = roster.hold("t", "ada", LIMIT).await.unwrap();
            assert_eq!(roster.push_turn(&held, past("one")), 1);
            assert_eq!(roster.push_turn(&held, past("two")), 2);
            drop(held);
            let ada = roster.find("t", "ada").unwrap();
            assert!(roster.add("t", "bob", ada.fork(1)).unwrap());
            roster.pin("t", "bob", true).unwrap();
            assert!(roster.add("t", "eve", agent()).unwrap());
            roster.remove(&roster.hold("t", "eve", LIMIT).await.unwrap());
            ada
        };
        // The process holds the lock as long as it lives, so the test reads the written file elsewhere.
        let ada = write(&Roster::open(Some(folder.path())).unwrap()).await;
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::copy(folder.path().join("agents.jsonl"), elsewhere.path().join("agents.jsonl")).unwrap();
        let again = Roster::open(Some(elsewhere.path())).unwrap();
        assert_eq!(again.list("t", |name, _| name.to_string()), ["ada", "bob"]);
        let (known, bob) = (again.find("t", "ada").unwrap(), again.find("t", "bob").unwrap());
        assert_eq!(known.memory, ada.memory);
        assert_eq!(known.conversation("three"), ada.conversation("three"));
        assert!(known.definition.differences(&ada.definition).is_empty());
        assert_eq!((bob.past.len(), bob.is_pinned, bob.parent), (1, true, Some(ada.memory)));
        assert_eq!(again.find("u", "ada").unwrap_err().status(), 404, "another tenant's");
    }

    #[tokio::test]
    async fn one_request_at_a_time_holds_an_agent() {
        let roster = Roster::default();
        roster.add("t", "ada", agent()).unwrap();
        let held = roster.hold("t", "ada", LIMIT).await.unwrap();
        assert_eq!(roster.hold("t", "ada", LIMIT).await.err().unwrap().status(), 504);
        let waits = roster.hold("t", "ada", LIMIT);
        let goes = async {
            roster.remove(&held);
            drop(held);
        };
        let (waited, ()) = tokio::join!(waits, goes);
        assert_eq!(waited.err().unwrap().status(), 404, "it is gone");
    }
}
