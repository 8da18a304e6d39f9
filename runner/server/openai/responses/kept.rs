//! Stored responses, which later ones can continue and clients can retrieve.
//!
//! Only texts are kept: `server/sessions` finds the sampled ids and their memory. A response includes
//! everything that it was given, including earlier responses, so it does not depend on these being kept.

use super::input::Item;
use super::output::ResponseObject;
use crate::server::journal::Journal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of responses that are kept; the oldest are dropped first.
const MAX_RESPONSES: usize = 2_000;
/// Maximum size of all of them as JSON, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Maximum size of a recorded response in bytes, because a journal is read in lines of 8 MiB. A larger one is
/// known until the server ends.
const MAX_LINE_BYTES: usize = (8 << 20) - 64;
/// Maximum bytes recorded until the server restarts, because a journal is read up to 1 GiB. Removals are
/// always recorded.
const MAX_WRITTEN_BYTES: usize = 512 << 20;

/// The responses of all tenants.
#[derive(Default)]
pub struct StoredResponses(Mutex<StoredResponsesInner>);

#[derive(Default)]
struct StoredResponsesInner {
    /// Responses by id.
    responses: BTreeMap<String, Stored>,
    /// Ids, oldest first.
    order: VecDeque<String>,
    bytes: usize,
    journal: Journal,
    written_bytes: usize,
}

struct Stored {
    record: Arc<ResponseRecord>,
    bytes: usize,
}

/// A response and its input.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ResponseRecord {
    pub(super) tenant: String,
    /// All items, including those of earlier responses.
    pub(super) input: Vec<Item>,
    pub(super) response: ResponseObject,
}

/// A line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeptLine {
    Put(Arc<ResponseRecord>),
    Delete(String),
}

impl ResponseRecord {
    /// Everything that was read and said, except the instructions.
    pub(super) fn history(&self) -> Vec<Item> {
        [&self.input[..], &self.response.output].concat()
    }
}

impl StoredResponses {
    /// With the journal in a folder; `None`: without a journal.
    ///
    /// # Errors
    /// The journal can't be read or written.
    pub fn open(folder: Option<&Path>) -> anyhow::Result<Self> {
        let inner = Mutex::new(StoredResponsesInner::default());
        let lock = || inner.lock().unwrap_or_else(PoisonError::into_inner);
        let absorb = |line| {
            lock().absorb(line);
        };
        let journal = Journal::open(folder, "responses.jsonl", absorb, || lock().lines())?;
        let mut opened = lock();
        opened.written_bytes = opened.bytes;
        opened.journal = journal;
        drop(opened);
        Ok(Self(inner))
    }

    /// Keeps a response.
    pub(super) fn put(&self, record: ResponseRecord) {
        let line = KeptLine::Put(Arc::new(record));
        let mut inner = self.lock();
        let bytes = inner.absorb(line.clone());
        if bytes <= MAX_LINE_BYTES && inner.written_bytes + bytes <= MAX_WRITTEN_BYTES {
            inner.written_bytes += bytes;
            inner.journal.append(&[line]);
        }
    }

    /// A tenant's response of that id.
    pub(super) fn get(&self, tenant: &str, id: &str) -> Option<Arc<ResponseRecord>> {
        let inner = self.lock();
        let record = &inner.responses.get(id)?.record;
        (record.tenant == tenant).then(|| record.clone())
    }

    /// Removes a tenant's response; `false`: there is none of that id.
    pub(super) fn remove(&self, tenant: &str, id: &str) -> bool {
        let mut inner = self.lock();
        let is_there = inner.responses.get(id).is_some_and(|stored| stored.record.tenant == tenant);
        if is_there {
            let line = KeptLine::Delete(id.to_string());
            inner.absorb(line.clone());
            inner.journal.append(&[line]);
        }
        is_there
    }

    fn lock(&self) -> MutexGuard<'_, StoredResponsesInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredResponsesInner {
    /// Reads a line; returns its size as JSON if it stores a response.
    fn absorb(&mut self, line: KeptLine) -> usize {
        let record = match line {
            KeptLine::Put(record) => record,
            KeptLine::Delete(id) => {
                self.forget(&id);
                return 0;
            }
        };
        let bytes = serde_json::to_vec(&*record).map_or(usize::MAX, |json| json.len());
        if bytes > MAX_BYTES {
            return bytes;
        }
        let id = record.response.id.clone();
        self.forget(&id);
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.responses.insert(id, Stored { record, bytes });
        while (self.order.len() > MAX_RESPONSES || self.bytes > MAX_BYTES)
            && let Some(oldest) = self.order.front().cloned()
        {
            self.forget(&oldest);
        }
        bytes
    }

    fn forget(&mut self, id: &str) {
        if let Some(stored) = self.responses.remove(id) {
            self.bytes -= stored.bytes;
            self.order.retain(|other| other != id);
        }
    }

    fn lines(&self) -> Vec<KeptLine> {
        let records = self.order.iter().filter_map(|id| self.responses.get(id));
        records.map(|stored| KeptLine::Put(stored.record.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::items;
    use super::*;
    use serde_json::json;

    fn record(tenant: &str, id: &str, text: &str) -> ResponseRecord {
        let response = ResponseObject { id: id.to_string(), ..ResponseObject::default() };
        ResponseRecord { tenant: tenant.to_string(), input: items(&json!(text)).unwrap(), response }
    }

    #[test]
    fn a_tenant_gets_and_removes_its_own_responses_alone() {
        let kept = StoredResponses::default();
        kept.put(record("ann", "resp_1", "Hello"));
        assert!(kept.get("ben", "resp_1").is_none());
        assert!(!kept.remove("ben", "resp_1"));
        assert_eq!(kept.get("ann", "resp_1").unwrap().history().len(), 1);
        assert!(kept.remove("ann", "resp_1"));
        assert!(kept.get("ann", "resp_1").is_none());
        assert!(!kept.remove("ann", "resp_1"));
        assert_eq!(kept.lock().bytes, 0);
    }

    #[test]
    fn the_oldest_are_dropped() {
        let kept = StoredResponses::default();
        for n in 0..=MAX_RESPONSES {
            kept.put(record("ann", &format!("resp_{n}"), "Hello"));
        }
        assert!(kept.get("ann", "resp_0").is_none());
        assert!(kept.get("ann", "resp_1").is_some());
        let half = "a".repeat(MAX_BYTES / 2);
        kept.put(record("ann", "large_1", &half));
        kept.put(record("ann", "large_2", &half));
        assert!(kept.get("ann", "large_1").is_none());
        assert!(kept.get("ann", "large_2").is_some());
        kept.put(record("ann", "too_large", &"a".repeat(MAX_BYTES)));
        assert!(kept.get("ann", "too_large").is_none());
        assert!(kept.get("ann", "large_2").is_some());
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        let kept = StoredResponses::default();
        kept.put(record("ann", "resp_1", "Hello"));
        kept.put(record("ben", "resp_2", "Hi"));
        let read = |line: &KeptLine| {
            serde_json::from_str::<KeptLine>(&serde_json::to_string(line).unwrap()).unwrap()
        };
        let mut again = StoredResponsesInner::default();
        for line in kept.lock().lines() {
            again.absorb(read(&line));
        }
        assert_eq!(again.bytes, kept.lock().bytes);
        assert_eq!(again.responses["resp_2"].record, kept.get("ben", "resp_2").unwrap());
        again.absorb(read(&KeptLine::Delete("resp_2".to_string())));
        assert_eq!(again.order, ["resp_1"]);
    }
}
