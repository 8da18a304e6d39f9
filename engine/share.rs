//! One budget of memory, and the cores of one machine, for the engines of several models.
//!
//! Each engine registers what its memory takes and what its active turns may still take. It evicts what is
//! not needed soon regardless of the others' part, so what is at rest makes room for active turns of any
//! engine; a turn begins when it fits beside all that the others have reserved. Passes take turns, in the
//! order of their requests: each has all threads of its engine, while those of the others sleep.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A budget of memory that several engines share; clones are the same one. Given to each of them as
/// [`EngineConfig::share`](crate::EngineConfig::share).
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// let budget = MemoryBudget::new(64 << 20);
/// let mut config = EngineConfig::new(ModelSource::Bundled("tiny", model));
/// config.share = Some(budget.clone());
/// let (one, other) = (Engine::open(config.clone())?, Engine::open(config)?);
/// assert_eq!(one.blocking_status()?.budget_bytes, 64 << 20);
/// assert_eq!(other.blocking_status()?.budget_bytes, 64 << 20);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Common>);

#[derive(Debug)]
struct Common {
    budget: u64,
    state: Mutex<ShareState>,
    tickets: Mutex<Tickets>,
    served: Condvar,
}

#[derive(Debug, Default)]
struct ShareState {
    /// Engines by number; none where one has ended.
    seats: Vec<Option<Seat>>,
    /// Requests for room so far.
    asked: u64,
}

/// An engine's part.
#[derive(Default)]
struct Seat {
    /// Bytes that its memory takes.
    bytes: u64,
    /// Bytes that its active turns may still take.
    reserved: u64,
    /// Bytes needed by the turn that waits for room.
    wanted: Option<RoomRequest>,
    /// The latest request for room after which it has released what it can.
    answered: u64,
    /// Tells it that something has changed.
    wake: Option<Box<dyn Fn() + Send>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RoomRequest {
    bytes: u64,
    request: u64,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

/// An engine's place in a share; dropped, its part is free.
pub(crate) struct Member {
    common: Arc<Common>,
    id: usize,
}

/// The right to compute, until it is dropped.
pub(crate) struct ComputePermit<'a>(&'a Common);

impl MemoryBudget {
    /// A budget in bytes.
    pub fn new(cache_memory: u64) -> Self {
        let (state, tickets, served) = Default::default();
        Self(Arc::new(Common { budget: cache_memory, state, tickets, served }))
    }

    /// Another engine.
    pub(crate) fn join(&self) -> Member {
        let mut state = lock(&self.0.state);
        state.seats.push(Some(Seat::default()));
        Member { common: self.0.clone(), id: state.seats.len() - 1 }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// Bytes that no other engine can have.
    fn reserved_bytes(&self) -> u64 {
        self.bytes.max(self.reserved)
    }
}

impl ShareState {
    fn others(&self, id: usize) -> impl Iterator<Item = &Seat> {
        self.seats
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != id)
            .filter_map(|(_, seat)| seat.as_ref())
    }

    fn wake(&self, whom: impl Fn(&Seat) -> bool, by: usize) {
        self.others(by)
            .filter(|seat| whom(seat))
            .filter_map(|seat| seat.wake.as_ref())
            .for_each(|wake| wake());
    }
}

impl Member {
    /// Calls this when there may be room, or when others need some.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + 'static) {
        if let Some(seat) = &mut lock(&self.common.state).seats[self.id] {
            seat.wake = Some(Box::new(wake));
        }
    }

    /// Bytes that this engine may use, and the number of the latest request for room.
    pub(crate) fn budget(&self) -> (u64, u64) {
        let state = lock(&self.common.state);
        let of = |seat: &Seat| seat.reserved_bytes().max(seat.wanted.map_or(0, |wanted| wanted.bytes));
        let others = state.others(self.id).map(of).fold(0, u64::saturating_add);
        (self.common.budget.saturating_sub(others), state.asked)
    }

