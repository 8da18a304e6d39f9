//! Every measurement runs on small models and prints its results as JSON. Speed is not checked here.

use super::Stage;
use serde_json::Value;

/// Runs a measurement once and checks that every measured figure is a positive number; its rows.
fn bench(stage: &Stage, args: &[&str]) -> Vec<Value> {
    let folder = stage.path("models").display().to_string();
    let mut all = vec!["bench"];
    all.extend(args);
    all.extend(["--json", "--repeat", "1", "--threads", "1"]);
    if !args.contains(&"--model") {
        all.extend(["--shape", "tiny", "--shape-dir", &folder]);
    }
    let output = stage.lab(&all).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    for fact in ["command", "date", "machine", "model", "kv", "device", "threads"] {
        assert!(!answer[fact].is_null(), "{args:?} does not say its {fact}: {answer}");
    }
    let rows = answer["rows"].as_array().unwrap().clone();
    assert!(!rows.is_empty(), "{answer}");
    for (name, cell) in rows.iter().flat_map(|row| row.as_object().unwrap()) {
        let figure = cell.get("median").unwrap_or(cell);
        let is_measured = cell.is_object() || name.contains("_to_");
        assert!(!is_measured || figure.as_f64().is_some_and(|x| x > 0.0), "{args:?}: {name} is {cell}");
    }
    rows
}

/// Writes a scenario of two agents who read `prompt`; its path.
fn two(stage: &Stage, prompt: &str) -> String {
    let scenario = "id: two\n\
        agents:\n\
        \x20 ann: {display_name: Ann, lifecycle: permanent}\n\
        \x20 ben: {display_name: Ben}\n\
        phases: [{ name: talk, agents: [ann, ben], order: round_robin, prompt: PROMPT, rounds: 2 }]\n\
        ";
    std::fs::write(stage.path("two.yaml"), scenario.replace("PROMPT", prompt.trim())).unwrap();
    stage.path("two.yaml").display().to_string()
}

#[test]
fn speeds_are_of_the_tokens_that_were_asked_for() {
    let stage = Stage::new();
    let rows = bench(&stage, &["prefill", "--tokens", "64", "--depth", "0,256", "--weights", "q8_0"]);
    let counts = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((counts("depth"), counts("tokens")), (vec![0, 256], vec![64, 64]));
    let rows =
        bench(&stage, &["decode", "--tokens", "8", "--depth", "0,256", "--weights", "q4_0", "--kv", "f16"]);
    // A reply may lose its last token, because half a character is cut off.
    assert!(rows.iter().all(|row| row["tokens"] == 8 || row["tokens"] == 7), "{rows:?}");
    for alike in [&["--alike"][..], &[]] {
        let args = ["batch", "--tokens", "8", "--depth", "300", "--sequences", "1,3"];
        let rows = bench(&stage, &[&args[..], alike].concat());
        assert!((21..=24).contains(&rows[1]["tokens"].as_u64().unwrap()), "{rows:?}");
    }
}

