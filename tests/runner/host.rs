//! Commands that a program calls: with its model, its tools, its players, and what it sees of the run.

use greenroom::backend::{BoxFuture, HumanSeat, Question, Scripted};
use greenroom::commands::{Called, Host, call};
use greenroom::experiment::{read_scores, write_scores};
use greenroom::stage::Control;
use greenroom::tools::{CallOutcome, Functions, ToolFunctions};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex};

const FERRY: &str = "
id: ferry
tools:
  tide: { function: tide, about: Tells the tide., arguments: { type: object, properties: { hour: { type: integer } }, required: [hour] } }
agents:
  ann: { system_prompt: You are Ann., tools: [tide] }
  ben: { system_prompt: You are Ben., strategy: human }
phases:
  - { name: quay, agents: [ann, ben], order: round_robin, prompt: The ferry waits. }
  - { name: go, agents: [ann, ben], answer: { one_of: [wait, sail] }, prompt: Decide. }
";

struct Ben;

impl HumanSeat for Ben {
    fn ask(&self, question: Question) -> BoxFuture<'_, anyhow::Result<String>> {
        assert_eq!((&*question.agent, question.system.as_deref()), ("ben", Some("You are Ben.")));
        let said = match question.options.last() {
            Some(option) => format!("{option} {}", question.past.len()),
            None => "I wait.".to_string(),
        };
        Box::pin(async move { Ok(said.trim_end_matches(" 1").to_string()) })
    }
}

struct Tide(Mutex<Vec<Value>>);

impl Functions for Tide {
    fn has(&self, name: &str) -> bool {
        name == "tide"
    }

    fn call(&self, _: &str, arguments: Value) -> BoxFuture<'_, CallOutcome> {
        self.0.lock().unwrap().push(arguments.clone());
        Box::pin(
            async move { if arguments["hour"] == 3 { Ok("low".into()) } else { Err("no such hour".into()) } },
        )
    }
}

fn answers(request: &greenroom::backend::Request) -> Option<String> {
    if let Some(options) = &request.choice {
        return Some(options.choice.options[options.open[0]].text.clone());
    }
    let calls =
        [r#"{"tool": "tide", "arguments": {"hour": 3}}"#, r#"{"tool": "tide", "arguments": {"hour": 40}}"#];
    Some(calls.get(request.n_calls).map_or("It is low.", |call| call).to_string())
}

fn host() -> Host {
    Host { backend: Some(Arc::new(Scripted::new(answers))), ..Host::default() }
}

fn called(args: &[&str], host: Host) -> Called {
    call(args.iter().map(Into::into), host)
}

fn flags<'a>(file: &'a Path, out: &'a Path) -> [&'a str; 5] {
    ["run", file.to_str().unwrap(), "--quiet", "--out", out.to_str().unwrap()]
}

