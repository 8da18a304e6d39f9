//! Warnings that follow the ways a run can take: phases that nothing leads to, texts and conditions that can fail, results
//! that may not exist where they are used. All of it is rehearsed, never guessed.

use super::Checker;
use super::rehearsal::{Extent, Rehearsal, Steps};
use super::trials::{Trial, What, trials};
use crate::diagnostic::Diagnostic;
use crate::scenario::template::{Code, Expression, expression_names, remedy};
use crate::scenario::yaml::Path;
use crate::scenario::{Phase, PhaseId, Scenario};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Phases to play, and the one of them whose own choices nothing looks at.
type Stretch = (BTreeSet<PhaseId>, Option<PhaseId>);

/// Results that are null where a phase was skipped.
const MISSING: &[&str] = &["choices", "votes", "decision", "tied", "invalid"];

impl Checker {
    /// Tries all that looks at what phases came to, and tells what may go wrong.
    pub(super) fn rehearse(&mut self, scenario: &Arc<Scenario>) {
        let mut trials = trials(scenario);
        if trials.is_empty() {
            return;
        }
        let rehearsal = Rehearsal::new(scenario.clone());
        play(&rehearsal, &mut trials);
        self.stuck(&rehearsal);
        for trial in &trials {
            if trial.failed.is_some() {
                self.fails(scenario, trial);
                continue;
            }
            match &trial.what {
                What::When(when, phase) => self.unreachable(scenario, trial, scenario.phase(*phase), when),
                What::Opening { phase, .. } | What::Ask { phase, .. } | What::Announced { phase, .. } => {
                    for from in &trial.unplayed {
                        self.missing_result(trial, scenario.phase(*phase), scenario.phase(*from));
                    }
                }
                What::Result { expression, .. } if expression.scope.verdict.is_some() => {
                    self.one_sided(scenario, trial, expression);
                }
                What::Result { expression, .. } => self.never_holds(scenario, trial, expression),
                _ => {}
            }
        }
        let cut: Vec<&Trial<'_>> = trials.iter().filter(|trial| trial.extent == Extent::Cut).collect();
        if let Some(first) = cut.first().filter(|_| !self.has_errors()) {
            let message = format!(
                "this and {} more were not tested on every possible course: it would take too many steps",
                cut.len() - 1
            );
            let message = if cut.len() == 1 { message.replace(" and 0 more were", " was") } else { message };
            self.warn("not-tried", first.path, message).help =
                Some("let it read shorter phases; an error in it may only appear during a run".into());
        }
    }

    /// Something fails, whatever happens or in some case.
    fn fails(&mut self, scenario: &Scenario, trial: &Trial<'_>) {
        let Some((way, error)) = &trial.failed else { return };
        let is_text = matches!(trial.what, What::Opening { .. } | What::Ask { .. } | What::Announced { .. });
        let always = trial.n_failed == trial.n_tried && !trial.has_words && !trial.is_forced;
        if always && is_text {
            return self.template_error(trial.path, trial.text, error.clone());
        }
        let path = trial.path.to_string();
        let subject = match &trial.what {
            What::Opening { .. } | What::Ask { .. } => "this text".to_string(),
            What::Result { .. } if path.starts_with("outcome") => "this outcome".to_string(),
            What::Result { .. } => "this assertion".to_string(),
            _ => format!("`{}`", path.rsplit('.').next().unwrap_or_default()),
        };
        let help = match &trial.what {
            What::Worked(_) if path.contains(".set") => {
                "a value in the state keeps the type of its first value; one that begins as null can become anything"
            }
            What::Worked(_) => "return a list of keys, such as one in the `state`",
            _ => "a result that does not exist is null: test it with `is not none` first",
        };
        if always {
            // A count that there is not is mostly that of a misspelled option.
            let counts = || trial.text.contains(".votes").then(|| options(scenario, trial.phases)).flatten();
            let help = remedy(trial.text, error).or_else(counts).unwrap_or(help.into());
            let message = format!("{subject} always fails: {}", error.message);
            self.error("expression", trial.path, message).help = Some(help);
            return;
        }
        let message = if trial.is_forced {
            format!("{subject} fails: {}", error.message)
        } else {
            format!("{subject} fails if {way}: {}", error.message)
        };
        let span =
            if is_text { self.name_span(trial.path, error.line, "") } else { self.tree.value(trial.path) };
        self.push(Diagnostic::warning("may-fail", path, span, message).help(help));
    }

    /// An assertion that a judge's choice can't decide.
    fn one_sided(&mut self, scenario: &Scenario, trial: &Trial<'_>, that: &Expression) {
        let Some(judge) = that.scope.verdict.map(|judge| scenario.phase(judge)) else { return };
        let Some(choice) = judge.choices().next() else { return };
        if !is_settled(scenario, trial, that) || (1..trial.n_tried).contains(&trial.n_held) {
            return;
        }
        let holds = if trial.n_held == 0 { "is always false" } else { "is always true" };
        let message = format!("whatever `{}` answers, `{}` {holds}", judge.name, that.text);
        let options: Vec<String> =
            choice.options.iter().map(|option| format!("`{}`", option.value)).collect();
        self.warn("unreachable", &that.path, message).help =
            Some(format!("`verdict` is one of {}", options.join(", ")));
    }

