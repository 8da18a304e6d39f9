//! Shows a run as it is played: phases, rounds, what the stage says, names in their colours, text as it is
//! generated.
//!
//! Of turns that run together, the one whose line is next in the transcript is shown live; the others follow
//! in that order.

use super::contrast;
use super::page::Page;
use super::progress::{ProgressForm, RunProgress};
use crate::backend::Progress;
use crate::backend::StopReason;
use crate::diagnostic::printable;
use crate::prompt::{Direction, spoken_so_far};
use crate::scenario::{AgentId, Audience, Color, PhaseId, Plan, Purpose, Scenario, Turn, TurnId};
use crate::stage::{Scene, Watch};
use crate::transcript::{ChoiceRecord, Odds, RouteRecord};
use console::Style;
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Widest line; longer ones are hard to read.
const MAX_WIDTH: usize = 100;
/// Maximum number of characters shown of what was cut.
const CUT_SHOWN: usize = 40;

/// The dialogue on standard output.
pub struct DialogueOutput {
    scenario: Arc<Scenario>,
    plan: Arc<Plan>,
    page: Page,
    fancy: bool,
    progress: RunProgress,
    bar: Option<ProgressBar>,
    /// The turn that is shown now.
    next: usize,
    /// Raw text of turns so far.
    raw: BTreeMap<usize, String>,
    /// Calls of tools that were not shown yet, by turn.
    calls: BTreeMap<usize, Vec<String>>,
    /// The present turn's text that is on the screen; `None`: not even its head.
    shown: Option<String>,
    phase: Option<PhaseId>,
    /// The round of that phase whose head was shown.
    round: usize,
    /// True if the scenario's title is still to be shown, before the first turn.
    titled: bool,
    /// True if it was said what a low mass means.
    warned: bool,
}

impl DialogueOutput {
    /// A dialogue on standard output; colours, wrapping and the bar only where it is a terminal.
    pub fn new(scenario: Arc<Scenario>, plan: Arc<Plan>) -> Self {
        let fancy = super::is_fancy();
        let width = fancy.then(|| usize::from(console::Term::stdout().size().1).clamp(30, MAX_WIDTH));
        let page = Page::stdout(width);
        let form = match (console::Term::stderr().is_term(), console::Term::stdout().is_term()) {
            (false, _) => ProgressForm::Lines,
            (true, true) if !fancy => ProgressForm::Hidden,
            (true, _) => ProgressForm::Bar,
        };
        let progress = RunProgress::new(&scenario, &plan, form);
        let mut dialogue = Self::on(page, fancy, scenario, plan);
        dialogue.progress = progress;
        dialogue
    }

    /// A dialogue on any page.
    pub fn on(page: Page, fancy: bool, scenario: Arc<Scenario>, plan: Arc<Plan>) -> Self {
        let (raw, calls, shown) = (BTreeMap::new(), BTreeMap::new(), None);
        let (bar, phase, round, next, titled, warned) = Default::default();
        let progress = RunProgress::new(&scenario, &plan, ProgressForm::Hidden);
        Self {
            scenario,
            plan,
            page,
            fancy,
            progress,
            bar,
            next,
            raw,
            calls,
            shown,
            phase,
            round,
            titled,
            warned,
        }
    }

    /// Shows the scenario's title too, when the first turn begins.
    pub fn titled(mut self) -> Self {
        self.titled = true;
        self
    }

    fn title(&mut self) {
        let title = printable(&self.scenario.title);
        let title = if self.fancy { Style::new().bold().apply_to(title).to_string() } else { title };
        self.page.paragraph(&title);
        let about = printable(self.scenario.description.trim());
        if !about.is_empty() {
            about.lines().for_each(|line| {
                let line =
                    if self.fancy { Style::new().dim().apply_to(line).to_string() } else { line.into() };
                self.page.paragraph(&line);
            });
        }
    }