#[test]
fn growth_is_that_of_the_lengths_and_agents_that_were_asked_for() {
    let stage = Stage::new();
    let plots = stage.path("plots");
    let args = ["growth", "--history", "64,300", "--idle", "0,3", "--tokens", "4", "--plots"];
    let rows = bench(&stage, &[&args[..], &[plots.to_str().unwrap()]].concat());
    let counts =
        |rows: &[Value], name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).collect::<Vec<_>>();
    let history = counts(&rows[..2], "history");
    assert!((62..=65).contains(&history[0]) && (298..=301).contains(&history[1]), "{rows:?}");
    assert_eq!(counts(&rows[2..4], "idle_agents"), [0, 3], "{rows:?}");
    assert!(rows[..4].iter().all(|row| row["first_token_ms"]["median"].as_f64().unwrap() > 0.0), "{rows:?}");
    // The existing cores, then the modelled ones.
    let cores = counts(&rows[4..], "cores");
    assert!(cores.is_sorted() && cores[0] == 1 && cores.last() == Some(&16), "{rows:?}");
    for name in ["history", "idle", "cores"] {
        let svg = std::fs::read_to_string(plots.join(name).with_extension("svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("polyline"), "{name}: {svg}");
    }
}

#[test]
fn candle_is_timed_on_the_same_tokens() {
    let stage = Stage::new();
    let prefill = ["prefill", "--tokens", "32", "--depth", "0,64", "--weights", "q8_0", "--peer", "candle"];
    let rows = bench(&stage, &prefill);
    assert_eq!((&rows[0]["tokens"], &rows[1]["depth"]), (&32.into(), &64.into()));
    let decode = ["decode", "--tokens", "4", "--depth", "0", "--weights", "q4_0", "--peer", "candle"];
    for row in rows.iter().chain(&bench(&stage, &decode)) {
        let (ours, theirs) = (&row["tokens_per_s"]["median"], &row["candle_tokens_per_s"]["median"]);
        let ratio = ours.as_f64().unwrap() / theirs.as_f64().unwrap();
        assert!((row["to_candle"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9, "{row}");
    }
    let folder = stage.path("models").display().to_string();
    let deep = ["bench", "prefill", "--depth", "4096", "--shape", "tiny", "--shape-dir", &folder];
    let output = stage.lab(&[&deep[..], &["--peer", "candle"]].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("4096 positions, but 4608 are needed"), "{text}");
}

#[test]
fn memories_come_back_from_where_they_were() {
    let stage = Stage::new();
    let rows = bench(&stage, &["ttft", "--context", "300", "--weights", "q6_k"]);
    assert_eq!(rows[0]["context"], 300);
    assert!(rows[0]["warm_reused"].as_u64().unwrap() >= 300, "{rows:?}");
    assert!(rows[0]["warm_read"].as_u64().unwrap() > 0, "nothing was read from disk: {rows:?}");
    let sizes = ["--context", "128", "--tokens", "4", "--late", "64", "--weights", "q5_k"];
    let rows = bench(&stage, &[&["concurrent"][..], &sizes].concat());
    assert_eq!(rows.len(), 4);
    let rows = bench(
        &stage,
        &["routing", "--context", "128", "--experts", "4", "--tokens", "4", "--weights", "bf16"],
    );
    let reused = |row: usize| rows[row]["reused"].as_u64().unwrap();
    assert!(reused(1) >= 128 && reused(2) > reused(1), "{rows:?}");
}

#[test]
fn a_scenario_is_played_both_ways() {
    let stage = Stage::new();
    let file = two(&stage, "Say hello.");
    let rows = bench(&stage, &["scenario", "--model", "understudy", "--file", &file, "--max-tokens", "4"]);
    assert_eq!(rows.len(), 2);
}

#[test]
#[cfg(target_os = "linux")]
fn memory_is_that_of_a_process_for_each_format() {
    let stage = Stage::new();
    let rows = bench(&stage, &["memory", "--context", "1500"]);
    assert_eq!((rows[0]["kv"].as_str(), rows[1]["kv"].as_str()), (Some("f16"), Some("q4")));
    let bytes = |row: usize, name: &str| rows[row][name].as_u64().unwrap();
    assert!(bytes(0, "cache") > 2 * bytes(1, "cache"), "{rows:?}");
    assert!(bytes(1, "peak") > bytes(1, "model_file") + bytes(1, "cache"), "{rows:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn agents_without_room_in_memory_lose_nothing() {
    let stage = Stage::new();
    let sizes = ["--agents", "5", "--tokens", "300", "--fit", "2", "--rounds", "2", "--question", "8"];
    let rows = bench(&stage, &[&["pressure", "--reply", "4"][..], &sizes].concat());
    let evictions: Vec<_> = rows.iter().map(|row| row["eviction"].as_str().unwrap()).collect();
    assert_eq!(evictions, ["none", "next-use", "lru"]);
    for row in &rows {
        assert_eq!((&row["turns"], &row["recomputed"]), (&"10 extend".into(), &0.into()), "{rows:?}");
        assert_eq!(row["replies"], rows[0]["replies"], "{rows:?}");
    }
    let from_disk = |row: usize| rows[row]["from_disk"].as_u64().unwrap();
    let reloaded = |row: usize| rows[row]["reloaded"].as_u64().unwrap();
    // In turn order the agent that spoke longest ago is always next, so with eviction by last use all are
    // reloaded.
    assert_eq!((from_disk(0), reloaded(0), from_disk(2)), (0, 0, 10), "{rows:?}");
    assert!(from_disk(1) < from_disk(2) && 0 < reloaded(1) && reloaded(1) < reloaded(2), "{rows:?}");
}

#[test]
fn runs_in_one_folder_share_what_they_have_in_common() {
    let stage = Stage::new();
    let file = two(&stage, &"Say hello. ".repeat(120)); // more than a block
    let rows = bench(
        &stage,
        &["sharing", "--repeats", "2", "--model", "understudy", "--file", &file, "--max-tokens", "4"],
    );
    let ratio = |row: usize| rows[row]["ratio"].as_f64().unwrap();
    assert_eq!((&rows[0]["total"], &rows[1]["total"]), (&"bytes on disk".into(), &"tokens prefilled".into()));
    assert!(ratio(0) < 0.95 && ratio(1) < 0.9, "{rows:?}");
}

#[test]
fn draws_are_timed_by_settings() {
    let stage = Stage::new();
    let rows = bench(&stage, &["sampling", "--vocabulary", "1000,5000", "--draws", "2", "--tokens", "8"]);
    let of = |name: &str| rows.iter().filter(|row| row["settings"] == name).collect::<Vec<_>>();
    // Peaked and flat logits of two vocabularies, and a model's.
    for name in
        ["greedy", "temperature 1", "top_k 40, top_p 0.9, min_p 0.05", "repetition penalty 1.1", "DRY"]
    {
        assert_eq!(of(name).len(), 5, "{name}: {rows:?}");
    }
    let last = of("temperature 1")[4];
    assert!(
        last["to_greedy"].as_f64().unwrap() > 0.0 && last["ms_per_token"]["median"].is_number(),
        "{last}"
    );
}

#[test]
fn an_unknown_shape_or_type_is_answered_with_those_known() {
    let stage = Stage::new();
    for (args, known) in [(["--shape", "9b"], "135m"), (["--weights", "q3"], "q4_k_m")] {
        let output = stage.lab(&[&["bench", "decode"][..], &args].concat()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(known), "{text}");
    }
}
