//! Scenarios of earlier editions mean today what they meant: read as they are, and rewritten by `migrate`.

use crate::changing;
use crate::drift::greenroom_with;
// What depends on a course of play is not tried here: it is no matter of the fields.
use greenroom::diagnostic::Source;
use greenroom::scenario::load;
use greenroom::scenario::template::DRAWING;
use greenroom::scenario::{Scenario, Tree, migrate};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn scenario(name: &str, text: &str) -> Arc<Scenario> {
    let loaded = load(name, text, &[]);
    loaded.scenario.unwrap_or_else(|| panic!("{text}\n{}", loaded.report.render(false)))
}

/// Each older way to say something, and today's.
const PAIRS: &[(&str, &str)] = &[
    ("topology: broadcast", "order: broadcast"),
    ("order: turn_by_turn", "order: round_robin"),
    ("auto_rounds: 2", "rounds: 2"),
    ("initial_prompt: Hi.", "prompt: Hi."),
    ("initial_prompt_template: Hi.", "prompt: Hi."),
    ("per_agent_prompt_templates: { ann: Psst. }", "say: { ann: Psst. }"),
    ("private_prompts: { ann: Psst. }", "say: { ann: Psst. }"),
    (
        "initial_prompt_template: Hi., private_prompts: { ann: Psst. }",
        "say: [{ to: [ben, mod], text: Hi. }, { to: ann, text: Psst. }]",
    ),
    (
        "announce: [{ before: Dawn., to: ann }, { after: Dusk. }]",
        "say: [{ at: round_start, text: Dawn., to: ann }, { at: round_end, text: Dusk. }]",
    ),
    (
        "private_prompts: { ann: Psst. }, announce: [{ after: Dusk. }]",
        "say: [{ to: ann, text: Psst. }, { at: round_end, text: Dusk. }]",
    ),
    ("choice: [x, y]", "answer: [x, y]"),
    ("choice: { x: I say x, y: I say y }", "answer: { one_of: { x: I say x, y: I say y } }"),
    ("choice: alive", "answer: alive"),
    ("choice: { x: I say x, ask: I ask }", "answer: { one_of: { x: I say x, ask: I ask } }"),
    ("choice: { options: [x, y], ask: Which? }", "ask: Which?, answer: [x, y]"),
    ("choice: { options: [x, y], shuffle: true }", "answer: { one_of: [x, y], shuffle: true }"),
    ("parse_choice: [x, y]", "answer: { one_of: [x, y], free_text: true }"),
    (
        "parse_choice: { options: [x, y], open: \"['x']\" }",
        "answer: { one_of: [x, y], open: \"['x']\", free_text: true }",
    ),
    (
        "reply: { schema: { type: integer }, show: false }",
        "answer: { schema: { type: integer }, show: false }",
    ),
    ("grammar: { regex: '[ab]' }", "answer: { regex: '[ab]' }"),
    ("decision_mode: none, coordinator: ann", "rounds: 1"),
    ("decision_mode: majority_vote, choice: [x, y]", "vote: { rule: majority, answer: [x, y] }"),
    (
        "decision_mode: ranked_choice, choice: { options: [x, y, z], ask: Which? }, voters: [ann]",
        "vote: { rule: ranked, answer: [x, y, z], ask: Which?, by: [ann] }",
    ),
    (
        "decision_mode: consensus, attempts: 2, choice: [x, y], secret: true",
        "vote: { rule: consensus, answer: [x, y], attempts: 2, secret: true }",
    ),
    (
        "decision_mode: coordinator_decides, coordinator: ben, choice: [x, y]",
        "vote: { rule: leader, answer: [x, y], by: ben }",
    ),
    ("decision_mode: coordinator_decides, choice: [x, y]", "vote: { rule: leader, answer: [x, y], by: mod }"),
    (
        "decision_mode: majority_vote, choice: [x, y], reply: { schema: { type: integer } }",
        "vote: { rule: majority, answer: [x, y] }, answer: { schema: { type: integer } }",
    ),
    ("order: moderated", "moderator: mod"),
    ("order: moderated, moderator: ben, again: false", "moderator: ben, again: false"),
    (
        "order: whisper, interactions: [{ from: ann, to: [ben, mod], kind: whisper }, { from: mod, to: ben, kind: observe }]",
        "pairs: [[ann, ben], [ann, mod]], overhears: { mod: ben }",
    ),
    (
        "interactions: [{ from: ann, to: ben, kind: whisper }, { from: ben, kind: public }]",
        "to: { ann: ben }",
    ),
    ("hears: none", "to: nobody"),
    ("hears: all", "to: all"),
    ("secret: true, choice: [x, y]", "answer: [x, y], to: nobody"),
    ("secret: true", "to: all"),
    (
        "secret: true, turns: [{ agent: ann, choice: [x, y], to: ben }, { agent: ben }]",
        "turns: [{ agent: ann, answer: [x, y], to: nobody }, { agent: ben }]",
    ),
    (
        "secret: true, choice: [x, y], turns: [{ agent: ann, to: ben }, { agent: ben, reply: { schema: { type: integer } } }]",
        "answer: [x, y], to: nobody, turns: [{ agent: ann }, { agent: ben, answer: { schema: { type: integer } } }]",
    ),
    (
        "hears: none, turns: [{ agent: ann, hears: all }, { agent: ben, to: ann }]",
        "to: nobody, turns: [{ agent: ann, to: all }, { agent: ben, to: ann }]",
    ),
    ("rounds: 2, set_each_round: { n: n + 1 }", "rounds: 2, set: { after: round, n: n + 1 }"),
    (
        "rounds: 2, set_each_round: { n: n + 1 }, set: { n: 0 }",
        "rounds: 2, set: [{ after: round, n: n + 1 }, { n: 0 }]",
    ),
    ("temperature: 0.5, max_tokens: 9", "sampling: { temperature: 0.5, max_tokens: 9 }"),
    ("stops: none", "sampling: { stops: none }"),
];

