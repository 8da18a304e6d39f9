//! A run with changes of the state, replies in a form and settings of its own: whatever is done to a line is
//! drift at that line, and cut after any line it is resumed to the same file.

use crate::drift::greenroom_with;
use crate::play::{play, without_copy};
use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::run::RunOptions;
use greenroom::scenario::{Scenario, load};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const FILE: &str = "\
id: ledger
agents: { ann: { sampling: { temperature: 0.5 } }, ben: { sampling: { top_k: 4 } } }
state: { pot: 0, asked: [] }
phases:
  - repeat: 2
    phases:
      - name: bid
        agents: [ann, ben]
        sampling: { max_tokens: 50 }
        prompt: \"The pot holds {{ pot }}.\"
        answer: { schema: { type: integer, minimum: 1, maximum: 99 } }
        set:
          - after: round
            pot: pot + bid.replies.ann + bid.replies.ben
          - { asked: \"asked + ['bid']\" }
      - name: talk
        agents: [ann, ben]
        turns:
          - agent: ann
            set: { asked: \"asked + [pot]\" }
          - { agent: ben, sampling: { temperature: 0 } }
        set: { pot: pot + 1 }
outcome: { pot: pot }
";

fn backend() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request: &Request| {
        let words = format!("words of {}", request.path);
        Some(if request.form.is_some() { (10 + request.index).to_string() } else { words })
    }))
}

/// Records a run beside its file.
fn record(folder: &Path) -> (Arc<Scenario>, Vec<String>) {
    record_of(folder, FILE, backend())
}

fn record_of(folder: &Path, text: &str, backend: Arc<dyn Backend>) -> (Arc<Scenario>, Vec<String>) {
    let file = folder.join("ledger.yaml");
    std::fs::write(&file, text).unwrap();
    let scenario = load(&file.display().to_string(), text, &[]).scenario.unwrap();
    let played = play(&scenario, backend, &folder.join("run"), &RunOptions::default()).unwrap();
    without_copy(&folder.join("run"));
    let text = std::fs::read_to_string(played.transcript).unwrap();
    (scenario, text.lines().map(str::to_string).collect())
}

/// The lines with hashes that fit.
fn chained(lines: &[String]) -> Vec<String> {
    let mut before = String::new();
    let chain = |line: &String| {
        let end = line.rfind(",\"hash\":\"").unwrap();
        let text = format!("{}}}", &line[..end]);
        before = blake3::hash(format!("{before}\n{text}").as_bytes()).to_hex().to_string();
        format!("{},\"hash\":\"{before}\"}}", &line[..end])
    };
    lines.iter().map(chain).collect()
}

/// Replays these lines: the line of the drift, its path, its cause in words, and the field that it names.
fn drift(folder: &Path, lines: &[String]) -> String {
    std::fs::write(folder.join("run/transcript.jsonl"), lines.join("\n") + "\n").unwrap();
    let (code, text) = greenroom_with(folder, &["replay", "run", "--json"], &[("CI", "true")]);
    assert_eq!(code, 3, "{text}");
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = &all[0]["problems"][0];
    let word = |value: &Value| value.as_str().unwrap_or("nowhere").to_string();
    format!(
        "{} {}: {}, {}",
        found["line"],
        word(&found["at"]),
        word(&found["title"]),
        word(&found["place"]["field"])
    )
}

