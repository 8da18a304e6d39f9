//! The effort of a check, counted in steps and never in time: a check reports the same on every machine.

use greenroom_jinja::taken;

/// Steps that a whole check may take: a second or two, as a step is about a tenth of a microsecond.
const MAX_STEPS: u64 = 15_000_000;
/// Steps of minijinja's machine that take as long as one of a check.
const MACHINE_STEPS: u64 = 2;

/// Steps of a check that are left.
pub struct Steps(u64);

impl Default for Steps {
    fn default() -> Self {
        Self(MAX_STEPS)
    }
}

impl Steps {
    /// Subtracts `steps` from what is left; never below zero.
    pub fn spend(&mut self, steps: u64) {
        self.0 = self.0.saturating_sub(steps);
    }

    /// Does what renders and evaluates, and spends what that takes.
    pub fn count<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = taken();
        let done = work();
        self.spend((taken() - before) / MACHINE_STEPS);
        done
    }

    /// Spends what was rendered and evaluated since [`taken`] was `before`; returns what it is now.
    pub fn spend_since(&mut self, before: u64) -> u64 {
        let now = taken();
        self.spend((now - before) / MACHINE_STEPS);
        now
    }

    /// The number of steps that are left.
    pub fn remaining(&self) -> u64 {
        self.0
    }

    /// An equal share for one of `n_left`.
    pub fn share(&self, n_left: usize) -> u64 {
        self.0 / n_left.max(1) as u64
    }

    /// True if no step is left.
    pub fn are_used_up(&self) -> bool {
        self.0 == 0
    }
}