    /// Shows the place of a turn or a line of the stage, if it has changed: the phase, and its round where
    /// there are several.
    fn place(&mut self, id: PhaseId, round: usize) {
        let phase = self.scenario.phase(id);
        if self.phase != Some(id) {
            (self.phase, self.round) = (Some(id), 0);
            let label = printable(&phase.label);
            // Two strokes and two spaces are around it.
            let most = self.page.width().map_or(60, |width| width.saturating_sub(4).min(60));
            let rule = if self.fancy {
                let rest = "─".repeat(most.saturating_sub(console::measure_text_width(&label)));
                Style::new().bold().apply_to(format!("── {label} {rest}")).to_string()
            } else {
                format!("== {label} ==")
            };
            self.page.line("");
            self.page.line(&rule);
        }
        if phase.rounds > 1 && self.round != round {
            self.round = round;
            let at_most = if phase.until.is_some() { "at most " } else { "" };
            let of =
                if round > phase.rounds { String::new() } else { format!(" of {at_most}{}", phase.rounds) };
            let rule = if self.fancy {
                Style::new().dim().apply_to(format!("─ round {round}{of}")).to_string()
            } else {
                format!("-- round {round}{of} --")
            };
            self.page.line(&rule);
        }
    }

    /// Shows a line of the stage.
    fn direct(&mut self, line: &Direction) {
        self.hide_bar();
        self.place(line.phase, line.round);
        let to = line.to.iter().flatten().map(|agent| self.scenario.agent(*agent).name.as_str());
        let to = to.collect::<Vec<_>>().join(" and ");
        let to = if to.is_empty() { "  *".to_string() } else { format!("  * to {}:", printable(&to)) };
        self.page.head(&if self.fancy { Style::new().dim().apply_to(to).to_string() } else { to });
        self.page.push(&line.text);
        self.page.end();
    }

    /// Shows who was picked to speak in the phase that a turn begins.
    fn route(&mut self, id: TurnId, route: &RouteRecord) {
        self.hide_bar();
        self.place(self.plan.turn(id).phase, 1);
        let picked = format!("  * {}", printable(&route.told(|key| self.scenario.name_of(key))));
        self.page.note(&if self.fancy { Style::new().dim().apply_to(picked).to_string() } else { picked });
        self.page.end();
    }

    fn head(&mut self) {
        self.calls();
        let plan = self.plan.clone();
        let turn = plan.turn(TurnId(self.next));
        self.place(turn.phase, turn.round);
        let agent = self.scenario.agent(turn.speaker);
        let name = printable(&self.speaker(turn));
        let style = contrast::style(agent.color.unwrap_or(default_color(turn.speaker.0)));
        self.page.head(&if self.fancy { style.bold().apply_to(name).to_string() } else { name });
        self.shown = Some(String::new());
    }

    /// The speaker's name, with the listeners or the purpose of a turn that is not for everybody to hear.
    fn speaker(&self, turn: &Turn) -> String {
        let name = |agent: &AgentId| self.scenario.agent(*agent).name.as_str();
        let speaker = name(&turn.speaker);
        match (turn.purpose, &turn.audience) {
            (Purpose::Ballot { rank: 1, .. }, _) => format!("{speaker} votes:"),
            (Purpose::Ballot { rank, .. }, _) => format!("{speaker} votes, place {rank}:"),
            (Purpose::Floor, Audience::Nobody) => format!("{speaker}, asked to cut in:"),
            (_, Audience::Whisper { to, .. }) => {
                format!("{speaker} to {}:", to.iter().map(name).collect::<Vec<_>>().join(" and "))
            }
            _ => format!("{speaker}:"),
        }
    }

    /// Shows what the present turn has said since the last time.
    fn stream(&mut self) {
        let Some(raw) = self.raw.get(&self.next) else { return };
        let turn = self.plan.turn(TurnId(self.next));
        let heard = spoken_so_far(&self.scenario.agent(turn.speaker).name, raw);
        if !heard.is_empty() {
            self.hide_bar();
            self.show(&heard);
        }
    }

