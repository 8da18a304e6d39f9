//! Full memories: a summary is requested, or pieces of the past are kept; then the turn continues in the new
//! epoch.

use super::{RunLoop, Stage, TaskResult, TurnAnswer, TurnState};
use crate::backend::Request;
use crate::lookup::{by_importance, nearest};
use crate::prompt::Piece;
use crate::transcript::summary_of;
use anyhow::Context as _;
use greenroom_scenario::{Keep, TurnId};
use std::time::Instant;

impl Stage {
    /// Returns whether the speaker's memory is full, and continues in a new epoch then: one for a turn, at
    /// most, and before its first call.
    pub(super) fn is_full(&self, id: TurnId, request: &Request) -> anyhow::Result<bool> {
        let is_begun = self.memories.begins_epoch(id) || self.memories.n_calls(id) > 0;
        let goes_on = self.memories.keep_of(id) != Keep::All && !is_begun;
        Ok(goes_on && self.backend_of(self.plan.turn(id)).overflows(request)?)
    }

    /// Starts a full memory over; what it keeps may have to be requested first.
    pub(super) fn make_room(&mut self, id: TurnId, run_loop: &mut RunLoop<'_>) -> anyhow::Result<()> {
        match self.memories.keep_of(id) {
            Keep::All | Keep::Summary => {
                let asked = self.memories.ask_for_summary(id)?;
                let request = self.request(&asked);
                self.send(asked, request, Vec::new(), run_loop);
                Ok(())
            }
            Keep::Window | Keep::Retrieve => {
                let turn = self.plan.turn(id);
                if let Some(kept) = self.settings.retrievals.kept.get(&summary_of(&turn.path)).cloned() {
                    return self.keep(id, &kept, run_loop);
                }
                let pieces = self.memories.keepable(id)?;
                if self.memories.keep_of(id) == Keep::Window {
                    return self.keep_among(id, &pieces, &vec![0.0; pieces.len()], run_loop);
                }
                let backend =
                    self.settings.embeddings.clone().unwrap_or_else(|| self.backend_of(turn).clone());
                let (lookup, query, path) =
                    (self.lookup.clone(), self.memories.news_of(id), turn.path.clone());
                self.state[id.0] = TurnState::LookingUp;
                run_loop.running.spawn(async move {
                    let texts = pieces.into_iter().map(|piece| piece.text).collect();
                    let scores = nearest(&lookup, &backend, query, texts).await;
                    (id, scores.map(TaskResult::Nearness).context(path))
                });
                Ok(())
            }
        }
    }

    /// It was looked up how near each piece of a full memory is.
    pub(super) fn on_retrieved(&mut self, id: TurnId, scores: &[f32], run_loop: &mut RunLoop<'_>) {
        let pieces = self.memories.keepable(id).map_err(Into::into);
        if let Err(error) = pieces.and_then(|pieces| self.keep_among(id, &pieces, scores, run_loop)) {
            self.fail(id, error);
        }
    }

    /// Keeps the most important pieces: as many as take half of the context at most.
    fn keep_among(
        &mut self,
        id: TurnId,
        pieces: &[Piece],
        scores: &[f32],
        run_loop: &mut RunLoop<'_>,
    ) -> anyhow::Result<()> {
        let memory = self.scenario.agent(self.plan.turn(id).speaker).memory;
        let order = by_importance(scores, memory);
        let (mut fitting, mut n) = (0, order.len());
        while fitting < n {
            let some = (fitting + n).div_ceil(2);
            if self.is_crowded(id, pieces, &order[..some])? {
                n = some - 1;
            } else {
                fitting = some;
            }
        }
        let kept: Vec<String> = order[..fitting].iter().map(|at| pieces[*at].name.clone()).collect();
        self.keep(id, &kept, run_loop)
    }

    /// Returns whether a memory that begins again with these pieces fills more than half of the context.
    fn is_crowded(&self, id: TurnId, pieces: &[Piece], kept: &[usize]) -> anyhow::Result<bool> {
        let mut kept = kept.to_vec();
        kept.sort_unstable();
        let kept: Vec<&Piece> = kept.iter().filter_map(|at| pieces.get(*at)).collect();
        let request = self.request(&self.memories.ask_keeping(id, &kept)?);
        self.backend_of(self.plan.turn(id)).fills_half(&request)
    }

    fn keep(&mut self, id: TurnId, kept: &[String], run_loop: &mut RunLoop<'_>) -> anyhow::Result<()> {
        let line = self.memories.keep(id, kept)?;
        self.ask_again(
            id,
            vec![TurnAnswer { line, usage: None, commit: None, at: Instant::now() }],
            run_loop,
        );
        Ok(())
    }
}
