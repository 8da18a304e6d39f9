//! Checks expressions and what they, like templates, name of phases and their results.

use super::{Checker, Names};
use crate::PhaseId;
use crate::schema::{LongAssertion, WrittenAssertion, WrittenExpression, WrittenShare};
use crate::template::{
    Code, EXPRESSION_NAMES, Expression, OUTER, PASS_NAMES, PHASE_FIELDS, Scope, expression_names,
};
use crate::{Assertion, Assignment, Content, Phase, Share, template};
use greenroom_yaml::diagnostic::{Diagnostic, Suggestion, suggestion};
use greenroom_yaml::{Path, PathStep};
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet};

/// The fields that may give a name to something.
pub(super) const ANY: &[&str] = &["agents", "phases", "variables"];

/// A share as it is written.
const EXAMPLE: &str = "e.g. `share: { at_least: 0.9 }`";

/// A judge's reply, in the assertion about it.
const VERDICT: &str = "verdict";

impl Checker {
    /// An expression that may use what phases before `end` came to, and the names in `more`.
    pub(super) fn expression(
        &mut self,
        given: WrittenExpression,
        path: Path,
        end: PhaseId,
        more: &[&str],
    ) -> Option<Expression> {
        let text = given.text();
        let names = match expression_names(&text) {
            Ok(names) => names,
            Err(error) => {
                let braces = text.contains("{{") || text.contains("{%");
                let bare =
                    braces.then(|| "write it without `{{ }}`, e.g. `vote.decision == 'yes'`".to_string());
                let help = bare.or_else(|| template::remedy(&text, &error));
                let help = help.unwrap_or("e.g. `vote.decision == 'yes'`; join several with `and`".into());
                let message = if braces {
                    "an expression is written without braces".to_string()
                } else {
                    format!("not an expression: {}", error.message)
                };
                self.error("expression", &path, message).help = Some(help);
                return None;
            }
        };
        let mut phases = Vec::new();
        let mut scope = Scope::default();
        let mut sound = true;
        for name in names {
            if let Some(phase) = self.names.phase(&name) {
                sound &= self.is_over(&path, (1, &name), phase, end);
                phases.push(phase);
            } else if name == "phases" {
                phases.extend((0..end.0).map(PhaseId));
                for later in phases_named(&text).filter_map(|name| self.names.phase(name)).collect::<Vec<_>>()
                {
                    sound &= self.is_over(&path, (1, "phases"), later, end);
                }
            } else if name == "payoffs" {
                scope.payoffs = true;
                sound &= self.payoff_is_over(&path, 1, end, &mut phases);
            } else if self.names.state.contains(&name) {
                sound &= self.state_is_known(&path, 1, &name, end);
                scope.state = true;
            } else if let Some(known) = self.intermediate_named(&name) {
                sound &= self.uses_intermediate(&path, (1, &name), known, end, (&mut phases, &mut scope));
            } else if !self.is_known_to_expressions(&name, &path, more) {
                sound = false;
                self.undefined_in_expression(&path, &text, &name, end, more);
            }
        }
        sound &= self.fields(&path, &text, false);
        phases.sort_unstable();
        phases.dedup();
        sound.then_some(Expression { path, text, phases, scope })
    }

    /// True of a name that an expression may use, phases, the state and intermediate values aside.
    fn is_known_to_expressions(&self, name: &str, path: &Path, more: &[&str]) -> bool {
        EXPRESSION_NAMES.contains(&name)
            || self.names.variables.iter().any(|known| known == name)
            || more.contains(&name)
            || self.is_pass_name(path, name)
    }