#[test]
fn a_program_brings_a_model_tools_and_players() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("ferry.yaml"), folder.path().join("run"));
    std::fs::write(&file, FERRY).unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let tide = Arc::new(Tide(Mutex::default()));
    let tell = seen.clone();
    let own = Host {
        control: Some(Control::seated(Arc::new(Ben))),
        functions: ToolFunctions::new(tide.clone()),
        events: Some(Arc::new(move |name, _| tell.lock().unwrap().push(name.to_string()))),
        ..host()
    };
    let Called { exit, out: printed, err } = called(&flags(&file, &out), own);
    assert_eq!((exit, err.as_str()), (0, ""));
    assert_eq!(printed.trim(), out.join("transcript.jsonl").to_str().unwrap());
    assert_eq!(*tide.0.lock().unwrap(), [json!({ "hour": 3 }), json!({ "hour": 40 })]);
    let events = seen.lock().unwrap().clone();
    let count = |name: &str| events.iter().filter(|event| *event == name).count();
    assert_eq!((events[0].as_str(), count("turn"), count("call"), count("asked")), ("plan", 4, 2, 2));
    let transcript = std::fs::read_to_string(out.join("transcript.jsonl")).unwrap();
    assert!(transcript.contains(r#""result":"low","failed":false"#), "{transcript}");
    assert!(transcript.contains(r#""result":"no such hour","failed":true"#), "{transcript}");
    assert!(transcript.contains("I wait."));
    // A replay needs none of them.
    let replayed = called(&["replay", out.to_str().unwrap()], Host::default());
    assert_eq!((replayed.exit, replayed.err.as_str()), (0, ""), "{}", replayed.out);
}

#[test]
fn what_a_program_does_not_bring_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("ferry.yaml"), folder.path().join("run"));
    std::fs::write(&file, FERRY).unwrap();
    let lacks = called(&flags(&file, &out), host());
    assert_eq!(lacks.exit, 4);
    assert!(
        lacks.err.contains("the tool `tide` is the function `tide` of a Python program"),
        "{}",
        lacks.err
    );
    let wrong = called(&["run", "nowhere.yaml", "--sed", "3"], Host::default());
    assert_eq!(wrong.exit, 2);
    assert!(wrong.err.contains("--seed"), "{}", wrong.err);
    assert_eq!(
        called(&["--version"], Host::default()).out,
        format!("greenroom {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_run_that_its_program_stops_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("talk.yaml"), folder.path().join("run"));
    let talk = "{ id: talk, agents: { ann: {}, ben: {} }, phases: [{ name: hall, agents: [ann, ben], order: round_robin, \
                rounds: 3, prompt: They meet. }] }";
    std::fs::write(&file, talk).unwrap();
    let control = Control::remote(false);
    let stopping = control.clone();
    let events = move |name: &'static str, data: Value| {
        if name == "turn" && data["path"] == "hall/2/ann" {
            stopping.stop();
        }
    };
    let own = Host { control: Some(control), events: Some(Arc::new(events)), ..host() };
    let stopped = called(&flags(&file, &out), own);
    assert_eq!(stopped.exit, 130);
    assert!(stopped.err.contains("--resume"), "{}", stopped.err);
    let again: Vec<&str> = flags(&file, &out).into_iter().chain(["--resume"]).collect();
    assert_eq!(called(&again, host()).exit, 0);
}

#[test]
fn scores_are_counted_as_outcomes() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("talk.yaml"), folder.path().join("study"));
    std::fs::write(&file, "{ id: talk, agents: { ann: {}, ben: {} }, phases: [{ name: hall, agents: [ann, ben], prompt: Hi. }] }")
        .unwrap();
    let on_run = |run: &Path| {
        let seed: f64 = run.file_name().unwrap().to_str().unwrap()["seed-".len()..].parse()?;
        assert!(write_scores(run, &[("wrong".to_string(), json!([1]))].into()).is_err());
        write_scores(run, &[("height".to_string(), json!(seed / 2.0))].into())
    };
    let args: Vec<&str> = flags(&file, &out).into_iter().chain(["--repeat", "4"]).collect();
    let done = called(&args, Host { on_run: Some(Arc::new(on_run)), ..host() });
    assert_eq!((done.exit, done.err.as_str()), (0, ""));
    assert_eq!(read_scores(&out.join("seed-3")).unwrap()["height"], json!(1.5));
    let runs = std::fs::read_to_string(out.join("runs.csv")).unwrap();
    assert!(runs.lines().next().unwrap().contains("outcome.height"), "{runs}");
    let summary = std::fs::read_to_string(out.join("summary.json")).unwrap();
    assert!(summary.contains("outcome height"), "{summary}");
    std::fs::write(out.join("seed-1/scores.json"), "[]").unwrap();
    let report = called(&["report", out.to_str().unwrap()], Host::default());
    assert_eq!(report.exit, 4);
    assert!(report.err.contains("scores.json is not an object of scores"), "{}", report.err);
}
