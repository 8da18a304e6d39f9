//! The progress of a run: turns done out of the maximum, the time, and an estimate of the rest if there is
//! one.
//!
//! On a terminal, a temporary line at the bottom; where standard error is not a terminal, a line now and
//! then. Standard output never shows any of this: equal runs print the same.

use super::output;
use crate::diagnostic::printable;
use crate::scenario::{Plan, Scenario, TurnId};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const EVERY: Duration = Duration::from_secs(30);
/// Turns by a model below which nothing is known of how long others take.
const MIN_TURNS: usize = 4;

/// How far a run has come.
pub(super) struct RunProgress {
    form: ProgressForm,
    began: Instant,
    /// When the last line was written.
    shown_at: Instant,
    /// The time between two lines, and where they go.
    every: Duration,
    err: fn(&str),
    count: TurnCount,
}

/// How it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgressForm {
    /// Not at all.
    Hidden,
    /// On a terminal that shows nothing else there, or only between two texts.
    Bar,
    /// By lines.
    Lines,
}

/// What was played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TurnCount {
    /// Turns of the plan that a model answers, by place.
    asks_model: Vec<bool>,
    /// True if any turn may be skipped, or a human answers: the rest can't be estimated.
    is_open: bool,
    done: usize,
    skipped: usize,
    /// Turns that a model has answered now, and the time at which the last one was.
    answered: usize,
    until: Duration,
    /// The first turn that is not on record.
    next: usize,
}

impl RunProgress {
    pub(super) fn new(scenario: &Scenario, plan: &Plan, form: ProgressForm) -> Self {
        let has_human = plan.order().any(|(_, turn)| scenario.is_human(turn));
        let count = TurnCount {
            asks_model: plan.order().map(|(_, turn)| scenario.strategy_of(turn).is_none()).collect(),
            is_open: has_human || plan.order().any(|(_, turn)| !turn.guard.is_empty()),
            ..TurnCount::default()
        };
        // A line would be drawn over what a human is asked.
        let form = if has_human { ProgressForm::Hidden } else { form };
        let began = Instant::now();
        Self { form, began, shown_at: began, every: EVERY, err: output::err, count }
    }

    /// The same with a line after each turn.
    #[cfg(test)]
    pub(super) fn at_once(self, err: fn(&str)) -> Self {
        Self { form: ProgressForm::Lines, every: Duration::ZERO, err, ..self }
    }

    /// A turn is on record; `is_new`: it was answered now.
    pub(super) fn written(&mut self, id: TurnId, is_new: bool) {
        let elapsed = self.began.elapsed();
        self.count.written(id, is_new, elapsed);
        if self.form == ProgressForm::Lines && self.shown_at.elapsed() >= self.every {
            self.shown_at = Instant::now();
            (self.err)(&format!("{}\n", self.count.line(elapsed)));
        }
    }

    pub(super) fn skipped(&mut self, id: TurnId) {
        self.count.skipped += 1;
        self.count.next = id.0 + 1;
    }

    /// A line at the bottom of the terminal that shows whose turn it is.
    pub(super) fn bar(&self) -> Option<ProgressBar> {
        if self.form != ProgressForm::Bar {
            return None;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg} · {prefix}"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Some(bar)
    }

    /// Shows on the line that a turn has begun.
    pub(super) fn waits(&self, bar: &ProgressBar, name: &str) {
        bar.set_message(printable(name));
        bar.set_prefix(self.count.line(self.began.elapsed()));
    }

    /// Shows on the line how much of a prompt is read.
    pub(super) fn reads(&self, bar: &ProgressBar, name: &str, done: usize, total: usize) {
        bar.set_style(style("{spinner} {msg} reads {bar:16} {pos}/{len} tokens · {prefix}"));
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        self.waits(bar, name);
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl TurnCount {
    fn written(&mut self, id: TurnId, is_new: bool, elapsed: Duration) {
        self.done += 1;
        self.next = id.0 + 1;
        if is_new && self.asks_model.get(id.0) == Some(&true) {
            self.answered += 1;
            self.until = elapsed;
        }
    }

    /// E.g. `12 of at most 40 turns, 1 min 5 s, about 3 min left`.
    fn line(&self, elapsed: Duration) -> String {
        let most = self.asks_model.len() - self.skipped.min(self.asks_model.len());
        let at_most = if self.is_open && self.next < self.asks_model.len() { "at most " } else { "" };
        let left = self.left().map_or(String::new(), |left| format!(", about {} left", words(left)));
        format!("{} of {at_most}{most} turns, {}{left}", self.done, words(elapsed))
    }

    /// What the turns that are left take, if all of them are played and others by a model tell.
    fn left(&self) -> Option<Duration> {
        let left = self.asks_model.get(self.next..)?.iter().filter(|asks| **asks).count();
        let is_known = !self.is_open && self.answered >= MIN_TURNS && left > 0;
        is_known.then(|| self.until.mul_f64(left as f64 / self.answered as f64))
    }
}

/// A duration in the units that matter.
fn words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_rest_is_estimated_only_where_it_is_known() {
        let mut count = TurnCount { asks_model: vec![true; 10], ..TurnCount::default() };
        assert_eq!(count.line(at(0)), "0 of 10 turns, 0 s");
        // Turns of a recording take no time, and tell nothing.
        count.written(TurnId(0), false, at(0));
        (1..4).for_each(|id| count.written(TurnId(id), true, at(20 * id as u64)));
        assert_eq!(count.line(at(61)), "4 of 10 turns, 1 min 1 s");
        count.written(TurnId(4), true, at(80));
        assert_eq!(count.line(at(85)), "5 of 10 turns, 1 min 25 s, about 1 min 40 s left");
        // Rules answer at once.
        count.asks_model[5..9].fill(false);
        assert_eq!(count.line(at(85)), "5 of 10 turns, 1 min 25 s, about 20 s left");
        count.is_open = true;
        count.skipped = 3;
        assert_eq!(count.line(at(4000)), "5 of at most 7 turns, 1 h 6 min");
        count.next = 10;
        assert_eq!(count.line(at(1)), "5 of 7 turns, 1 s", "nothing is left that may be skipped");
    }
}