    /// An assertion that holds in no case.
    fn never_holds(&mut self, scenario: &Scenario, trial: &Trial<'_>, that: &Expression) {
        let is_assertion = trial.path.to_string().starts_with("assertions");
        if !is_assertion || trial.n_held > 0 || !is_settled(scenario, trial, that) {
            return;
        }
        let message = format!("this assertion never holds: whatever is chosen, `{}` is false", that.text);
        let help = options(scenario, &that.phases).unwrap_or("fix the assertion, or remove it".into());
        self.warn("unreachable", &that.path, message).help = Some(help);
    }

    /// A condition that holds in no case.
    fn unreachable(&mut self, scenario: &Scenario, trial: &Trial<'_>, phase: &Phase, when: &Expression) {
        if !is_settled(scenario, trial, when) || trial.n_held > 0 {
            return;
        }
        let message =
            format!("`{}` is never played: whatever is chosen, `{}` is false", phase.name, when.text);
        let help = options(scenario, &when.phases).unwrap_or("fix the condition, or remove the phase".into());
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
        self.push(found.help(format!("test `{}.played`, or give `{}` a `when` too", from.name, phase.name)));
    }

    pub(super) fn warn(&mut self, code: &'static str, path: &Path, message: String) -> &mut Diagnostic {
        let span = self.tree.value(path);
        self.push(Diagnostic::warning(code, path.to_string(), span, message))
    }
}

/// The options of the choices in some phases, for a help; `None`: nothing is chosen there.
fn options(scenario: &Scenario, phases: &[PhaseId]) -> Option<String> {
    let of_phase = |id: &PhaseId| {
        let phase = scenario.phase(*id);
        let options = phase.choice.as_ref()?.options.iter();
        let options: Vec<String> = options.map(|option| format!("`{}`", option.value)).collect();
        Some(format!("the options of `{}` are {}", phase.name, options.join(", ")))
    };
    let told: Vec<String> = phases.iter().filter_map(of_phase).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// True of an expression that was tried on all that can happen, and on nothing that `--set` may decide otherwise next time.
fn is_settled(scenario: &Scenario, trial: &Trial<'_>, expression: &Expression) -> bool {
    let names = expression_names(&expression.text).unwrap_or_default();
    let settable = names.iter().any(|name| name == "variables" || scenario.variables.contains_key(name));
    trial.n_tried > 0 && trial.extent == Extent::Whole && !trial.has_words && !settable
}

/// Tries everything, those together that look at the same phases; what can go in few ways first.
fn play(rehearsal: &Rehearsal, trials: &mut [Trial<'_>]) {
    let mut steps = Steps::default();
    let mut groups: BTreeMap<Stretch, Vec<&mut Trial<'_>>> = BTreeMap::new();
    let mut same: Vec<(&mut Trial<'_>, Stretch)> = Vec::new();
    for trial in trials.iter_mut() {
        let key = trial.phases(rehearsal);
        let group = groups.entry(key.clone()).or_default();
        if group.iter().any(|other| other.is_same(trial)) {
            same.push((trial, key));
        } else {
            group.push(trial);
        }
    }
    let mut pieces: Vec<_> = groups
        .iter_mut()
        .map(|((phases, unseen), group)| (rehearsal.piece(phases.clone(), *unseen, group), group))
        .collect();
    pieces.sort_by_key(|(piece, _)| rehearsal.n_ways(piece));
    let n_pieces = pieces.len();
    for (at, (piece, group)) in pieces.into_iter().enumerate() {
        let most = steps.share(n_pieces - at);
        let extent = rehearsal.play(&piece, most, &mut steps, &mut |moment, said, steps| {
            group.iter_mut().for_each(|trial| trial.look(rehearsal, &moment, said, steps));
        });
        group.iter_mut().for_each(|trial| trial.extent = extent);
        let untried = |trial: &&mut &mut Trial<'_>| {
            trial.n_tried == 0 && matches!(trial.what, What::Opening { .. } | What::Ask { .. })
        };
        let is_exact = extent == Extent::Whole && !group.iter().any(|trial| trial.has_words);
        if is_exact || !group.iter_mut().any(|trial| untried(&trial)) {
            continue;
        }
        let mut untried: Vec<_> = group.iter_mut().filter(untried).collect();
        untried.iter_mut().for_each(|trial| trial.is_forced = true);
        rehearsal.play(&piece, most, &mut steps, &mut |moment, said, steps| {
            untried.iter_mut().for_each(|trial| trial.look(rehearsal, &moment, said, steps));
        });
        // What fails in some case only may fail in none that can happen.
        let clear = |trial: &&mut &mut &mut Trial<'_>| trial.n_failed < trial.n_tried;
        untried.iter_mut().filter(clear).for_each(|trial| trial.failed = None);
    }
    for (trial, key) in same {
        if let Some(first) =
            groups.get(&key).and_then(|group| group.iter().find(|other| other.is_same(trial)))
        {
            trial.learn_from(first);
        }
    }
}
