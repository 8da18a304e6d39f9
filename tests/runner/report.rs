//! Reports of runs: complete, self-contained, safe whatever a model or an author wrote, and honest about what
//! is missing.

use crate::play::{play, without_copy};
use greenroom::backend::{
    Backend, BoxFuture, CacheSource, MatchKind, ModelCard, Reply, Request, Scripted, Session, Sink,
};
use greenroom::report::{ReportSources, html};
use greenroom::run::RunOptions;
use greenroom::scenario::load;
use greenroom::trace::{TokenCounts, TraceLine, TurnTrace};
use greenroom::transcript::Transcript;
use roxmltree::{Document, Node, ParsingOptions};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MARKET: &str = "
id: market
title: The last fish
description: Two traders, one fish.
variables: {price: 3}
agents:
  ann: {display_name: Ann, role: trader, color: red, system_prompt: 'You are {{ me }}.'}
  ben: {display_name: Ben}
  spy: {display_name: Spy, lifecycle: ephemeral}
phases:
  - name: talk
    label: At the stall
    agents: [ann, ben, spy]
    rounds: 2
    prompt: The fish costs {{ price }}.
    to: { ben: ann }
  - name: deal
    agents: [ann, ben]
    order: broadcast
    answer: { one_of: {take: I take it, leave: I leave it} }
    say: {ann: You are hungry.}
payoff:
  phase: deal
  unit: coins
  matrix:
    take: {take: [0, 0], leave: [2, 1]}
    leave: {take: [1, 2], leave: [0, 0]}
outcome: {takers: deal.votes.take}
assertions:
  - that: deal.votes.take == 1
    why: there is one fish
  - that: deal.votes.take == 2
    why: both want it
";

/// Says which turn it is; takes the fish if it is Ann.
fn traders() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| {
        Some(match request.path.as_str() {
            "deal/1/ann" => "I take it".to_string(),
            "deal/1/ben" => "I leave it".to_string(),
            path => format!("This is {path}."),
        })
    }))
}

/// Plays a scenario into `FOLDER/run`, with its file beside.
fn record(folder: &Path, text: &str, backend: Arc<dyn Backend>) -> PathBuf {
    let file = folder.join("market.yaml");
    std::fs::write(&file, text).unwrap();
    let loaded = load(&file.display().to_string(), text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    play(&scenario, backend, &folder.join("run"), &RunOptions::default()).unwrap();
    without_copy(&folder.join("run"));
    folder.join("run")
}

/// Writes a trace of a run as if a model had played it: cold at first, then from memory, the last one from
/// disk.
fn trace(run: &Path, reason: Option<&str>) {
    let transcript = Transcript::open(&run.join("transcript.jsonl")).unwrap();
    let first = TraceLine::Run {
        run: "market".into(),
        model: "m".into(),
        models: std::collections::BTreeMap::new(),
        started: 1_795_311_494,
    };
    let mut text = serde_json::to_string(&first).unwrap() + "\n";
    let n = transcript.turns.len();
    for (at, turn) in transcript.turns.iter().enumerate() {
        let mut cost = TurnTrace::new(&turn.record.path, &turn.record.agent, None);
        let source = if at < 3 {
            CacheSource::None
        } else if at + 1 == n {
            CacheSource::Disk
        } else {
            CacheSource::Memory
        };
        let reused = if source == CacheSource::None { 0 } else { 1000 * at };
        cost.kind = Some(if source == CacheSource::None { MatchKind::Cold } else { MatchKind::Extend });
        cost.source = Some(source);
        cost.tokens = TokenCounts { reused, prefilled: 100, recomputed: at, generated: 10, layer0_rows: 110 };
        (cost.ttft_ms, cost.total_ms) = (Some(12.5 * (at + 1) as f64), Some(1500.0));
        cost.saved_ms = reused as f64;
        cost.reason = reason.filter(|_| at == 3).map(str::to_string);
        text += &(serde_json::to_string(&TraceLine::Turn(cost)).unwrap() + "\n");
    }
    std::fs::write(run.join("trace.jsonl"), text).unwrap();
}

fn report(run: &Path) -> String {
    html(&ReportSources::open(run, &Default::default()).unwrap(), false).unwrap()
}

/// Parses a page strictly: what is no XML has let something through.
fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
}

