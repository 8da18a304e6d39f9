//! Every construct of the language on the bundled model: permanent agents only ever extend, every run
//! replays, choices carry their log-probabilities.

use super::Stage;
use std::path::Path;

/// Scenario files of a folder; a cast that is only included is none.
fn scenarios(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let names =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> =
        names.filter(|name| name.ends_with(".yaml") && name != "cast.yaml").collect();
    files.sort();
    files.into_iter().map(|name| format!("{folder}/{name}")).collect()
}

#[test]
fn every_construct_is_played_extends_and_replays() {
    let stage = Stage::new();
    let mut files = scenarios("tests/scenarios");
    let shipped = ["council", "iterated-dilemma", "werewolf", "jury", "market"];
    files.extend(shipped.map(|name| format!("scenarios/{name}.yaml")));
    assert!(files.len() >= 16, "{files:?}");
    let files: Vec<_> = crate::some(files, 3).collect();
    for (at, file) in files.iter().enumerate() {
        let out = stage.path(&at.to_string()).display().to_string();
        let cache = stage.path("cache").display().to_string();
        // One of the cases; all of them are an experiment.
        let case: &[&str] = if file.ends_with("/cases.yaml") { &["--case", "2"] } else { &[] };
        let args = [
            "run",
            file,
            "--out",
            &out,
            "--cache-dir",
            &cache,
            "--max-tokens",
            "12",
            "--quiet",
            "--threads",
            "1",
        ];
        // A judge may find otherwise than the scenario demands, and nobody has to call a tool.
        let demands = ["/judges.yaml", "/tools.yaml"].iter().any(|demands| file.ends_with(demands));
        let fine: &[i32] = if demands { &[0, 1] } else { &[0] };
        stage.greenroom(&[&args, case].concat()).assert().code(fine);
        let run = super::Run { dir: out.clone().into() };
        let summary = run.summary();
        for (agent, figures) in summary["agents"].as_object().unwrap() {
            let kinds = &figures["match"];
            if figures["lifecycle"] == "permanent" && !kinds.as_object().unwrap().values().all(|n| n == 0) {
                let turns = figures["turns"].as_u64().unwrap();
                assert_eq!(kinds["extend"], turns - 1, "{file}, {agent}: {figures}");
                assert_eq!(figures["tokens"]["recomputed"], 0, "{file}, {agent}: {figures}");
            }
        }
        stage.greenroom(&["replay", &out]).assert().code(fine);
        let again = stage.path(&format!("{at}-cold")).display().to_string();
        let cold =
            ["run", file, "--out", &again, "--max-tokens", "12", "--quiet", "--threads", "1", "--cold"];
        stage.greenroom(&[&cold, case].concat()).assert().code(fine);
        assert!(
            run.transcript() == super::Run { dir: again.into() }.transcript(),
            "{file}: cold and warm differ"
        );
    }
}

