//! Plays scripts against workers, event by event.

use super::fleet::{Alike, Capacity, Key, Routing, Wanted, Worker, route};
use super::script::{Script, Step};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Engine, network and load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) n_workers: usize,
    pub(super) capacity: Capacity,
    pub(super) block: usize,
    pub(super) routing: Routing,
    /// Maximum number of a worker's simultaneous requests.
    pub(super) slots: usize,
    /// Tokens of prompts that a worker reads in a second, one prompt after another.
    pub(super) prefill: f64,
    /// Tokens that each reply gets in a second.
    pub(super) decode: f64,
    /// Seconds to a worker and back.
    pub(super) latency: f64,
    /// Seconds between a reply and the next request.
    pub(super) think: f64,
    /// Runs that are played.
    pub(super) n_runs: usize,
    /// Number of simultaneous runs; another begins when one ends.
    pub(super) at_once: usize,
    /// Seconds over which the first of them begin.
    pub(super) spread: f64,
}

/// The results.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) requests: usize,
    /// Tokens of all prompts.
    pub(super) prompts: usize,
    /// Tokens of them that an agent had read or said before.
    pub(super) known: usize,
    /// Tokens of them that were not computed.
    pub(super) reused: usize,
    /// Seconds to the first token, in rising order.
    pub(super) ttft: Vec<f64>,
    /// Seconds from the first request to the last reply.
    pub(super) seconds: f64,
}

impl Outcome {
    /// The quantile of the time to first token for this share of all requests.
    pub(super) fn ttft_at(&self, share: f64) -> f64 {
        let at = (share * self.ttft.len() as f64) as usize;
        self.ttft.get(at.min(self.ttft.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }
}

/// A request: a turn of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    run: usize,
    step: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlayEvent {
    /// The run asks for a turn.
    Ask(Turn),
    /// A worker has it.
    Arrive(Turn, usize),
    /// The worker has read its prompt.
    Read(Turn, usize),
    /// The worker has said its reply.
    Said(Turn, usize),
    /// The run has the reply.
    Answer(Turn),
}

/// Events ordered by time, then by creation.
struct Event {
    at: f64,
    n: usize,
    what: PlayEvent,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.n.cmp(&self.n))
    }
}

/// An active run.
struct Running {
    /// For each turn, how many it still waits for.
    waits: Vec<usize>,
    asked_at: Vec<f64>,
    left: usize,
}

struct Simulation<'a> {
    scripts: &'a [Script],
    setting: Setting,
    workers: Vec<Worker<Turn>>,
    runs: Vec<Option<Running>>,
    events: BinaryHeap<Event>,
    n_events: usize,
    n_begun: usize,
    outcome: Outcome,
}

/// Plays the scripts, in turn, as often as the setting says.
pub(super) fn play(scripts: &[Script], setting: Setting) -> Outcome {
    let workers = (0..setting.n_workers).map(|_| Worker::new(setting.capacity, setting.block)).collect();
    let runs = (0..setting.n_runs).map(|_| None).collect();
    let (events, outcome) = (BinaryHeap::new(), Outcome::default());
    let mut play = Simulation { scripts, setting, workers, runs, events, n_events: 0, n_begun: 0, outcome };
    let at_once = setting.at_once.min(setting.n_runs);
    for i in 0..at_once {
        play.begin(setting.spread * i as f64 / at_once as f64);
    }
    while let Some(Event { at, what, .. }) = play.events.pop() {
        play.outcome.seconds = at;
        play.happen(at, what);
    }
    play.outcome.ttft.sort_by(f64::total_cmp);
    play.outcome
}