fn text_of(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(Node::is_text).filter_map(|node| node.text());
    texts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn with_class<'a>(page: &'a Document<'a>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| {
        node.attribute("class").is_some_and(|given| given.split(' ').any(|one| one == class))
    };
    page.descendants().filter(has).collect()
}

fn by_id<'a>(page: &'a Document<'a>, id: &str) -> Node<'a, 'a> {
    page.descendants().find(|node| node.attribute("id") == Some(id)).unwrap()
}

/// Writes what a page says, element by element; of a picture, the number of its rectangles.
fn outline(node: Node<'_, '_>, out: &mut String) {
    const WHOLE: &[&str] =
        &["p", "h1", "h2", "h3", "h4", "li", "dt", "dd", "th", "td", "summary", "pre", "a"];
    for node in node.children().filter(Node::is_element) {
        let name = node.tag_name().name();
        let class =
            node.attribute("class").map_or(String::new(), |class| format!(".{}", class.replace(' ', ".")));
        let has_picture = node.descendants().any(|inner| inner.tag_name().name() == "svg");
        if name == "tr" && !has_picture {
            let cells: Vec<String> = node.children().filter(Node::is_element).map(text_of).collect();
            let _ = writeln!(out, "{}", cells.join(" | ").trim_end());
        } else if name == "svg" {
            let n = node.descendants().filter(|inner| inner.has_tag_name("rect")).count();
            let _ = writeln!(out, "svg of {n} rectangles");
        } else if WHOLE.contains(&name) && !has_picture {
            let _ = writeln!(out, "{name}{class}: {}", text_of(node));
        } else {
            if matches!(name, "section" | "article" | "details" | "aside" | "table") {
                let _ = writeln!(out, "<{name}{class}>");
            }
            outline(node, out);
        }
    }
}

/// Nothing on a page loads, runs or leads away.
fn check_harmless(page: &Document<'_>) {
    const TAGS: &[&str] = &[
        "html", "head", "meta", "title", "style", "body", "header", "main", "nav", "section", "article",
        "aside", "details", "summary", "div", "p", "span", "b", "i", "a", "ul", "li", "dl", "dt", "dd", "h1",
        "h2", "h3", "h4", "table", "thead", "tbody", "tr", "th", "td", "br", "pre", "code", "svg", "g",
        "rect", "line", "path", "circle", "text",
    ];
    let policy = page.descendants().filter(|node| node.attribute("http-equiv").is_some());
    let policy: Vec<_> = policy.filter_map(|node| node.attribute("content")).collect();
    assert_eq!(policy, ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]);
    for node in page.descendants().filter(Node::is_element) {
        assert!(TAGS.contains(&node.tag_name().name()), "<{}>", node.tag_name().name());
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on") && !["src", "action", "data"].contains(&name), "{name}={value}");
            assert!(name != "href" || value.starts_with('#'), "href={value}");
            assert!(name != "style" || !value.contains("url"), "style={value}");
        }
        if node.has_tag_name("style") {
            let text = text_of(node);
            assert!(!text.contains("url(") && !text.contains("@import") && !text.contains("http"), "{text}");
        }
    }
    let mut ids: Vec<&str> = page.descendants().filter_map(|node| node.attribute("id")).collect();
    let n = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), n, "no two elements have one name");
    let links = page.descendants().filter_map(|node| node.attribute("href"));
    links.for_each(|link| assert!(ids.contains(&&link[1..]), "{link} leads nowhere"));
}

