//! Line breaks of texts: a list in either of Jinja's idioms has a line for each item, and recordings from
//! before are read as they were.

use greenroom::backend::Scripted;
use greenroom::replay::{Search, load_scenario, replay};
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{self, Overrides};
use greenroom::stage::Unwatched;
use greenroom::transcript::Transcript;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const LIST: &str = "variables: { items: [bread, milk] }
agents: { ann: { system_prompt: \"Ann {% if true %}buys{% endif %}\\nall.\" } }
phases:
  - name: t
    agents: [ann]
    prompt: |
      The list:
      {%- for x in items %}
      - {{ x }}
      {%- endfor %}
      That is all.
";

fn played(folder: &Path, overrides: &Overrides) -> Transcript {
    let file = folder.join("list.yaml");
    std::fs::write(&file, LIST).unwrap();
    let scenario = scenario::open(&file, overrides).unwrap().scenario.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = Arc::new(Scripted::new(|_| Some("Done.".into())));
    let (options, mut watch) = (RunOptions::default(), Unwatched);
    let run = folder.join("run");
    let playing = perform(&scenario, backend, &run, &options, &mut watch, std::future::pending());
    Transcript::open(&runtime.block_on(playing).unwrap().transcript).unwrap()
}

/// Replays a recording as commands find its scenario.
fn replayed(folder: &Path, transcript: &Transcript) {
    let file = folder.join("run/transcript.jsonl");
    let loaded = load_scenario(&file, &transcript.header.record, &Search::default()).unwrap();
    replay(&loaded.scenario.unwrap(), transcript, BTreeMap::new()).expect("it replays");
}

#[test]
fn a_list_has_a_line_for_each_item() {
    let folder = tempfile::tempdir().unwrap();
    let transcript = played(folder.path(), &Vec::new());
    let delta = &transcript.turns[0].record.delta;
    assert!(delta.contains("The list:\n- bread\n- milk\nThat is all."), "{delta}");
    let header = &transcript.header.record;
    assert_eq!((header.rules, header.overrides.len()), (Some(2), 0));
    replayed(folder.path(), &transcript);
    let report = scenario::load("x.yaml", LIST, &[]).report.render(false);
    assert!(
        report.contains("warning[line-break]") && report.contains("`{%- for x in items %}` is kept"),
        "{report}"
    );
    let silent = LIST.replace("%}", "+%}");
    assert!(scenario::load("x.yaml", &silent, &[]).report.diagnostics.is_empty());
}

#[test]
fn a_recording_from_before_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let transcript = played(folder.path(), &vec![("{% %}".into(), serde_json::Value::Null)]);
    let delta = &transcript.turns[0].record.delta;
    assert!(delta.contains("The list:- bread- milkThat is all."), "{delta}");
    assert_eq!(transcript.header.record.rules, None);
    replayed(folder.path(), &transcript);
}

#[test]
fn texts_without_such_lines_have_no_warning() {
    let text = LIST.replace("{%-", "{%").replace("{% if true %}buys{% endif %}", "buys");
    let loaded = scenario::load("x.yaml", &text, &[]);
    assert!(loaded.report.diagnostics.is_empty(), "{}", loaded.report.render(false));
}
