//! Agents of the library: turns, forks, and memories that are resumed after a restart.

use crate::fixtures::RandomModel;
use crate::*;
use futures_util::StreamExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

fn open(cache_dir: Option<&Path>) -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak());
    let cache_dir = cache_dir.map(Path::to_path_buf);
    Engine::open(EngineConfig { cache_dir, ..EngineConfig::new(model) }).unwrap()
}

fn ada(engine: &Engine) -> Agent {
    engine.agent("r", "ada").system("You are Ada.").max_tokens(12)
}

fn say(agent: &mut Agent, text: &str) -> Completion {
    agent.extend(text).unwrap().blocking_finish().unwrap()
}

/// Kind of a turn, with the tokens that it reused and recomputed.
fn account(usage: &Usage) -> (MatchKind, usize, usize) {
    (usage.kind, usage.reused, usage.recomputed)
}

/// Tokens read and said by the end of a turn.
fn total(said: &Completion) -> usize {
    said.usage.reused + said.usage.prefilled + said.usage.recomputed + said.ids.len()
}

#[test]
fn pieces_are_the_completion_however_they_are_taken() {
    let engine = open(None);
    let mut agents = ["a", "b", "c"].map(|name| engine.agent("r", name).max_tokens(12));
    let [a, b, c] = &mut agents;
    let mut reply = a.extend("Go on.").unwrap();
    let pieces: String = reply.by_ref().map(Result::unwrap).collect();
    let said = reply.blocking_finish().unwrap();
    assert_eq!((pieces.as_str(), said.ids.len() > 3), (said.text.as_str(), true));
    assert_eq!(say(b, "Go on.").ids, said.ids);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let streaming = async {
        let mut reply = c.extend("Go on.").unwrap();
        let pieces = reply.stream().map(Result::unwrap).collect::<String>().await;
        (pieces, reply.finish().await.unwrap())
    };
    let streaming: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(streaming); // on any thread
    let (pieces, streamed) = runtime.block_on(streaming);
    assert_eq!((pieces, streamed.ids), (said.text, said.ids));
    assert_eq!(agents[0].conversation(), agents[2].conversation());
    assert_eq!(agents[0].conversation().exchanges[0].user, "Go on.");
}

#[test]
fn a_fork_reads_nothing_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(Some(folder.path()));
    let mut ada = ada(&engine);
    let read = "a long story ".repeat(40); // more than a block
    let known = total(&say(&mut ada, &read));
    let mut twins = ["b", "c"].map(|name| ada.fork(name));
    let replies = twins.each_mut().map(|twin| twin.extend("And then?").unwrap());
    let [b, c] = replies.map(|reply| reply.blocking_finish().unwrap());
    assert_eq!(account(&b.usage), (MatchKind::Extend, known, 0));
    assert_eq!((account(&c.usage), &c.ids), (account(&b.usage), &b.ids));
    engine.forget(ada.key()); // it is on disk only
    let [mut late, mut later] = ["d", "e"].map(|name| ada.fork(name));
    let d = say(&mut late, "And then?");
    assert_eq!((account(&d.usage), d.usage.source), (account(&b.usage), CacheSource::Disk));
    assert_eq!(d.ids, b.ids);
    let at_work = ada.extend("And then?").unwrap();
    let e = say(&mut later, "And then?");
    // Where that turn is over already, the parent's memory holds the whole prompt.
    let prompt = b.usage.reused + b.usage.prefilled;
    let accounts = [account(&b.usage), (MatchKind::Diverge, prompt - 1, 1)];
    assert!(accounts.contains(&account(&e.usage)) && e.ids == b.ids, "{:?}", e.usage);
    assert_eq!(at_work.blocking_finish().unwrap().ids, b.ids);
    assert_eq!(account(&say(&mut late, "And?").usage), (MatchKind::Extend, total(&d), 0));
}

