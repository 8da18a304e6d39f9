//! `greenroom lsp` as an editor uses it: a client in the words of the protocol, over the program's standard
//! input and output.

use crate::Stage;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCENARIO: &str = "\
id: pot
include: [cast.yaml]
variables: { stake: 10 }
state: { round_of: 1 }
agents:
  ann: { display_name: Ann, system_prompt: You are Ann. You keep the pot. }
  bob: { display_name: Bob, lifecycle: ephemeral }
phases:
  - name: talk
    label: At the pot
    agents: [ann, bob, cas]
    rounds: 2
    prompt: \"The stake is {{ stake }}.\"
  - name: vote
    agents: [ann, cas]
    order: broadcast
    answer: { one_of: { yes: I agree, no: I do not } }
    when: talk.rounds > 1
outcome:
  agreed: vote.votes.yes
";

/// An editor with one file open.
struct Editor {
    program: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    uri: String,
    text: String,
    n: u64,
}

impl Editor {
    /// Opens a file of the stage.
    fn open(stage: &Stage, name: &str, text: &str) -> Self {
        let path = stage.path(name);
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
        command.args(["lsp", "--stdio"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let (to, from) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
        let uri = url_of(&path);
        let mut editor = Self { program, to, from, uri, text: text.to_owned(), n: 0 };
        let hello =
            editor.ask("initialize", json!({ "capabilities": {}, "processId": null, "rootUri": null }));
        assert_eq!(hello["serverInfo"]["name"], "greenroom");
        editor.tell("initialized", json!({}));
        let document = json!({ "uri": editor.uri, "languageId": "yaml", "version": 1, "text": text });
        editor.tell("textDocument/didOpen", json!({ "textDocument": document }));
        editor
    }

    fn send(&mut self, message: &Value) {
        let text = message.to_string();
        write!(self.to, "Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
        self.to.flush().unwrap();
    }

    fn tell(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn receive(&mut self) -> Value {
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.from.read_line(&mut line).unwrap();
            match line.trim().strip_prefix("Content-Length: ") {
                Some(n) => length = n.parse().unwrap(),
                None if line.trim().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        self.from.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The answer to a request; notifications in between are skipped.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        self.n += 1;
        let id = self.n;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let message = self.receive();
            if message["id"] == id {
                return message;
            }
        }
    }

    /// The result of a request that can be answered.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.answer(method, params);
        assert_eq!(message["error"], Value::Null, "{message}");
        message["result"].clone()
    }

    /// The next diagnostics of the file.
    fn diagnostics(&mut self) -> Vec<Value> {
        loop {
            let message = self.receive();
            if message["method"] == "textDocument/publishDiagnostics" && message["params"]["uri"] == self.uri
            {
                return message["params"]["diagnostics"].as_array().unwrap().clone();
            }
        }
    }

    fn type_over(&mut self, text: &str) {
        self.text = text.to_owned();
        let document = json!({ "uri": self.uri, "version": 2 });
        self.tell(
            "textDocument/didChange",
            json!({ "textDocument": document, "contentChanges": [{ "text": text }] }),
        );
    }

    /// The parameters of a request at the end of the first place of a text.
    fn place(&self, near: &str) -> Value {
        let at = self.text.find(near).unwrap_or_else(|| panic!("{near}")) + near.len() - 1;
        let before = &self.text[..at];
        let line = before.matches('\n').count();
        let character = before.rsplit('\n').next().unwrap().encode_utf16().count();
        let position = json!({ "line": line, "character": character });
        json!({ "textDocument": { "uri": self.uri }, "position": position })
    }

    /// A request at such a place.
    fn at(&mut self, method: &str, near: &str) -> Value {
        let place = self.place(near);
        self.ask(method, place)
    }

    /// The lines of the places that a name has.
    fn references(&mut self, near: &str, with_definition: bool) -> Vec<u64> {
        let mut params = self.place(near);
        params["context"] = json!({ "includeDeclaration": with_definition });
        let found = self.ask("textDocument/references", params);
        found
            .as_array()
            .unwrap()
            .iter()
            .map(|place| place["range"]["start"]["line"].as_u64().unwrap())
            .collect()
    }

    /// The text after a renaming, or the reason why not.
    fn renamed(&mut self, near: &str, name: &str) -> Result<String, String> {
        let mut params = self.place(near);
        params["newName"] = json!(name);
        let answer = self.answer("textDocument/rename", params);
        if let Some(reason) = answer["error"]["message"].as_str() {
            assert_eq!(answer["error"]["code"], -32803, "the request failed");
            return Err(reason.to_owned());
        }
        let edits = answer["result"]["changes"][&self.uri].as_array().unwrap();
        let byte = |at: &Value| {
            let lines = self.text.split_inclusive('\n').take(at["line"].as_u64().unwrap() as usize);
            lines.map(str::len).sum::<usize>() + at["character"].as_u64().unwrap() as usize
        };
        let mut places: Vec<(usize, usize)> =
            edits.iter().map(|edit| (byte(&edit["range"]["start"]), byte(&edit["range"]["end"]))).collect();
        places.sort_unstable();
        let mut text = self.text.clone();
        places.iter().rev().for_each(|(start, end)| text.replace_range(*start..*end, name));
        Ok(text)
    }

    /// Labels of the completions at `¦` in the text.
    fn offered(&mut self, text: &str) -> Vec<String> {
        let at = text.find('¦').unwrap();
        self.type_over(&text.replace('¦', ""));
        let before = &text[..at];
        let position = json!({
            "line": before.matches('\n').count(),
            "character": before.rsplit('\n').next().unwrap().encode_utf16().count(),
        });
        let uri = self.uri.clone();
        let found = self
            .ask("textDocument/completion", json!({ "textDocument": { "uri": uri }, "position": position }));
        found.as_array().unwrap().iter().map(|item| item["label"].as_str().unwrap().to_owned()).collect()
    }

    fn hover(&mut self, near: &str) -> String {
        self.at("textDocument/hover", near)["contents"]["value"].as_str().unwrap_or_default().to_owned()
    }

    /// Line of the definition at a place, and its file.
    fn definition(&mut self, near: &str) -> (u64, String) {
        let found = self.at("textDocument/definition", near);
        (found["range"]["start"]["line"].as_u64().unwrap(), found["uri"].as_str().unwrap().to_owned())
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask("shutdown", Value::Null);
            self.tell("exit", Value::Null);
            assert!(self.program.wait().unwrap().success());
        }
    }
}

fn url_of(path: &std::path::Path) -> String {
    format!("file://{}", path.display())
}

fn stage() -> Stage {
    let stage = Stage::new();
    std::fs::write(stage.path("cast.yaml"), "# Others.\nagents:\n  cas: { display_name: Cas }\n").unwrap();
    stage
}

#[test]
fn mistakes_are_reported_as_one_types() {
    let stage = stage();
    let mut editor = Editor::open(&stage, "pot.yaml", SCENARIO);
    assert_eq!(editor.diagnostics(), Vec::<Value>::new());
    editor.type_over(&SCENARIO.replace("[ann, bob, cas]", "[ann, bop, cas]"));
    let found = editor.diagnostics();
    assert_eq!((found.len(), &found[0]["severity"]), (1, &json!(1)), "{found:?}");
    assert_eq!(
        (&found[0]["source"], found[0]["code"].as_str().unwrap()),
        (&json!("greenroom"), "unknown-agent")
    );
    assert_eq!(found[0]["range"]["start"], json!({ "line": 10, "character": 18 }));
    assert!(found[0]["message"].as_str().unwrap().contains("bop"), "{found:?}");
    // Half a line is a mistake too, and no end of the program.
    for broken in ["phases: [", "phases:\n  - \u{0}", "phases:\n\t- x", "phases: &a [*a]"] {
        editor.type_over(broken);
        assert!(!editor.diagnostics().is_empty(), "{broken}");
    }
    // What is no scenario is left alone.
    editor.type_over("services: { web: { image: x } }");
    assert_eq!(editor.diagnostics(), Vec::<Value>::new());
}

#[test]
fn a_suggestion_is_a_change_that_can_be_made() {
    let stage = stage();
    let wrong =
        SCENARIO.replace("order: broadcast", "order: brodcast").replace("    rounds: 2", "    round: 2");
    let mut editor = Editor::open(&stage, "pot.yaml", &wrong);
    assert_eq!(editor.diagnostics().len(), 2);
    let (uri, everywhere) = (
        editor.uri.clone(),
        json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 99, "character": 0 } }),
    );
    let found = editor.ask(
        "textDocument/codeAction",
        json!({ "textDocument": { "uri": uri }, "range": everywhere, "context": { "diagnostics": [] } }),
    );
    let edits = found.as_array().unwrap().iter().map(|action| &action["edit"]["changes"][&uri][0]);
    let edits: Vec<(u64, &str)> = edits
        .map(|edit| (edit["range"]["start"]["line"].as_u64().unwrap(), edit["newText"].as_str().unwrap()))
        .collect();
    assert_eq!(edits, [(11, "rounds"), (15, "broadcast")]);
}