    /// True for a name of passes inside a block or in a block's condition; for `outer` in a nested block; for
    /// the name of an item in a block that is played for each.
    pub(super) fn is_pass_name(&self, path: &Path, name: &str) -> bool {
        let is_inside = |block: &Path| {
            path.0
                .strip_prefix(block.0.as_slice())
                .is_some_and(|rest| matches!(rest.first(), Some(PathStep::Key(field)) if field != "for"))
        };
        let mut around = self.names.items.iter().filter(|(block, _)| is_inside(block));
        if around.any(|(_, names)| names.iter().any(|known| known == name)) {
            return true;
        }
        // `phases`, an index; in a block, its field and so on.
        let in_lists = path.0.chunks(2).take_while(
            |steps| matches!(steps, [PathStep::Key(list), PathStep::Index(_)] if list == "phases"),
        );
        let n_lists = in_lists.count();
        let is_own = matches!(
            path.0.get(2 * n_lists..),
            Some([PathStep::Key(field)]) if ["when", "until"].contains(&field.as_str())
        );
        let is_block =
            n_lists > 0 && is_own && !self.names.places.iter().any(|place| place.0 == path.0[..2 * n_lists]);
        let depth = if is_block { n_lists } else { n_lists.saturating_sub(1) };
        PASS_NAMES.contains(&name) && depth > 0 || name == OUTER && depth > 1
    }

    fn undefined_in_expression(&mut self, path: &Path, text: &str, name: &str, end: PhaseId, more: &[&str]) {
        if self.is_open(ANY) {
            return;
        }
        let known = self.names.variables.iter().chain(&self.names.state).map(String::as_str);
        let known = known.chain(self.names.lets.iter().map(|known| known.name.as_str()));
        let before = self.names.phases.iter().take(end.0).map(String::as_str);
        let known = known.chain(before).chain(EXPRESSION_NAMES.iter().copied()).chain(more.iter().copied());
        let is_near =
            || more.contains(&VERDICT) && matches!(suggestion(name, [VERDICT]), Some(Suggestion::Near(_)));
        let help = if name == VERDICT {
            "`verdict` needs a `judge` beside `that`".to_string()
        } else if is_near() {
            format!("did you mean `{VERDICT}`?")
        } else if is_compared(text, name) {
            format!("put a text in quotes: `'{name}'`")
        } else if self.names.has_agent(name) {
            format!("use `PHASE.choices.{name}` for what `{name}` chose in a phase")
        } else {
            self.suggest(name, known).unwrap_or("declare it under `variables:`".into())
        };
        let message = format!("`{name}` is not defined here");
        self.error_at("undefined-variable", path, (1, name), message).help = Some(help);
    }

    /// Rejects the use of a phase that is not over by then; `at` is what uses it, and on which line.
    pub(super) fn is_over(&mut self, path: &Path, at: (usize, &str), phase: PhaseId, end: PhaseId) -> bool {
        let at_phase = self.names.phase_at(path);
        // What is later in a block was played in the pass before.
        let is_later_pass = at_phase != Some(phase) && self.names.is_in_block_of(phase, path);
        if phase < end || is_later_pass {
            return true;
        }
        let name = self.names.phases[phase.0].clone();
        // What is computed before the run knows nothing of earlier phases either.
        let here = at_phase.filter(|at| *at <= phase).map(|at| self.names.phases[at.0].clone());
        let is_alone = here.is_none();
        let message = match here {
            None => format!("`{name}` is not available here: this is computed from variables alone"),
            Some(here) if here == name => {
                format!("`{name}` is this phase itself: when it opens, nothing has been said in it")
            }
            Some(here) => format!("`{name}` is played after `{here}`: nothing has been said in it yet"),
        };
        let help = match self.names.block_at(path) {
            _ if is_alone => "use variables",
            Some(_) => "to use it in the next pass, store it in the `state` with `set`",
            None => "name only phases that come earlier in the file",
        };
        self.error_at("forward-reference", path, at, message).help = Some(help.into());
        false
    }

    /// Rejects `payoffs` where there are none yet; adds the phase that they come from.
    pub(super) fn payoff_is_over(
        &mut self,
        path: &Path,
        line: usize,
        end: PhaseId,
        phases: &mut Vec<PhaseId>,
    ) -> bool {
        if self.names.payoff.is_empty() {
            let message = "`payoffs` is used, but the scenario has no `payoff`".to_string();
            self.error_at("undefined-variable", path, (line, "payoffs"), message).help =
                Some("add `payoff:` with the phase whose choices count".into());
            return false;
        }
        // In a block there are payoffs of the passes before.
        let known = |phase: &&PhaseId| **phase < end || self.names.is_in_block_of(**phase, path);
        let Some(first) = self.names.payoff.iter().find(known).or(self.names.payoff.first()).copied() else {
            return false;
        };
        phases.extend(self.names.payoff.iter().filter(known));
        self.is_over(path, (line, "payoffs"), first, end) || self.names.is_in_block_of(first, path)
    }

