//! Plays scenarios with scripted agents, in memory or into a folder.

use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::run::{Performed, RunOptions, perform};
use greenroom::scenario::{Scenario, load, turn_seed};
use greenroom::stage::Unwatched;
use std::path::Path;
use std::sync::Arc;

/// A folder whose files may name each other, as those of a checkout may.
pub(crate) fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".git")).unwrap();
    folder
}

/// Leaves a run without the copy of its scenario: it is held against the file, as a recording is that was put
/// somewhere.
pub(crate) fn without_copy(run: &Path) {
    std::fs::remove_file(run.join("scenario.json")).unwrap();
}

pub(crate) const SMALL: &str = "
id: small
title: A small one
variables: {topic: music}
agents:
  a: {display_name: Ann, system_prompt: 'You are {{ me }}.'}
  b: {display_name: Ben}
  c: {display_name: Cas, lifecycle: ephemeral}
phases:
  - name: private
    agents: [a, b]
    rounds: 2
    prompt: Talk about {{ topic }}.
  - name: together
    agents: [c, a, b]
    order: broadcast
    rounds: 2
    prompt: All are here.
    say:
      c: |
        You overheard:
        ${private.messages[a]}
";

pub(crate) fn scenario(text: &str) -> Arc<Scenario> {
    let loaded = load("small.yaml", text, &[]);
    loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)))
}

/// Says its own path and how much it has read, so any difference in reading changes the reply.
pub(crate) fn echo() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| {
        let read: usize = request.conversation.exchanges.iter().map(|past| past.user.len()).sum();
        Some(format!("This is {} after {} bytes.", request.path, read + request.conversation.next.len()))
    }))
}

/// Answers later turns first, as far as they run together.
pub(crate) struct Backwards(pub(crate) Arc<dyn Backend>);

impl Backend for Backwards {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            for _ in 0..200usize.saturating_sub(request.index) {
                tokio::task::yield_now().await;
            }
            self.0.reply(request, sink).await
        })
    }
    fn forget(&self, session: &Session) {
        self.0.forget(session);
    }
    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        self.0.overflows(request)
    }
    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.0.fills_half(request)
    }
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.0.embed(texts)
    }
}

/// Answers in an order drawn from the turns' paths.
pub(crate) struct Shuffled(pub(crate) Arc<dyn Backend>, pub(crate) u64);

impl Backend for Shuffled {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            for _ in 0..turn_seed(self.1, &request.path) % 50 {
                tokio::task::yield_now().await;
            }
            self.0.reply(request, sink).await
        })
    }
    fn forget(&self, session: &Session) {
        self.0.forget(session);
    }
    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        self.0.overflows(request)
    }
    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.0.fills_half(request)
    }
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.0.embed(texts)
    }
}

pub(crate) fn play(
    scenario: &Arc<Scenario>,
    backend: Arc<dyn Backend>,
    folder: &Path,
    options: &RunOptions,
) -> anyhow::Result<Performed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(perform(scenario, backend, folder, options, &mut Unwatched, std::future::pending()))
}

#[test]
fn equal_runs_write_equal_files() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = scenario(SMALL);
    let text = |name: &str| {
        let played = play(&scenario, echo(), &folder.path().join(name), &RunOptions::default()).unwrap();
        assert_eq!((played.n_written, played.n_turns), (10, 10));
        std::fs::read_to_string(played.transcript).unwrap()
    };
    let first = text("one");
    assert_eq!(first, text("two"));
    insta::assert_snapshot!(first);
    let again = play(&scenario, echo(), &folder.path().join("one"), &RunOptions::default());
    assert!(again.unwrap_err().to_string().contains("--resume"));
}

#[test]
fn lines_stand_in_plan_order_whatever_finishes_first() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = scenario(SMALL);
    let text = |backend, name: &str| {
        let played = play(&scenario, backend, &folder.path().join(name), &RunOptions::default()).unwrap();
        std::fs::read_to_string(played.transcript).unwrap()
    };
    assert_eq!(text(echo(), "fast"), text(Arc::new(Backwards(echo())), "slow"));
}

#[test]
fn a_failing_turn_is_named_and_the_record_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = Scripted::lines([("private/1/a", "hello")]);
    let error = play(&scenario(SMALL), Arc::new(script), folder.path(), &RunOptions::default()).unwrap_err();
    assert!(error.to_string().contains("private/1/b"), "{error}");
    let text = std::fs::read_to_string(folder.path().join("transcript.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn a_broadcast_is_asked_all_at_once() {
    /// Answers only when three requests are there.
    struct Together(Arc<dyn Backend>, tokio::sync::Barrier);
    impl Backend for Together {
        fn card(&self) -> ModelCard {
            self.0.card()
        }
        fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
            Box::pin(async move {
                self.1.wait().await;
                self.0.reply(request, sink).await
            })
        }
        fn forget(&self, session: &Session) {
            self.0.forget(session);
        }
    }
    let text = "
id: chorus
agents: {a: {}, b: {}, c: {}}
phases: [{ name: chorus, agents: [a, b, c], order: broadcast, rounds: 2 }]
";
    let folder = tempfile::tempdir().unwrap();
    let together = Together(echo(), tokio::sync::Barrier::new(3));
    let played = play(&scenario(text), Arc::new(together), folder.path(), &RunOptions::default()).unwrap();
    assert_eq!(played.n_written, 6);
}