impl Simulation<'_> {
    fn script(&self, run: usize) -> &Script {
        &self.scripts[run % self.scripts.len()]
    }

    fn step(&self, turn: Turn) -> &Step {
        &self.script(turn.run).steps[turn.step]
    }

    fn wanted(&self, turn: Turn) -> Wanted {
        let Step { memory, prompt, known, .. } = *self.step(turn);
        let shared = self.script(turn.run).shared(memory).min(prompt);
        let key = Key { script: turn.run % self.scripts.len(), run: Some(turn.run), memory };
        Wanted { key, prompt, known, shared }
    }

    fn push(&mut self, at: f64, what: PlayEvent) {
        self.n_events += 1;
        self.events.push(Event { at, n: self.n_events, what });
    }

    /// Another run begins.
    fn begin(&mut self, at: f64) {
        let run = self.n_begun;
        if run >= self.setting.n_runs {
            return;
        }
        self.n_begun += 1;
        let waits: Vec<usize> = self.script(run).steps.iter().map(|step| step.after.len()).collect();
        let first: Vec<usize> = (0..waits.len()).filter(|step| waits[*step] == 0).collect();
        self.runs[run] = Some(Running { asked_at: vec![0.0; waits.len()], left: waits.len(), waits });
        for step in first {
            self.push(at, PlayEvent::Ask(Turn { run, step }));
        }
    }

    fn happen(&mut self, at: f64, what: PlayEvent) {
        let half = self.setting.latency / 2.0;
        match what {
            PlayEvent::Ask(turn) => {
                if let Some(running) = &mut self.runs[turn.run] {
                    running.asked_at[turn.step] = at;
                }
                let (wanted, scripts) = (self.wanted(turn), self.scripts);
                let (routing, n) = (self.setting.routing, self.outcome.requests);
                let worker = route(&self.workers, routing, n, &wanted, &alike(scripts));
                self.outcome.requests += 1;
                self.outcome.prompts += wanted.prompt;
                self.outcome.known += wanted.known;
                self.push(at + half, PlayEvent::Arrive(turn, worker));
            }
            PlayEvent::Arrive(turn, worker) => {
                self.workers[worker].queue.push_back(turn);
                self.serve(at, worker);
            }
            PlayEvent::Read(turn, worker) => {
                let (wanted, reply) = (self.wanted(turn), self.step(turn).reply);
                self.workers[worker].cache.grow(&wanted, wanted.prompt);
                let asked_at = self.runs[turn.run].as_ref().map_or(at, |running| running.asked_at[turn.step]);
                self.outcome.ttft.push(at + half - asked_at);
                self.push(at + reply as f64 / self.setting.decode, PlayEvent::Said(turn, worker));
            }
            PlayEvent::Said(turn, worker) => {
                // The last token of a reply was generated but not read.
                let (wanted, reply) = (self.wanted(turn), self.step(turn).reply);
                let cache = &mut self.workers[worker].cache;
                cache.grow(&wanted, wanted.prompt + reply.saturating_sub(1));
                cache.end(&wanted);
                self.workers[worker].busy -= 1;
                self.serve(at, worker);
                self.push(at + half, PlayEvent::Answer(turn));
            }
            PlayEvent::Answer(turn) => self.answer(at, turn),
        }
    }

    /// A worker takes its waiting requests, up to its number of slots.
    fn serve(&mut self, at: f64, worker: usize) {
        while self.workers[worker].busy < self.setting.slots
            && let Some(turn) = self.workers[worker].queue.pop_front()
        {
            let (wanted, scripts) = (self.wanted(turn), self.scripts);
            let serving = &mut self.workers[worker];
            serving.busy += 1;
            let hit = serving.cache.begin(&wanted, &alike(scripts));
            serving.reads_at = serving.reads_at.max(at) + (wanted.prompt - hit) as f64 / self.setting.prefill;
            let read_at = serving.reads_at;
            self.outcome.reused += hit;
            self.push(read_at, PlayEvent::Read(turn, worker));
        }
    }

    /// Continues a run after a reply.
    fn answer(&mut self, at: f64, turn: Turn) {
        let steps = &self.scripts[turn.run % self.scripts.len()].steps;
        let Some(running) = &mut self.runs[turn.run] else { return };
        running.left -= 1;
        let mut next = Vec::new();
        for (i, step) in steps.iter().enumerate().skip(turn.step + 1) {
            if step.after.contains(&turn.step) {
                running.waits[i] -= 1;
                next.extend((running.waits[i] == 0).then_some(i));
            }
        }
        if running.left == 0 {
            self.runs[turn.run] = None;
            self.begin(at);
        }
        for step in next {
            self.push(at + self.setting.think, PlayEvent::Ask(Turn { run: turn.run, step }));
        }
    }
}

fn alike(scripts: &[Script]) -> Box<Alike<'_>> {
    Box::new(
        |one, other| {
            if one.script == other.script { scripts[one.script].alike[one.memory][other.memory] } else { 0 }
        },
    )
}