#[test]
fn a_report_tells_all() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    trace(&run, Some("the block was set aside"));
    let page = report(&run);
    let document = parse(&page);
    check_harmless(&document);
    let mut out = String::new();
    outline(document.root_element(), &mut out);
    insta::assert_snapshot!(out);
    let titles = by_id(&document, "cache").descendants().filter(|node| node.has_tag_name("title"));
    let titles: Vec<String> = titles.map(text_of).collect();
    let fourth = "Turn 4, Ann: 3,000 reused (hot), 100 prefilled, 3 recomputed, 10 generated; 50 ms to the \
                  first token";
    assert_eq!(
        titles.iter().filter(|text| *text == fourth).count(),
        2,
        "its tokens and its time: {titles:?}"
    );
    assert_eq!(page, report(&run), "equal runs give equal pages");
}

#[test]
fn hostile_texts_are_texts() {
    const ODD: &str = "</p></style><script>alert(1)</script> & &amp; {{ 7 * 7 }} {% raw %} ]]> <!-- \" ' \
                       \u{1b}[31m\0\u{7f} \u{202e}back\u{2066} \u{fffe}";
    let shown = "</p></style><script>alert(1)</script> & &amp; {{ 7 * 7 }} {% raw %} ]]> <!-- \" ' \
                 \u{fffd}[31m\u{fffd}\u{fffd} ⟨U+202E⟩back⟨U+2066⟩ \u{fffd}";
    let folder = crate::play::checkout();
    let name = "</b><script>x</script>&{{ 1 }}";
    let template = name.replace("{{ 1 }}", "{{ '{{ 1 }}' }}");
    let quoted = format!("\"{}\"", template.replace('"', "\\\""));
    let text = MARKET
        .replace("title: The last fish", &format!("title: {quoted}"))
        .replace("variables: {price: 3}", &format!("variables: {{price: {quoted}}}"))
        .replace("display_name: Ben", &format!("display_name: {quoted}, role: {quoted}"))
        .replace("label: At the stall", &format!("label: {quoted}"))
        .replace("take: I take it", "take: I take it</li><script>")
        .replace("unit: coins", &format!("unit: {quoted}"))
        .replace("why: there is one fish", &format!("why: {quoted}"))
        .replace("deal.votes.take == 1", "\"deal.votes.take == 1 or '</code><script>' == ''\"");
    let long = "x".repeat(1 << 20);
    let script = Scripted::new(move |request| {
        Some(match request.path.as_str() {
            "deal/1/ann" => "I take it</li><script>".to_string(),
            "deal/1/ben" => "I leave it".to_string(),
            "talk/1/ann" => long.clone(),
            _ => ODD.to_string(),
        })
    });
    let run = record(folder.path(), &text, Arc::new(script));
    trace(&run, Some(ODD));
    let page = report(&run);
    let document = parse(&page);
    check_harmless(&document);
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "no control characters");
    assert!(!page.contains(['\u{202e}', '\u{2066}']), "nothing turns the page around");
    let spoken: Vec<String> = with_class(&document, "spoken").into_iter().map(text_of).collect();
    assert_eq!(spoken[0].len(), 1 << 20);
    assert_eq!(spoken[1], shown);
    assert_eq!(text_of(by_id(&document, "results").first_element_child().unwrap()), "What happened");
    let title = document.descendants().find(|node| node.has_tag_name("h1")).unwrap();
    assert_eq!(text_of(title), name);
    let reason = with_class(&document, "figures").into_iter().map(text_of).find(|text| text.contains("back"));
    assert!(reason.is_some_and(|text| text.contains(shown)));
}