    fn show(&mut self, heard: &str) {
        if self.shown.is_none() {
            self.head();
        }
        let shown = self.shown.get_or_insert_default();
        if let Some(new) = heard.strip_prefix(shown.as_str()) {
            self.page.push(new);
            *shown = heard.to_string();
        }
    }

    /// Shows the calls of tools that the present turn has made since the last time, above its reply.
    fn calls(&mut self) {
        let Some(calls) = self.calls.remove(&self.next) else { return };
        self.hide_bar();
        let plan = self.plan.clone();
        let turn = plan.turn(TurnId(self.next));
        self.place(turn.phase, turn.round);
        for call in calls {
            let head = format!("  * {}", printable(&self.scenario.agent(turn.speaker).name));
            self.page.head(&if self.fancy { Style::new().dim().apply_to(head).to_string() } else { head });
            self.page.push(&call);
            self.page.end();
        }
    }

    fn finish(
        &mut self,
        spoken: &str,
        ending: Option<String>,
        choice: Option<&ChoiceRecord>,
        odds: Option<&Odds>,
    ) {
        self.hide_bar();
        let shown = self.shown.clone().unwrap_or_default();
        if spoken.starts_with(&shown) {
            self.show(spoken);
        }
        if spoken.is_empty() {
            self.show("");
            self.page.push("(says nothing)");
        }
        for note in [ending, choice.and_then(|choice| self.odds(choice, odds))].into_iter().flatten() {
            let note = if self.fancy { Style::new().dim().apply_to(note).to_string() } else { note };
            self.page.note(&note);
        }
        self.page.end();
        self.raw.remove(&self.next);
        self.shown = None;
        // The start of the next turn is shown after the lines of the stage before it.
    }

    /// Note on how likely the options were to be drawn, and any of them to be said; or on an invalid reply.
    fn odds(&mut self, choice: &ChoiceRecord, odds: Option<&Odds>) -> Option<String> {
        if choice.chosen.is_null() {
            return Some("(invalid: the reply matches none of the options)".to_string());
        }
        let odds = odds.filter(|odds| odds.shares.len() > 1)?;
        let shares = choice.shares_in_words(odds);
        let is_news = odds.is_low() && !self.warned;
        self.warned |= odds.is_low();
        let hint = if is_news { ", the options have almost no probability" } else { "" };
        Some(format!("({shares}; mass {}{hint})", Odds::in_percent(odds.mass)))
    }

    /// Shows the head of what a human who plays did not hear.
    fn unveil(&mut self) {
        self.hide_bar();
        let humans = self.scenario.agents.iter().filter(|agent| agent.is_human());
        let names: Vec<&str> = humans.map(|agent| agent.name.as_str()).collect();
        let head = format!("== not heard by {} ==", printable(&names.join(" and ")));
        self.page.line("");
        self.page.line(&if self.fancy {
            Style::new().bold().apply_to(&head).to_string()
        } else {
            head.clone()
        });
        (self.phase, self.round) = (None, 0);
    }

    /// The line at the bottom: whose turn it is, and how much of its prompt is read, if that is known.
    fn waiting(&mut self, read: Option<(usize, usize)>) {
        if self.bar.is_none() {
            self.bar = self.progress.bar();
        }
        let Some(bar) = &self.bar else { return };
        let name = &self.scenario.agent(self.plan.turn(TurnId(self.next)).speaker).name;
        match read.filter(|(_, total)| *total > 0) {
            Some((done, total)) => self.progress.reads(bar, name, done, total),
            None => self.progress.waits(bar, name),
        }
    }

