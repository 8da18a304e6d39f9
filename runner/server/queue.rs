//! Who is served next: a bounded queue, fair between tenants.
//!
//! A place goes to the tenant with the fewest active requests (among equals, to the one that was served
//! longest ago). Among a tenant's requests, those whose memory is in RAM come first, unless another has
//! waited longer than a limit; otherwise the oldest.

use super::error::Refusal;
use super::tenants::Tenant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a request whose memory is not in RAM may be passed over.
const MAX_PASSED_OVER: Duration = Duration::from_secs(2);
/// Assumed duration of a request in seconds, until one has ended.
const FIRST_GUESS: f64 = 2.0;

/// The queue.
#[derive(Debug)]
pub struct Queue {
    /// Maximum number of active requests.
    places: usize,
    /// Maximum number of waiting requests.
    room: usize,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: Vec<Waiting>,
    /// Active requests and the time of the latest, by tenant.
    tenants: BTreeMap<String, AtWork>,
    at_work: usize,
    clock: u64,
    /// Recent mean duration of a request, in seconds.
    seconds: Option<f64>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct AtWork {
    n: usize,
    latest: u64,
}

#[derive(Debug)]
struct Waiting {
    tenant: String,
    is_warm: bool,
    since: Instant,
    admitted: oneshot::Sender<QueuePlace>,
}

/// A place in the queue; wait for it to be served.
#[derive(Debug)]
pub(super) struct Ticket(oneshot::Receiver<QueuePlace>);

/// The right to be active, until it is dropped.
#[derive(Debug)]
pub(super) struct QueuePlace {
    queue: Arc<Queue>,
    tenant: String,
    began: Instant,
}

/// Figures of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) at_work: usize,
    pub(super) waiting: usize,
}

impl Queue {
    /// A queue with these numbers of active and waiting requests.
    pub fn new(places: usize, room: usize) -> Arc<Self> {
        Arc::new(Self { places: places.max(1), room, state: Mutex::default() })
    }

    /// Joins the queue. `is_warm`: the requested memory is in RAM.
    ///
    /// # Errors
    /// The queue is full, the tenant has as many in it as it may, or the server is shutting down.
    pub(super) fn enter(self: &Arc<Self>, tenant: &Tenant, is_warm: bool) -> Result<Ticket, Refusal> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Refusal::ending());
        }
        state.waiting.retain(|waiting| !waiting.admitted.is_closed());
        let of_tenant = state.waiting.iter().filter(|waiting| waiting.tenant == tenant.name).count()
            + state.tenants.get(&tenant.name).map_or(0, |at_work| at_work.n);
        if let Some(most) = tenant.limits.at_once.filter(|most| of_tenant >= *most) {
            return Err(Refusal::too_many(
                format!("at most {most} requests at once are allowed"),
                state.wait(1, self.places),
            ));
        }
        if state.at_work >= self.places && state.waiting.len() >= self.room {
            let wait = state.wait(state.waiting.len(), self.places);
            return Err(Refusal::too_many(
                format!("{} requests are already waiting", state.waiting.len()),
                wait,
            ));
        }
        let (admitted, ticket) = oneshot::channel();
        state.waiting.push(Waiting { tenant: tenant.name.clone(), is_warm, since: Instant::now(), admitted });
        self.admit(state);
        Ok(Ticket(ticket))
    }

    /// Admits no more requests; waiting ones are refused.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.clear();
    }

    /// Maximum number of active requests.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    pub(super) fn load(&self) -> Load {
        let state = self.state();
        Load { at_work: state.at_work, waiting: state.waiting.len() }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>) {
        let mut refused = Vec::new();
        while state.at_work < self.places
            && let Some(next) = state.next(Instant::now())
        {
            let Waiting { tenant, admitted, .. } = state.waiting.remove(next);
            state.clock += 1;
            let clock = state.clock;
            let at_work = state.tenants.entry(tenant.clone()).or_default();
            (at_work.n, at_work.latest) = (at_work.n + 1, clock);
            state.at_work += 1;
            let place = QueuePlace { queue: self.clone(), tenant, began: Instant::now() };
            refused.extend(admitted.send(place).err());
        }
        drop(state);
        drop(refused); // a client that went away meanwhile: its place is given to the next
    }

    fn leave(self: &Arc<Self>, tenant: &str, took: Duration) {
        let mut state = self.state();
        state.at_work -= 1;
        if let Some(at_work) = state.tenants.get_mut(tenant) {
            at_work.n -= 1;
        }
        let before = state.seconds.unwrap_or(took.as_secs_f64());
        state.seconds = Some(before * 0.8 + took.as_secs_f64() * 0.2);
        self.admit(state);
    }
}

