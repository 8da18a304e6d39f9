//! Writes a transcript, or compares what would be written with the existing file.

use super::drift::{Cause, Drift};
use super::read::{Recorded, Transcript};
use super::record::{ChoiceRecord, Footer, FormRecord, Header, InterTurnRecord, Line, TurnRecord};
use anyhow::{Context as _, bail};
use greenroom_scenario::files;
use greenroom_scenario::text_of;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Takes the lines of a run in plan order. Lines that are recorded already are compared; later ones are
/// appended, and are on disk after the next [`Recorder::sync`], or refused if there is nothing to append to.
#[derive(Debug)]
pub struct Recorder {
    file: Option<(File, PathBuf)>,
    recorded: Vec<Recorded<TurnRecord>>,
    between: Vec<Recorded<InterTurnRecord>>,
    footer: Option<Recorded<Footer>>,
    /// True if the recording is by the first rules ([`super::RULES`]).
    by_first_rules: bool,
    n_turns: usize,
    n_between: usize,
    /// The last line, from 1, that was taken.
    line: usize,
    hash: String,
    /// True if all lines are on disk.
    is_synced: bool,
}

impl Recorder {
    /// Starts a new file.
    ///
    /// # Errors
    /// The file exists or can't be written.
    pub fn create(path: &Path, header: Header) -> anyhow::Result<Self> {
        let file = files::open_to_write(path, OpenOptions::new().write(true).create_new(true));
        let file = file.with_context(|| format!("can't create {}", path.display()))?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            files::sync_folder(folder).with_context(|| format!("can't sync {}", folder.display()))?;
        }
        let file = Some((file, path.to_path_buf()));
        let (recorded, between, hash) = Default::default();
        let by_first_rules = header.is_by_first_rules();
        let (footer, n_turns, n_between, line, is_synced) = Default::default();
        let mut recorder = Self {
            file,
            recorded,
            between,
            footer,
            by_first_rules,
            n_turns,
            n_between,
            line,
            hash,
            is_synced,
        };
        recorder.append(&Line::Header(Box::new(header)))?;
        recorder.sync()?;
        Ok(recorder)
    }

    /// Continues an interrupted file: a torn line, and what follows it, is cut off. If that is more than
    /// the beginning of a line, the file as it was is kept beside it (`transcript.torn.jsonl`).
    ///
    /// # Errors
    /// The run was made with other settings, is complete or damaged, or the file can't be written.
    pub fn resume(path: &Path, transcript: &Transcript, header: &Header) -> anyhow::Result<Self> {
        let settings = same_settings(&transcript.header.record, header);
        if let Some(footer) = &transcript.footer {
            let others = if settings.is_err() { " and had other settings" } else { "" };
            bail!(
                "{}: this run is complete ({} turns){others}; to play it again, leave out --resume and choose \
                 another --out",
                path.display(),
                footer.record.turns
            );
        }
        settings?;
        let turns = transcript.turns.iter().filter(|turn| !turn.intact);
        let between = transcript.between.iter().filter(|line| !line.intact);
        let broken = turns.map(|turn| (turn.line, turn.record.path.as_str()));
        let broken = broken.chain(between.map(|line| (line.line, line.record.path()))).min();
        if let Some((line, path)) = broken.filter(|_| transcript.header.intact) {
            let detail = "the line does not match its hash, so the run can't continue from it";
            return Err(Drift::new(path, Cause::RecordAltered, detail).at_line(line).into());
        }
        if !transcript.header.intact {
            let detail = "the header does not match its hash";
            return Err(Drift::new("header", Cause::RecordAltered, detail).at_line(1).into());
        }
        let can_not = || format!("can't write {}", path.display());
        let file = files::open_to_write(path, OpenOptions::new().append(true)).with_context(can_not)?;
        if transcript.goes_on {
            files::copy_new(path, &path.with_extension("torn.jsonl"))?;
        }
        file.set_len(transcript.whole_bytes).with_context(can_not)?;
        file.sync_all().with_context(can_not)?;
        Ok(Self { file: Some((file, path.to_path_buf())), ..Self::verify(transcript) })
    }

    /// Compares only: nothing is ever written.
    pub fn verify(transcript: &Transcript) -> Self {
        Self {
            file: None,
            recorded: transcript.turns.clone(),
            between: transcript.between.clone(),
            footer: transcript.footer.clone(),
            by_first_rules: transcript.header.record.is_by_first_rules(),
            n_turns: 0,
            n_between: 0,
            line: 1,
            hash: transcript.header.hash.clone(),
            is_synced: true,
        }
    }

    /// Takes the next turn. True if it was appended, false if it was there already.
    ///
    /// # Errors
    /// [`Drift`] if a recorded line differs; else the disk's.
    pub fn turn(&mut self, record: TurnRecord) -> anyhow::Result<bool> {
        self.nothing_is_between()?;
        let at = self.n_turns;
        self.n_turns += 1;
        let Some(recorded) = self.recorded.get(at) else {
            if self.file.is_none() {
                let detail = "the recording ends before this turn";
                return Err(Drift::new(record.path, Cause::LineMissing, detail).into());
            }
            self.append(&Line::Turn(Box::new(record)))?;
            return Ok(true);
        };
        if let Some(drift) = compare(recorded, &record, self.by_first_rules) {
            return Err(drift.into());
        }
        self.hash.clone_from(&recorded.hash);
        self.line = recorded.line;
        Ok(false)
    }

    /// Takes the next line between turns.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn between(&mut self, record: InterTurnRecord) -> anyhow::Result<()> {
        let found = self.between.get(self.n_between).filter(|found| found.line == self.line + 1);
        let Some(recorded) = found else {
            let is_over = self.recorded.len() <= self.n_turns && self.between.len() <= self.n_between;
            if is_over && self.footer.is_none() && self.file.is_some() {
                return self.append(&Line::from(record));
            }
            let (next, what) = (self.between.get(self.n_between), record.what());
            let (cause, detail) = if is_over && self.footer.is_none() {
                (Cause::NoFooter, format!("the recording ends before this {what}"))
            } else if next.is_some_and(|found| is_same(&found.record, &record)) {
                (Cause::Order, format!("the recording has this {what} further down"))
            } else {
                (Cause::LineMissing, format!("the line of this {what} is missing"))
            };
            return Err(Drift::new(record.path(), cause, detail).at_line(self.line + 1).into());
        };
        if !is_same(&recorded.record, &record) {
            return Err(self.elsewhere(recorded, &record).into());
        }
        if let Some(drift) = other_between(recorded, &record)? {
            return Err(drift.into());
        }
        self.hash.clone_from(&recorded.hash);
        self.line = recorded.line;
        self.n_between += 1;
        Ok(())
    }

    /// What happened where another line is recorded than the one that is due now.
    fn elsewhere(&self, found: &Recorded<InterTurnRecord>, now: &InterTurnRecord) -> Drift {
        let was = &found.record;
        let is_later = self.between[self.n_between..].iter().any(|line| is_same(&line.record, now));
        let is_again = self.between[..self.n_between].iter().any(|line| is_same(&line.record, was));
        let (cause, path) = match (is_later, is_again) {
            (false, _) => (Cause::LineMissing, now.path()),
            (true, true) => (Cause::LineTooMany, was.path()),
            (true, false) => (Cause::Order, now.path()),
        };
        let detail = format!("the recording has the {} of {} here", was.what(), was.path());
        Drift::new(path, cause, detail).at_line(found.line).texts(was.path(), now.path())
    }

    /// Refuses a recorded line between turns that is not due any more.
    fn nothing_is_between(&self) -> Result<(), Drift> {
        let next = self.between.get(self.n_between).filter(|found| found.line == self.line + 1);
        next.map_or(Ok(()), |found| {
            let detail = match &found.record {
                InterTurnRecord::State(_) => "the state no longer changes here",
                InterTurnRecord::Route(_) => "the plan has no route here now",
            };
            Err(Drift::new(found.record.path(), Cause::LineTooMany, detail).at_line(found.line))
        })
    }

    /// Takes the end of the run; returns the hash of all lines.
    ///
    /// # Errors
    /// [`Drift`] where the recording ends otherwise; else the disk's.
    pub fn footer(&mut self, footer: Footer) -> anyhow::Result<String> {
        self.nothing_is_between()?;
        if let Some(extra) = self.recorded.get(self.n_turns) {
            let detail = "the plan no longer has this turn";
            let drift = Drift::new(&extra.record.path, Cause::LineTooMany, detail);
            return Err(drift.at_line(extra.line).into());
        }
        if self.file.is_some() {
            self.append(&Line::Footer(footer))?;
            self.sync()?;
            return Ok(self.hash.clone());
        }
        let Some(recorded) = &self.footer else {
            let detail = format!("no footer: the recording ends after {} turns", self.n_turns);
            return Err(Drift::new("footer", Cause::NoFooter, detail).into());
        };
        let drift = if recorded.intact {
            other_result(&recorded.record, &footer)?
        } else {
            let (was, now) = (serde_json::to_string(&recorded.record)?, serde_json::to_string(&footer)?);
            let detail = "the footer does not match the lines above it";
            Some(Drift::new("footer", Cause::RecordAltered, detail).texts(was, now))
        };
        match drift {
            Some(drift) => Err(drift.at_line(recorded.line).into()),
            None => Ok(recorded.hash.clone()),
        }
    }

    fn append(&mut self, line: &Line) -> anyhow::Result<()> {
        let Some((file, path)) = &mut self.file else { bail!("this recording is read only") };
        let (hash, text) = line.chained(&self.hash)?;
        file.write_all(text.as_bytes()).with_context(|| format!("can't write {}", path.display()))?;
        self.hash = hash;
        self.is_synced = false;
        Ok(())
    }

    /// Waits until all lines are on disk.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&mut self) -> anyhow::Result<()> {
        if let Some((file, path)) = self.file.as_ref().filter(|_| !self.is_synced) {
            file.sync_data().with_context(|| format!("can't write {}", path.display()))?;
        }
        self.is_synced = true;
        Ok(())
    }
}

