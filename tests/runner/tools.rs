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

type Change<'a> = dyn Fn(&mut Vec<Line>) + 'a;

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
    let changes: [(&str, &Change<'_>); 5] = [
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

/// A scenario whose tool is a program that counts how often it was called.
fn counting(folder: &Path) -> Arc<Scenario> {
    let text = format!(
        "tools:
  count:
    command: [sh, -c, 'echo x >> {0}; cat; wc -l < {0}']
    about: Counts.
    arguments: {{ type: object, properties: {{ what: {{ type: string }} }}, required: [what], additionalProperties: false }}
agents: {{ ann: {{ tools: [count] }}, ben: {{}} }}
phases:
  - {{ name: talk, agents: [ann, ben], rounds: 2, prompt: Count. }}
",
        folder.join("calls").display()
    );
    scenario::load("count.yaml", &text, &[]).scenario.unwrap()
}

fn count(request: &Request) -> Option<String> {
    if request.may_call && request.n_calls < 2 {
        return Some(format!(r#"{{"tool": "count", "arguments": {{"what": "{}"}}}}"#, request.n_calls));
    }
    Some(format!("words of {}", request.path.replace('/', " ")))
}

fn run(scenario: &Arc<Scenario>, folder: &Path, options: &RunOptions) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = Arc::new(Scripted::new(count));
    let mut watch = Unwatched;
    let playing = perform(scenario, backend, folder, options, &mut watch, std::future::pending());
    Ok(std::fs::read_to_string(runtime.block_on(playing)?.transcript)?)
}

#[cfg(unix)]
#[test]
fn programs_run_where_they_are_allowed_and_are_never_called_twice_for_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = counting(folder.path());
    let n_called =
        || std::fs::read_to_string(folder.path().join("calls")).unwrap_or_default().lines().count();
    let (out, allowed) =
        (folder.path().join("run"), RunOptions { allow_tools: true, ..RunOptions::default() });
    let refused = run(&scenario, &out, &RunOptions::default()).expect_err("not allowed");
    assert!(refused.to_string().contains("--allow-tools"), "{refused}");
    assert_eq!(n_called(), 0);
    let whole = run(&scenario, &out, &allowed).unwrap();
    assert_eq!(n_called(), 4);
    assert!(whole.contains(r#""result":"{\"what\":\"0\"}1""#) || whole.contains("\\n1"), "{whole}");
    let transcript = Transcript::parse(&out.join("transcript.jsonl"), &whole).unwrap();
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    assert_eq!(n_called(), 4, "a replay calls nothing");
    // A run that was interrupted between its calls goes on there.
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let first = lines.iter().position(|line| line.contains("talk/2/ann.call1")).unwrap();
    std::fs::write(out.join("transcript.jsonl"), lines[..=first].concat()).unwrap();
    let resumed = run(&scenario, &out, &RunOptions { resume: true, ..allowed.clone() }).unwrap();
    assert_eq!(n_called(), 5, "the call that was not on record");
    let at = |text: &str, wanted: &str| text.lines().position(|line| line.contains(wanted));
    assert_eq!(at(&resumed, "talk/2/ann.call2"), at(&whole, "talk/2/ann.call2"));
    assert_eq!(resumed.lines().count(), whole.lines().count());
    // What a program gave can't be told from what it would give, so it is taken from the record; the next prompt holds it all the same.
    let other = forged(&transcript, |lines| {
        let is_it = |line: &Line| matches!(line, Line::Turn(turn) if turn.path == "talk/1/ann.call1");
        let at = lines.iter().position(is_it).unwrap();
        let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
        turn.call.as_mut().unwrap().result = "7".into();
    });
    let drift = drift(&scenario, &other);
    assert!(drift.path.starts_with("talk/1/ann"), "{drift}");
}
