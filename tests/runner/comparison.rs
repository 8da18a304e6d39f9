//! The report of an experiment: cells side by side, with links to pages of its runs, made from its folder
//! alone.

use crate::drift::greenroom_with;
use std::fs;
use std::path::Path;

const COIN: &str = "
id: coin
title: A coin <b>
variables: {bias: 0.2}
agents: {ann: {strategy: {random: 0.5}}, ben: {strategy: {random: 0.8}}}
phases: [{ name: toss, agents: [ann, ben], rounds: 2, answer: [heads, tails] }]
payoff: {phase: toss, unit: coins, each: \"3 if mine == 'heads' else 10 * bias\"}
outcome: {heads: toss.votes.heads, biased: bias > 0.5}
assertions: [toss.votes.heads > 1]
";

fn greenroom(folder: &Path, args: &[&str]) -> (i32, String) {
    greenroom_with(folder, args, &[])
}

#[test]
fn an_experiment_is_one_page_with_links_to_its_runs() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("coin.yaml"), COIN).unwrap();
    let sweep = ["--sweep", "bias=0.2,0.9", "--repeat", "6", "--out", "swept", "--quiet"];
    greenroom(dir.path(), &[&["run", "coin.yaml"], &sweep[..]].concat());
    // Taken elsewhere, without the file: each run has its scenario.
    let away = tempfile::tempdir().unwrap();
    let swept = away.path().join("swept");
    fs::rename(dir.path().join("swept"), &swept).unwrap();
    let (code, text) = greenroom(away.path(), &["report", "swept"]);
    assert_eq!((code, text.as_str()), (0, "swept/report.html\n"));
    let page = fs::read_to_string(swept.join("report.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let attributes = |tag: &'static str, name: &'static str| {
        let nodes = parsed.descendants().filter(move |node| node.has_tag_name(tag));
        nodes.filter_map(move |node| node.attribute(name)).map(str::to_string).collect::<Vec<_>>()
    };
    let links: Vec<String> =
        attributes("a", "href").into_iter().filter(|link| !link.starts_with('#')).collect();
    // Each run is in the matrix of either outcome, and in the list.
    assert_eq!(links.len(), 36);
    assert!(links.contains(&"1-bias=0.9/seed-5/report.html".to_string()), "{links:?}");
    assert!(links.iter().all(|link| swept.join(link).is_file()));
    assert!(attributes("img", "src").iter().all(|source| source.starts_with("data:image/svg+xml,")));
    let words: Vec<&str> = parsed.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for wanted in [
        "A coin <b>",
        "bias=0.9",
        "payoff of ann, coins",
        "outcome heads",
        "all assertions hold",
        "held",
        "seed 5",
    ] {
        assert!(words.contains(&wanted), "{wanted}: {words:?}");
    }
    assert!(page.contains("12 complete runs in 2 conditions."), "{page}");
    // Equal runs give equal bytes, here as there.
    let again = dir.path().join("again.html");
    let (code, _) =
        greenroom(dir.path(), &["report", swept.to_str().unwrap(), "-o", again.to_str().unwrap()]);
    assert_eq!(code, 0);
    assert!(fs::read_to_string(again).unwrap() == page);
    // An incomplete run is reported; what a person wrote there stays.
    fs::remove_dir_all(swept.join("1-bias=0.9/seed-3")).unwrap();
    assert_eq!(greenroom(away.path(), &["report", "swept"]).0, 0);
    let page = fs::read_to_string(swept.join("report.html")).unwrap();
    assert!(
        page.contains("11 complete runs in 2 conditions; 1 of the experiment’s runs are incomplete."),
        "{page}"
    );
    fs::write(swept.join("report.html"), "my notes").unwrap();
    let (code, text) = greenroom(away.path(), &["report", "swept"]);
    assert!(code == 4 && text.contains("exists and is not a report"), "{text}");
    assert_eq!(fs::read_to_string(swept.join("report.html")).unwrap(), "my notes");
}

#[test]
fn a_record_that_leads_out_of_its_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let record = |text: &str| {
        fs::write(dir.path().join("experiment.json"), text).unwrap();
        greenroom(dir.path(), &["report", "."])
    };
    let (code, text) =
        record(r#"{"scenario": "x", "cells": [{"folder": "../y", "values": []}], "seeds": [1]}"#);
    assert!(code == 4 && text.contains("leads out of the experiment's"), "{text}");
    let (code, text) = record(r#"{"scenario": "x", "cells": [], "seeds": []}"#);
    assert!(code == 4 && text.contains("has no complete run yet"), "{text}");
    let (code, text) = record("{}");
    assert!(code == 4 && text.contains("is not an experiment record"), "{text}");
}

#[test]
fn figures_are_grouped_on_request() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("coin.yaml"), COIN).unwrap();
    let run = |more: &[&str]| greenroom(dir.path(), &[&["run", "coin.yaml"], more].concat());
    let (code, text) = run(&["--repeat", "8", "--by", "tos/ann", "--out", "no"]);
    assert!(code == 2 && text.contains("did you mean `toss/ann`?"), "{code}: {text}");
    assert!(!dir.path().join("no").exists(), "nothing is played");
    let (code, text) = run(&["--by", "bias", "--out", "no"]);
    assert!(code == 2 && text.contains("--by needs several runs"), "{code}: {text}");
    let (_, text) = run(&["--repeat", "8", "--by", "toss/ann", "--over", "agents", "--out", "by"]);
    for wanted in ["toss/ann=tails compared with toss/ann=heads", " toss  heads", "payoff   coins"] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    let summary = fs::read_to_string(dir.path().join("by/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["by"][0], &summary["over_agents"]), (&"toss/ann".into(), &true.into()));
    let (code, text) = greenroom(dir.path(), &["report", "by", "--by", "toss/ann"]);
    assert_eq!(code, 0, "{text}");
    assert!(fs::read_to_string(dir.path().join("by/report.html")).unwrap().contains("toss&#x2f;ann=heads"));
    let (code, text) = greenroom(dir.path(), &["report", "by/seed-0", "--over", "agents"]);
    assert!(code == 4 && text.contains("is a single run"), "{code}: {text}");
}