#[test]
fn a_fork_of_a_name_that_was_used_reads_nothing_again_either() {
    for folder in [None, Some(tempfile::tempdir().unwrap())] {
        let folder = folder.as_ref().map(|folder| folder.path());
        let (engine, other) = (open(folder), open(None));
        let (mut ada, mut control) = (ada(&engine), ada(&other));
        let mut listens = |ada: &mut Agent, n: usize| {
            let text = format!("{n}: {}", "a long story ".repeat(40)); // more than a block
            let (said, expected) = (say(ada, &text), say(&mut control, &text));
            assert_eq!(said.ids, expected.ids);
            (total(&said), say(&mut control.fork(format!("{n}")), "So?").ids)
        };
        // One that has said nothing, and nothing of it is stored.
        listens(&mut ada, 0);
        drop(ada.fork("scratch"));
        let (known, expected) = listens(&mut ada, 1);
        let mut scratch = ada.fork("scratch");
        let said = say(&mut scratch, "So?");
        assert_eq!((account(&said.usage), said.ids), ((MatchKind::Extend, known, 0), expected));
        // One that is stored, in RAM and on disk alone, its parent too.
        for (n, forget) in [(2, &[][..]), (3, &["scratch"]), (4, &["ada"]), (5, &["ada", "scratch"])] {
            let (known, expected) = listens(&mut ada, n);
            if folder.is_some() {
                assert!(ada.fork("scratch").extend("So?").is_err());
                forget.iter().for_each(|agent| engine.forget(&SessionKey::new("r", *agent)));
            }
            let mut scratch = ada.fork("scratch").replace();
            let said = say(&mut scratch, "So?");
            assert_eq!((account(&said.usage), &said.ids), ((MatchKind::Extend, known, 0), &expected), "{n}");
            // Its own memory stays when it is given leave once more.
            let next = say(&mut scratch.replace(), "And?");
            assert_eq!(account(&next.usage), (MatchKind::Extend, total(&said), 0));
        }
        // Neither its own nor that of an active session.
        let (known, _) = listens(&mut ada, 6);
        drop(ada.fork("ada"));
        let mut busy = ada.fork("busy fork");
        let held = fault::hold_encoding("busy fork");
        let reply = busy.extend("So?").unwrap();
        held.until_it_is_needed();
        drop(ada.fork("busy fork").replace());
        drop(held);
        let said = reply.blocking_finish().unwrap();
        assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
        let next = say(&mut busy, "And?");
        assert_eq!(account(&next.usage), (MatchKind::Extend, total(&said), 0));
        // What a fork began with stays if there is nothing to replace, whatever its parent has heard since.
        let early = ada.fork("early");
        say(&mut ada, "And?");
        let said = say(&mut early.replace(), "So?");
        assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
        drop((ada, busy, engine));
        if let Some(folder) = folder {
            let folder = cache::Folder::new(folder, None);
            assert_eq!(folder.verify().unwrap().problems, [""; 0]);
        }
    }
}

#[test]
fn a_reply_that_is_dropped_changes_nothing() {
    let (folder, expected) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (engine, other) = (open(Some(folder.path())), open(Some(expected.path())));
    let (mut ada, mut control) = (ada(&engine), ada(&other));
    let first = say(&mut ada, "One.");
    assert_eq!(say(&mut control, "One.").ids, first.ids);
    drop(ada.extend("Not this.").unwrap()); // at work, or not begun
    let mut ended = ada.extend("Nor this.").unwrap();
    assert!(ended.by_ref().count() > 0);
    drop(ended);
    assert_eq!(ada.conversation(), control.conversation());
    let second = say(&mut ada, "Two.");
    // The template's text around the message that was taken back is there already.
    assert!(second.usage.reused >= total(&first) && second.usage.recomputed == 0, "{:?}", second.usage);
    assert_eq!(second.ids, say(&mut control, "Two.").ids);
    // What is on disk knows nothing of a turn that ended and was dropped.
    let mut ended = ada.extend("Nor this.").unwrap();
    assert!(ended.by_ref().count() > 0);
    drop(ended);
    let past = ada.conversation().exchanges.clone();
    drop((ada, engine)); // an agent is a handle to its engine
    let engine = open(Some(folder.path()));
    let mut ada = self::ada(&engine).history(past);
    let third = say(&mut ada, "Three.");
    assert_eq!(account(&third.usage), (MatchKind::Extend, total(&second), 0));
    assert_eq!(third.ids, say(&mut control, "Three.").ids);
}