fn with_phase(fields: &str) -> String {
    format!(
        "id: older\nstate: {{ n: 0, alive: [ann, ben] }}\n\
         agents: {{ ann: {{}}, ben: {{}}, mod: {{ role: moderator }} }}\n\
         phases:\n  - {{ name: first, agents: [ann, ben] }}\n  \
         - {{ name: p, agents: [ann, ben, mod], {fields} }}\n"
    )
    .replace(
        "role: moderator",
        if fields.contains("coordinator") { "role: coordinator" } else { "role: moderator" },
    )
}

/// What a plan hash leaves out.
fn content(scenario: &Scenario) -> String {
    let phases = scenario.phases.iter().map(|phase| {
        let openings: Vec<(&str, &Vec<_>)> =
            phase.openings.iter().map(|(to, text)| (text.text.as_str(), to)).collect();
        let initial = phase.initial.as_ref().map(|text| &text.text);
        let set = |set: &[greenroom::scenario::Assignment]| {
            set.iter().map(|each| format!("{} = {}", each.name, each.value.text)).collect::<Vec<_>>()
        };
        format!("{initial:?} {openings:?} {:?} {:?}", set(&phase.set_each_round), set(&phase.set))
    });
    let hints = scenario.plan().order().map(|(_, turn)| turn.hints.words()).collect::<Vec<_>>();
    format!("{:?} {hints:?} {:?}", phases.collect::<Vec<_>>(), scenario.hints)
}

#[test]
fn older_fields_mean_what_todays_mean() {
    for (older, today) in PAIRS {
        let (older, today) = (with_phase(older), with_phase(today));
        let loaded = load("x.yaml", &older, &[]);
        assert!(loaded.report.diagnostics.iter().all(|found| found.code == "older"), "{older}");
        assert_eq!(loaded.report.diagnostics.len(), 1, "{older}");
        let (one, other) = (scenario("x.yaml", &older), scenario("x.yaml", &today));
        assert_eq!(one.plan().hash(), other.plan().hash(), "{older}");
        assert_eq!(content(&one), content(&other), "{older}");
        let migrated = migrate("x.yaml", &older).unwrap_or_else(|report| panic!("{}", report.render(false)));
        let migrated = migrated.unwrap_or_else(|| panic!("{older} is up to date")).text;
        let third = scenario("x.yaml", &migrated);
        assert_eq!((third.plan().hash(), content(&third)), (one.plan().hash(), content(&one)), "{migrated}");
        assert!(migrate("x.yaml", &migrated).unwrap_or(None).is_none(), "{migrated}");
        let report = load("x.yaml", &migrated, &[]).report;
        assert!(report.diagnostics.iter().all(|found| found.code != "older"), "{}", report.render(false));
    }
}