    /// Rejects the state where there is none yet: before the run.
    pub(super) fn state_is_known(&mut self, path: &Path, line: usize, name: &str, end: PhaseId) -> bool {
        let is_in_phase = matches!(path.0.first(), Some(PathStep::Key(first)) if first == "phases");
        if end > PhaseId(0) || is_in_phase {
            return true;
        }
        let message = format!(
            "`{name}` changes during the run, but this is computed before the run, from variables alone"
        );
        self.error_at("forward-reference", path, (line, name), message).help = Some("use variables".into());
        false
    }

    /// Adds what an intermediate value uses to what uses it; refuses it where that is not known yet.
    pub(super) fn uses_intermediate(
        &mut self,
        path: &Path,
        (line, name): (usize, &str),
        (index, value): (usize, Option<Expression>),
        end: PhaseId,
        (phases, scope): (&mut Vec<PhaseId>, &mut Scope),
    ) -> bool {
        // What is wrong with it has been said.
        let Some(value) = value else { return true };
        let mut sound = true;
        for phase in &value.phases {
            sound &= self.is_over(path, (line, name), *phase, end);
        }
        phases.extend(&value.phases);
        scope.state |= value.scope.state;
        scope.payoffs |= value.scope.payoffs;
        scope.lets.extend(value.scope.lets.iter().copied().chain([index]));
        scope.lets.sort_unstable();
        scope.lets.dedup();
        sound
    }

    /// Checks `phase.field` and `phase.field.agent` in an expression, or in the braces of a template.
    pub(super) fn fields(&mut self, path: &Path, text: &str, is_template: bool) -> bool {
        let mut sound = true;
        let code = if is_template { Code::of(text) } else { Code::default() };
        let line_of = |at: usize| if is_template { code.line(at) } else { 1 };
        let (mut unknown, mut seen) = (Vec::new(), BTreeSet::new());
        let names = std::mem::take(&mut self.names);
        for NamedResult { at, phase, field, key, is_ordered } in results_named(text, &names) {
            if is_template && !code.contains(at) {
                continue;
            }
            if !seen.insert((line_of(at), phase, field, key)) {
                continue;
            }
            let known = PHASE_FIELDS.contains(&field);
            if !known {
                let message = format!("`{field}` is not a field of the phase `{phase}`");
                let help = self.suggest(field, PHASE_FIELDS.iter().copied());
                let name = format!("{phase}.{field}");
                self.error_at("unknown-field", path, (line_of(at), &name), message).help = help;
                sound = false;
            }
            if is_ordered && key.is_none() && ["choices", "votes"].contains(&field) {
                let name = format!("{phase}.{field}");
                let (of, example) = if field == "votes" {
                    ("how many chose each option", format!("`{name}.OPTION >= 2`"))
                } else {
                    ("what each agent chose", format!("`{name}.AGENT >= 2`"))
                };
                let message = format!("`{name}` is {of}, which is not a number to compare");
                self.error_at("expression", path, (line_of(at), &name), message).help =
                    Some(format!("compare one of them, e.g. {example}"));
                sound = false;
            }
            let by_agent = ["choices", "history", "said"].contains(&field);
            if let Some(key) = key.filter(|key| by_agent && known && !names.has_agent(key)) {
                unknown.push((key.to_string(), line_of(at)));
                sound = false;
            }
        }
        self.names = names;
        for (key, line) in unknown {
            self.unknown_agent_in(path, line, &key);
        }
        sound
    }

