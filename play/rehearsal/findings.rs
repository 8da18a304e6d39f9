//! Warnings that follow the ways a run can take: phases that nothing leads to, texts and conditions that can
//! fail, results that may not exist where they are used. All of it is rehearsed, never guessed.

use super::plays::{Extent, PhaseGroup, Rehearsal};
use super::trials::{Trial, TrialSubject, trials};
use greenroom_scenario::diagnostic::{Diagnostic, Severity, Span};
use greenroom_scenario::template::{Code, Expression, expression_names, remedy};
use greenroom_scenario::{Path, Phase, PhaseId, Scenario, Steps, name_of, name_span, template_error};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Phases to play, and the one of them whose own choices nothing looks at.
type Stretch = (BTreeSet<PhaseId>, Option<PhaseId>);

/// Results that are null where a phase was skipped.
const MISSING: &[&str] = &["choices", "votes", "decision", "tied", "invalid"];

/// Tries everything that depends on phases; returns what may fail.
pub(super) fn findings(scenario: &Arc<Scenario>) -> Vec<Diagnostic> {
    let mut trials = trials(scenario);
    if trials.is_empty() {
        return Vec::new();
    }
    let rehearsal = Rehearsal::new(scenario.clone());
    play(&rehearsal, &mut trials);
    // What is in a block is tried in each pass; a mistake in it is one mistake.
    let mut by_path: BTreeMap<String, Vec<&Trial<'_>>> = BTreeMap::new();
    for trial in &trials {
        by_path.entry(trial.path.to_string()).or_default().push(trial);
    }
    let mut findings = Findings { scenario, found: Vec::new() };
    by_path.values().for_each(|trials| findings.of_place(trials));
    findings.found.extend(rehearsal.replies.stuck(scenario, &rehearsal.plan));
    findings.not_tried(&trials);
    findings.found
}

struct Findings<'a> {
    scenario: &'a Scenario,
    found: Vec<Diagnostic>,
}

