//! Chance in texts and expressions: draws from the seed of the run and the place where they stand.
//!
//! A draw is a function of the run's seed, its place (the field, its phase, pass and round) and its number
//! there, so a replay draws the same, and so does everyone who reads a text. What a `let` draws is the same
//! wherever it is used.

use minijinja::value::{Object, ObjectRepr, Value};
use minijinja::{Error, ErrorKind, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Roots of draws at a point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance {
    /// Root of the seeds of turns there.
    pub here: u64,
    /// The one of the first turn.
    pub first: u64,
}

/// Draws at one place, one after another.
#[derive(Debug)]
pub(crate) struct Draws {
    seed: [u8; 32],
    n: AtomicU64,
}

/// The numbers below `n` in the random order of a place.
pub fn drawn_order(root: u64, place: &str, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    Draws::new(root, place).shuffle(&mut order, n);
    order
}

/// Name of the draws in a context; nothing in a scenario can be called that.
pub(crate) const DRAWS: &str = "draws of the place";

impl Object for Draws {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

impl Draws {
    /// The draws of a place.
    pub(crate) fn at(root: u64, place: &str) -> Value {
        Value::from_object(Self::new(root, place))
    }

    fn new(root: u64, place: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"draws").update(&root.to_le_bytes()).update(place.as_bytes());
        Self { seed: *hasher.finalize().as_bytes(), n: AtomicU64::new(0) }
    }

    /// Those of the context that something is computed in.
    pub(crate) fn of(state: &State<'_, '_>) -> Result<Value, Error> {
        state.lookup(DRAWS).ok_or_else(|| {
            let why = "nothing can be drawn here, because this is computed before the run; draw in `let`, \
                       `set`, a condition or a text of a phase";
            Error::new(ErrorKind::InvalidOperation, why)
        })
    }

    /// 64 random bits.
    fn bits(&self) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(&self.n.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let mut bits = [0; 8];
        hasher.finalize_xof().fill(&mut bits);
        u64::from_le_bytes(bits)
    }

    /// A whole number below `n`; of all numbers the same share of 2^64 but for one in it.
    pub(crate) fn below(&self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from 0 up to, but without, 1.
    pub(crate) fn share(&self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts items in a random order (Fisher and Yates); of the first `n` alone it is complete.
    pub(crate) fn shuffle<T>(&self, items: &mut [T], n: usize) {
        for at in 0..n.min(items.len().saturating_sub(1)) {
            let other = at + self.below((items.len() - at) as u64) as usize;
            items.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(place: &str) -> Draws {
        Draws::new(7, place)
    }

    /// Pearson's statistic of counts that should be equal.
    fn chi_square(counts: &[usize]) -> f64 {
        let expected = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
        counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum()
    }

    #[test]
    fn numbers_and_orders_are_evenly_distributed() {
        let draws = draws("here");
        let mut counts = [0; 6];
        (0..60_000).for_each(|_| counts[draws.below(6) as usize] += 1);
        assert!(chi_square(&counts) < 20.5, "{counts:?}"); // 0.999 of 5 degrees of freedom
        let mut tenths = [0; 10];
        (0..60_000).for_each(|_| tenths[(draws.share() * 10.0) as usize] += 1);
        assert!(chi_square(&tenths) < 27.9, "{tenths:?}");
        let mut orders = std::collections::BTreeMap::new();
        for _ in 0..24_000 {
            let mut items = [0, 1, 2, 3];
            draws.shuffle(&mut items, usize::MAX);
            *orders.entry(items).or_insert(0) += 1;
        }
        let orders: Vec<usize> = orders.into_values().collect();
        assert!(orders.len() == 24 && chi_square(&orders) < 49.7, "{orders:?}");
    }

    #[test]
    fn the_largest_numbers_are_drawn_too() {
        let draws = draws("there");
        assert!((0..100).any(|_| draws.below(u64::MAX) > u64::MAX / 2));
        assert_eq!(draws.below(1), 0);
    }
}
