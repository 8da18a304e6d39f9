//! What reaches a run from outside while it plays: pause and step, the end, and answers of humans.

use crate::backend::{BoxFuture, HumanSeat, Question, Terminal};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};

/// Controls a run; its copies control the same one. Nothing that is done with it changes what is said: a run
/// that is paused goes on as if it had not been.
#[derive(Clone, Debug)]
pub struct Control(Arc<ControlInner>);

#[derive(Debug)]
struct ControlInner {
    pace: watch::Sender<Pace>,
    seat: Seat,
    /// True if humans may also answer by [`Control::answer`].
    is_remote: bool,
    asked: Mutex<Option<(Question, oneshot::Sender<String>)>>,
    /// True if the latest answer did not come from the terminal: what is typed there was meant for its question.
    is_late: AtomicBool,
}

/// Where humans answer besides.
enum Seat {
    Nowhere,
    Terminal(Terminal),
    /// The program that plays the run answers for them.
    Program(Arc<dyn HumanSeat>),
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nowhere => "Nowhere",
            Self::Terminal(_) => "Terminal",
            Self::Program(_) => "Program",
        })
    }
}

/// How a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Playing,
    /// So many turns may begin; those that have begun end.
    Paused(usize),
    Stopped,
}

/// Why an answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No human is asked in that turn.
    #[error("no human is asked in `{0}` now")]
    NotAsked(String),
    /// It is not an answer to the question; the human is still asked.
    #[error("{0}")]
    Wrong(String),
}

impl Default for Control {
    /// A run in which humans answer at the terminal.
    fn default() -> Self {
        Self::new(Seat::Terminal(Terminal::default()), false)
    }
}

impl Control {
    fn new(seat: Seat, is_remote: bool) -> Self {
        let (pace, asked, is_late) =
            (watch::Sender::new(Pace::Playing), Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(ControlInner { pace, seat, is_remote, asked, is_late }))
    }

    /// A run in which humans answer by [`Control::answer`], and also at the terminal if it has one.
    pub fn remote(has_terminal: bool) -> Self {
        Self::new(if has_terminal { Seat::Terminal(Terminal::default()) } else { Seat::Nowhere }, true)
    }

    /// A run in which a program answers for humans.
    pub fn seated(seat: Arc<dyn HumanSeat>) -> Self {
        Self::new(Seat::Program(seat), false)
    }

    /// No further turn begins.
    pub fn pause(&self) {
        self.set(Pace::Paused(0));
    }

    /// One more turn may begin, after which the run is paused.
    pub fn step(&self) {
        self.change(|pace| match pace {
            Pace::Paused(n) => Pace::Paused(n.saturating_add(1)),
            _ => Pace::Paused(1),
        });
    }

    /// All turns may begin.
    pub fn resume(&self) {
        self.set(Pace::Playing);
    }

    /// The run ends as if it were interrupted.
    pub fn stop(&self) {
        self.set(Pace::Stopped);
    }

    fn set(&self, new: Pace) {
        self.change(|_| new);
    }

    fn change(&self, new: impl FnOnce(Pace) -> Pace) {
        self.0.pace.send_if_modified(|pace| {
            let before = *pace;
            if before != Pace::Stopped {
                *pace = new(before);
            }
            *pace != before
        });
    }

    /// Ready once the run is to end.
    pub async fn stopped(&self) {
        // The sender lives as long as this does.
        let _ = self.0.pace.subscribe().wait_for(|pace| *pace == Pace::Stopped).await;
    }

    /// True if the run is to end.
    pub fn is_stopped(&self) -> bool {
        *self.0.pace.borrow() == Pace::Stopped
    }

    /// True if no turn may begin.
    pub fn is_paused(&self) -> bool {
        *self.0.pace.borrow() == Pace::Paused(0)
    }

    /// True if the run waits for somebody: it is paused, or a human is asked.
    pub fn waits(&self) -> bool {
        self.is_paused() || self.asked().is_some()
    }