#[test]
fn lines_of_the_state_are_guarded() {
    let folder = tempfile::tempdir().unwrap();
    let (_, lines) = record(folder.path());
    assert_eq!(chained(&lines), lines, "the hashes are those of the program");
    let states = lines.iter().enumerate().filter(|(_, line)| line.contains("\"type\":\"state\""));
    let states: Vec<usize> = states.map(|(at, _)| at).collect();
    assert_eq!(states, [3, 4, 6, 8, 11, 12, 14, 16]);
    type Edit = fn(&mut Vec<String>);
    // With the hashes as they were the line is altered; with hashes that fit, the state comes to something
    // else.
    let values: [(Edit, &str, &str); 3] = [
        (
            |lines| lines[3] = lines[3].replacen("\"pot\":", "\"pot\":1", 1),
            "4 bid.1/1",
            "phases[0].set[0].pot",
        ),
        (
            |lines| lines[6] = lines[6].replacen("[\"bid\"", "[\"bud\"", 1),
            "7 talk.1/1/ann",
            "phases[1].turns[0].set.asked",
        ),
        (
            |lines| lines[16] = lines[16].replacen("\"pot\":", "\"pot\":1", 1),
            "17 talk.2",
            "phases[1].set.pot",
        ),
    ];
    for (edit, at, field) in values {
        let mut altered = lines.clone();
        edit(&mut altered);
        assert_eq!(drift(folder.path(), &altered), format!("{at}: the recorded line was altered, nowhere"));
        let found = drift(folder.path(), &chained(&altered));
        assert_eq!(found, format!("{at}: the results changed, phases[0].{field}"));
    }
    let places: [(Edit, &str); 9] = [
        (|lines| _ = lines.remove(3), "4 bid.1/1: a line is missing"),
        (|lines| _ = lines.remove(4), "5 bid.1: a line is missing"),
        (|lines| _ = lines.remove(6), "7 talk.1/1/ann: a line is missing"),
        (|lines| _ = lines.remove(16), "17 talk.2: a line is missing"),
        (|lines| lines.insert(4, lines[3].clone()), "5 bid.1/1: an extra line"),
        (|lines| lines.insert(2, lines[3].clone()), "3 bid.1/1: an extra line"),
        (|lines| lines.swap(4, 5), "5 bid.1: the order of turns changed"),
        (|lines| lines.swap(5, 6), "6 talk.1/1/ann: an extra line"),
        (|lines| lines.swap(3, 4), "4 bid.1/1: the order of turns changed"),
    ];
    for (edit, expected) in places {
        let mut altered = lines.clone();
        edit(&mut altered);
        for lines in [chained(&altered), altered] {
            assert_eq!(drift(folder.path(), &lines), format!("{expected}, nowhere"));
        }
    }
}

/// A run in which a memory starts over with pieces, and speakers are picked.
const LOOKED_UP: &str = "\
id: ledger
agents: { ann: { memory: { keep: retrieve, recent: 1, nearest: 1 } }, ben: {}, cas: {} }
phases:
  - { name: bread, agents: [ann, ben], prompt: Bread needs salt. }
  - { name: lamp, agents: [ann, cas], rounds: 3, prompt: The lamp needs oil. }
  - name: ask
    agents: [ann, ben, cas]
    prompt: What does the lamp need?
    route: { query: What does the lamp need?, among: [ben, cas], least: 0.2, otherwise: ben }
outcome: { n: ask.said | length }
";

/// Ann's memory is full once, at the third round of `lamp`.
fn forgetful() -> Arc<dyn Backend> {
    let script = |request: &Request| Some(format!("words of {}", request.path));
    Arc::new(Full(Scripted::new(script)))
}

struct Full(Scripted);

impl Backend for Full {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        self.0.reply(request, sink)
    }
    fn forget(&self, session: &Session) {
        self.0.forget(session);
    }
    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        Ok(request.path == "lamp/3/ann")
    }
    fn fills_half(&self, _request: &Request) -> anyhow::Result<bool> {
        Ok(false)
    }
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.0.embed(texts)
    }
}