    /// Rejects `phases['NAME.PASS']` where there is no such pass.
    pub(super) fn passes_exist(&mut self, scenario: &Content) {
        let phases = scenario.phases.iter();
        let conditions = phases.clone().flat_map(|phase| {
            let open = phase.choices().filter_map(|choice| choice.open.as_ref());
            let set = phase.sets().flat_map(Assignment::expressions);
            let turns = phase.script().iter().filter_map(|turn| turn.when.as_ref());
            phase
                .when
                .iter()
                .chain(&phase.until)
                .chain(&phase.cast)
                .chain(phase.matched())
                .chain(open)
                .chain(set)
                .chain(turns)
        });
        let results = scenario.lets.iter().chain(&scenario.outcomes).map(|(_, each)| each);
        let all =
            conditions.chain(results).chain(scenario.assertions.iter().map(|assertion| &assertion.that));
        let texts = phases.flat_map(Phase::templates).map(|text| (&text.path, &text.text));
        let mut found: BTreeMap<(String, String), Path> = BTreeMap::new();
        for (path, text) in all.map(|each| (&each.path, &each.text)).chain(texts) {
            for named in
                passes_named(text).filter(|named| scenario.phases.iter().all(|phase| phase.part != *named))
            {
                found.insert((path.to_string(), named.to_string()), path.clone());
            }
        }
        for ((_, named), path) in found {
            let Some((name, pass)) = named.split_once('.') else { continue };
            let of = scenario.phases.iter().filter(|phase| phase.name == name);
            let passes: Vec<&str> = of.filter_map(|phase| Some(phase.part.split_once('.')?.1)).collect();
            let message = format!("`{name}` has no pass `{pass}`");
            let help = match passes.is_empty() {
                true => format!("`{name}` is not in a block: write `{name}`"),
                false => format!(
                    "expected one of {}",
                    passes.iter().map(|pass| format!("`{pass}`")).collect::<Vec<_>>().join(", ")
                ),
            };
            self.error_at("unknown-phase", &path, (1, &named), message).help = Some(help);
        }
    }

    pub(super) fn outcomes(
        &mut self,
        written: IndexMap<String, Option<WrittenExpression>>,
        path: &Path,
    ) -> Vec<(String, Expression)> {
        let end = PhaseId(self.names.phases.len());
        let mut outcomes = Vec::new();
        for (name, given) in written {
            let path = path.key(name.clone());
            if !super::is_identifier(&name) {
                let message = format!("`{name}` is not a valid outcome name: use letters, digits and `_`");
                let help = format!("for example `{}`", super::phases::identifier_from(&name));
                let span = self.tree.key(&path);
                self.push(Diagnostic::error("bad-name", path.to_string(), span, message).help(help));
            }
            let expression = given.and_then(|given| self.expression(given, path, end, &["outcome"]));
            if let Some(expression) = expression {
                outcomes.push((name, expression));
            }
        }
        outcomes
    }

    pub(super) fn assertions(
        &mut self,
        written: Vec<Option<WrittenAssertion>>,
        path: &Path,
        outcomes: &[(String, Expression)],
    ) -> Vec<Assertion> {
        let end = PhaseId(self.names.phases.len());
        let more: &[&str] = if outcomes.is_empty() { &[] } else { &["outcome"] };
        let mut assertions = Vec::new();
        for (at, given) in written.into_iter().enumerate() {
            let path = path.index(at);
            let judge = self.names.phase_at(&path.key("judge"));
            let (that, why, share, path) = match given {
                Some(WrittenAssertion::That(that)) => (that, None, None, path),
                Some(WrittenAssertion::Long(LongAssertion { that: Some(that), why, share, .. })) => {
                    let share = share.and_then(|share| self.share(share, &path.key("share")));
                    (that, self.known_text(why, &path.key("why")), share, path.key("that"))
                }
                Some(WrittenAssertion::Long(_)) => {
                    let message = "an assertion needs `that`: the expression that must be true";
                    let help = match judge {
                        Some(_) => "`verdict` is the judge's answer, e.g. `that: verdict == 'yes'`",
                        None => "e.g. `that: game.invalid == 0`",
                    };
                    self.missing(&path.key("that"), message, help);
                    continue;
                }
                None => continue,
            };
            let more: Vec<&str> = more.iter().copied().chain(judge.map(|_| VERDICT)).collect();
            if let Some(mut that) = self.expression(that, path, end, &more) {
                if let Some(judge) = judge {
                    self.decides(&mut that, judge);
                }
                assertions.push(Assertion { that, why, share });
            }
        }
        assertions
    }
}