#[test]
fn a_run_without_an_end_says_so() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    let file = run.join("transcript.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.split_inclusive('\n').take(4).collect();
    std::fs::write(&file, kept.concat() + "{\"type\":\"turn\",\"pa").unwrap();
    let page = report(&run);
    let document = parse(&page);
    let banner: Vec<String> = with_class(&document, "caveat").into_iter().map(text_of).collect();
    assert_eq!(banner.len(), 1, "{banner:?}");
    assert!(banner[0].starts_with("This run is not complete It was interrupted after 3 turns"), "{banner:?}");
    assert!(banner[0].contains("Its last line is incomplete"), "{banner:?}");
    assert_eq!(with_class(&document, "says").len(), 3);
    assert_eq!(with_class(&document, "graph").len(), 1, "what is there fits the plan");
    assert_eq!(with_class(&document, "public").len(), 2);
    assert!(text_of(by_id(&document, "results")).contains("is not complete"));
}

#[test]
fn a_run_that_fits_no_more_tells_the_cause_first() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    let changed = MARKET.replace("You are hungry", "You are not hungry");
    std::fs::write(folder.path().join("market.yaml"), changed).unwrap();
    let page = report(&run);
    let document = parse(&page);
    let banner = text_of(with_class(&document, "caveat")[0]);
    assert!(banner.contains("no longer matches its scenario: the phase's prompt changed"), "{banner}");
    assert!(banner.contains("deal/1/ann") && banner.contains("say.ann"), "{banner}");
    assert_eq!(text_of(with_class(&document, "was")[0]), "− You are hungry.");
    assert_eq!(text_of(with_class(&document, "now")[0]), "+ You are not hungry.");
    assert!(with_class(&document, "graph").is_empty(), "a graph of another plan would mislead");
    assert!(with_class(&document, "public").is_empty());
    assert_eq!(with_class(&document, "says").len(), 8);
    // What was read is derived from the scenario as far as it fits, and then from the record.
    let kinds = |class: &str| with_class(&document, class).len();
    assert_eq!((kinds("heard-from"), kinds("read")), (0, 2));
    assert!(kinds("opening") > 0);
}

#[test]
fn a_transcript_alone_is_enough() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    std::fs::remove_file(run.join("trace.jsonl")).unwrap();
    std::fs::remove_file(folder.path().join("market.yaml")).unwrap();
    let file = folder.path().join("run/transcript.jsonl");
    let page = report(&file);
    let document = parse(&page);
    check_harmless(&document);
    let banner = text_of(with_class(&document, "caveat")[0]);
    assert!(banner.starts_with("The scenario was not found market.yaml was not found near"), "{banner}");
    assert!(!page.contains(&folder.path().display().to_string()), "no folders of this machine");
    let title = document.descendants().find(|node| node.has_tag_name("h1")).unwrap();
    assert_eq!(text_of(title), "market");
    assert!(with_class(&document, "graph").is_empty());
    assert_eq!(with_class(&document, "view").len(), 3, "Ann, Ben, and the spy in its phase");
    let read: Vec<String> = with_class(&document, "read").into_iter().map(text_of).collect();
    assert_eq!(read.len(), 8);
    assert!(read[2].contains("You are hungry."), "{read:?}");
    assert!(text_of(by_id(&document, "hearing")).contains("needs the scenario"));
    assert!(text_of(by_id(&document, "cache")).contains("has no trace"));
    // A line that was changed afterwards is detected by its hash.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("This is talk/2/spy.", "This is talk/2/SPY.")).unwrap();
    let page = report(&file);
    assert!(page.contains("This record was altered") && page.contains("Line 7 of the transcript"));
}

#[test]
fn a_scenario_with_errors_is_reported() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    std::fs::write(folder.path().join("market.yaml"), MARKET.to_string() + "bogus: 1\n").unwrap();
    let page = report(&run);
    let banner = text_of(with_class(&parse(&page), "caveat")[0]);
    assert!(banner.contains("has errors now") && banner.contains("no field `bogus`"), "{banner}");
}

