//! Scenarios on engines elsewhere: `greenroom serve` by all of its APIs, and fake servers that fail as real
//! ones do.

use super::Stage;
use super::serve::Server;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const SCENARIO: &str = "prisoners-dilemma";

/// Plays a scenario on a model, into a folder of the stage.
fn play(stage: &Stage, scenario: &str, out: &str, model: &str, more: &[&str]) -> assert_cmd::assert::Assert {
    let args = stage.args(scenario, out);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--model", model]);
    args.extend(more);
    stage.greenroom(&args).env("GREENROOM_TEST_KEY", "sk-a-secret-key").assert()
}

fn transcript(stage: &Stage, out: &str) -> String {
    std::fs::read_to_string(stage.path(out).join("transcript.jsonl")).unwrap()
}

/// The turns of a trace.
fn trace(stage: &Stage, out: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(stage.path(out).join("trace.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line["type"] == "turn").collect()
}

/// Tokens of a kind, over all turns.
fn tokens(trace: &[Value], kind: &str) -> u64 {
    trace.iter().filter_map(|turn| turn["tokens"][kind].as_u64()).sum()
}

#[test]
fn what_is_shown_of_a_reply_is_what_was_said() {
    let (stage, there) = (Stage::new(), Stage::new());
    let server = Server::start(&there, &[]);
    for api in ["greenroom", "openai"] {
        let version = if api == "openai" { "/v1?model=understudy" } else { "" };
        let address = format!("{api}+http://{}{version}", server.address);
        let out = stage.path(api).display().to_string();
        let scenario = format!("scenarios/{SCENARIO}.yaml");
        let mut run = stage.greenroom(&["run", &scenario, "--model", &address, "--out", &out]);
        let shown = run.args(["--max-tokens", "30", "--seed", "5"]).assert().success();
        let shown = String::from_utf8(shown.get_output().stdout.clone()).unwrap();
        let mut shown = shown.lines();
        for line in transcript(&stage, api).lines() {
            let turn: Value = serde_json::from_str(line).unwrap();
            let (Some(spoken), Some(path)) = (turn["spoken"].as_str(), turn["path"].as_str()) else {
                continue;
            };
            let agent = path.rsplit('/').next().unwrap();
            let head = format!("{}{}: ", agent[..1].to_uppercase(), &agent[1..]);
            let found = shown.find_map(|line| line.strip_prefix(&head)).unwrap();
            let spoken = if spoken.is_empty() { "(says nothing)" } else { spoken };
            let notes = found.strip_prefix(spoken).unwrap_or_else(|| panic!("{api}, {path}: {found}"));
            assert!(notes.is_empty() || notes.starts_with("  ("), "{api}, {path}: {found}");
        }
    }
}

#[test]
fn by_its_own_words_a_run_is_what_it_would_be_here() {
    let (stage, there) = (Stage::new(), Stage::new());
    let server = Server::start(&there, &[]);
    let address = format!("greenroom+http://{}", server.address);
    for scenario in [SCENARIO, "gossip"] {
        play(&stage, scenario, &format!("here-{scenario}"), "understudy", &[]).success();
        play(&stage, scenario, &format!("there-{scenario}"), &address, &[]).success();
        assert_eq!(
            transcript(&stage, &format!("here-{scenario}")),
            transcript(&stage, &format!("there-{scenario}")),
            "{scenario}"
        );
        let there = trace(&stage, &format!("there-{scenario}"));
        assert_eq!(tokens(&there, "recomputed"), 0, "nothing is read twice");
        assert!(tokens(&there, "reused") > 0);
    }
    // The recording is followed there, too.
    let folder = stage.path(&format!("here-{SCENARIO}"));
    let folder = folder.to_str().unwrap();
    stage.greenroom(&["replay", folder, "--rerun=exact", "--model", &address]).assert().success();
}

#[test]
fn by_ids_and_by_messages_prefixes_are_reused_as_predicted() {
    let (stage, there) = (Stage::new(), Stage::new());
    let server = Server::start(&there, &[]);
    let at = &server.address;
    for (api, out) in [
        (format!("vllm+http://{at}?tokenizer=understudy"), "vllm"),
        (format!("openai+http://{at}/v1"), "openai"),
        (format!("anthropic+http://{at}?model=understudy"), "anthropic"),
    ] {
        play(&stage, SCENARIO, out, &api, &[]).success();
        let turns = trace(&stage, out);
        assert!(tokens(&turns, "reused") > 100, "{out}: {turns:?}");
        for turn in &turns {
            assert_eq!(turn["tokens"]["recomputed"], 0, "{out}: {turn}");
            assert!(turn["reason"].is_null(), "{out}: {turn}");
        }
        let folder = stage.path(out);
        stage.greenroom(&["replay", folder.to_str().unwrap()]).assert().success();
    }
}

#[test]
fn a_scenario_needs_permission_to_ask_an_engine_elsewhere() {
    let (stage, there) = (Stage::new(), Stage::new());
    let server = Server::start(&there, &[]);
    let text = format!(
        "id: far\nmodel: big\nmodels:\n  big: {{ remote: 'http://{}', api: greenroom, slots: 2 }}\n\
         agents:\n  ann: {{ display_name: Ann }}\n  ben: {{ display_name: Ben }}\n\
         phases:\n  - {{ name: talk, agents: [ann, ben], prompt: Talk. }}\n",
        server.address
    );
    let file = stage.path("far.yaml");
    std::fs::write(&file, text).unwrap();
    let (file, out, cache) = (file.to_str().unwrap(), stage.path("far"), stage.path("cache"));
    let args = [
        "run",
        file,
        "--out",
        out.to_str().unwrap(),
        "--cache-dir",
        cache.to_str().unwrap(),
        "--max-tokens",
        "8",
    ];
    let refused = stage.greenroom(&args).assert().failure();
    let printed = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(printed.contains("--allow-remote") && printed.contains(&server.address), "{printed}");
    stage.greenroom(&args).arg("--allow-remote").assert().success();
    let text = std::fs::read_to_string(out.join("transcript.jsonl")).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(r#""type":"turn""#)).count(), 2);
}

/// Answers each request, by its number from 0, its path and its body.
type Script = dyn Fn(usize, &str, &Value, &mut TcpStream) + Send + Sync;

/// A server that follows instructions.
struct StandIn {
    address: String,
    /// What was asked: path and body, with the headers in front.
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl StandIn {
    fn start(script: impl Fn(usize, &str, &Value, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, script): (Arc<Mutex<Vec<_>>>, Arc<Script>) = (Arc::default(), Arc::new(script));
        let (seen, n) = (asked.clone(), Arc::new(AtomicUsize::new(0)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, script, n) = (seen.clone(), script.clone(), n.clone());
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap());
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head).unwrap_or(0) > 0 {}
                    let path = head.split(' ').nth(1).unwrap_or_default().to_string();
                    let length = head
                        .to_lowercase()
                        .split("content-length: ")
                        .nth(1)
                        .and_then(|rest| rest.split("\r\n").next()?.parse().ok());
                    let mut body = vec![0; length.unwrap_or(0)];
                    lines.read_exact(&mut body).unwrap();
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    seen.lock().unwrap().push((head, Value::clone(&body)));
                    let n = if is_turn(&path) { n.fetch_add(1, Ordering::Relaxed) } else { 0 };
                    script(n, &path, &body, &mut { stream });
                });
            }
        });
        Self { address, asked }
    }

    /// Requests for turns.
    fn turns(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        let of = |(head, body): &(String, Value)| is_turn(head.split(' ').nth(1)?).then(|| body.clone());
        asked.iter().filter_map(of).collect()
    }
}

