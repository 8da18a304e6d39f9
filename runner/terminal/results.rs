//! The results of a run, as text.

use crate::diagnostic::printable;
use crate::scenario::Scenario;
use crate::statistics::{AssertionCount, Threshold};
use crate::transcript::{AssertionRecord, Footer, OutcomeRecord};
use console::Style;
use serde_json::Value;

/// As wide as a label.
const LABEL: &str = "           ";

/// Choices, decisions, payoffs, outcomes and assertions, a line each; empty where a scenario has none of
/// them.
pub fn results(scenario: &Scenario, footer: &Footer, fancy: bool) -> String {
    let name = |key: &String| {
        scenario.agent_by_key(key).map_or(key.clone(), |agent| scenario.agent(agent).name.clone())
    };
    let mut lines: Vec<(&str, String)> = Vec::new();
    if footer.choices > 0 {
        let invalid =
            if footer.invalid > 0 { format!(", {} invalid", footer.invalid) } else { String::new() };
        lines.push(("choices", format!("{}{invalid}", footer.choices)));
    }
    for (phase, decision) in &footer.decisions {
        lines.push((
            "decided",
            format!("{phase}: {}", if decision.is_null() { "nothing".into() } else { value_text(decision) }),
        ));
    }
    if let Some(payoffs) = &footer.payoffs {
        let total = |(key, total): (&String, &Option<f64>)| match total {
            Some(total) => format!("{} {} {}", name(key), value_text(&Value::from(*total)), payoffs.unit),
            None => format!("{} no {}", name(key), payoffs.unit),
        };
        let missing = payoffs.rounds.iter().filter(|round| round.values.is_none()).count();
        let missing = match missing {
            0 => String::new(),
            n => format!(
                " ({n} of {} rounds not valued: a choice is missing or invalid)",
                payoffs.rounds.len()
            ),
        };
        let mut totals: Vec<_> = payoffs.totals.iter().collect();
        totals.sort_by_key(|(key, _)| scenario.agent_by_key(key));
        let totals: Vec<String> = totals.into_iter().map(total).collect();
        lines.push(("payoffs", totals.join(", ") + &missing));
    }
    if let Some(shown) = footer.shown(scenario) {
        lines.extend(shown.lines().map(|line| ("", line.to_string())));
        if let Some(first) = lines.iter_mut().find(|(label, _)| label.is_empty()) {
            first.0 = "outcome";
        }
    }
    let is_shown = |outcome: &&OutcomeRecord| scenario.ending.is_some() && outcome.error.is_none();
    for outcome in footer.outcomes.iter().filter(|outcome| !is_shown(outcome)) {
        let value = outcome.error.clone().unwrap_or_else(|| value_text(&outcome.value));
        lines.push(("outcome", format!("{} = {value}", outcome.name)));
    }
    for verdict in footer.assertions.iter().filter_map(|assertion| assertion.verdict.as_ref()) {
        let judge = verdict.turn.split('/').next().unwrap_or_default();
        lines.push(("verdict", format!("{judge} = {}", value_text(&verdict.value))));
    }
    let (of_many, of_each): (Vec<_>, Vec<_>) =
        footer.assertions.iter().partition(|assertion| assertion.share.is_some());
    let held = of_each.iter().filter(|assertion| assertion.holds).count();
    if !of_each.is_empty() {
        lines.push(("assertions", format!("{held} of {} hold", of_each.len())));
    }
    for (assertion, share) in of_many.iter().filter_map(|assertion| Some((assertion, assertion.share?))) {
        let value = assertion.error.clone().unwrap_or_else(|| assertion.holds.to_string());
        lines.push((
            "assertion",
            format!("{} = {value} (required in {share} of an experiment's runs)", assertion.that),
        ));
    }
    let mut out = String::new();
    for (label, text) in lines {
        let label = format!("{label:<11}");
        let label = if fancy { Style::new().bold().apply_to(label).to_string() } else { label };
        out += &(super::wrapped(&format!("{label}{}", printable(&text)), LABEL) + "\n");
    }
    let failed = footer.assertions.iter().filter(|assertion| assertion.fails());
    out.extend(failed.map(|assertion| failure(assertion, None, fancy)));
    out
}

/// The line of an assertion that failed; `counted`: with the number of runs.
pub fn failure(assertion: &AssertionRecord, counted: Option<(usize, usize)>, fancy: bool) -> String {
    let reason = match (&assertion.error, &assertion.why) {
        (Some(error), _) => format!(": {error}"),
        (None, Some(why)) => format!(" (expected: {why})"),
        (None, None) => String::new(),
    };
    let label = label(fancy);
    let counted = counted.map_or("     ".to_owned(), |(n, of)| format!(" in {n} of {of} runs: "));
    super::wrapped(&format!("{label}{counted}{}", printable(&format!("{}{reason}", assertion.that))), LABEL)
        + "\n"
}

/// The lines of an assertion that did not hold in the share of runs that it needs, one for each cell in which
/// it failed.
pub fn too_few(assertion: &Threshold, fancy: bool) -> String {
    let line = |cell: &AssertionCount| {
        let of = cell.condition.as_ref().map_or_else(String::new, |name| format!("{name}: "));
        let why = assertion.why.as_ref().map_or_else(String::new, |why| format!(" (expected: {why})"));
        let text = format!("{of}{} {}; required: {}{why}", assertion.that, cell.words(), assertion.share);
        super::wrapped(&format!("{}      {}", label(fancy), printable(&text)), LABEL) + "\n"
    };
    assertion.cells.iter().filter(|cell| !cell.holds).map(line).collect()
}

fn label(fancy: bool) -> String {
    if fancy { Style::new().red().bold().apply_to("FAILED").to_string() } else { "FAILED".into() }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.as_i64().is_none() => format!("{}", (float * 1e6).round() / 1e6),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}