/// Tells whether two lines are of the same kind and place.
fn is_same(a: &InterTurnRecord, b: &InterTurnRecord) -> bool {
    a.path() == b.path() && a.what() == b.what()
}

/// Describes the difference of a recorded line between turns.
fn other_between(
    recorded: &Recorded<InterTurnRecord>,
    now: &InterTurnRecord,
) -> serde_json::Result<Option<Drift>> {
    let was = &recorded.record;
    let (cause, detail) = match (was == now, recorded.intact) {
        (true, true) => return Ok(None),
        (true, false) => (Cause::RecordAltered, "the line does not match its hash, or the lines before it"),
        (false, intact) => match (was, intact) {
            (InterTurnRecord::State(_), true) => (Cause::ResultsChanged, "the state differs"),
            (InterTurnRecord::State(_), false) => {
                (Cause::RecordAltered, "the state does not follow from what was said")
            }
            (InterTurnRecord::Route(_), true) => (Cause::ResultsChanged, "these scores pick other agents"),
            (InterTurnRecord::Route(_), false) => {
                (Cause::RecordAltered, "the agents picked do not follow from the scores")
            }
        },
    };
    let shown = |line: &InterTurnRecord| match line {
        InterTurnRecord::State(record) => serde_json::to_string_pretty(&record.set),
        InterTurnRecord::Route(record) => serde_json::to_string_pretty(record),
    };
    Ok(Some(Drift::new(now.path(), cause, detail).at_line(recorded.line).texts(shown(was)?, shown(now)?)))
}