#[test]
fn a_judge_is_asked_on_the_model_and_tells_how_likely_its_verdict_was() {
    let stage = Stage::new();
    let (out, junit) = (stage.path("run").display().to_string(), stage.path("j.xml").display().to_string());
    let args = [
        "run",
        "tests/scenarios/judges.yaml",
        "--out",
        &out,
        "--max-tokens",
        "12",
        "--quiet",
        "--threads",
        "1",
    ];
    stage.greenroom(&args).assert().code(&[0, 1] as &[i32]);
    let run = super::Run { dir: out.clone().into() };
    let turns = run.turns("transcript.jsonl");
    let judged = turns.iter().find(|turn| turn["path"] == "promise/1/promise").unwrap();
    assert!(judged["constraint"]["options"][0]["logprob"].is_number(), "{judged}");
    assert_eq!(judged["hints"]["temperature"], 0.0);
    // Held against another demand, the recorded verdict fails, and nobody is asked.
    let text = std::fs::read_to_string("tests/scenarios/judges.yaml").unwrap();
    let chosen = judged["constraint"]["chosen"].as_str().unwrap();
    let other = if chosen == "kept" { "broken" } else { "kept" };
    std::fs::copy("tests/scenarios/fair.json", stage.path("fair.json")).unwrap();
    let copy = stage.path("judges.yaml");
    std::fs::write(&copy, text.replace("that: verdict == 'kept'", &format!("that: verdict == '{other}'")))
        .unwrap();
    let copy = copy.display().to_string();
    let output = stage
        .greenroom(&["replay", &out, "--scenario", &copy, "--junit", &junit, "--github"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let xml = std::fs::read_to_string(junit).unwrap();
    let verdict = format!("the verdict of promise/1/promise is \"{chosen}\" (");
    assert!(printed.contains(&verdict) && printed.contains("100 %"), "{printed}");
    assert!(xml.contains(&verdict.replace('"', "&quot;")), "{xml}");
}

#[test]
fn cases_are_cells_of_an_experiment() {
    let stage = Stage::new();
    let (out, junit) = (stage.path("all").display().to_string(), stage.path("j.xml").display().to_string());
    let run = |more: &[&str]| {
        let args = [
            "run",
            "tests/scenarios/cases.yaml",
            "--out",
            &out,
            "--max-tokens",
            "12",
            "--quiet",
            "--threads",
            "1",
        ];
        stage.greenroom(&[&args, more].concat()).assert()
    };
    run(&["--repeat", "2"]).success();
    let table = std::fs::read_to_string(stage.path("all/runs.csv")).unwrap();
    assert!(table.starts_with("condition,case,seed,run,"), "{table}");
    assert_eq!(table.lines().count(), 7, "{table}");
    // It is resumed where it was, with more runs of each case.
    run(&["--repeat", "3", "--resume"]).success();
    let table = std::fs::read_to_string(stage.path("all/runs.csv")).unwrap();
    assert_eq!(table.lines().filter(|line| line.contains("\"dear, and old\"")).count(), 3, "{table}");
    stage.greenroom(&["replay", &out, "--junit", &junit]).assert().success();
    let xml = std::fs::read_to_string(&junit).unwrap();
    // Nine runs, and the figures over all cases.
    assert!(xml.contains("tests=\"10\"") && xml.contains("0-case=cheap/seed-2"), "{xml}");
    assert!(xml.contains("all 3 cases, 9 runs"), "{xml}");
    stage.greenroom(&["report", &out]).assert().success();
    let one = stage.path("one").display().to_string();
    let args = [
        "run",
        "tests/scenarios/cases.yaml",
        "--out",
        &one,
        "--max-tokens",
        "12",
        "--quiet",
        "--threads",
        "1",
    ];
    stage.greenroom(&[&args[..], &["--case", "cheap"]].concat()).assert().success();
    let same = |run: &str| std::fs::read_to_string(stage.path(run).join("transcript.jsonl")).unwrap();
    assert_eq!(same("one"), same("all/0-case=cheap/seed-0"), "a case is the same alone");
    let wrong = stage.greenroom(&[&args[..], &["--case", "chea"]].concat()).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("did you mean `cheap`?"));
}

#[test]
fn the_dilemma_ends_with_choices_and_years() {
    let stage = Stage::new();
    let run = stage.play("prisoners-dilemma", "run", &[]);
    let turns = run.turns("transcript.jsonl");
    let sheets: Vec<_> =
        turns.iter().filter(|turn| turn["path"].as_str().unwrap().starts_with("two_sheets/")).collect();
    assert_eq!(sheets.len(), 2);
    for turn in sheets {
        let choice = &turn["constraint"];
        let options = choice["options"].as_array().unwrap();
        let total: f64 = options.iter().map(|option| option["logprob"].as_f64().unwrap().exp()).sum();
        assert!(options.len() == 2 && total > 0.0 && total <= 1.0, "{choice}");
        let chosen = options.iter().find(|option| option["value"] == choice["chosen"]).unwrap();
        assert_eq!(chosen["text"], turn["raw"], "what is said is the option");
    }
    let footer: serde_json::Value = serde_json::from_str(run.transcript().lines().last().unwrap()).unwrap();
    let payoff = &footer["payoffs"]["rounds"][0];
    let years = |agent: &str| payoff["values"][agent].as_f64().unwrap();
    let expected =
        match (payoff["choices"]["marco"].as_str().unwrap(), payoff["choices"]["danny"].as_str().unwrap()) {
            ("talk", "talk") => (5.0, 5.0),
            ("talk", "silent") => (0.0, 10.0),
            ("silent", "talk") => (10.0, 0.0),
            _ => (2.0, 2.0),
        };
    assert_eq!((years("marco"), years("danny")), expected);
    let verdict = turns.last().unwrap()["delta"].as_str().unwrap();
    assert!(verdict.contains(&format!("Marco serves {} years", years("marco"))), "{verdict}");
}

#[test]
fn a_failed_assertion_is_exit_code_1_and_says_why() {
    let stage = Stage::new();
    let copy = super::edited(&stage, "prisoners-dilemma", |text| {
        text.replace("two_sheets.invalid == 0", "two_sheets.invalid == 1")
    });
    let (copy, out) = (copy.display().to_string(), stage.path("run").display().to_string());
    let run = ["run", &copy, "--out", &out, "--max-tokens", "8", "--threads", "1"];
    let output = stage.greenroom(&run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAILED") && text.contains("two_sheets.invalid == 1 (expected: a choice is decoded"),
        "{text}"
    );
    stage.greenroom(&["replay", &out, "--scenario", &copy]).assert().code(1);
}

#[test]
fn a_full_context_is_summed_up_and_goes_on() {
    let stage = Stage::new();
    let rounds =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/overflow.yaml"));
    let long =
        rounds.unwrap().replace("rounds: 8", "rounds: 130").replace("the third step", &"step by ".repeat(20));
    let file = stage.path("long.yaml");
    std::fs::write(&file, long).unwrap();
    let (file, out) = (file.display().to_string(), stage.path("run").display().to_string());
    let args = ["run", &file, "--out", &out, "--max-tokens", "16", "--quiet", "--threads", "2"];
    stage.greenroom(&args).assert().success();
    let run = super::Run { dir: out.clone().into() };
    let turns = run.turns("transcript.jsonl");
    let is_summary = |turn: &&serde_json::Value| turn["path"].as_str().unwrap().ends_with(".summary");
    let summaries: Vec<_> = turns.iter().filter(is_summary).collect();
    assert!(!summaries.is_empty(), "{} turns and no summary", turns.len());
    stage.greenroom(&["replay", &out]).assert().success();
}

#[test]
fn a_human_answers_at_the_terminal() {
    let stage = Stage::new();
    let file = stage.path("duel.yaml");
    let text = "
id: duel
agents: {you: {display_name: You, strategy: human}, bot: {display_name: Bot, strategy: {always: scissors}}}
phases:
  - { name: hands, agents: [you, bot], order: broadcast, rounds: 2, answer: [rock, paper, scissors] }
  - { name: words, agents: [you], prompt: 'What do you say?' }
";
    std::fs::write(&file, text).unwrap();
    let (file, out) = (file.display().to_string(), stage.path("run").display().to_string());
    let args = ["run", &file, "--out", &out, "--quiet"];
    let mut command = stage.greenroom(&args);
    let output = command.write_stdin("stone\n1\nPAPER\nWell played.\n").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("`stone` is not an option") && text.contains("Bot: scissors"), "{text}");
    let run = super::Run { dir: out.into() };
    let spoken: Vec<_> = run
        .turns("transcript.jsonl")
        .iter()
        .map(|turn| turn["spoken"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(spoken, ["rock", "scissors", "paper", "scissors", "Well played."]);
    let closed = stage.path("closed").display().to_string();
    let mut command = stage.greenroom(&["run", &file, "--out", &closed]);
    let output = command.write_stdin("rock\n").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--resume"), "what was said is not lost");
    let mut command = stage.greenroom(&["run", &file, "--out", &closed, "--resume", "--quiet"]);
    let output = command.write_stdin("rock\nBye.\n").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
