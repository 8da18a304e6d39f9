//! The prisoner's dilemma, played by SmolLM2 with short replies: cold, warm, and replayed.

use super::SMOLLM2;
use assert_cmd::Command;
use serde_json::Value;
use std::path::Path;

/// Runs the program on the model in the repository's root, with an empty home, and returns what it printed.
fn greenroom(folder: &Path, model: &Path, args: &[&str]) -> String {
    let mut command = Command::cargo_bin("greenroom").unwrap();
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("HOME", folder).env_remove("XDG_CACHE_HOME");
    command.args(args).args(["--threads", "1", "--model"]).arg(model);
    String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
}

/// Plays the scenario; returns what was printed and the run's folder.
fn play(folder: &Path, model: &Path, out: &str) -> (String, String) {
    let (out, cache) = (folder.join(out).display().to_string(), folder.join("cache").display().to_string());
    // Short replies: some end within the limit, some are cut at it.
    let args = [
        "run",
        "scenarios/prisoners-dilemma.yaml",
        "--max-tokens",
        "14",
        "--out",
        &out,
        "--cache-dir",
        &cache,
    ];
    (greenroom(folder, model, &args), out)
}

fn read(run: &str, file: &str) -> String {
    std::fs::read_to_string(Path::new(run).join(file)).unwrap()
}

/// Names a cue, a stage direction or a speaker's name with a colon in a reply: text of a script, not speech.
fn foreign(raw: &str, names: &[&str]) -> Option<String> {
    let low = raw.to_lowercase();
    let direction = |line: &str| {
        let line = line.trim_start();
        line.starts_with('(') || line.strip_prefix('*').is_some_and(|rest| !rest.starts_with(['*', ' ']))
    };
    let cue = raw.contains('[')
        || names.iter().any(|name| low.contains(&format!("your turn, {}", name.to_lowercase())));
    let header = names.iter().any(|name| low.contains(&format!("{}:", name.to_lowercase())));
    let found = [("a cue", cue), ("a direction", raw.lines().any(direction)), ("a name", header)];
    found.iter().find(|(_, is_so)| *is_so).map(|(what, _)| format!("{what} in {raw:?}"))
}

/// True if a text ends as a sentence does.
fn is_whole(raw: &str) -> bool {
    raw.trim_end().trim_end_matches(['"', '\'', '”', '’', ')', '*', '_']).ends_with(['.', '!', '?', '…'])
}

/// Every reply is speech and nothing else; those that were cut say so, in the transcript and in print.
fn check_replies(run: &str, printed: &str) {
    let transcript = read(run, "transcript.jsonl");
    let mut lines = transcript.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    let names: Vec<&str> =
        header["agents"].as_object().unwrap().values().map(|a| a["name"].as_str().unwrap()).collect();
    let turns: Vec<Value> = lines.filter(|line| line["type"] == "turn").collect();
    assert_eq!(turns.len(), 27);
    let mut n_cut = 0;
    for turn in turns.iter().filter(|turn| turn["constraint"].is_null()) {
        let (raw, stop) = (turn["raw"].as_str().unwrap(), turn["stop"].as_str().unwrap());
        assert_eq!(foreign(raw, &names), None, "{}", turn["path"]);
        assert!(!turn["spoken"].as_str().unwrap().is_empty(), "{}: nothing is said", turn["path"]);
        assert!(
            stop != "sentence" || is_whole(raw),
            "{}: half a sentence, not marked: {raw:?}",
            turn["path"]
        );
        n_cut += usize::from(stop == "length");
    }
    assert!(n_cut > 0, "no reply was cut: nothing was checked");
    assert_eq!(printed.matches("(cut off at the token limit)").count(), n_cut, "{printed}");
}

/// Every permanent agent's memory began by a match of kind `first` and was extended at each turn after that.
fn check_memories(run: &str, first: &str) {
    let summary: Value = serde_json::from_str(&read(run, "summary.json")).unwrap();
    let agents = summary["agents"].as_object().unwrap();
    for (agent, figures) in agents.iter().filter(|(_, figures)| figures["lifecycle"] == "permanent") {
        let (found, turns) = (&figures["match"], figures["turns"].as_u64().unwrap());
        assert_eq!((&found[first], &found["extend"]), (&1.into(), &(turns - 1).into()), "{agent}: {figures}");
        assert_eq!(figures["tokens"]["recomputed"], 0, "{agent}: {figures}");
    }
}

#[test]
fn smollm2() {
    let Some(model) = SMOLLM2.path() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (printed, first) = play(folder.path(), &model, "first");
    check_replies(&first, &printed);
    check_memories(&first, "cold");
    // The beginnings of all prompts are found in the cache.
    let (_, second) = play(folder.path(), &model, "second");
    assert_eq!(read(&second, "transcript.jsonl"), read(&first, "transcript.jsonl"));
    check_memories(&second, "prefix");
    let replayed = greenroom(folder.path(), &model, &["replay", &first, "--score"]);
    assert!(
        replayed.contains("27 turns, nothing changed") && replayed.contains(", 0 surprises"),
        "{replayed}"
    );
}

#[test]
fn text_of_a_script_is_found() {
    let is_foreign = |raw| foreign(raw, &["Warden", "Danny"]).is_some();
    for raw in [
        "Yes. [Your turn",
        "Your turn, Danny.",
        "No.\n(sighs)",
        "*sighs* No.",
        "Danny: No.",
        "He ran. WARDEN: Stop.",
    ] {
        assert!(is_foreign(raw), "{raw:?}");
    }
    for raw in ["Danny knows (as I do).", "I ** 2", "Warden, it is your turn."] {
        assert!(!is_foreign(raw), "{raw:?}");
    }
}
