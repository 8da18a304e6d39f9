//! Turns whose replies are known before a run is played: of a run that continues or is forked.

use super::watch::{direct, show};
use super::{Scene, Settings, Watch};
use crate::prompt::{Directions, Memories};
use crate::trace::{Trace, TurnTrace};
use crate::transcript::{InterTurnRecord, Recorder, RouteRecord, TurnRecord};
use crate::walk::LineSource;
use greenroom_scenario::{Plan, Turn, TurnId};
use std::collections::BTreeMap;
use std::iter::Peekable;

/// Lines that are known before a run is played.
pub(super) struct Known<'a> {
    pub(super) plan: &'a Plan,
    pub(super) lines: Peekable<std::vec::IntoIter<TurnRecord>>,
    pub(super) routes: &'a BTreeMap<String, RouteRecord>,
    pub(super) recorder: &'a mut Recorder,
    pub(super) trace: &'a mut Trace,
    pub(super) watch: &'a mut dyn Watch,
    pub(super) settings: &'a Settings,
    pub(super) directions: &'a Directions,
    pub(super) undirected: &'a mut usize,
}

impl LineSource for Known<'_> {
    fn next_auxiliary(&mut self, path: &str) -> Option<TurnRecord> {
        self.lines.next_if(|line| line.path == path)
    }

    fn line(&mut self, _turn: &Turn) -> anyhow::Result<Option<TurnRecord>> {
        Ok(self.lines.next())
    }

    fn after_reply(&mut self, memories: &Memories, id: TurnId, line: TurnRecord) -> anyhow::Result<()> {
        direct(memories, self.directions, self.undirected, id, self.watch);
        if self.recorder.turn(line.clone())? {
            self.trace.turn(TurnTrace::new(&line.path, &line.agent, None))?;
        }
        let turn = self.plan.turn(id);
        if let Some(call) = &line.call {
            self.watch.see(id, Scene::Called(call));
        }
        if line.path == turn.path {
            self.watch.see(id, Scene::Started { turn, reads: &line.delta });
        }
        show(turn, id, &line, None, self.settings, self.watch);
        Ok(())
    }

    fn skipped(&mut self, id: TurnId) {
        self.watch.see(id, Scene::Skipped);
    }

    fn route(&mut self, path: &str) -> anyhow::Result<Option<RouteRecord>> {
        Ok(self.routes.get(path).cloned())
    }

    fn between(&mut self, line: InterTurnRecord) -> anyhow::Result<()> {
        self.recorder.between(line.clone())?;
        if let InterTurnRecord::Route(route) = &line {
            let first = self.plan.order().find(|(_, turn)| turn.path.split('/').next() == Some(&route.path));
            first.into_iter().for_each(|(id, _)| self.watch.see(id, Scene::Routed(route)));
        }
        Ok(())
    }
}