#[test]
fn lines_of_retrievals_are_guarded() {
    let folder = tempfile::tempdir().unwrap();
    let (_, lines) = record_of(folder.path(), LOOKED_UP, forgetful());
    assert_eq!(chained(&lines), lines);
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    let (epoch, route) = (at("\"kept\":"), at("\"type\":\"route\""));
    assert!(lines[epoch].contains("\"path\":\"lamp/3/ann.summary\""), "{}", lines[epoch]);
    assert!(lines[route].contains("\"match\":\"partial\"") && lines[route].contains("\"chosen\":[\"cas\"]"));
    let edited = |line: usize, from: &str, to: &str| {
        let mut altered = lines.clone();
        assert!(altered[line].contains(from), "{from} in {}", altered[line]);
        altered[line] = altered[line].replacen(from, to, 1);
        altered
    };
    let (epoch_at, route_at) = (format!("{} lamp/3/ann.summary", epoch + 1), format!("{} ask", route + 1));
    // A piece that is not the agent's; a piece more or less; what is remembered.
    let altered = edited(epoch, "\"kept\":[\"", "\"kept\":[\"ask/1/ben\",\"");
    for lines in [chained(&altered), altered] {
        let found = drift(folder.path(), &lines);
        assert_eq!(found, format!("{epoch_at}: the recorded line was altered, nowhere"));
    }
    let altered = edited(epoch, "\"kept\":[\"", "\"kept\":[\"bread\",\"");
    let found = drift(folder.path(), &chained(&altered));
    assert_eq!(found, format!("{epoch_at}: the recorded line was altered, nowhere"));
    let altered = edited(epoch, "words of lamp/1/cas", "words of lamp/1/ben");
    for lines in [chained(&altered), altered] {
        assert_eq!(
            drift(folder.path(), &lines),
            format!("{epoch_at}: the recorded line was altered, nowhere")
        );
    }
    // Who was picked, and by which scores.
    for (from, to) in [
        ("\"chosen\":[\"cas\"]", "\"chosen\":[\"ben\"]"),
        ("\"match\":\"partial\"", "\"match\":\"exact\""),
        ("\"cas\":0.", "\"cas\":-0."),
    ] {
        let altered = edited(route, from, to);
        let found = drift(folder.path(), &altered);
        assert_eq!(found, format!("{route_at}: the recorded line was altered, nowhere"), "{to}");
        let found = drift(folder.path(), &chained(&altered));
        assert_eq!(found, format!("{route_at}: the results changed, nowhere"), "{to}");
    }
    let altered = edited(route, "\"scores\":{\"ben\"", "\"scores\":{\"ann\"");
    assert!(drift(folder.path(), &altered).ends_with("ask: the recorded line was altered, nowhere"));
    let altered = edited(route, "\"query\":\"", "\"query\":\"00");
    assert!(drift(folder.path(), &altered).contains("ask: the phase's prompt changed"));
    let mut without = lines.clone();
    without.remove(route);
    assert!(drift(folder.path(), &chained(&without)).ends_with("ask: a line is missing, nowhere"));
    let mut twice = lines.clone();
    twice.insert(route, lines[route].clone());
    let found = drift(folder.path(), &chained(&twice));
    assert_eq!(found, format!("{} ask: an extra line, nowhere", route + 2));
    let mut without = lines.clone();
    without.remove(epoch);
    assert!(drift(folder.path(), &chained(&without)).contains("lamp/3/ann: the phase's prompt changed"));
}

#[test]
fn retrievals_are_resumed_after_any_line() {
    resumes(LOOKED_UP, forgetful);
}

#[test]
fn a_run_is_resumed_after_any_line() {
    resumes(FILE, backend);
}

fn resumes(file: &str, backend: impl Fn() -> Arc<dyn Backend>) {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, lines) = record_of(folder.path(), file, backend());
    let whole = lines.join("\n") + "\n";
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    for n in 1..lines.len() {
        let run = folder.path().join(format!("cut-{n}"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("transcript.jsonl"), lines[..n].join("\n") + "\n").unwrap();
        let played =
            play(&scenario, backend(), &run, &resume).unwrap_or_else(|error| panic!("line {n}: {error:#}"));
        assert!(std::fs::read_to_string(played.transcript).unwrap() == whole, "cut behind line {n}");
    }
}