#[test]
fn what_was_older_is_one_warning() {
    let report =
        load("x.yaml", &with_phase("topology: broadcast, auto_rounds: 2, choice: [x, y]"), &[]).report;
    let [found] = &report.diagnostics[..] else { panic!("{}", report.render(false)) };
    assert_eq!(
        found.message,
        "`topology`, `auto_rounds` and `choice` are names of an earlier edition, read as today's"
    );
    assert_eq!(found.help.as_deref(), Some("`greenroom migrate FILE` rewrites the file"));
}

/// All scenario files that an earlier edition or its papers left.
fn files() -> Vec<PathBuf> {
    let folders = [
        "tests/compat/0.1.0",
        "tests/first-edition",
        "tests/papers",
        "fuzz/seeds/scenario",
        "tests/fixtures/import",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let files = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    files
}

#[test]
fn files_of_earlier_editions_keep_their_plans() {
    let mut n_played = 0;
    for file in files() {
        let (name, text) = (file.display().to_string(), std::fs::read_to_string(&file).unwrap());
        let Some(before) = load(&name, &text, &[]).scenario else { continue };
        let Ok(Some(migrated)) = migrate(&name, &text) else { continue };
        let after = scenario(&name, &migrated.text);
        assert_eq!(before.plan().hash(), after.plan().hash(), "{}", migrated.text);
        assert_eq!(content(&before), content(&after), "{}", migrated.text);
        assert!(migrate(&name, &migrated.text).unwrap_or(None).is_none(), "{}", migrated.text);
        n_played += 1;
    }
    assert!(n_played > 10, "{n_played}");
}

/// Lines with more than a comment, and keys of mappings.
fn size(text: &str) -> (usize, usize) {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
    let source = Source { name: String::new(), text: text.to_owned() };
    let keys = Tree::read(&source, 0).0.places().into_iter().filter(|place| place.is_key).count();
    (text.lines().filter(is_content).count(), keys)
}

/// The same scenarios as the first edition had to say them, and the table that compares them.
#[test]
fn the_first_edition_said_the_same_at_greater_length() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("docs/coming-from.md");
    let names = ["ultimatum", "avalon", "contract", "survey", "town"];
    for name in names {
        let (today, older) = (format!("scenarios/{name}.yaml"), format!("tests/first-edition/{name}.yaml"));
        let (today, older) = ((read(&today), root.join(today)), (read(&older), root.join(older)));
        let of_today = greenroom::rehearsal::open(&today.1, &[]).unwrap().scenario.unwrap();
        let loaded = greenroom::rehearsal::open(&older.1, &[]).unwrap();
        let found: Vec<&str> = loaded.report.diagnostics.iter().map(|found| found.code).collect();
        assert_eq!(found, ["older"], "{}", loaded.report.render(false));
        let of_older = loaded.scenario.unwrap();
        assert_eq!(of_older.agents.len(), of_today.agents.len(), "{name}");
        if name != "avalon" {
            assert_eq!(of_older.plan().n_turns(), of_today.plan().n_turns(), "{name}");
        }
        for newer in ["each:", "from:", "judges:", "keys_with", "answer:", "say:", "vote:", "sampling:"] {
            assert!(!older.0.contains(newer), "{name}: {newer}");
        }
        assert!(!DRAWING.iter().any(|draws| older.0.contains(&format!("| {draws}"))), "{name}");
        let ((lines, fields), (lines_now, fields_now)) = (size(&older.0), size(&today.0));
        let row = format!(
            "| [`{name}`](../scenarios/{name}.yaml) | {lines}, now {lines_now} | {fields}, now {fields_now} |"
        );
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn a_hundred_random_scenarios_keep_their_plans() {
    let mut state = 7u64;
    let mut n_older = 0;
    for _ in 0..100 {
        let numbers: Vec<u16> = (0..400)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 48) as u16
            })
            .collect();
        let text = changing::older(&numbers);
        let migrated =
            migrate("x.yaml", &text).unwrap_or_else(|report| panic!("{text}\n{}", report.render(false)));
        let Some(migrated) = migrated else { continue };
        let (Some(before), after) =
            (load("x.yaml", &text, &[]).scenario, load("x.yaml", &migrated.text, &[]))
        else {
            continue;
        };
        let after =
            after.scenario.unwrap_or_else(|| panic!("{}\n{}", migrated.text, after.report.render(false)));
        assert_eq!(before.plan().hash(), after.plan().hash(), "{}", migrated.text);
        assert_eq!(content(&before), content(&after), "{}", migrated.text);
        n_older += 1;
    }
    assert!(n_older > 50, "{n_older}");
}