#[test]
fn names_and_fields_are_completed() {
    let stage = stage();
    let mut editor = Editor::open(&stage, "pot.yaml", SCENARIO);
    let has = |offered: &[String], wanted: &[&str]| {
        wanted
            .iter()
            .for_each(|word| assert!(offered.iter().any(|other| other == word), "{word}: {offered:?}"));
    };
    let offered = editor.offered(&SCENARIO.replace("    rounds: 2\n", "    rounds: 2\n    ¦\n"));
    has(&offered, &["until", "answer", "order"]);
    assert!(!offered.contains(&"rounds".to_owned()), "it is there");
    has(&editor.offered(&SCENARIO.replace("[ann, bob, cas]", "[ann, b¦]")), &["ann", "bob", "cas"]);
    has(&editor.offered(&SCENARIO.replace("order: broadcast", "order: ¦")), &["round_robin", "broadcast"]);
    has(
        &editor.offered(&SCENARIO.replace("lifecycle: ephemeral", "lifecycle: ¦")),
        &["permanent", "ephemeral"],
    );
    has(
        &editor.offered(&SCENARIO.replace("when: talk.rounds > 1", "when: ¦")),
        &["talk", "stake", "round_of"],
    );
    has(&editor.offered(&SCENARIO.replace("talk.rounds > 1", "talk.¦")), &["rounds", "messages", "votes"]);
    has(&editor.offered(&SCENARIO.replace("vote.votes.yes", "vote.votes.¦")), &["yes", "no"]);
    has(&editor.offered(&SCENARIO.replace("{{ stake }}", "{{ st¦ }}")), &["stake", "ann"]);
    assert_eq!(editor.offered(&SCENARIO.replace("The stake", "The ¦stake")), Vec::<String>::new());
}

