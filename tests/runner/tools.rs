//! Calls of tools: what is read, recorded, replayed, and where a replay sees that something was changed.

use crate::constructs::described;
use greenroom::backend::StopReason;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::replay::replay;
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{self, Scenario};
use greenroom::stage::{End, Unwatched};
use greenroom::tools::cut_call;
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
    insta::assert_snapshot!(described("tools.yaml", usize::MAX, say));
}

#[test]
fn notes_outlive_a_full_memory() {
    insta::assert_snapshot!(described("tools.yaml", 420, say));
}

#[test]
fn who_always_calls_must_reply_in_the_end() {
    let described = described("tools.yaml", usize::MAX, |request| {
        if request.choice.is_some() || request.form.is_some() {
            return say(request);
        }
        Some(r#"{"tool": "sums", "arguments": {"expression": "1 + 1"}}"#.to_string())
    });
    assert!(
        described.contains("market/1/ann.call2") && !described.contains("market/1/ann.call3"),
        "{described}"
    );
    assert!(described.contains("(No more tools now: reply.)"), "{described}");
    assert!(described.contains(r#"> {"tool": "sums""#), "what is no call any more is a reply: {described}");
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

/// The transcript with its lines changed and chained again, as somebody would who knows how.
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
    let changes: [(&str, &Change<'_>); 7] = [
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
        ("of a tool that there is not", &|lines| {
            let at = at(lines, call);
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            turn.call.as_mut().unwrap().tool = "i".into();
        }),
        ("of no tool at all", &|lines| {
            let at = at(lines, call);
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            let call = turn.call.as_mut().unwrap();
            (call.tool, call.arguments) = (String::new(), serde_json::Value::Null);
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
    // A run that was interrupted between its calls is resumed there.
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let first = lines.iter().position(|line| line.contains("talk/2/ann.call1")).unwrap();
    std::fs::write(out.join("transcript.jsonl"), lines[..=first].concat()).unwrap();
    let resumed = run(&scenario, &out, &RunOptions { resume: true, ..allowed.clone() }).unwrap();
    assert_eq!(n_called(), 5, "the call that was not on record");
    let at = |text: &str, wanted: &str| text.lines().position(|line| line.contains(wanted));
    assert_eq!(at(&resumed, "talk/2/ann.call2"), at(&whole, "talk/2/ann.call2"));
    assert_eq!(resumed.lines().count(), whole.lines().count());
    // What is called, and with what, is what was said; a tool that there is not gives nothing.
    for (change, cause) in [("arguments", Cause::RecordAltered), ("tool", Cause::RecordAltered)] {
        let other = forged(&transcript, |lines| {
            let is_it = |line: &Line| matches!(line, Line::Turn(turn) if turn.path == "talk/1/ann.call1");
            let at = lines.iter().position(is_it).unwrap();
            let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
            let call = turn.call.as_mut().unwrap();
            match change {
                "tool" => call.tool = "sum".into(),
                _ => call.arguments["what"] = "9".into(),
            }
        });
        let drift = drift(&scenario, &other);
        assert_eq!((drift.cause, &*drift.path), (cause, "talk/1/ann.call1"), "{drift}");
    }
    // What a program gave can't be recomputed, so it is taken from the record; the next prompt holds it all
    // the same.
    let other = forged(&transcript, |lines| {
        let is_it = |line: &Line| matches!(line, Line::Turn(turn) if turn.path == "talk/1/ann.call1");
        let at = lines.iter().position(is_it).unwrap();
        let Line::Turn(turn) = &mut lines[at] else { unreachable!() };
        turn.call.as_mut().unwrap().result = "7".into();
    });
    let drift = drift(&scenario, &other);
    assert!(drift.path.starts_with("talk/1/ann"), "{drift}");
}

/// A call that is cut is read by who made it, as one that failed; nobody hears a word of it.
#[test]
fn a_call_that_broke_off_is_nobodys_business() {
    let scenario = scenario();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = Arc::new(BreaksOff(Scripted::new(say)));
    let options = RunOptions::default();
    let mut watch = Unwatched;
    let playing = perform(&scenario, backend, folder.path(), &options, &mut watch, std::future::pending());
    let performed = runtime.block_on(playing).unwrap();
    let text = std::fs::read_to_string(&performed.transcript).unwrap();
    let transcript = Transcript::parse(&performed.transcript, &text).unwrap();
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    let turns = || transcript.turns.iter().map(|turn| &turn.record);
    let cut =
        turns().filter(|turn| turn.call.as_ref().is_some_and(|call| call.failed && call.tool.is_empty()));
    assert!(cut.count() > 0, "{text}");
    assert!(turns().any(|turn| turn.delta.contains("Error: the call was too long and broke off")), "{text}");
    for turn in turns() {
        assert!(!turn.spoken.contains("{\"tool\""), "{}: {}", turn.path, turn.spoken);
        assert!(!turn.delta.contains("secret"), "{}: {}", turn.path, turn.delta);
    }
}

/// The first call of each turn breaks off.
struct BreaksOff(Scripted);

impl Backend for BreaksOff {
    fn card(&self) -> ModelCard {
        self.0.card()
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        let breaks_off = request.may_call && request.n_calls == 0;
        Box::pin(async move {
            let reply = self.0.reply(request, sink).await?;
            if !breaks_off {
                return Ok(reply);
            }
            let text = r#"{"tool": "diary", "arguments": {"note": "my secret"#;
            let ids = text.chars().map(u32::from).collect();
            Ok(Reply { call: Some(cut_call()), ..Reply::of(ids, text.into(), StopReason::Length) })
        })
    }

    fn forget(&self, session: &Session) {
        self.0.forget(session);
    }
}

/// A lookup whose table was changed since.
#[test]
fn a_table_that_was_changed_is_the_tools_doing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, table) = (folder.path().join("tools.yaml"), folder.path().join("prices.csv"));
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    std::fs::copy(scenarios.join("tools.yaml"), &file).unwrap();
    std::fs::copy(scenarios.join("prices.csv"), &table).unwrap();
    let opened = || scenario::open(&file, &[]).unwrap().scenario.unwrap();
    let transcript = recording(&opened());
    let prices = std::fs::read_to_string(&table).unwrap();
    let row = prices.lines().find(|line| line.starts_with("eggs")).unwrap();
    std::fs::write(&table, prices.replace(row, &row.replace("eggs,", "eggs,9"))).unwrap();
    let drift = drift(&opened(), &transcript);
    assert_eq!((drift.cause, &*drift.path), (Cause::ToolsChanged, "market/1/ann.call1"), "{drift}");
    assert!(drift.to_string().contains("the tool returns something else now"), "{drift}");
}

/// What a program has done is on record before its caller's reply is there.
#[cfg(unix)]
#[test]
fn a_call_is_on_record_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = counting(folder.path());
    let out = folder.path().join("run");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = |request: &Request| (request.n_calls < 2).then(|| count(request)).flatten();
    let options = RunOptions { allow_tools: true, ..RunOptions::default() };
    let mut watch = Unwatched;
    let backend = Arc::new(Scripted::new(answer));
    let playing = perform(&scenario, backend, &out, &options, &mut watch, std::future::pending());
    runtime.block_on(playing).expect_err("there is no reply behind the calls");
    let n_called = || std::fs::read_to_string(folder.path().join("calls")).unwrap().lines().count();
    assert_eq!(n_called(), 2);
    run(&scenario, &out, &RunOptions { resume: true, ..options }).unwrap();
    assert_eq!(n_called(), 4, "the two of the second turn");
}

/// A server that does not answer does not keep a run from being stopped.
#[cfg(unix)]
#[test]
fn a_run_can_be_stopped_while_servers_start() {
    let text = "tools: { slow: { mcp: [sleep, '60'], timeout: 60 } }
agents: { ann: { tools: [slow] }, ben: {} }
phases: [{ name: talk, agents: [ann, ben], prompt: Talk. }]
";
    let scenario = scenario::load("slow.yaml", text, &[]).scenario.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = RunOptions { allow_tools: true, ..RunOptions::default() };
    let mut watch = Unwatched;
    let stop = async { tokio::time::sleep(std::time::Duration::from_millis(200)).await };
    let began = std::time::Instant::now();
    let backend = Arc::new(Scripted::new(say));
    let performed =
        runtime.block_on(perform(&scenario, backend, folder.path(), &options, &mut watch, stop)).unwrap();
    assert_eq!(performed.end, End::Stopped);
    assert!(began.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn explain_shows_the_tools_their_calls_and_results_and_the_whole_prompt() {
    let folder = crate::play::checkout();
    let scenario = scenario();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = folder.path().join("run");
    let (options, mut watch) = (RunOptions::default(), Unwatched);
    let backend = Arc::new(Scripted::new(say));
    let playing = perform(&scenario, backend, &run, &options, &mut watch, std::future::pending());
    runtime.block_on(playing).unwrap();
    let done = |args: &[&str]| {
        let (code, text) = crate::drift::greenroom_with(folder.path(), args, &[]);
        assert_eq!(code, 0, "{text}");
        text
    };
    // All of the tools' texts, as the model's template writes them; the call as it was said; its result.
    let text = done(&["explain", "run", "--agent", "ben", "--turn", "market/2/ben"]);
    let toolbox = greenroom::tools::Toolbox::at_rest(&scenario);
    let ben = scenario.agent(scenario.agent_by_key("ben").unwrap());
    let offer = toolbox.offer(&scenario, ben).unwrap();
    for spec in &offer.tools {
        assert!(text.contains(&format!("- {}: {}", spec.name, spec.about.trim())), "{}: {text}", spec.name);
    }
    assert!(text.contains("{\"tool\": NAME, \"arguments\""), "{text}");
    let call = r#"{"tool": "prices", "arguments": {"item": "corn"}}"#;
    assert!(text.contains(call) && text.contains("result (market/2/ben.call2)"), "{text}");
    // The prompt is what the model's template makes of all this.
    let prompt = done(&[
        "explain",
        "run",
        "--agent",
        "ben",
        "--turn",
        "market/2/ben",
        "--prompt",
        "--model",
        "understudy",
    ]);
    let tools = offer.instructions.lines().last().unwrap();
    assert!(prompt.contains(tools) && prompt.matches(call).count() == 1 && prompt.contains("<|"), "{prompt}");
    // Where no template is known, all that is known of the tools is still there.
    let gone = RunOptions {
        models: BTreeMap::from([(String::new(), "/nowhere/gone.gguf".to_string())]),
        ..RunOptions::default()
    };
    let (other, backend) = (folder.path().join("other"), Arc::new(Scripted::new(say)));
    let playing = perform(&scenario, backend, &other, &gone, &mut watch, std::future::pending());
    runtime.block_on(playing).unwrap();
    let text = done(&["explain", "other", "--agent", "ben"]);
    assert!(text.contains("its chat template is unknown"), "{text}");
    for spec in &offer.tools {
        assert!(text.contains(&spec.arguments.to_string()), "{}: {text}", spec.name);
    }
}

#[test]
fn explain_lists_the_agents_of_a_run() {
    let folder = crate::play::checkout();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (options, mut watch) = (RunOptions::default(), Unwatched);
    let (scenario, run) = (scenario(), folder.path().join("run"));
    let backend = Arc::new(Scripted::new(say));
    let playing = perform(&scenario, backend, &run, &options, &mut watch, std::future::pending());
    runtime.block_on(playing).unwrap();
    let (code, text) = crate::drift::greenroom_with(folder.path(), &["explain", "run"], &[]);
    assert_eq!(code, 0, "{text}");
    for agent in &scenario.agents {
        assert!(text.lines().any(|line| line.trim_start().starts_with(&agent.key)), "{text}");
    }
    assert!(text.contains("count/1/ben") && text.contains("--agent KEY"), "{text}");
}
