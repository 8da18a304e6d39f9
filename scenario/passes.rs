//! Passes of blocks: which of the phases of one name is meant, and what must hold for one to be played.

use super::results::History;
use super::template::Expression;
use super::{Pass, PassId, PhaseId, Scenario};
use std::collections::BTreeMap;

impl Scenario {
    /// The pass with an id of this scenario.
    pub fn pass(&self, id: PassId) -> &Pass {
        &self.passes[id.0]
    }

    /// The passes that contain a phase, the innermost first.
    pub fn passes_of(&self, phase: PhaseId) -> impl Iterator<Item = PassId> {
        std::iter::successors(self.phase(phase).pass, |pass| self.pass(*pass).within)
    }

    /// A pass, and those of its block before it.
    pub fn up_to(&self, pass: PassId) -> impl Iterator<Item = PassId> {
        std::iter::successors(Some(pass), |pass| self.pass(*pass).before)
    }

    /// The conditions of a phase and of the blocks that contain it, which determine whether it opens.
    pub fn opens_if(&self, phase: PhaseId) -> impl Iterator<Item = &Expression> {
        let of_pass = move |pass: PassId| {
            self.up_to(pass).flat_map(move |before| {
                let until = self.pass(before).until.iter().filter(move |_| before != pass);
                self.pass(before).when.iter().chain(until)
            })
        };
        self.passes_of(phase).flat_map(of_pass).chain(&self.phase(phase).when)
    }

    /// The phases that names mean at a point before the phase `n_known`, in the phase `at`: of those in a
    /// block the one of the latest pass that was played by then. What is later in a block has been played in
    /// the pass before, or is as if it were skipped.
    pub fn visible(&self, at: Option<PhaseId>, n_known: usize, said: &History) -> BTreeMap<&str, PhaseId> {
        let certain: Vec<PassId> =
            at.into_iter().flat_map(|at| self.passes_of(at)).flat_map(|pass| self.up_to(pass)).collect();
        let took_place = |pass: PassId| {
            certain.contains(&pass) || self.pass(pass).phases.clone().any(|id| said.was_played(PhaseId(id)))
        };
        let mut visible = BTreeMap::new();
        for (id, phase) in self.phases.iter().enumerate().take(n_known) {
            if self.passes_of(PhaseId(id)).all(took_place) {
                visible.insert(phase.name.as_str(), PhaseId(id));
            }
        }
        let outermost = at.and_then(|at| self.passes_of(at).last());
        let n_named = outermost.map_or(n_known, |pass| n_known.max(self.pass(pass).phases.end));
        for (id, phase) in self.phases.iter().enumerate().take(n_named) {
            visible.entry(phase.name.as_str()).or_insert(PhaseId(id));
        }
        visible
    }
}