    /// Bytes that all engines take.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.common.state).seats.iter().flatten().map(|seat| seat.bytes).sum()
    }

    /// Registers what this engine's memory takes and what its turns may still take, once it has evicted what
    /// it can for all requests up to `answered`.
    pub(crate) fn report(&self, bytes: u64, reserved: u64, answered: u64, waits: bool) {
        let mut state = lock(&self.common.state);
        let Some(seat) = &mut state.seats[self.id] else { return };
        let before = seat.reserved_bytes();
        let is_answer = answered > seat.answered;
        (seat.bytes, seat.reserved, seat.answered) = (bytes, reserved, answered.max(seat.answered));
        if !waits {
            seat.wanted = None;
        }
        if seat.reserved_bytes() < before || is_answer {
            state.wake(|seat| seat.wanted.is_some(), self.id);
        }
    }

    /// Reserves room for the turns of this engine, one that is to begin among them; `false`: it has to wait,
    /// and the other engines are asked to make room. A turn that never fits begins when no other is active.
    pub(crate) fn may_begin(&self, reserved: u64, is_alone: bool) -> bool {
        let mut state = lock(&self.common.state);
        let others = state.others(self.id).map(Seat::reserved_bytes).fold(reserved, u64::saturating_add);
        let own = state.seats[self.id].as_ref().and_then(|seat| seat.wanted);
        let is_asked = own.is_some_and(|wanted| wanted.bytes == reserved);
        let all_rest = |request: u64| {
            state.others(self.id).all(|other| other.reserved == 0 && other.answered >= request)
        };
        let nobody = state.others(self.id).next().is_none();
        let fits_nowhere = is_alone && (nobody || is_asked && own.is_some_and(|own| all_rest(own.request)));
        let begins = others <= self.common.budget || fits_nowhere;
        if !begins && !is_asked {
            state.asked += 1;
        }
        let request = state.asked;
        if let Some(seat) = &mut state.seats[self.id] {
            if begins {
                (seat.reserved, seat.wanted) = (reserved, None);
            } else if !is_asked {
                seat.wanted = Some(RoomRequest { bytes: reserved, request });
            }
        }
        if !begins && !is_asked {
            state.wake(|_| true, self.id);
        }
        begins
    }

    /// Waits for this engine's turn to compute.
    pub(crate) fn baton(&self) -> ComputePermit<'_> {
        let mut tickets = lock(&self.common.tickets);
        let own = tickets.next;
        tickets.next += 1;
        while tickets.serving != own {
            tickets = self.common.served.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        ComputePermit(&self.common)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = lock(&self.common.state);
        state.seats[self.id] = None;
        state.wake(|seat| seat.wanted.is_some(), self.id);
    }
}

impl Drop for ComputePermit<'_> {
    fn drop(&mut self) {
        lock(&self.0.tickets).serving += 1;
        self.0.served.notify_all();
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat")
            .field("bytes", &self.bytes)
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn what_rests_makes_room_and_what_is_at_work_does_not() {
        let share = MemoryBudget::new(100);
        let (one, other) = (share.join(), share.join());
        let woken: [Arc<AtomicUsize>; 2] = Default::default();
        for (member, woken) in [&one, &other].into_iter().zip(woken.clone()) {
            member.wake_by(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            });
        }
        let woken = || [woken[0].load(Ordering::Relaxed), woken[1].load(Ordering::Relaxed)];
        one.report(70, 0, 0, false);
        assert_eq!(other.budget().0, 30);
        assert!(!other.may_begin(50, true), "70 rest beside it");
        assert_eq!(woken(), [1, 0]);
        // Asked again, it waits, and wakes no one needlessly.
        assert!(!other.may_begin(50, true));
        let (budget, request) = one.budget();
        assert_eq!((budget, woken()), (50, [1, 0]));
        one.report(50, 0, request, false);
        assert_eq!(woken(), [1, 1]);
        assert!(other.may_begin(50, true));
        assert!(!one.may_begin(60, true), "50 are at work beside it");
        other.report(0, 0, other.budget().1, false);
        assert!(one.may_begin(60, true));
        assert_eq!((one.bytes(), other.budget().0), (50, 40));
    }

    #[test]
    fn what_fits_nowhere_begins_when_nobody_is_at_work() {
        let share = MemoryBudget::new(100);
        let (one, other) = (share.join(), share.join());
        assert!(one.may_begin(40, true));
        assert!(!other.may_begin(200, true));
        one.report(40, 0, one.budget().1, false);
        assert!(!other.may_begin(200, false), "it has a turn of its own beside it");
        assert!(other.may_begin(200, true));
        drop(other);
        assert!(one.may_begin(300, true), "alone in the share");
    }

    #[test]
    fn one_computes_at_a_time() {
        let share = MemoryBudget::new(0);
        let at_once = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (member, at_once) = (share.join(), &at_once);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _baton = member.baton();
                        assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                        at_once.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