#[test]
fn a_choice_is_an_agents_turn_too() {
    let (engine, other) = (open(None), open(None));
    let (mut ada, mut control) = (ada(&engine), ada(&other));
    let options = ["I stay.", "I stand by you.", "I go."];
    for (n, agent) in [&mut ada, &mut control].into_iter().enumerate() {
        if n == 0 {
            drop(agent.choose("One.", options).unwrap()); // at work, or not begun
            let mut ended = agent.choose("One.", ["Two.", "Three."]).unwrap();
            assert!(ended.by_ref().count() == 1);
            drop(ended);
        }
        let mut reply = agent.choose("One.", options).unwrap();
        let pieces: String = reply.by_ref().map(Result::unwrap).collect();
        assert!(options.contains(&pieces.as_str()), "{pieces}");
        assert_eq!(reply.blocking_finish().unwrap().text, pieces);
    }
    let said = [&mut ada, &mut control]
        .map(|agent| agent.choose("Two.", options).unwrap().blocking_finish().unwrap());
    assert_eq!((&said[0].choice, &said[0].ids), (&said[1].choice, &said[1].ids));
    let free = [&mut ada, &mut control].map(|agent| say(agent, "Three."));
    assert_eq!((&free[0].choice, &free[0].ids), (&None, &free[1].ids));
    assert_eq!(account(&free[0].usage), account(&free[1].usage));
}

#[test]
fn a_failed_turn_is_an_error_and_changes_nothing() {
    let engine = open(None);
    let mut ada = ada(&engine);
    let first = say(&mut ada, "One.");
    let mut greedy = ada.fork("b").max_tokens(usize::MAX / 2);
    let pieces: Vec<_> = greedy.extend("Two.").unwrap().collect();
    assert!(matches!(&pieces[..], [Err(e)] if e.kind() == ErrorKind::Request), "{pieces:?}");
    assert!(greedy.extend("Two.").unwrap().blocking_finish().is_err());
    assert_eq!(greedy.conversation().exchanges.len(), 1);
    let mut modest = greedy.max_tokens(12);
    assert_eq!(account(&say(&mut modest, "Two.").usage), (MatchKind::Extend, total(&first), 0));
}

/// Texts that an agent has read and said.
fn past(agent: &Agent) -> Vec<(String, String)> {
    agent.past().map(|(read, said)| (read.to_owned(), said)).collect()
}

#[test]
fn a_resumed_agent_goes_on_as_if_there_had_been_no_restart() {
    let (folder, expected) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let control_engine = open(Some(expected.path()));
    let mut control = ada(&control_engine);
    let mut known = 0;
    for (n, text) in ["One.", "Two.", &"three ".repeat(70), "Four."].into_iter().enumerate() {
        let engine = open(Some(folder.path())); // a restart before each turn
        let mut ada = if n == 0 { ada(&engine) } else { engine.resume("r", "ada").unwrap().max_tokens(12) };
        assert_eq!((ada.conversation(), past(&ada)), (control.conversation(), past(&control)));
        let (said, expected) = (say(&mut ada, text), say(&mut control, text));
        assert_eq!(said.ids, expected.ids);
        if n > 0 {
            assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
        }
        known = total(&said);
    }
}