#[test]
fn figures_of_a_damaged_trace_do_no_harm() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    trace(&run, None);
    let file = run.join("trace.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("\"prefilled\":100", "\"prefilled\":18446744073709551615");
    let text =
        text.replace("1795311494", "18446744073709551615").replace("12.5", "1e308").replace("37.5", "-1e308");
    std::fs::write(&file, text + "{\"type\":\"turn\"}\n").unwrap();
    let page = report(&run);
    let document = parse(&page);
    let heights = document.descendants().filter(|node| node.has_tag_name("rect"));
    let mut heights = heights.filter_map(|node| node.attribute("height")?.parse::<f64>().ok());
    assert!(heights.all(|height| (0.0..10_000.0).contains(&height)));
    assert!(!text_of(by_id(&document, "results")).contains("Played"));
}

#[test]
fn what_is_read_from_an_earlier_run_comes_first() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    let file = folder.path().join("market.yaml");
    let scenario = load(&file.display().to_string(), MARKET, &[]).scenario.unwrap();
    let options = RunOptions { continues: Some(run), ..RunOptions::default() };
    play(&scenario, traders(), &folder.path().join("second"), &options).unwrap();
    let page = report(&folder.path().join("second"));
    let document = parse(&page);
    let brought: Vec<String> = with_class(&document, "brought").into_iter().map(text_of).collect();
    assert_eq!(brought.len(), 2, "Ann's and Ben's; the spy forgets");
    assert!(
        brought[0].contains("texts remembered from the earlier run")
            && brought[0].contains("This is talk/2/ben.")
    );
    // Each text of this run is in a memory once, earlier ones aside.
    let view = with_class(&document, "view")[0];
    let n = view.descendants().filter(|node| node.is_text() && node.text() == Some("This is talk/2/ben."));
    let n = n.count();
    assert_eq!(n, 2);
    std::fs::remove_file(folder.path().join("run/transcript.jsonl")).unwrap();
    let page = report(&folder.path().join("second"));
    let banner = text_of(with_class(&parse(&page), "caveat")[0]);
    assert!(banner.starts_with("The run that this one continues can't be read"), "{banner}");
}

#[test]
fn a_summarized_memory_starts_over() {
    /// A context of so few texts that Ann's is full at her second turn.
    struct Small(Arc<dyn Backend>);
    impl Backend for Small {
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
            Ok(request.path == "talk/2/ann")
        }
    }
    let folder = crate::play::checkout();
    let text = MARKET.replace("role: trader,", "role: trader, memory: {keep: summary},");
    let run = record(folder.path(), &text, Arc::new(Small(traders())));
    let page = report(&run);
    let document = parse(&page);
    check_harmless(&document);
    assert!(with_class(&document, "caveat").is_empty());
    let before = text_of(by_id(&document, "v4s"));
    assert!(
        before.starts_with("Memory full, before turn 4") && before.contains("This is talk/2/ann.summary."),
        "{before}"
    );
    let after = text_of(by_id(&document, "v4"));
    assert!(after.contains("summary What you remember: This is talk/2/ann.summary."), "{after}");
    assert!(!after.contains("The fish costs"), "what was summed up is not read again: {after}");
    assert_eq!(with_class(&document, "says").len(), 9);
}

/// Two agents who speak in turn for this many rounds.
fn long(rounds: usize) -> String {
    format!(
        "id: long\n\
         agents: {{ann: {{}}, ben: {{}}}}\n\
         phases: [{{ name: talk, agents: [ann, ben], rounds: {rounds} }}]\n\
         "
    )
}

#[test]
fn pages_grow_by_what_is_said() {
    let size = |rounds| {
        let folder = crate::play::checkout();
        let script = Scripted::new(|request| Some(format!("{:<60}.", request.path)));
        let run = record(folder.path(), &long(rounds), Arc::new(script));
        trace(&run, None);
        let page = report(&run);
        let turns = with_class(&parse(&page), "says").len();
        assert_eq!(turns, 2 * rounds);
        page.len() as f64
    };
    let (small, middle, large) = (size(65), size(130), size(260));
    let growth = (large - middle) / (middle - small);
    assert!((1.9..2.1).contains(&growth), "{small} {middle} {large}");
}