impl QueueState {
    /// The request to serve next.
    fn next(&self, now: Instant) -> Option<usize> {
        let standing = |waiting: &Waiting| {
            self.tenants.get(&waiting.tenant).map_or((0, 0), |at_work| (at_work.n, at_work.latest))
        };
        let is_late = |waiting: &Waiting| now.duration_since(waiting.since) >= MAX_PASSED_OVER;
        let late = self.waiting.iter().any(is_late);
        let order =
            |(_, waiting): &(usize, &Waiting)| (standing(waiting), !waiting.is_warm || late, waiting.since);
        self.waiting.iter().enumerate().min_by_key(order).map(|(at, _)| at)
    }

    /// Estimated time until one of `n` waiting requests is served.
    fn wait(&self, n: usize, places: usize) -> Duration {
        let each = self.seconds.unwrap_or(FIRST_GUESS);
        Duration::from_secs_f64((each * n as f64 / places as f64).clamp(1.0, 600.0))
    }
}

impl Ticket {
    /// Waits until there is a place.
    ///
    /// # Errors
    /// The server is shutting down.
    pub(super) async fn wait(self) -> Result<QueuePlace, Refusal> {
        self.0.await.map_err(|_| Refusal::ending())
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let (queue, tenant) = (self.queue.clone(), std::mem::take(&mut self.tenant));
        queue.leave(&tenant, self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tenants::Tenants;

    fn waiting(tenant: &str, is_warm: bool, age_ms: u64) -> Waiting {
        let since = Instant::now().checked_sub(Duration::from_millis(age_ms)).unwrap();
        Waiting { tenant: tenant.to_string(), is_warm, since, admitted: oneshot::channel().0 }
    }

    fn next(waiting: Vec<Waiting>, at_work: &[(&str, usize, u64)]) -> Option<usize> {
        let tenants =
            at_work.iter().map(|(name, n, latest)| ((*name).to_string(), AtWork { n: *n, latest: *latest }));
        QueueState { waiting, tenants: tenants.collect(), ..QueueState::default() }.next(Instant::now())
    }

    #[test]
    fn the_tenant_with_the_fewest_at_work_is_next() {
        let all = || vec![waiting("a", true, 900), waiting("b", false, 10)];
        assert_eq!(next(all(), &[("a", 2, 5), ("b", 1, 9)]), Some(1));
        assert_eq!(next(all(), &[("a", 1, 5), ("b", 1, 9)]), Some(0), "served longest ago");
        assert_eq!(next(Vec::new(), &[]), None);
    }

    #[test]
    fn warm_before_cold_within_a_bound() {
        assert_eq!(next(vec![waiting("a", false, 900), waiting("a", true, 10)], &[]), Some(1));
        assert_eq!(next(vec![waiting("a", false, 2_100), waiting("a", true, 10)], &[]), Some(0));
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_places_come_back() {
        let (queue, tenants) = (Queue::new(1, 1), Tenants::one("a"));
        let tenant = tenants.identify(&axum::http::HeaderMap::new()).unwrap();
        let first = queue.enter(&tenant, false).unwrap().wait().await.unwrap();
        let second = queue.enter(&tenant, false).unwrap();
        assert_eq!(queue.enter(&tenant, false).unwrap_err().status(), 429);
        drop(first);
        let second = second.wait().await.unwrap();
        drop(queue.enter(&tenant, false).unwrap()); // a client that went away
        let third = queue.enter(&tenant, false).unwrap();
        drop(second);
        drop(third.wait().await.unwrap());
        assert_eq!((queue.load().at_work, queue.load().waiting), (0, 0));
        queue.close();
        assert_eq!(queue.enter(&tenant, false).unwrap_err().status(), 503);
    }
}