#[test]
fn a_stored_memory_is_never_replaced_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let key = SessionKey::new("r", "ada");
    let first = {
        let engine = open(Some(folder.path()));
        let (mut ada, mut bob) = (ada(&engine), engine.agent("r", "bob").max_tokens(12));
        let _ = say(&mut bob, "I am Bob.");
        say(&mut ada, "One.")
    };
    let engine = open(Some(folder.path()));
    let refused = |agent: &mut Agent, expected: &str| {
        let error = agent.extend("Two.").map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Request && error.to_string().contains(expected), "{error}");
    };
    refused(&mut ada(&engine), "continue it with `Engine::resume`");
    refused(&mut engine.agent("r", "ada").system("You are Eve."), "`Engine::remove`");
    refused(&mut engine.resume("r", "ada").unwrap().system("You are Eve."), "that it had");
    let mut resumed = engine.resume("r", "ada").unwrap().max_tokens(12);
    refused(&mut resumed.fork("bob"), "agent `bob` of run `r` has a stored memory");
    assert_eq!(past(&engine.resume("r", "bob").unwrap())[0].0, "I am Bob.");
    assert_eq!(past(&resumed), [("One.".to_owned(), first.text.clone())]);
    let second = say(&mut resumed, "Two.");
    assert_eq!(account(&second.usage), (MatchKind::Extend, total(&first), 0));
    assert_eq!(past(&engine.resume("r", "ada").unwrap()).len(), 2);
    // A memory is replaced if that was requested.
    let mut fresh = ada(&engine).replace();
    let _ = say(&mut fresh, "Zero.");
    assert_eq!(past(&engine.resume("r", "ada").unwrap())[0].0, "Zero.");
    engine.blocking_remove(&key).unwrap();
    assert!(engine.resume("r", "ada").err().unwrap().to_string().contains("`Engine::agent`"));
    let _ = say(&mut ada(&engine), "One.");
    assert_eq!(past(&engine.resume("r", "ada").unwrap()).len(), 1);
    assert!(open(None).resume("r", "ada").err().unwrap().to_string().contains("`cache_dir`"));
}

#[test]
fn what_another_model_or_a_raw_prompt_left_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(Some(folder.path()));
    let _ = say(&mut ada(&engine), "One.");
    let raw = Request {
        retention: Retention::Persistent,
        max_tokens: 4,
        ..Request::new(SessionKey::new("r", "raw"), Prompt::Text("Once upon".to_owned()))
    };
    let mut turn = engine.submit(raw).unwrap();
    while turn.blocking_next().is_some() {}
    turn.blocking_commit().unwrap();
    assert!(engine.resume("r", "raw").err().unwrap().to_string().contains("raw text"));
    assert!(engine.agent("r", "raw").extend("Hm?").map(drop).is_err());
    drop(engine);
    let model = ModelSource::Bundled("other", RandomModel::tiny(2).bytes().leak());
    let other = Engine::open(EngineConfig::new(model).cache_dir(folder.path())).unwrap();
    let error = other.resume("r", "ada").err().unwrap().to_string();
    assert!(error.contains("was computed by model"), "{error}");
    let error = ada(&other).extend("Two.").map(drop).unwrap_err().to_string();
    assert!(error.contains("`Engine::resume`"), "{error}");
    drop(other);
    assert_eq!(past(&open(Some(folder.path())).resume("r", "ada").unwrap()).len(), 1);
}