#[test]
fn what_repeats_by_anchors_is_refused_where_it_would_change() {
    let text = "agents: { ann: {}, ben: {} }\nphases:\n  \
                - { name: one, agents: [ann, ben], private_prompts: { ann: Psst. }, announce: &a [{ after: Dusk. }] }\n  \
                - { name: two, agents: [ann, ben], announce: *a }\n";
    let Err(report) = migrate("x.yaml", text) else { panic!("it was rewritten") };
    assert!(report.render(false).contains("error[anchor]"), "{}", report.render(false));
    assert_eq!(scenario("x.yaml", text).plan().n_turns(), 4);
}

#[test]
fn the_command_rewrites_files_and_says_what_it_changed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let older = "# A file.\nagents: { ann: {}, ben: {} } # two\ntemperature: 0.5\nphases:\n  \
                 - { name: p, agents: [ann, ben], choice: [x, y] } # one\n";
    let today = "# A file.\nagents: { ann: {}, ben: {} } # two\nsampling: { temperature: 0.5 }\nphases:\n  \
                 - { name: p, agents: [ann, ben], answer: [x, y] } # one\n";
    for (name, text) in [("a.yaml", older), ("b.yaml", today), ("c.yaml", "agents: [\n")] {
        std::fs::write(at(name), text).unwrap();
    }
    let migrate = |args: &[&str]| greenroom_with(folder.path(), &[&["migrate"], args].concat(), &[]);
    let (code, text) = migrate(&["--check", "a.yaml", "b.yaml"]);
    assert!(
        code == 3 && text.contains("a.yaml: is of an earlier edition") && text.contains("b.yaml: up to date"),
        "{text}"
    );
    assert_eq!(std::fs::read_to_string(at("a.yaml")).unwrap(), older);
    let (code, text) = migrate(&["a.yaml", "b.yaml", "c.yaml"]);
    assert!(code == 2 && text.contains("temperature → sampling, choice → answer (5 lines, now 5)"), "{text}");
    assert!(text.contains("c.yaml:2:1: error[yaml]"), "{text}");
    for name in ["a.yaml", "b.yaml"] {
        assert_eq!(std::fs::read_to_string(at(name)).unwrap(), today, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left behind");
    #[cfg(unix)]
    {
        std::fs::write(at("a.yaml"), older).unwrap();
        std::os::unix::fs::symlink(at("a.yaml"), at("link.yaml")).unwrap();
        assert_eq!(migrate(&["link.yaml"]).0, 0);
        assert!(std::fs::symlink_metadata(at("link.yaml")).unwrap().is_symlink(), "a link stays one");
        assert_eq!(std::fs::read_to_string(at("a.yaml")).unwrap(), today);
    }
    let (code, text) = migrate(&["-", "a.yaml"]);
    assert!(code != 0 && text.contains("`-` stands alone"), "{text}");
}
