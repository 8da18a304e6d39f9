//! What people see of a run.

use crate::play::{SMALL, scenario};
use greenroom::backend::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Scripted, Session, Sink};
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::compile;
use greenroom::terminal::{Dialogue, Page};
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Streams each reply character by character, as a model would, so that parallel turns mix.
struct Streaming(Scripted);

impl Backend for Streaming {
    fn card(&self) -> ModelCard {
        self.0.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            let reply = self.0.reply(request, Box::new(|_| ())).await?;
            for c in reply.text.chars() {
                sink(Progress::Text(c.to_string()));
                tokio::task::yield_now().await;
            }
            Ok(reply)
        })
    }
    fn forget(&self, _session: &Session) {}
}

fn shown(width: Option<usize>) -> String {
    let scenario = scenario(SMALL);
    let kept = Kept::default();
    let page = Page::new(Box::new(kept.clone()), width);
    let mut dialogue = Dialogue::on(page, false, scenario.clone(), Arc::new(compile(&scenario)));
    dialogue.title();
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
        Arc::new(Streaming(backend)),
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
    insta::assert_snapshot!(shown(None));
}

#[test]
fn a_narrow_terminal_gets_wrapped_lines() {
    insta::assert_snapshot!(shown(Some(32)));
}
