//! The terminal's view of a run.

use crate::play::{SMALL, play, scenario};
use greenroom::backend::StopReason;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Scripted, Session, Sink};
use greenroom::run::{Changes, ForkFrom, RunOptions, Tell, perform};
use greenroom::stage::End;
use greenroom::terminal::{DialogueOutput, Page, results, table_within};
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub(crate) struct Kept(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Streams each reply character by character, as a model would, so that parallel turns mix; the reply to this
/// turn reaches its limit.
struct Streaming(Scripted, Option<(usize, StopReason)>);

impl Backend for Streaming {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            let at_limit = self.1.filter(|(index, _)| *index == request.index);
            let mut reply = self.0.reply(request, Box::new(|_| ())).await?;
            reply.stop = at_limit.map_or(reply.stop, |(_, stop)| stop);
            for c in reply.text.chars() {
                sink(Progress::Text(c.to_string()));
                tokio::task::yield_now().await;
            }
            Ok(reply)
        })
    }
    fn forget(&self, _session: &Session) {}
}

fn shown(width: Option<usize>, at_limit: Option<(usize, StopReason)>) -> String {
    let scenario = scenario(SMALL);
    let kept = Kept::default();
    let page = Page::new(Box::new(kept.clone()), width);
    let plan = scenario.plan().clone();
    let mut dialogue = DialogueOutput::on(page, false, scenario.clone(), plan).titled();
    let backend = Scripted::new(|request| {
        Some(match request.index {
            1 => {
                "Ben: my own name goes, <think>so does this</think>\n\nthe rest of a long enough line stays."
                    .into()
            }
            4 => String::new(),
            5 => "\u{1b}[2J no escape".into(),
            n => format!("reply {n}"),
        })
    });
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = RunOptions::default();
    let playing = perform(
        &scenario,
        Arc::new(Streaming(backend, at_limit)),
        folder.path(),
        &options,
        &mut dialogue,
        std::future::pending(),
    );
    runtime.block_on(playing).unwrap();
    drop(dialogue);
    let bytes = kept.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_pipe_gets_a_line_a_message_in_plan_order() {
    insta::assert_snapshot!(shown(None, None));
}

/// Standard output and error go to one place, as on a terminal.
#[test]
fn a_human_is_asked_once_all_before_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "agents: {ann: {}, you: {strategy: human}, sam: {strategy: human}}\n\
                phases:\n\
                - { name: quay, agents: [ann, you], rounds: 2 }\n\
                - { name: deal, agents: [you, sam, ann], order: broadcast, answer: [buy, leave] }\n\
                ";
    std::fs::write(folder.path().join("boat.yaml"), yaml).unwrap();
    std::fs::write(folder.path().join("typed"), "How much?\nToo much.\nperhaps\n2\nbuy\n").unwrap();
    let shown = std::fs::File::create(folder.path().join("shown")).unwrap();
    let program = assert_cmd::cargo::cargo_bin("greenroom");
    let status = std::process::Command::new(program)
        .args(["run", "boat.yaml", "--max-tokens", "20"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env_remove("XDG_CACHE_HOME")
        .stdin(std::fs::File::open(folder.path().join("typed")).unwrap())
        .stdout(shown.try_clone().unwrap())
        .stderr(shown)
        .status()
        .unwrap();
    let shown = std::fs::read_to_string(folder.path().join("shown")).unwrap();
    assert!(status.success(), "{shown}");
    let at = |text: &str, n: usize| {
        shown.match_indices(text).nth(n).unwrap_or_else(|| panic!("{text}: {shown}")).0
    };
    // Ann's text is in the dialogue first, and then in the human's prompt.
    let said = |n: usize| shown[at("ann: ", n)..].lines().next().unwrap();
    assert_eq!(said(0), said(1));
    assert_eq!(said(2), said(3));
    assert!(at("[Your turn, you.]", 0) < at("you: How much?", 0));
    assert!(at("`perhaps` is not an option", 0) < at("you: leave", 0));
    // Who chooses at the same time does not see it before.
    assert!(at("you: leave", 0) > at("[Your turn, sam. Reply with exactly one of: \"buy\", \"leave\".]", 0));
    assert!(at("sam: buy", 0) < at("choices    3", 0));
}

#[test]
fn a_narrow_terminal_gets_wrapped_lines() {
    insta::assert_snapshot!(shown(Some(32), None));
}

#[test]
fn a_reply_that_is_cut_is_marked() {
    const MARK: &str = "  (cut off at the token limit)";
    let cut = shown(None, Some((2, StopReason::Length)));
    assert!(cut.contains(&format!("reply 2{MARK}\n")), "{cut}");
    assert_eq!(cut.replace(MARK, ""), shown(None, None));
    assert_eq!(shown(None, Some((2, StopReason::Sentence))), shown(None, None), "a whole sentence is no cut");
}

#[test]
fn payoffs_stand_in_the_order_of_the_cast() {
    let yaml = "agents: {zoe: {}, ann: {}}\n\
                phases: [{ name: game, agents: [zoe, ann], answer: [share, take] }]\n\
                payoff: {phase: game, unit: coins, each: \"1 if mine == 'share' else 3\"}\n\
                ";
    let scenario = scenario(yaml);
    let folder = tempfile::tempdir().unwrap();
    let backend = Scripted::lines([("game/1/zoe", "take"), ("game/1/ann", "share")]);
    let played = play(&scenario, Arc::new(backend), folder.path(), &RunOptions::default()).unwrap();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    let text = results(&scenario, &footer, false);
    assert!(text.contains("payoffs    zoe 3 coins, ann 1 coins\n"), "{text}");
}

/// What is shown of a run of rules and of one reply each.
fn watched(text: &str, options: &RunOptions, folder: &std::path::Path) -> String {
    let scenario = scenario(text);
    let kept = Kept::default();
    let plan = scenario.plan().clone();
    let mut dialogue =
        DialogueOutput::on(Page::new(Box::new(kept.clone()), None), false, scenario.clone(), plan);
    let backend = Scripted::new(|request| {
        let open = request.choice.as_ref().map(|of| of.choice.options[of.open[0]].text.clone());
        open.or(Some(format!("This is {}.", request.path)))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = crate::play::Backwards(Arc::new(Streaming(backend, None)));
    let never = std::future::pending();
    runtime.block_on(perform(&scenario, Arc::new(backend), folder, options, &mut dialogue, never)).unwrap();
    drop(dialogue);
    let bytes = kept.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

const HARVEST: &str = "
agents: {a: {display_name: Ann}, b: {display_name: Ben}, c: {display_name: Cas}}
phases:
  - name: weeks
    agents: [a, b, c]
    order: broadcast
    rounds: 4
    until: round >= 2
    answer: [keep, give]
    say:
      - at: round_start
        text: 'Week {{ round }} begins.'
      - at: round_end
        text: 'You kept {{ weeks.history[me] | length }} times, {{ me }}.'
      - { at: round_end, text: 'Nobody gave.', to: [a, c] }
  - { name: vote, agents: [a, b], vote: { rule: majority, answer: [stay, leave] }, prompt: Vote. }
  - { name: end, agents: [c, a], prompt: 'It ends.' }
";

#[test]
fn rounds_votes_and_announcements_are_shown_once_where_they_happen() {
    let folder = tempfile::tempdir().unwrap();
    let (run, fork) = (folder.path().join("run"), folder.path().join("fork"));
    let shown = watched(HARVEST, &RunOptions::default(), &run);
    insta::assert_snapshot!(shown);
    let tell = |before: &str, to: Option<&str>| Tell {
        before: before.into(),
        to: to.map(str::to_string),
        text: "It rains.".into(),
    };
    let tells = vec![tell("weeks/2/a", None), tell("end", Some("a"))];
    let changes = Changes { said: Vec::new(), tells };
    let from = ForkFrom { run, at: None, changes };
    let forked = watched(HARVEST, &RunOptions { fork: Some(from), ..RunOptions::default() }, &fork);
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    let added: Vec<_> = lines(&forked).into_iter().filter(|line| !lines(&shown).contains(line)).collect();
    assert_eq!(added, ["  * It rains.", "  * to Ann: It rains."], "{forked}");
    // A recording that is followed shows the same.
    let again = RunOptions { resume: true, ..RunOptions::default() };
    let file = folder.path().join("run/transcript.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().take(9).collect();
    std::fs::write(&file, kept.join("\n") + "\n").unwrap();
    assert_eq!(watched(HARVEST, &again, &folder.path().join("run")), shown);
}

/// What is read in phases in which nobody speaks, with its readers; a last one too, but none that is not played.
#[test]
fn phases_without_speech_are_shown_with_what_is_read() {
    let text = "
agents: { a: { display_name: Ann }, b: { display_name: Ben }, c: { display_name: Cas } }
phases:
  - { name: night, agents: [a, b, c], rounds: 0, prompt: \"{{ 'You are a wolf' if me.key == 'a' else 'You sleep' }}.\" }
  - { name: never, agents: [a, b], when: 1 > 2, rounds: 0, prompt: Not read. }
  - { name: day, agents: [a, b], prompt: The sun is up. }
  - { name: end, agents: [b, c], rounds: 0, prompt: All is over., say: { c: You have won. } }
";
    let folder = tempfile::tempdir().unwrap();
    let shown = watched(text, &RunOptions::default(), &folder.path().join("run"));
    let expected = "
== night ==
  * to Ann: You are a wolf.
  * to Ben and Cas: You sleep.

== day ==
Ann: This is day/1/a.
Ben: This is day/1/b.

== end ==
  * All is over.
  * to Cas: You have won.
";
    assert_eq!(shown, expected, "{shown}");
}

#[test]
fn tables_fit_their_width() {
    let head = ["figure", "which", "cell", "runs", "mean", "interval", "to cell 0"];
    let text = "a name that takes a good deal of room";
    let row = |n: usize| {
        vec![
            text.into(),
            "one".into(),
            n.to_string(),
            "20".into(),
            "0.123".into(),
            "[0.1, 0.2]".into(),
            "+0.1".into(),
        ]
    };
    let rows: Vec<Vec<String>> = (0..3).map(row).collect();
    let natural = table_within(None, &head, rows.clone(), 2);
    assert_eq!(natural, table_within(Some(120), &head, rows.clone(), 2), "what fits stays");
    let mut all = format!("{natural}\n");
    for width in [80, 60, 40, 30] {
        let shown = table_within(Some(width), &head, rows.clone(), 2);
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{width}:\n{shown}");
        for value in ["0.123", "[0.1, 0.2]", "+0.1", "interval", "to cell 0"] {
            assert!(shown.contains(value), "{width}: {value} is whole:\n{shown}");
        }
        all += &format!("\n{width} columns:\n{shown}\n");
    }
    insta::assert_snapshot!(all);
    let words = table_within(Some(20), &["name", "text"], vec![vec!["a".into(), text.into()]], 2);
    assert!(words.lines().all(|line| line.chars().count() <= 20), "{words}");
}