/// Describes the first difference between a recorded turn and the same turn now.
fn compare(recorded: &Recorded<TurnRecord>, now: &TurnRecord, by_first_rules: bool) -> Option<Drift> {
    let was = &recorded.record;
    let drift = |cause, detail: &str| Some(Drift::new(&now.path, cause, detail).at_line(recorded.line));
    if was.path != now.path || was.agent != now.agent {
        let detail = format!("the line belongs to {} (agent `{}`)", was.path, was.agent);
        return drift(Cause::Order, &detail);
    }
    if was.delta != now.delta {
        let cause = if recorded.intact { Cause::PromptChanged } else { Cause::RecordAltered };
        let found = drift(cause, "what the agent reads differs");
        return found.map(|found| found.texts(&was.delta, &now.delta));
    }
    // Only the replies of rules are computed again.
    if was.raw != now.raw && recorded.intact {
        let found =
            drift(Cause::RuleChanged, "what is said differs; this agent is played by a rule, not by a model");
        return found.map(|found| found.texts(&was.raw, &now.raw));
    }
    if was.spoken != now.spoken {
        let found = match by_first_rules && recorded.intact {
            true => drift(Cause::ReadingChanged, "an earlier version took another part of it as spoken"),
            false => drift(Cause::RecordAltered, "what others heard is not what was sampled"),
        };
        return found.map(|found| found.texts(&was.spoken, &now.spoken));
    }
    if was.hints != now.hints && recorded.intact {
        let found = drift(Cause::Settings, "the scenario's settings for the reply differ");
        return found.map(|found| found.texts(was.hints.words(), now.hints.words()));
    }
    if was.seed != now.seed {
        let found = drift(Cause::Settings, "the turn has a different seed");
        return found.map(|found| found.texts(was.seed.to_string(), now.seed.to_string()));
    }
    if let (Some(was), Some(now)) = (&was.call, &now.call)
        && was != now
    {
        let (cause, detail) = match recorded.intact {
            true => (Cause::ToolsChanged, "the tool returns something else now"),
            false => (Cause::RecordAltered, "the recorded result is not what the tool returns"),
        };
        return drift(cause, detail).map(|found| found.texts(&was.result, &now.result));
    }
    if !recorded.intact {
        return drift(
            Cause::RecordAltered,
            "the reply (ids, text or stop reason) does not match the line's hash",
        );
    }
    if was.form != now.form {
        let (was, now) = (was.form.as_ref(), now.form.as_ref());
        let (cause, detail) = other_form(was, now);
        let read = |form: Option<&FormRecord>| form.map_or(String::new(), |form| form.value.to_string());
        return drift(cause, &detail).map(|found| found.texts(read(was), read(now)));
    }
    if was.constraint != now.constraint {
        let (was, now) = (was.constraint.as_ref(), now.constraint.as_ref());
        let (cause, detail) = other_choice(was, now, by_first_rules);
        return drift(cause, &detail).map(|found| found.texts(listed(was), listed(now)));
    }
    if was != now {
        return drift(
            Cause::RecordAltered,
            "the reply has ids or a stop reason that a rule's reply can't have",
        );
    }
    None
}