fn is_turn(path: &str) -> bool {
    ["/generate", "/chat/completions", "/v1/chat/completions"].contains(&path)
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
    let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
}

fn events(stream: &mut TcpStream, events: &[Value]) {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}"
    );
}

/// A chat completion, in OpenAI's form; `finish`: whether it comes to its end.
fn chat(stream: &mut TcpStream, text: &str, finish: bool) {
    let piece = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    let end = json!({
        "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 2 },
    });
    let all = [piece, end];
    events(stream, if finish { &all } else { &all[..1] });
}

fn models(stream: &mut TcpStream) {
    respond(stream, "200 OK", r#"{"data": [{"id": "stand-in"}]}"#);
}

/// A scenario of four turns.
fn talk(stage: &Stage) -> String {
    let text = "id: talk\nagents:\n  ann: { display_name: Ann }\n  ben: { display_name: Ben }\n\
                phases:\n  - { name: talk, agents: [ann, ben], rounds: 2, prompt: Talk. }\n";
    let file = stage.path("talk.yaml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_string()
}

fn run(stage: &Stage, file: &str, model: &str, more: &[&str]) -> assert_cmd::assert::Assert {
    let (out, cache) = (stage.path("out"), stage.path("cache"));
    let mut args = vec![
        "run",
        file,
        "--out",
        out.to_str().unwrap(),
        "--cache-dir",
        cache.to_str().unwrap(),
        "--model",
        model,
    ];
    args.extend(more);
    stage.greenroom(&args).env("GREENROOM_TEST_KEY", "sk-a-secret-key").assert()
}

fn said(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

#[test]
fn what_may_pass_is_tried_again_and_nothing_is_asked_twice() {
    let stage = Stage::new();
    let server = StandIn::start(|n, path, _, stream| match (path, n) {
        ("/v1/models", _) => models(stream),
        (_, 0) => respond(stream, "429 Too Many Requests", r#"{"error": {"message": "slowly"}}"#),
        (_, 1) => respond(stream, "503 Service Unavailable", "warming up"),
        (_, 2) => chat(stream, "Hel", false), // breaks off
        (_, n) => chat(stream, &format!("Hello {n}."), true),
    });
    let model = format!("openai+http://{}/v1?slots=1", server.address);
    let played = run(&stage, &talk(&stage), &model, &[]).success();
    let printed = said(&played);
    assert!(
        printed.contains("429")
            && printed.contains("slowly")
            && printed.contains("warming up")
            && printed.contains("ended early"),
        "{printed}"
    );
    assert_eq!(server.turns().len(), 4 + 3, "each turn once, and three again");
    for n in 3..7 {
        assert!(transcript(&stage, "out").contains(&format!("Hello {n}.")));
    }
}

#[test]
fn a_server_that_is_gone_ends_the_run_and_a_resumed_one_asks_for_the_rest() {
    let stage = Stage::new();
    let is_back = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let back = is_back.clone();
    let server = StandIn::start(move |n, path, _, stream| match (path, n) {
        ("/v1/models", _) => models(stream),
        (_, n) if n < 2 || back.load(Ordering::Relaxed) => chat(stream, &format!("Hello {n}."), true),
        _ => respond(stream, "400 Bad Request", r#"{"error": {"message": "no more"}}"#),
    });
    let model = format!("openai+http://{}/v1?slots=1", server.address);
    let file = talk(&stage);
    let failed = run(&stage, &file, &model, &[]).failure();
    let printed = said(&failed);
    assert!(
        printed.contains("no more") && printed.contains("talk/2/ann") && printed.contains("--resume"),
        "{printed}"
    );
    let before = server.turns().len();
    assert_eq!(before, 3, "what is refused for good is not asked again");
    is_back.store(true, Ordering::Relaxed);
    run(&stage, &file, &model, &["--resume"]).success();
    assert_eq!(server.turns().len() - before, 2, "the turns on record are not asked for again");
}

#[test]
fn a_slow_stream_is_waited_for_and_a_silent_engine_does_not_keep_a_run_from_ending() {
    let stage = Stage::new();
    let is_back = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let back = is_back.clone();
    let server = StandIn::start(move |n, path, _, stream| match (path, n) {
        ("/v1/models", _) => models(stream),
        // Word by word, with the end after a while.
        (_, 0) => {
            for word in ["Slow", " and", " steady."] {
                let piece = json!({ "choices": [{ "index": 0, "delta": { "content": word } }] });
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                let _ = write!(stream, "{}data: {piece}\n\n", if word == "Slow" { head } else { "" });
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
            let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
            let _ = write!(stream, "data: {end}\n\n");
        }
        (_, _) if back.load(Ordering::Relaxed) => chat(stream, "Hello.", true),
        _ => std::thread::sleep(std::time::Duration::from_secs(120)),
    });
    let model = format!("openai+http://{}/v1?slots=1", server.address);
    let file = talk(&stage);
    let mut command = std::process::Command::new("env");
    // What a shell runs in the background inherits SIGINT as ignored, these tests too.
    command.arg("--default-signal=INT").arg(assert_cmd::cargo::cargo_bin!("greenroom"));
    command.args(["run", &file, "--model", &model, "--out"]).arg(stage.path("out"));
    command.arg("--cache-dir").arg(stage.path("cache")).env("HOME", stage.dir.path());
    let mut running = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    while server.turns().len() < 2 {
        assert!(began.elapsed().as_secs() < 60, "nothing is asked");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    super::signal(&running, "INT");
    let began = std::time::Instant::now();
    let status = running.wait().unwrap();
    assert!(
        status.code() == Some(130) && began.elapsed().as_secs() < 30,
        "{status} after {:?}",
        began.elapsed()
    );
    assert!(transcript(&stage, "out").contains("Slow and steady."));
    is_back.store(true, Ordering::Relaxed);
    run(&stage, &file, &model, &["--resume"]).success();
    assert_eq!(server.turns().len(), 2 + 3, "what was being asked is asked again, what was said is not");
}

#[test]
fn a_key_reaches_its_server_and_nobody_else() {
    let stage = Stage::new();
    let server = StandIn::start(|n, path, _, stream| match (path, n) {
        ("/v1/models", _) => models(stream),
        (_, 0) => chat(stream, "Hello.", true),
        _ => respond(
            stream,
            "401 Unauthorized",
            r#"{"error": {"message": "the key sk-a-secret-key is over"}}"#,
        ),
    });
    let model = format!("openai+http://{}/v1?slots=1&key_env=GREENROOM_TEST_KEY", server.address);
    let failed = run(&stage, &talk(&stage), &model, &["-v"]).failure();
    let heads: Vec<String> = server.asked.lock().unwrap().iter().map(|(head, _)| head.clone()).collect();
    assert!(heads.iter().all(|head| head.contains("Bearer sk-a-secret-key")), "{heads:?}");
    let printed = said(&failed);
    assert!(printed.contains("401") && printed.contains("GREENROOM_TEST_KEY"), "{printed}");
    let mut all = vec![printed];
    for file in std::fs::read_dir(stage.path("out")).unwrap() {
        let path = file.unwrap().path();
        all.extend(std::fs::read_to_string(path).ok());
    }
    assert!(all.iter().all(|text| !text.contains("sk-a-secret-key")), "{all:?}");
    // A missing one is reported before any request.
    let unset = model.replace("GREENROOM_TEST_KEY", "GREENROOM_NO_SUCH_KEY");
    let printed = said(&run(&stage, &talk(&stage), &unset, &["--resume"]).failure());
    assert!(printed.contains("GREENROOM_NO_SUCH_KEY, which is not set"), "{printed}");
}

#[test]
fn a_budget_stops_a_run_cleanly() {
    let stage = Stage::new();
    let server = StandIn::start(|_, path, _, stream| match path {
        "/v1/models" => models(stream),
        _ => chat(stream, "Hello.", true),
    });
    let model = format!("openai+http://{}/v1?slots=1&budget=20", server.address);
    let file = talk(&stage);
    let printed = said(&run(&stage, &file, &model, &[]).failure());
    assert!(
        printed.contains("the budget of 20 tokens is used up") && printed.contains("--resume"),
        "{printed}"
    );
    assert_eq!(server.turns().len(), 2);
    let larger = model.replace("budget=20", "budget=2000");
    run(&stage, &file, &larger, &["--resume"]).success();
    assert_eq!(server.turns().len(), 4);
}

/// SGLang's dialect as its documentation has it: each event holds the reply from its beginning.
fn sglang(path: &str, body: &Value, ids: &[u32], text: &str, cached: usize, stream: &mut TcpStream) {
    match path {
        "/get_model_info" => respond(stream, "200 OK", r#"{"model_path": "understudy"}"#),
        "/generate" => {
            let n = body["input_ids"].as_array().map_or(0, Vec::len);
            let meta = json!({
                "finish_reason": { "type": "stop" }, "prompt_tokens": n, "completion_tokens": ids.len(), "cached_tokens": cached,
            });
            let half =
                json!({ "text": &text[..1], "output_ids": &ids[..1], "meta_info": { "prompt_tokens": n } });
            events(stream, &[half, json!({ "text": text, "output_ids": ids, "meta_info": meta })]);
        }
        _ => respond(stream, "404 Not Found", "{}"),
    }
}

/// The understudy's ids of a text.
fn spelled(text: &str) -> Vec<u32> {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let body = json!({ "content": text }).to_string();
    write!(
        stream,
        "POST /tokenize HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    )
    .unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let found: Value = serde_json::from_str(all.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    found["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn prompts_by_ids_extend_what_was_sent_and_came_back_and_a_shortfall_is_named() {
    let stage = Stage::new();
    let ids = spelled("Good evening.");
    let given = ids.clone();
    let server = StandIn::start(move |_, path, body, stream| {
        sglang(path, body, &given, "Good evening.", 0, stream);
    });
    let model = format!("sglang+http://{}?tokenizer=understudy&slots=1", server.address);
    run(&stage, &talk(&stage), &model, &[]).success();
    let turns = server.turns();
    let sent: Vec<Vec<u64>> = turns
        .iter()
        .map(|turn| turn["input_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect())
        .collect();
    for (earlier, later) in [(0, 2), (1, 3)] {
        let mut held = sent[earlier].clone();
        held.extend(ids.iter().map(|id| u64::from(*id)));
        assert!(sent[later].starts_with(&held), "turn {later} extends turn {earlier}");
    }
    let trace = trace(&stage, "out");
    for turn in &trace[2..] {
        assert!(
            turn["reason"].as_str().is_some_and(|reason| reason.contains("nothing was cached")),
            "{turn}"
        );
        assert!(turn["tokens"]["recomputed"].as_u64().unwrap() > 0);
    }
}

#[test]
fn ids_that_spell_something_else_end_the_run() {
    let stage = Stage::new();
    let ids = spelled("Good evening.");
    for (ids, expected) in
        [(vec![4_000_000], "vocabulary has"), (ids, "the tokenizer belongs to another model")]
    {
        let server = StandIn::start(move |_, path, body, stream| {
            sglang(path, body, &ids, "Something else.", 0, stream);
        });
        let model = format!("sglang+http://{}?tokenizer=understudy", server.address);
        let printed = said(&run(&stage, &talk(&stage), &model, &["--resume"]).failure());
        assert!(printed.contains(expected), "{printed}");
    }
}

/// Replies of a fake server, what is heard of each, and what is cut.
const REPLIES: [(&str, &str, &str); 7] = [
    ("Ann: good day to all", "good day to all", ""),
    ("Ben: 2\nCas: 1", "Ben: 2 Cas: 1", ""),
    ("I have counted the votes. Ben: 2, Cas: 1.", "I have counted the votes. Ben: 2, Cas: 1.", ""),
    ("I trust you.\nBen: And I you.\nCas: Oh.", "I trust you.", "\nBen: And I you.\nCas: Oh."),
    ("Ann: I trust you.\n\n[Your turn, Ben.", "I trust you.", "\n[Your turn, Ben."),
    ("ANN:\nBen: no", "Ben: no", ""),
    ("[Your turn, Ann.] So be it.", "[Your turn, Ann.] So be it.", ""),
];

/// A scenario in which Ann says all of [`REPLIES`]; `more` is written on her.
fn of_ann(stage: &Stage, more: &str) -> String {
    let turns = "{ agent: ann }, ".repeat(REPLIES.len());
    let text = format!(
        "agents:\n  ann: {{ display_name: Ann{more} }}\n  ben: {{ display_name: Ben, strategy: {{ always: hm \
         }} }}\n  cas: {{ display_name: Cas, strategy: {{ always: hm }} }}\n\
         phases:\n  - {{ name: talk, agents: [ann, ben, cas], turns: [ {turns} ], prompt: Talk. }}\n"
    );
    let file = stage.path("ann.yaml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_string()
}

/// The turns of a transcript.
fn turns(stage: &Stage) -> Vec<Value> {
    let text = transcript(stage, "out");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == "turn").collect()
}

#[test]
fn a_reply_that_begins_with_a_name_is_heard_and_what_is_cut_is_on_record() {
    let stage = Stage::new();
    let server = StandIn::start(|n, path, _, stream| match path {
        "/v1/models" => models(stream),
        _ => chat(stream, REPLIES[n].0, true),
    });
    let model = format!("openai+http://{}/v1?slots=1", server.address);
    let played = run(&stage, &of_ann(&stage, ""), &model, &[]).success();
    let lines = turns(&stage);
    for (line, (reply, spoken, cut)) in lines.iter().zip(REPLIES) {
        assert_eq!(line["spoken"], spoken, "{line}");
        assert_eq!(line["cut"].as_str().unwrap_or_default(), cut, "{line}");
        assert_eq!(format!("{}{cut}", line["raw"].as_str().unwrap()), reply, "nothing is lost: {line}");
        assert_eq!(line["stop"], if cut.is_empty() { "end_of_turn" } else { "stop_string" }, "{line}");
    }
    let shown = String::from_utf8_lossy(&played.get_output().stdout).into_owned();
    assert!(shown.contains("(cut off before \"Ben: And I you. Cas: Oh.\")"), "{shown}");
    for body in server.turns() {
        assert!(body.get("stop").is_none(), "an engine would not return what it cut: {body}");
    }
    let out = stage.path("out").display().to_string();
    stage.greenroom(&["replay", &out]).assert().success();
}

#[test]
fn without_stop_strings_a_reply_is_heard_whole() {
    let stage = Stage::new();
    let server = StandIn::start(|n, path, _, stream| match path {
        "/v1/models" => models(stream),
        _ => chat(stream, REPLIES[n].0, true),
    });
    let model = format!("openai+http://{}/v1?slots=1", server.address);
    run(&stage, &of_ann(&stage, ", stops: none"), &model, &[]).success();
    for (line, (reply, ..)) in turns(&stage).iter().zip(REPLIES) {
        assert_eq!((line["raw"].as_str(), line.get("cut")), (Some(reply), None), "{line}");
        assert_eq!(line["hints"]["stops"], "none", "{line}");
    }
}

#[test]
fn a_scenario_whose_own_model_is_elsewhere_is_checked_with_a_note() {
    let stage = Stage::new();
    let file = stage.path("far.yaml");
    for (model, context) in [
        ("remote: 'http://127.0.0.1:9/v1', api: openai, model: m", "-"),
        ("remote: 'http://127.0.0.1:9', api: anthropic, model: m, context: 128000", "128000"),
        ("remote: 'http://127.0.0.1:9', api: greenroom", "-"),
    ] {
        // More than the bundled model's context would hold.
        let text = format!(
            "models: {{ m: {{ {model} }} }}\nmodel: m\nagents: {{ ann: {{}}, ben: {{}} }}\n\
             phases:\n  - {{ name: talk, agents: [ann, ben], rounds: 300, prompt: Talk. }}\n"
        );
        std::fs::write(&file, text).unwrap();
        for more in [&[][..], &["--dry-run"]] {
            let checked = stage.greenroom(&["check", file.to_str().unwrap()]).args(more).assert().success();
            let printed = String::from_utf8_lossy(&checked.get_output().stdout).into_owned();
            assert!(
                printed.contains(": OK, ") && printed.contains("can't be counted here"),
                "{model}: {printed}"
            );
            let row = printed.lines().find(|line| line.trim_start().starts_with("ann ")).unwrap();
            let cells: Vec<&str> = row.split_whitespace().collect();
            assert_eq!(cells[3..], ["300", "-", context, "-"], "{row}");
            assert_eq!(printed.contains("[user]\nTalk."), !more.is_empty(), "{printed}");
        }
    }
    let needs_ids = "models: { m: { remote: 'http://127.0.0.1:9', api: vllm } }\nmodel: m\n\
                     agents: { ann: {} }\nphases: [ { name: talk, agents: [ann], prompt: Talk. } ]\n";
    std::fs::write(&file, needs_ids).unwrap();
    let refused = stage.greenroom(&["check", file.to_str().unwrap()]).assert().failure();
    let printed = String::from_utf8_lossy(&refused.get_output().stderr).into_owned()
        + &String::from_utf8_lossy(&refused.get_output().stdout);
    assert!(printed.contains("tokenizer"), "{printed}");
}