    /// Changes of the pace from now on.
    pub(super) fn changes(&self) -> PaceChanges {
        PaceChanges(self.0.pace.subscribe())
    }

    /// A turn begins.
    pub(super) fn begins(&self) {
        self.0.pace.send_if_modified(|pace| match pace {
            Pace::Paused(n) if *n > 0 => {
                *n -= 1;
                *n == 0
            }
            _ => false,
        });
    }

    /// Answers the question of a turn.
    ///
    /// # Errors
    /// No human is asked in that turn now, or this is no answer to the question.
    pub fn answer(&self, path: &str, line: &str) -> Result<(), AnswerError> {
        let mut asked = self.asked();
        let not_asked = || AnswerError::NotAsked(path.to_string());
        let (question, _) = asked.as_ref().filter(|(it, _)| it.path == path).ok_or_else(not_asked)?;
        let reply = question.read(line).map_err(AnswerError::Wrong)?;
        let sent = asked.take().map(|(_, answer)| answer.send(reply));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(not_asked()) }
    }

    fn asked(&self) -> MutexGuard<'_, Option<(Question, oneshot::Sender<String>)>> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes of the pace.
pub(super) struct PaceChanges(watch::Receiver<Pace>);

impl PaceChanges {
    /// Ready at the next one.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// A question that is open; it is closed when this is dropped.
struct OpenQuestion<'a>(&'a Control);

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        *self.0.asked() = None;
    }
}

impl HumanSeat for Control {
    fn ask(&self, question: Question) -> BoxFuture<'_, anyhow::Result<String>> {
        let (answer, answered) = oneshot::channel();
        if self.0.is_remote {
            // At once: anybody who is shown the question may answer it.
            *self.asked() = Some((question.clone(), answer));
        }
        let open = OpenQuestion(self);
        Box::pin(async move {
            let _open = open;
            let here = async {
                match &self.0.seat {
                    Seat::Nowhere => std::future::pending().await,
                    Seat::Program(seat) => seat.ask(question).await,
                    Seat::Terminal(terminal) => {
                        if self.0.is_late.swap(false, Ordering::Relaxed) {
                            terminal.forget_typed().await;
                        }
                        terminal.ask(question).await
                    }
                }
            };
            if !self.0.is_remote {
                return here.await;
            }
            tokio::pin!(here, answered);
            let here = tokio::select! {
                biased;
                reply = &mut answered => Err(reply?),
                here = &mut here => Ok(here),
            };
            match here {
                Ok(Ok(reply)) => Ok(reply),
                Err(reply) => {
                    self.0.is_late.store(true, Ordering::Relaxed);
                    Ok(reply)
                }
                // The terminal was closed.
                Ok(Err(_)) => Ok(answered.await?),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        let options = vec!["Cooperate".to_string(), "Defect".to_string()];
        let heard = "And now?".to_string();
        Question { path: "yard/1/ann".to_string(), heard, options, ..Question::default() }
    }

    #[test]
    fn an_answer_is_one_of_the_question_asked() {
        let control = Control::remote(false);
        let not_asked = |path: &str| Err(AnswerError::NotAsked(path.to_string()));
        assert_eq!(control.answer("yard/1/ann", "2"), not_asked("yard/1/ann"));
        let asked = control.ask(question());
        assert!(control.waits());
        assert_eq!(control.answer("yard/1/ben", "2"), not_asked("yard/1/ben"));
        let wrong = control.answer("yard/1/ann", "3").unwrap_err();
        assert_eq!(wrong.to_string(), "`3` is not an option; enter the number or the text of one");
        assert_eq!(control.answer("yard/1/ann", " defect "), Ok(()));
        assert!(!control.waits());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(asked).unwrap(), "Defect");
    }

    #[test]
    fn a_step_allows_one_turn_and_a_stop_is_final() {
        let control = Control::default();
        control.step();
        control.step();
        for paused in [false, true] {
            control.begins();
            assert_eq!(control.is_paused(), paused);
        }
        control.resume();
        control.begins();
        assert!(!control.is_paused());
        control.stop();
        control.resume();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(control.stopped());
    }
}