#[test]
fn hover_tells_of_fields_agents_and_phases_and_definitions_are_found() {
    let stage = stage();
    let mut editor = Editor::open(&stage, "pot.yaml", SCENARIO);
    assert!(editor.hover("    label").starts_with("**label**"));
    let ann = editor.hover("agents: [ann");
    assert!(
        ann.contains("**Ann**: permanent memory, 3 turns, at most ") && ann.contains("You keep the pot"),
        "{ann}"
    );
    let talk = editor.hover("name: talk");
    assert!(talk.contains("**At the pot**: 6 turns") && talk.contains("Speakers: Ann, Bob, Cas"), "{talk}");
    assert!(
        talk.contains("Hear what is said here: Ann, Bob, Cas") && talk.contains("max tokens: Ann "),
        "{talk}"
    );
    let tokens = |text: &str| -> usize {
        let of_ann = text.split("max tokens: Ann ").nth(1).and_then(|rest| rest.split(',').next());
        of_ann.and_then(|tokens| tokens.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let vote = editor.hover("name: vote");
    assert!(0 < tokens(&talk) && tokens(&talk) < tokens(&vote), "{talk} {vote}");
    assert_eq!(editor.hover("{{ stake"), "`variables.stake`\n\n```\n10\n```\n\nDefined in line 3");
    assert!(editor.hover("agents: [ann, bob, cas").ends_with("Defined in cast.yaml, line 3"));
    assert_eq!(editor.hover("The stake"), "");
    let own = editor.uri.clone();
    assert_eq!(editor.definition("agents: [ann"), (5, own.clone()));
    assert_eq!(editor.definition("when: talk"), (8, own.clone()));
    assert_eq!(editor.definition("{{ stake"), (2, own.clone()));
    assert_eq!(editor.definition("agreed: vote"), (13, own));
    let cast = url_of(&stage.path("cast.yaml"));
    assert_eq!(editor.definition("agents: [ann, bob, cas"), (2, cast.clone()));
    assert_eq!(editor.definition("include: [cast"), (0, cast));
}

/// Names and kinds of symbols, nested.
fn outlined(symbols: &Value) -> String {
    let one = |symbol: &Value| {
        let [whole, name] = ["range", "selectionRange"].map(|field| &symbol[field]);
        let start = |range: &Value| (range["start"]["line"].as_u64(), range["start"]["character"].as_u64());
        let end = |range: &Value| (range["end"]["line"].as_u64(), range["end"]["character"].as_u64());
        assert!(start(whole) <= start(name) && end(name) <= end(whole), "{symbol}");
        let detail = symbol["detail"].as_str().map(|detail| format!("={detail}")).unwrap_or_default();
        let below = match &symbol["children"] {
            Value::Null => String::new(),
            below => format!("({})", outlined(below)),
        };
        format!("{}{detail}{below}", symbol["name"].as_str().unwrap())
    };
    symbols.as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_outline_lists_what_has_a_name() {
    let stage = stage();
    let text = SCENARIO.replace(
        "  - name: vote\n",
        "  - repeat: 2\n    phases: [{ name: rest, agents: [ann] }]\n  - name: vote\n",
    );
    let mut editor = Editor::open(&stage, "pot.yaml", &text);
    let uri = editor.uri.clone();
    let symbols = editor.ask("textDocument/documentSymbol", json!({ "textDocument": { "uri": uri } }));
    assert_eq!(
        outlined(&symbols),
        "variables(stake=10) state(round_of=1) agents(ann=Ann bob=Bob) \
         phases(talk=At the pot repeat 2(rest) vote) outcome(agreed=vote.votes.yes)"
    );
}

#[test]
fn names_are_found_and_renamed_wherever_they_stand() {
    let stage = stage();
    let text = SCENARIO
        .replace("when: talk.rounds > 1", "when: talk.rounds > 1 and talk.said.ann and stake in [stake]");
    let mut editor = Editor::open(&stage, "pot.yaml", &text);
    assert_eq!(editor.references("agents: [ann", true), [5, 10, 14, 17]);
    assert_eq!(editor.references("agents: [ann", false), [10, 14, 17]);
    assert_eq!(editor.references("talk.rounds", false), Vec::<u64>::new(), "`rounds` is a field");
    assert_eq!(editor.references("name: talk", false), [17, 17]);
    assert_eq!(editor.references("agents: [ann, bob, cas", true), [10, 14]);
    let kinds = editor.at("textDocument/documentHighlight", "{{ stake");
    let kinds: Vec<u64> =
        kinds.as_array().unwrap().iter().map(|found| found["kind"].as_u64().unwrap()).collect();
    assert_eq!(kinds, [3, 2, 2, 2]);
    let named = editor.at("textDocument/prepareRename", "{{ stake");
    assert_eq!(
        (&named["placeholder"], &named["range"]["start"]),
        (&json!("stake"), &json!({ "line": 12, "character": 29 }))
    );
    assert_eq!(
        editor.renamed("{{ stake", "pool").unwrap(),
        text.replace("stake", "pool").replace("The pool", "The stake")
    );
    assert_eq!(editor.renamed("name: talk", "chat").unwrap(), text.replace("talk", "chat"));
    assert_eq!(
        editor.renamed("name: vote", "poll").unwrap(),
        text.replace("name: vote", "name: poll").replace("vote.votes", "poll.votes")
    );
    assert_eq!(
        editor.renamed("agents: [ann", "zoe").unwrap(),
        text.replace("[ann", "[zoe").replace(" ann:", " zoe:").replace("said.ann", "said.zoe")
    );
    for (near, name, reason) in [
        ("name: talk", "vote", "`vote` is already the name of a phase (line 14)"),
        ("name: talk", "a talk", "`a talk` is not a valid name"),
        ("agents: [ann, bob, cas", "dan", "`cas` is not defined in this file"),
        ("include: [cast", "other", "`cast.yaml` is a file"),
        ("The stake", "pool", "there is no name here"),
    ] {
        let found = editor.renamed(near, name).unwrap_err();
        assert!(found.contains(reason), "{found}");
    }
}

#[test]
fn filters_and_functions_show_what_they_give() {
    let stage = stage();
    let text =
        SCENARIO.replace("when: talk.rounds > 1", "when: talk.said | counts | length > 0 or random() < 2");
    let mut editor = Editor::open(&stage, "pot.yaml", &text);
    assert!(editor.hover("| counts").starts_with("**counts**: how often each item"));
    assert!(editor.hover("or random").starts_with("**random**: a random number"));
}

#[test]
fn input_that_is_no_editors_is_reported_and_a_disconnected_editor_too() {
    let diagnostics = |text: &str| {
        let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
        let output = command.arg("lsp").write_stdin(text).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{text}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(diagnostics("").contains("no editor has connected"));
    assert!(diagnostics("check pot.yaml\n").contains("a message header"));
    assert!(diagnostics("Content-Length: 99999999999\r\n\r\n{}").contains("at most 67108864 are accepted"));
    let hello =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "capabilities": {} } });
    let ready = json!({ "jsonrpc": "2.0", "method": "initialized", "params": {} });
    let framed = |message: &Value| format!("Content-Length: {}\r\n\r\n{message}", message.to_string().len());
    assert!(diagnostics(&(framed(&hello) + &framed(&ready))).contains("without a shutdown request"));
}