impl Findings<'_> {
    /// The findings at one place in the file.
    fn of_place(&mut self, trials: &[&Trial<'_>]) {
        let failed = trials.iter().filter(|trial| trial.failed.is_some());
        let worst = failed.clone().find(|trial| always_fails(trial)).or(failed.clone().next());
        if let Some(trial) = worst {
            return self.fails(trial);
        }
        for trial in trials {
            match &trial.what {
                TrialSubject::Opening { phase, .. }
                | TrialSubject::Ask { phase, .. }
                | TrialSubject::Announced { phase, .. } => {
                    for from in &trial.unplayed {
                        self.missing_result(trial, self.scenario.phase(*phase), self.scenario.phase(*from));
                    }
                }
                TrialSubject::Result { expression, .. } if expression.scope.verdict.is_some() => {
                    self.one_sided(trial, expression);
                }
                TrialSubject::Result { expression, is_assertion: true, .. } => {
                    self.never_holds(trial, expression)
                }
                _ => {}
            }
        }
        self.unreachable(trials);
    }

    fn not_tried(&mut self, trials: &[Trial<'_>]) {
        // A later pass is mostly like the second, which was tried.
        let cut: Vec<&Trial<'_>> =
            trials.iter().filter(|trial| trial.extent == Extent::Cut && !trial.is_late).collect();
        let has_errors = self.found.iter().any(|found| found.severity == Severity::Error);
        if let Some(first) = cut.first().filter(|_| !has_errors) {
            let message = format!("not all paths to this and {} more were tried (step limit)", cut.len() - 1);
            let message = if cut.len() == 1 { message.replace(" and 0 more", "") } else { message };
            self.warn("not-tried", first.path, message).help =
                Some("let it read shorter phases; an error in it may only appear during a run".into());
        }
    }

    /// Something fails, whatever happens or in some case.
    fn fails(&mut self, trial: &Trial<'_>) {
        let Some((way, error)) = &trial.failed else { return };
        let is_text = matches!(
            trial.what,
            TrialSubject::Opening { .. } | TrialSubject::Ask { .. } | TrialSubject::Announced { .. }
        );
        let always = always_fails(trial);
        if always && is_text {
            let span = self.name_span(trial.path, error.line, name_of(error));
            return self.found.push(template_error(trial.path, trial.text, span, error.clone()));
        }
        let path = trial.path.to_string();
        let subject = match &trial.what {
            TrialSubject::Opening { .. } | TrialSubject::Ask { .. } => "this text".to_string(),
            TrialSubject::Result { .. } if path.starts_with("outcome") => "this outcome".to_string(),
            TrialSubject::Result { .. } => "this assertion".to_string(),
            _ => format!("`{}`", path.rsplit('.').next().unwrap_or_default()),
        };
        let help = match &trial.what {
            TrialSubject::Worked(..) if path.contains(".set") => {
                "a value in the state keeps the type of its first value; one that begins as null can become \
                 anything"
            }
            TrialSubject::Worked(..) if path.ends_with("pairs") => {
                "return a list of pairs, each agent in one of them, such as `players | batch(2)`"
            }
            TrialSubject::Worked(..) => "return a list of keys, such as one in the `state`",
            _ => "a result that does not exist is null: test it with `is not none` first",
        };
        if always {
            // A missing count is mostly that of a misspelled option.
            let counts =
                || trial.text.contains(".votes").then(|| options(self.scenario, trial.phases)).flatten();
            let help = remedy(trial.text, error).or_else(counts).unwrap_or(help.into());
            let message = format!("{subject} always fails: {}", error.message);
            let span = self.scenario.tree.value(trial.path);
            self.found.push(Diagnostic::error("expression", path, span, message).help(help));
            return;
        }
        let message = if trial.is_forced {
            format!("{subject} fails: {}", error.message)
        } else {
            format!("{subject} fails if {way}: {}", error.message)
        };
        let span = if is_text {
            self.name_span(trial.path, error.line, "")
        } else {
            self.scenario.tree.value(trial.path)
        };
        self.found.push(Diagnostic::warning("may-fail", path, span, message).help(help));
    }

    /// An assertion that a judge's choice can't decide.
    fn one_sided(&mut self, trial: &Trial<'_>, that: &Expression) {
        let Some(judge) = that.scope.verdict.map(|judge| self.scenario.phase(judge)) else { return };
        let Some(choice) = judge.choices().next() else { return };
        if !is_settled(self.scenario, trial, that) || (1..trial.n_tried).contains(&trial.n_held) {
            return;
        }
        let holds = if trial.n_held == 0 { "is always false" } else { "is always true" };
        let message = format!("whatever `{}` answers, `{}` {holds}", judge.name, that.text);
        let options: Vec<String> =
            choice.options.iter().map(|option| format!("`{}`", option.value)).collect();
        self.warn("unreachable", &that.path, message).help =
            Some(format!("`verdict` is one of {}", options.join(", ")));
    }

    /// An assertion that holds in no case. One that need not hold in any run is a bound from above.
    fn never_holds(&mut self, trial: &Trial<'_>, that: &Expression) {
        let mut assertions = self.scenario.assertions.iter();
        let share = assertions.find(|other| other.that.path == that.path).and_then(|found| found.share);
        if share.is_some_and(|share| share.admits(0, 0, 1)) {
            return;
        }
        if trial.n_held > 0 || !is_settled(self.scenario, trial, that) {
            return;
        }
        let message = format!("this assertion never holds: whatever is chosen, `{}` is false", that.text);
        let help = options(self.scenario, &that.phases).unwrap_or("fix the assertion, or remove it".into());
        self.warn("unreachable", &that.path, message).help = Some(help);
    }

    /// A condition that holds in no case, in no pass of the blocks around its phase.
    fn unreachable(&mut self, trials: &[&Trial<'_>]) {
        let of_whens = trials.iter().filter_map(|trial| match trial.what {
            TrialSubject::When(when, phase) => Some((trial, when, phase)),
            _ => None,
        });
        let Some((_, when, phase)) = of_whens.clone().next() else { return };
        // In a pass that is never played it is not asked.
        let is_settled = |trial: &Trial<'_>, when| {
            trial.n_held == 0
                && trial.extent == Extent::Whole
                && (trial.n_tried == 0 || is_settled(self.scenario, trial, when))
        };
        let is_tried = of_whens.clone().any(|(trial, ..)| trial.n_tried > 0);
        if !is_tried || !of_whens.clone().all(|(trial, when, _)| is_settled(trial, when)) {
            return;
        }
        let phase = &self.scenario.phase(phase).name;
        let message = format!("`{phase}` is never played: whatever is chosen, `{}` is false", when.text);
        let help =
            options(self.scenario, &when.phases).unwrap_or("fix the condition, or remove the phase".into());
        self.warn("unreachable", &when.path, message).help = Some(help);
    }

    /// A text uses a result of a phase that is skipped in some case.
    fn missing_result(&mut self, trial: &Trial<'_>, phase: &Phase, from: &Phase) {
        let Some(skips) = &from.when else { return };
        let text = trial.text;
        let code = Code::of(text);
        let used = MISSING.iter().find_map(|field| {
            let name = format!("{}.{field}", from.name);
            let at = text.match_indices(&name).map(|(at, _)| at).find(|at| code.contains(*at))?;
            Some((at, name))
        });
        let tested = ["played", "is none", "is not none", "default("].iter().any(|test| text.contains(test));
        let guarded = phase.when.as_ref().is_some_and(|when| when.text.contains(&from.name));
        let Some((at, name)) = used.filter(|_| !tested && !guarded) else {
            return;
        };
        let message = format!(
            "`{name}` may not exist here: if `{}` is false, `{}` is skipped, and `{}` is null",
            skips.text, from.name, phase.name
        );
        let span = self.name_span(trial.path, code.line(at), &name);
        let found = Diagnostic::warning("may-be-missing", trial.path.to_string(), span, message);
        self.found
            .push(found.help(format!("test `{}.played`, or give `{}` a `when` too", from.name, phase.name)));
    }

    fn warn(&mut self, code: &'static str, path: &Path, message: String) -> &mut Diagnostic {
        let (at, span) = (self.found.len(), self.scenario.tree.value(path));
        self.found.push(Diagnostic::warning(code, path.to_string(), span, message));
        &mut self.found[at]
    }

    fn name_span(&self, path: &Path, line: usize, name: &str) -> Span {
        name_span(&self.scenario.sources, &self.scenario.tree, path, line, name)
    }
}

/// True of what fails whenever it is tried.
fn always_fails(trial: &Trial<'_>) -> bool {
    trial.failed.is_some() && trial.n_failed == trial.n_tried && !trial.has_words && !trial.is_forced
}

/// The options of the choices in some phases, for a help; `None`: nothing is chosen there.
fn options(scenario: &Scenario, phases: &[PhaseId]) -> Option<String> {
    let of_phase = |id: &PhaseId| {
        let phase = scenario.phase(*id);
        let options = phase.choice.as_ref()?.options.iter();
        let options: Vec<String> = options.map(|option| format!("`{}`", option.value)).collect();
        Some(format!("the options of `{}` are {}", phase.name, options.join(", ")))
    };
    let options: Vec<String> = phases.iter().filter_map(of_phase).collect();
    (!options.is_empty()).then(|| options.join("; "))
}

/// True of an expression that was tried on all that can happen, and on nothing that `--set` may decide
/// otherwise next time.
fn is_settled(scenario: &Scenario, trial: &Trial<'_>, expression: &Expression) -> bool {
    let names = expression_names(&expression.text).unwrap_or_default();
    let settable = names.iter().any(|name| name == "variables" || scenario.variables.contains_key(name));
    trial.n_tried > 0 && trial.extent == Extent::Whole && !trial.has_words && !settable
}

/// Tries everything; what depends on the same phases is tried together. What has few alternatives comes
/// first, later passes of blocks last.
fn play(rehearsal: &Rehearsal, trials: &mut [Trial<'_>]) {
    let mut steps = Steps::default();
    let late: BTreeSet<PhaseId> =
        trials.iter().filter(|trial| trial.is_late).flat_map(|trial| trial.phases(rehearsal).0).collect();
    let mut groups: BTreeMap<(bool, Stretch), Vec<&mut Trial<'_>>> = BTreeMap::new();
    let mut same: Vec<(&mut Trial<'_>, (bool, Stretch))> = Vec::new();
    for trial in trials.iter_mut() {
        let stretch = if trial.is_late { (late.clone(), None) } else { trial.phases(rehearsal) };
        let key = (trial.is_late, stretch);
        let group = groups.entry(key.clone()).or_default();
        if group.iter().any(|other| other.is_same(trial, &rehearsal.scenario)) {
            same.push((trial, key));
        } else {
            group.push(trial);
        }
    }
    let mut pieces: Vec<_> = groups
        .iter_mut()
        .map(|((is_late, (phases, unseen)), group)| {
            (*is_late, rehearsal.piece(phases.clone(), *unseen, group), group)
        })
        .collect();
    pieces.sort_by_key(|(is_late, piece, _)| (*is_late, rehearsal.n_ways(piece)));
    let n_pieces = pieces.len();
    for (at, (_, piece, group)) in pieces.into_iter().enumerate() {
        let most = steps.share(n_pieces - at);
        play_group(rehearsal, &piece, group, most, &mut steps);
    }
    for (trial, key) in same {
        let group = groups.get(&key);
        let is_same = |other: &&&mut Trial<'_>| other.is_same(trial, &rehearsal.scenario);
        if let Some(first) = group.and_then(|group| group.iter().find(is_same)) {
            trial.learn_from(first);
        }
    }
    play_whens(rehearsal, trials, &mut steps);
}

/// Tries the conditions of phases in later passes that have held in no pass so far, each on the phases that
/// decide about it.
fn play_whens(rehearsal: &Rehearsal, trials: &mut [Trial<'_>], steps: &mut Steps) {
    let is_when = |trial: &&Trial<'_>| matches!(trial.what, TrialSubject::When(..));
    let known = trials.iter().filter(is_when).filter(|trial| trial.n_held > 0 || trial.failed.is_some());
    let known: BTreeSet<String> = known.map(|trial| trial.path.to_string()).collect();
    let mut groups: BTreeMap<Stretch, Vec<&mut Trial<'_>>> = BTreeMap::new();
    for trial in trials.iter_mut().filter(|trial| trial.is_late && trial.extent != Extent::Whole) {
        if is_when(&&*trial) && !known.contains(&trial.path.to_string()) {
            groups.entry(trial.phases(rehearsal)).or_default().push(trial);
        }
    }
    let n_groups = groups.len();
    for (at, ((phases, unseen), mut group)) in groups.into_iter().enumerate() {
        let piece = rehearsal.piece(phases, unseen, &mut group);
        let most = steps.share(n_groups - at);
        play_group(rehearsal, &piece, &mut group, most, steps);
    }
}

/// Tries some on the plays of a piece; texts that nothing led to are tried at last without what leads to
/// them.
fn play_group(
    rehearsal: &Rehearsal,
    piece: &PhaseGroup,
    group: &mut [&mut Trial<'_>],
    most: u64,
    steps: &mut Steps,
) {
    let extent = rehearsal.play(piece, most, steps, &mut |played, steps| {
        group.iter_mut().for_each(|trial| trial.look(rehearsal, played, steps));
    });
    group.iter_mut().for_each(|trial| trial.extent = extent);
    let is_untried = |trial: &&mut &mut Trial<'_>| {
        trial.n_tried == 0
            && !trial.is_late
            && matches!(trial.what, TrialSubject::Opening { .. } | TrialSubject::Ask { .. })
    };
    let is_exact = extent == Extent::Whole && !group.iter().any(|trial| trial.has_words);
    rehearsal.replies.settle(is_exact);
    if is_exact || !group.iter_mut().any(|trial| is_untried(&trial)) {
        return;
    }
    let mut untried: Vec<_> = group.iter_mut().filter(is_untried).collect();
    untried.iter_mut().for_each(|trial| trial.is_forced = true);
    rehearsal.play(piece, most, steps, &mut |played, steps| {
        untried.iter_mut().for_each(|trial| trial.look(rehearsal, played, steps));
    });
    rehearsal.replies.settle(false);
    // What fails in some case only may fail in none that can happen.
    let clear = |trial: &&mut &mut &mut Trial<'_>| trial.n_failed < trial.n_tried;
    untried.iter_mut().filter(clear).for_each(|trial| trial.failed = None);
}