/// With tools, calls of them, and reasoning, in a template that knows both and in one that knows neither.
#[test]
fn what_an_agent_was_given_is_resumed_too() {
    let arguments = serde_json::json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = Tool { name: "look".into(), about: "Looks".into(), arguments };
    let tools = Arc::new(Tools { list: vec![tool], instructions: "You may call tools.".into() });
    for template in [None, Some("Qwen-Qwen3-0.6B"), Some("calls-as-text")] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/templates");
        let read = |name| std::fs::read_to_string(root.join(format!("{name}.jinja"))).unwrap();
        let tiny = RandomModel::tiny(1);
        let model = RandomModel { template: template.map(read).or(tiny.template.clone()), ..tiny };
        let folder = tempfile::tempdir().unwrap();
        let model = ModelSource::Bundled("tiny", model.bytes().leak());
        let config = EngineConfig::new(model).cache_dir(folder.path());
        for system in [None, Some("You are Ada.")] {
            let name = system.unwrap_or("nobody");
            let engine = Engine::open(config.clone()).unwrap();
            let mut ada = engine.agent("r", name).tools(tools.clone()).max_tokens(12);
            ada = if let Some(system) = system { ada.system(system) } else { ada };
            let _ = say(&mut ada, "One.");
            ada = ada.reasoning(Reasoning::High).calls(ToolChoice::Required);
            assert!(say(&mut ada, "Two.").call.is_some());
            ada = ada.reasoning(Reasoning::None);
            let known = total(&say(&mut ada, "Nothing to see."));
            let expected = ada.conversation().clone();
            drop((ada, engine));
            let engine = Engine::open(config.clone()).unwrap();
            let mut ada = engine.resume("r", name).unwrap().tools(tools.clone()).max_tokens(12);
            let mut found = ada.conversation().clone();
            for (found, expected) in found.exchanges.iter_mut().zip(&expected.exchanges) {
                // The prompts of this template say whether to think, not how much; those of the others,
                // neither.
                let is_certain = template == Some("Qwen-Qwen3-0.6B");
                let thinks = |exchange: &Exchange| exchange.reasoning != Reasoning::None;
                assert!(!is_certain || thinks(found) == thinks(expected));
                found.reasoning = expected.reasoning;
            }
            assert_eq!(found, expected, "{system:?}, {template:?}");
            let said = say(&mut ada, "Three.");
            assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
            if template.is_some() {
                let without = engine.resume("r", name).unwrap().extend("Four.").map(drop).unwrap_err();
                assert!(without.to_string().contains("the tools that it had"), "{without}");
            }
        }
    }
}

#[test]
fn an_agent_is_stored_and_spawned() {
    struct Cast {
        ada: Agent,
    }
    fn is_free<T: Send + 'static>(_: &T) {}
    let mut cast = Cast { ada: ada(&open(None)) }; // the engine lives on in its agent
    is_free(&cast.ada);
    let expected = say(&mut ada(&open(None)), "One.");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let spawned = runtime.spawn(async move {
        let said = cast.ada.extend("One.").unwrap().finish().await.unwrap();
        (said, cast)
    });
    let (said, cast) = runtime.block_on(spawned).unwrap();
    assert_eq!((said.ids, cast.ada.conversation().exchanges.len()), (expected.ids, 1));
    let mut ada = cast.ada.grammar(Grammar::Regex("yes|no".to_owned())).logprobs(2);
    let said = say(&mut ada, "Well?");
    assert!(["yes", "no"].contains(&&*said.text), "{}", said.text);
    assert_eq!((said.logprobs.len(), said.logprobs[0].top.len()), (said.ids.len(), 2));
}

#[test]
fn replies_of_several_agents_run_at_once() {
    let engine = open(None);
    let mut agents: Vec<_> = (0..4).map(|n| engine.agent("r", format!("{n}")).max_tokens(12)).collect();
    let replies = agents.iter_mut().enumerate().map(|(n, agent)| agent.extend(format!("{n}")).unwrap());
    let replies: Vec<_> = replies.collect();
    let together = replies.into_iter().rev().map(|reply| reply.blocking_finish().unwrap().ids).rev();
    let together: Vec<_> = together.collect();
    for (n, ids) in together.iter().enumerate() {
        let mut alone = engine.agent("alone", format!("{n}")).max_tokens(12);
        assert_eq!(say(&mut alone, &format!("{n}")).ids, *ids);
    }
}