impl Checker {
    /// The share of runs in which an assertion must hold.
    fn share(&mut self, given: WrittenShare, path: &Path) -> Option<Share> {
        let WrittenShare { at_least, at_most } = given;
        let mut sound = true;
        for (field, value) in [("at_least", at_least), ("at_most", at_most)] {
            let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) else { continue };
            let message = format!("`{field}` must be a share from 0 to 1, found {value}");
            let is_percentage = (1.0..=100.0).contains(&value);
            let help = if is_percentage {
                format!("for {value} %, write `{}`", value / 100.0)
            } else {
                EXAMPLE.into()
            };
            self.error("bad-value", &path.key(field), message).help = Some(help);
            sound = false;
        }
        if at_least.is_none() && at_most.is_none() {
            self.missing(path, "a `share` needs `at_least` or `at_most`", EXAMPLE);
            sound = false;
        }
        if sound && at_least.zip(at_most).is_some_and(|(least, most)| least > most) {
            let message = "`at_least` is greater than `at_most`, so the assertion can't hold";
            self.error("bad-value", path, message).help = Some("exchange the two".into());
            sound = false;
        }
        sound.then_some(Share { at_least, at_most })
    }

    /// Lets the verdict of a judge decide an assertion; warns where it does not.
    fn decides(&mut self, that: &mut Expression, judge: PhaseId) {
        if expression_names(&that.text).is_ok_and(|names| names.iter().any(|name| name == VERDICT)) {
            that.scope.verdict = Some(judge);
            that.phases.push(judge);
            that.phases.sort_unstable();
            that.phases.dedup();
        } else if !that.phases.contains(&judge) {
            let path = self.names.places[judge.0].clone();
            let message = "the judge has no effect: `that` does not use `verdict`";
            self.unused(&path, message, "e.g. `that: verdict == 'yes'`");
        }
    }
}

/// True if a name is compared as a text: after `==` or `!=`, or before them.
fn is_compared(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        let compares = |text: &str| text.ends_with("==") || text.ends_with("!=");
        whole
            && (compares(before.trim_end())
                || ["==", "!="].iter().any(|sign| after.trim_start().starts_with(sign)))
    })
}

/// Each NAME of `phases.NAME` and `phases['NAME']`.
fn phases_named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("phases").filter_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let rest = ["['", "[\"", "."].iter().find_map(|open| rest.strip_prefix(open))?;
        Some(&rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())])
    })
}

/// Each `NAME.PASS` of `phases['NAME.PASS']`.
fn passes_named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("phases[").filter_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (name, _) = rest[1..].split_once(quote)?;
        name.contains('.').then_some(name)
    })
}

/// A result that a text names: `phase.field` or `phase.field.key`.
struct NamedResult<'a> {
    /// Byte at which it begins.
    at: usize,
    phase: &'a str,
    field: &'a str,
    key: Option<&'a str>,
    /// True if `<` or `>` follows.
    is_ordered: bool,
}

/// Each result that a text names.
fn results_named<'a>(text: &'a str, names: &'a Names) -> Vec<NamedResult<'a>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for phase in names.phases.iter().filter(|phase| !phase.is_empty()) {
        for (at, _) in text.match_indices(phase.as_str()) {
            let starts =
                !text[..at].chars().next_back().is_some_and(|c| is_word(c) || matches!(c, '.' | '"' | '\''));
            let Some(rest) = text[at + phase.len()..].strip_prefix('.').filter(|_| starts) else { continue };
            let word = |text: &'a str| &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())];
            let field = word(rest);
            let rest = &rest[field.len()..];
            let quoted = |quote: char| rest.strip_prefix('[').and_then(|rest| rest.strip_prefix(quote));
            let key = rest.strip_prefix('.').or_else(|| quoted('"')).or_else(|| quoted('\'')).map(word);
            if !field.is_empty() {
                let is_ordered = rest.trim_start().starts_with(['<', '>']);
                found.push(NamedResult { at, phase, field, key, is_ordered });
            }
        }
    }
    found
}