/// The difference between the recorded form of a reply and its form now.
fn other_form(was: Option<&FormRecord>, now: Option<&FormRecord>) -> (Cause, String) {
    let (Some(was), Some(now)) = (was, now) else {
        return (Cause::FormChanged, "the reply has a form in only one of recording and scenario".into());
    };
    if (&was.kind, &was.blake3) == (&now.kind, &now.blake3) {
        return (
            Cause::RecordAltered,
            format!("the reply is read as {}, but {} is recorded", now.value, was.value),
        );
    }
    let kind = if now.kind == "schema" { "schema" } else { "grammar" };
    match &now.invalid {
        Some(reason) => {
            (Cause::FormChanged, format!("the recorded reply does not match the current {kind}: {reason}"))
        }
        None => (Cause::FormChanged, format!("the {kind} has changed; the recorded reply matches it too")),
    }
}

/// The difference between a recorded choice and the same choice now. The prompt, which is the same, gives the
/// options' texts, but not their values.
fn other_choice(
    was: Option<&ChoiceRecord>,
    now: Option<&ChoiceRecord>,
    by_first_rules: bool,
) -> (Cause, String) {
    let texts = |choice: &ChoiceRecord| choice.options.iter().map(|o| o.text.clone()).collect::<Vec<_>>();
    let (Some(was), Some(now)) = (was, now) else {
        return (Cause::RecordAltered, "it is a choice in only one of recording and scenario".into());
    };
    if (&was.method, texts(was)) != (&now.method, texts(now)) {
        return (Cause::RecordAltered, "its options are not those that the agent read".into());
    }
    let pairs = was.options.iter().zip(&now.options).filter(|(was, now)| was.value != now.value);
    let renamed: Vec<String> = pairs
        .map(|(was, now)| format!("option `{}` is now called `{}`", text_of(&was.value), text_of(&now.value)))
        .collect();
    if !renamed.is_empty() {
        return (Cause::ChoiceChanged, renamed.join(", "));
    }
    let is_parsed = now.method == "parse";
    let (was, now) = (text_of(&was.chosen), text_of(&now.chosen));
    if by_first_rules && is_parsed {
        let detail = format!("an earlier version read the reply as `{was}`; now it is read as `{now}`");
        return (Cause::ReadingChanged, detail);
    }
    (Cause::RecordAltered, format!("the reply is read as `{now}`, but `{was}` is recorded"))
}

