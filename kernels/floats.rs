//! Vectors of floats that a pass uses again from layer to layer.
//!
//! A layer of a long prompt makes some dozen vectors of megabytes. Taken from the system each time, they
//! would cost as much to be cleared as an eighth of the pass.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// Unused vectors; `None` outside of a pass.
    static FREE: RefCell<Option<Vec<Vec<f32>>>> = const { RefCell::new(None) };
}

/// Floats of a pass's buffer, which gets their vector back when they are dropped.
pub struct Floats {
    vector: Vec<f32>,
    n: usize,
}

impl Floats {
    /// `n` floats of any values: they are to be written.
    pub fn new(n: usize) -> Self {
        let vector = FREE.with_borrow_mut(|free| {
            let free = free.as_mut()?;
            let fits = (0..free.len()).filter(|i| free[*i].len() >= n);
            let best = fits.min_by_key(|i| free[*i].len())?;
            Some(free.swap_remove(best))
        });
        Self { vector: vector.unwrap_or_else(|| vec![0.0; n]), n }
    }

    /// A copy.
    pub fn copy(x: &[f32]) -> Self {
        let mut floats = Self::new(x.len());
        floats.copy_from_slice(x);
        floats
    }

    /// The floats as a vector of their own.
    pub fn into_vec(mut self) -> Vec<f32> {
        let mut vector = std::mem::take(&mut self.vector);
        vector.truncate(self.n);
        vector
    }
}

impl From<Vec<f32>> for Floats {
    fn from(vector: Vec<f32>) -> Self {
        Self { n: vector.len(), vector }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.vector[..self.n]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.vector[..self.n]
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        let vector = std::mem::take(&mut self.vector);
        FREE.with_borrow_mut(|free| {
            if let Some(free) = free.as_mut().filter(|_| !vector.is_empty()) {
                free.push(vector);
            }
        });
    }
}

/// Runs a pass, on this thread; what it used is freed after it.
pub fn reusing<T>(pass: impl FnOnce() -> T) -> T {
    struct Free;
    impl Drop for Free {
        fn drop(&mut self) {
            FREE.set(None);
        }
    }
    FREE.set(Some(Vec::new()));
    let _free = Free;
    pass()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_uses_its_vectors_again_and_frees_them() {
        let place = |floats: &Floats| floats.as_ptr();
        reusing(|| {
            let (small, large) = (Floats::copy(&[1.0; 10]), Floats::new(1000));
            let places = [place(&small), place(&large)];
            drop((small, large));
            let small = Floats::new(7);
            assert_eq!((small.len(), place(&small)), (7, places[0]), "the smallest that fits");
            assert_eq!(place(&Floats::new(11)), places[1]);
            assert_eq!(small.into_vec().len(), 7);
            assert_eq!(FREE.with_borrow(|free| free.as_ref().map(Vec::len)), Some(1));
        });
        drop(Floats::new(3));
        assert!(FREE.with_borrow(Option::is_none));
    }
}
