//! Phases whose speakers are picked: a turn of such a phase waits until it is known who they are.

use super::{RunLoop, Stage, TaskResult};
use crate::lookup::nearest_of_each;
use crate::prompt::Routing;
use crate::transcript::InterTurnRecord;
use anyhow::Context as _;
use greenroom_scenario::TurnId;

impl Stage {
    /// Makes sure that the speakers of a turn's phase are picked; `false`: they are not yet, and the turn
    /// begins when they are.
    ///
    /// # Errors
    /// The query can't be computed.
    pub(super) fn is_routed(&mut self, id: TurnId, run_loop: &mut RunLoop<'_>) -> anyhow::Result<bool> {
        let phase = self.plan.turn(id).phase;
        if let Some(waiting) = self.routing.get_mut(&phase) {
            waiting.push(id);
            return Ok(false);
        }
        let Some(routing) = self.memories.routing(id)? else { return Ok(true) };
        if let Some(was) = self.settings.retrievals.routes.get(&routing.path) {
            let scores = routing.scores_of(was)?;
            self.route(&routing, &scores);
            return Ok(true);
        }
        self.routing.insert(phase, vec![id]);
        let backend = self.settings.embeddings.clone().unwrap_or_else(|| self.backend.clone());
        let lookup = self.lookup.clone();
        run_loop.running.spawn(async move {
            let pieces = routing
                .candidates
                .iter()
                .map(|of| of.pieces.iter().map(|piece| piece.text.clone()).collect());
            let nearness = nearest_of_each(&lookup, &backend, routing.query.clone(), pieces.collect()).await;
            let path = routing.path.clone();
            let scores = |nearness: Vec<Vec<f32>>| nearness.iter().map(|of| routing.score(of)).collect();
            (
                id,
                nearness
                    .map(scores)
                    .context(path)
                    .map(|scores| TaskResult::Routed(Box::new(routing), scores)),
            )
        });
        Ok(false)
    }

    /// It is known how near the candidates of a phase are: the turns that waited for it begin.
    pub(super) fn routed(&mut self, routing: &Routing, scores: &[Option<f64>], run_loop: &mut RunLoop<'_>) {
        self.route(routing, scores);
        run_loop.ready.extend(self.routing.remove(&routing.phase).into_iter().flatten());
    }

    fn route(&mut self, routing: &Routing, scores: &[Option<f64>]) {
        let line = self.memories.route(routing, scores);
        // The line is before the phase's first turn.
        self.routes.insert(self.plan.begin_of(routing.phase, 0).turns, line);
    }

    /// Writes who was picked in the phase that begins with a turn; all before it is on record.
    pub(super) fn write_route(&mut self, id: TurnId, watch: &mut dyn super::Watch) -> anyhow::Result<()> {
        let Some(line) = self.routes.remove(&id) else { return Ok(()) };
        self.recorder.between(InterTurnRecord::Route(line.clone()))?;
        watch.see(id, super::Scene::Routed(&line));
        Ok(())
    }
}