/// The options of a choice, a line each, and what was chosen.
fn listed(choice: Option<&ChoiceRecord>) -> String {
    let Some(choice) = choice else { return String::new() };
    let options = choice.options.iter();
    let options = options.map(|option| format!("{}: {}\n", text_of(&option.value), option.text));
    format!("{}chosen: {}", options.collect::<String>(), text_of(&choice.chosen))
}

/// The first result that is another one, causes first. What is asserted may change: it is evaluated again,
/// and nothing was said by it.
fn other_result(was: &Footer, now: &Footer) -> serde_json::Result<Option<Drift>> {
    let counts = |footer: &Footer| [footer.turns, footer.skipped, footer.choices, footer.invalid];
    if counts(was) != counts(now) {
        return drift("footer".into(), counts(was), counts(now));
    }
    for (phase, decision) in &was.decisions {
        if now.decisions.get(phase) != Some(decision) {
            return drift(format!("decisions.{phase}"), Some(decision), now.decisions.get(phase));
        }
    }
    if was.payoffs != now.payoffs {
        return drift("payoff".into(), &was.payoffs, &now.payoffs);
    }
    for at in 0..was.outcomes.len().max(now.outcomes.len()) {
        let (was, now) = (was.outcomes.get(at), now.outcomes.get(at));
        if was != now {
            let name = now.or(was).map_or("", |outcome| outcome.name.as_str());
            return drift(format!("outcome.{name}"), was, now);
        }
    }
    if was.decisions == now.decisions {
        Ok(None)
    } else {
        drift("decisions".into(), &was.decisions, &now.decisions)
    }
}

fn drift<T: serde::Serialize>(path: String, was: T, now: T) -> serde_json::Result<Option<Drift>> {
    let (was, now) = (serde_json::to_string_pretty(&was)?, serde_json::to_string_pretty(&now)?);
    let drift = Drift::new(path, Cause::ResultsChanged, "the results of what was said differ");
    Ok(Some(drift.texts(was, now)))
}

/// Reports the setting of a recorded run that has changed: a run continues only with those that it began
/// with.
///
/// # Errors
/// [`Drift`] for the first setting that differs.
pub fn same_settings(recorded: &Header, now: &Header) -> anyhow::Result<()> {
    // A header without `case` has another rule, not another value.
    if recorded.case.is_none() && now.case.is_some() {
        let detail = "an earlier version began the run, with random numbers that all cases share; play it \
                      again in another folder";
        return Err(Drift::new("header", Cause::Settings, detail).into());
    }
    // So is one without `rules`.
    if recorded.is_by_first_rules() && !now.is_by_first_rules() {
        let detail = "an earlier version began the run, by rules that differ from this one's; play it again \
                      in another folder";
        return Err(Drift::new("header", Cause::Settings, detail).into());
    }
    let (was, is) = (serde_json::to_value(recorded)?, serde_json::to_value(now)?);
    let (Some(was), Some(is)) = (was.as_object(), is.as_object()) else { return Ok(()) };
    for (field, value) in was {
        let now = is.get(field).unwrap_or(&serde_json::Value::Null);
        if value != now {
            let detail =
                format!("`{field}` differs from what the run began with; resume with the same settings");
            return Err(Drift::new("header", Cause::Settings, detail)
                .texts(serde_json::to_string_pretty(value)?, serde_json::to_string_pretty(now)?)
                .into());
        }
    }
    Ok(())
}