#[test]
fn the_command_writes_where_a_user_looks() {
    let folder = crate::play::checkout();
    let run = record(folder.path(), MARKET, traders());
    let greenroom = |args: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
        let output = command.current_dir(folder.path()).args(args).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code().unwrap_or(-1), text.concat())
    };
    let default = run.join("report.html");
    assert_eq!(greenroom(&["report", "run"]), (0, "run/report.html\n".into()));
    let first = std::fs::read(&default).unwrap();
    assert_eq!(greenroom(&["report", "run/transcript.jsonl"]), (0, "run/report.html\n".into()));
    assert_eq!(first, std::fs::read(&default).unwrap(), "one's own report is written over");
    std::fs::copy(run.join("transcript.jsonl"), folder.path().join("old.jsonl")).unwrap();
    assert_eq!(greenroom(&["report", "old.jsonl"]), (0, "old.html\n".into()));
    std::fs::write(&default, "<p>my notes</p>").unwrap();
    let (code, text) = greenroom(&["report", "run"]);
    assert!(code == 4 && text.contains("is not a report") && text.contains("-o"), "{code} {text}");
    assert_eq!(std::fs::read_to_string(&default).unwrap(), "<p>my notes</p>");
    assert_eq!(greenroom(&["report", "run", "-o", "other.html"]), (0, "other.html\n".into()));
    let (code, text) = greenroom(&["report", "run", "-o", "x.html", "--scenario", "nowhere.yaml"]);
    assert!(code == 4 && text.contains("nowhere.yaml") && !folder.path().join("x.html").exists(), "{text}");
    std::fs::remove_file(folder.path().join("market.yaml")).unwrap();
    let (code, text) = greenroom(&["report", "run", "-o", "x.html"]);
    assert!(code == 0 && text.contains("note: The scenario was not found"), "{text}");
}

/// Phases in which nobody has a turn are scenes, each text with its readers; the picture shows the turns that were
/// played.
#[test]
fn what_was_only_read_is_shown_where_it_was_read() {
    let text = "
agents: { ann: { display_name: Ann }, ben: { display_name: Ben }, cas: { display_name: Cas } }
phases:
  - { name: night, label: Night, agents: [ann, ben, cas], rounds: 0, prompt: \"{{ 'You are a wolf' if me.key == 'ann' else 'You sleep' }}.\" }
  - { name: never, agents: [ann, ben], when: 1 > 2, rounds: 0, prompt: Not read. }
  - { name: day, label: Day, agents: [ann, ben, cas], prompt: The sun is up. }
  - { name: vote, agents: [ann, ben], when: day.rounds > 1, prompt: Not played. }
  - { name: end, label: The end, agents: [ben, cas], rounds: 0, prompt: All is over., say: { cas: You have won. } }
";
    let folder = crate::play::checkout();
    let run = record(folder.path(), text, Arc::new(Scripted::new(|_| Some("Good day.".into()))));
    let sources = ReportSources::open(&run, &Default::default()).unwrap();
    assert_eq!(sources.caveats, []);
    let text = html(&sources, false).unwrap();
    let page = parse(&text);
    let is_shown = |node: &Node<'_, '_>| {
        let class = node.attribute("class").unwrap_or_default();
        node.tag_name().name() == "h3" || class == "readers" || class.starts_with("direction")
    };
    let scene = |scene: Node<'_, '_>| {
        scene.descendants().filter(is_shown).map(text_of).collect::<Vec<_>>().join(" | ")
    };
    let scenes: Vec<String> = with_class(&page, "scene").into_iter().map(scene).collect();
    assert_eq!(
        scenes,
        [
            "Night | To Ann: | You are a wolf. | To Ben and Cas: | You sleep.",
            "Day | The sun is up.",
            "The end | All is over. | To Cas: | You have won.",
        ]
    );
    assert_eq!(with_class(&page, "turn").len(), 3);
    let all = html(&sources, true).unwrap();
    assert_eq!(with_class(&parse(&all), "turn").len(), 5);
}