    fn hide_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Watch for DialogueOutput {
    fn see(&mut self, id: TurnId, scene: Scene<'_>) {
        if std::mem::take(&mut self.titled) {
            self.title();
        }
        match scene {
            Scene::Started { .. } if id.0 == self.next && self.shown.is_none() => self.waiting(None),
            Scene::Started { .. } | Scene::Paused(_) | Scene::Progress(Progress::Asked(_)) => {}
            Scene::Directed(line) => self.direct(line),
            Scene::Routed(route) => self.route(id, route),
            Scene::Progress(Progress::Prefill { done, total }) => {
                if id.0 == self.next && self.shown.is_none() {
                    self.waiting(Some((*done, *total)));
                }
            }
            Scene::Progress(Progress::Text(text)) => {
                self.raw.entry(id.0).or_default().push_str(text);
                if id.0 == self.next {
                    self.stream();
                }
            }
            Scene::Written { spoken, stop, cut, choice, odds, usage, .. } => {
                // What was withheld comes late.
                let next = self.next.max(id.0 + 1);
                self.next = id.0;
                self.finish(spoken, ending(stop, cut), choice, odds);
                self.next = next;
                // Two texts may have a line of progress between them, even if both are written to one file.
                self.progress.written(id, usage.is_some());
            }
            Scene::Called(call) => {
                let gave = if call.failed { "failed: " } else { "" };
                let line = format!("calls {} → {gave}{}", call.quoted(), call.result);
                self.calls.entry(id.0).or_default().push(line);
                if id.0 <= self.next {
                    let next = std::mem::replace(&mut self.next, id.0);
                    self.calls();
                    self.next = next;
                }
            }
            Scene::Skipped => {
                self.progress.skipped(id);
                self.next = self.next.max(id.0 + 1);
            }
            Scene::Withheld => self.next = self.next.max(id.0 + 1),
            Scene::Unveiled => self.unveil(),
        }
    }
}

/// Note on a reply that was cut: at its limit, or where a remote engine continued it as a script.
fn ending(stop: StopReason, cut: &str) -> Option<String> {
    match stop {
        StopReason::Length => Some("(cut off at the token limit)".to_string()),
        StopReason::StopString if !cut.trim().is_empty() => {
            let cut = cut.split_whitespace().collect::<Vec<_>>().join(" ");
            let begin: String = cut.chars().take(CUT_SHOWN).collect();
            let more = if begin.len() < cut.len() { "…" } else { "" };
            Some(format!("(cut off before \"{}{more}\")", printable(&begin)))
        }
        _ => None,
    }
}

impl Drop for DialogueOutput {
    fn drop(&mut self) {
        self.hide_bar();
        if self.shown.is_some() {
            self.page.end();
        }
    }
}

/// Colours for agents that name none, distinguished by their place in the cast.
fn default_color(agent: usize) -> Color {
    const WHEEL: [u8; 8] = [6, 3, 5, 2, 4, 1, 208, 37];
    Color::Indexed(WHEEL[agent % WHEEL.len()])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::scenario::load;
    use std::cell::RefCell;
    use std::io::Write;

    thread_local! {
        /// Standard output and standard error in one file.
        static FILE: RefCell<String> = const { RefCell::new(String::new()) };
    }

    fn write(text: &str) {
        FILE.with_borrow_mut(|file| file.push_str(text));
    }

    struct File;

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            write(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_progress_interrupts_no_reply() {
        let text = "agents: { ann: {}, ben: {} }\nphases: [{ name: p, agents: [ann, ben] }]";
        let scenario = load("x.yaml", text, &[]).scenario.unwrap();
        let plan = scenario.plan().clone();
        let page = Page::new(Box::new(File), None);
        let mut dialogue = DialogueOutput::on(page, false, scenario.clone(), plan.clone());
        dialogue.progress = RunProgress::new(&scenario, &plan, ProgressForm::Lines).at_once(write);
        for (id, turn) in plan.order() {
            dialogue.see(id, Scene::Progress(&Progress::Text("Good day to ".into())));
            let (spoken, cut, stop) = ("Good day to all of you.", "", StopReason::EndOfTurn);
            let (choice, odds, usage) = (None, None, None);
            dialogue.see(id, Scene::Written { turn, spoken, stop, cut, choice, odds, usage });
        }
        let file = FILE.with_borrow(Clone::clone);
        let whole = file.lines().filter(|line| line.ends_with(": Good day to all of you.")).count();
        assert_eq!((whole, file.matches(" turns, ").count()), (plan.n_turns(), plan.n_turns()), "{file}");
    }
}
