//! Calls of tools: what is read, recorded, replayed, and where a replay sees that something was changed.

use crate::constructs::told;
use greenroom::backend::{Request, Scripted};
use greenroom::replay::replay;
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{self, Scenario};
use greenroom::stage::{End, Unwatched};
use greenroom::transcript::{Cause, Drift, Line, Transcript, chain};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The calls of a turn, by its path.
const CALLS: &[(&str, &[&str])] = &[
    (
        "market/1/ann",
        &[
            r#"{"tool": "prices", "arguments": {"item": "eggs"}}"#,
            r#"{"tool": "sums", "arguments": {"expression": "3 * 12"}}"#,
        ],
    ),
    ("market/1/ben", &[r#"{"tool": "diary", "arguments": {"note": "Ann pays 36."}}"#]),
    (
        "market/2/ben",
        &[
            r#"{"tool": "roll", "arguments": {"count": 2, "sides": 6}}"#,
            r#"{"tool": "prices", "arguments": {"item": "corn"}}"#,
            r#"{"tool": "sums", "arguments": {"expression": "1 / 0"}}"#,
            r#"{"tool": "sums", "arguments": {"expression": 7}}"#,
        ],
    ),
    ("count/1/ann", &[r#"{"tool": "sums", "arguments": {"expression": "30 + 6"}}"#]),
];

fn say(request: &Request) -> Option<String> {
    if let Some(options) = &request.choice {
        return Some(options.choice.options[options.open[0]].text.clone());
    }
    let calls = CALLS.iter().find(|(path, _)| *path == request.path).map(|(_, calls)| *calls);
    if let Some(call) = calls.and_then(|calls| calls.get(request.n_calls)).filter(|_| request.may_call) {
        return Some((*call).to_string());
    }
    Some(if request.form.is_some() {
        r#"{"sum": 36}"#.to_string()
    } else {
        format!("words of {}", request.path.replace('/', " "))
    })
}

#[test]
fn calls_are_read_by_who_makes_them_alone() {
    insta::assert_snapshot!(told("tools.yaml", usize::MAX, say));
}

#[test]
fn notes_outlive_a_full_memory() {
    insta::assert_snapshot!(told("tools.yaml", 420, say));
}

#[test]
fn who_always_calls_must_reply_in_the_end() {
    let told = told("tools.yaml", usize::MAX, |request| {
        if request.choice.is_some() || request.form.is_some() {
            return say(request);
        }
        Some(r#"{"tool": "sums", "arguments": {"expression": "1 + 1"}}"#.to_string())
    });
    assert!(told.contains("market/1/ann.call2") && !told.contains("market/1/ann.call3"), "{told}");
    assert!(told.contains("(No more tools now: reply.)"), "{told}");
    assert!(told.contains(r#"> {"tool": "sums""#), "what is no call any more is a reply: {told}");
}

fn scenario() -> Arc<Scenario> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/tools.yaml");
    scenario::open(&path, &[]).unwrap().scenario.unwrap()
}

fn recording(scenario: &Arc<Scenario>) -> Transcript {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (options, mut watch) = (RunOptions::default(), Unwatched);
    let backend = Arc::new(Scripted::new(say));
    let playing = perform(scenario, backend, folder.path(), &options, &mut watch, std::future::pending());
    let played = runtime.block_on(playing).unwrap();
    assert!(matches!(played.end, End::Complete(_)));
    Transcript::open(&played.transcript).unwrap()
}

/// The transcript with its lines changed and chained anew, as somebody would who knows how.
fn forged(transcript: &Transcript, change: impl Fn(&mut Vec<Line>)) -> Transcript {
    let mut lines = vec![Line::Header(Box::new(transcript.header.record.clone()))];
    lines.extend(transcript.turns.iter().map(|turn| Line::Turn(Box::new(turn.record.clone()))));
    lines.extend(transcript.footer.iter().map(|footer| Line::Footer(footer.record.clone())));
    change(&mut lines);
    Transcript::parse(Path::new("forged.jsonl"), &chain(&lines).unwrap()).unwrap()
}

fn drift(scenario: &Arc<Scenario>, transcript: &Transcript) -> Drift {
    let error = replay(scenario, transcript, BTreeMap::new()).expect_err("it was changed");
    error.downcast::<Drift>().expect("a drift")
}

#[test]
fn a_call_that_was_changed_is_drift_at_its_line() {
    let scenario = scenario();
    let transcript = recording(&scenario);
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    let at = |lines: &[Line], wanted: &str| {
        let is_it = |line: &Line| matches!(line, Line::Turn(turn) if turn.path == wanted);
        lines.iter().position(is_it).unwrap()
    };
    let call = "market/1/ann.call1";
    let changes: [(&str, &dyn Fn(&mut Vec<Line>)); 5] = [
        ("another result", &|lines| {
            let at = at(lines, call);
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            turn.call.as_mut().unwrap().result = "free".into();
        }),
        ("another argument", &|lines| {
            let at = at(lines, call);
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            turn.call.as_mut().unwrap().arguments["item"] = "corn".into();
        }),
        ("no longer failed", &|lines| {
            let at = at(lines, "market/2/ben.call3");
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            turn.call.as_mut().unwrap().failed = false;
        }),
        ("a line less", &|lines| {
            let at = at(lines, "market/1/ann.call2");
            lines.remove(at);
        }),
        ("the line of a call that says nothing of it", &|lines| {
            let at = at(lines, call);
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            turn.call = None;
        }),
    ];
    for (what, change) in changes {
        let drift = drift(&scenario, &forged(&transcript, change));
        assert!(drift.path.starts_with("market/"), "{what}: {drift}");
        assert!(drift.line.is_some(), "{what}: {drift}");
    }
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/tools.yaml"));
    let text = text
        .unwrap()
        .replace("{ lookup: prices.csv, key: item, about: What things cost at the market. }", "calculator");
    let other = scenario::load("tools.yaml", &text, &[]).scenario.unwrap();
    let drift = drift(&other, &transcript);
    assert_eq!((drift.cause, &*drift.path), (Cause::ToolsChanged, "tools/prices"), "{drift}");
}
