//! Checks the parts of a scenario, one after the other: phases, and blocks of them.

use super::Checker;
use super::unroll::{BlockDeclaration, n_unrolled};
use crate::compile::n_turns;
use crate::schema::{WrittenBlock, WrittenPart};
use crate::{Phase, PhaseId};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;

/// Maximum number of turns that a scenario may unroll into.
const MAX_TURNS: usize = 10_000;
/// Most phases, those of a block counted in each pass.
const MAX_PHASES: usize = 2_000;
/// Blocks that may be in each other.
const MAX_DEPTH: usize = 2;

impl Checker {
    pub(super) fn phases(
        &mut self,
        written: Option<Vec<Option<WrittenPart>>>,
        path: &Path,
    ) -> (Vec<Phase>, Vec<BlockDeclaration>) {
        let written = written.unwrap_or_default();
        if written.is_empty() {
            let message = "a scenario needs at least one phase under `phases:`";
            self.missing(path, message, "e.g. `phases: [{ name: talk, agents: [ann, ben] }]`");
        }
        let (mut phases, mut blocks) = (Vec::new(), Vec::new());
        self.parts(written, path, None, (&mut phases, &mut blocks));
        let total = n_unrolled(&blocks, phases.len(), |id| n_turns(&phases[id]));
        if total == 0 && !phases.is_empty() && !self.has_errors() {
            let message = "nobody speaks in this scenario: no phase has rounds or a vote";
            self.missing(path, message, "leave `rounds` out of one of them");
        }
        let n_phases = n_unrolled(&blocks, phases.len(), |_| 1);
        if total > MAX_TURNS || n_phases > MAX_PHASES {
            let message = if total > MAX_TURNS {
                format!("the phases have {total} turns; at most {MAX_TURNS} are allowed")
            } else {
                format!(
                    "there are {n_phases} phases, counting all passes of blocks; at most {MAX_PHASES} are \
                     allowed"
                )
            };
            self.error("too-long", path, message).help =
                Some("lower `rounds` or `repeat`, or set `max_turns`".into());
            // Nothing later unrolls what is refused anyway.
            phases.iter_mut().for_each(|phase| (phase.rounds, phase.decision) = (phase.rounds.min(1), None));
            blocks.iter_mut().for_each(|block| block.n_passes = 1);
        }
        (phases, blocks)
    }

    fn parts(
        &mut self,
        written: Vec<Option<WrittenPart>>,
        path: &Path,
        within: Option<usize>,
        (phases, blocks): (&mut Vec<Phase>, &mut Vec<BlockDeclaration>),
    ) {
        for (at, part) in written.into_iter().enumerate() {
            let path = path.index(at);
            match part {
                Some(WrittenPart::Block(block)) => self.block(block, &path, within, (phases, blocks)),
                Some(WrittenPart::Phase(phase)) => self.named_phase(*phase, &path, phases),
                None => self.named_phase(Default::default(), &path, phases),
            }
        }
    }

    fn named_phase(&mut self, written: crate::schema::WrittenPhase, path: &Path, phases: &mut Vec<Phase>) {
        let phase = self.phase(written, path, PhaseId(phases.len()));
        if let Some(first) = phases.iter().find(|other| other.name == phase.name) {
            let first = self.tree.value(&first.path.key("name"));
            let message = format!("two phases are named `{}`", phase.name);
            let span = self.tree.value(&path.key("name"));
            let found = Diagnostic::error("duplicate-name", path.key("name").to_string(), span, message);
            self.push(found.related(first, "first defined here").help("give each phase its own name"));
        }
        phases.push(phase);
    }

    fn block(
        &mut self,
        written: WrittenBlock,
        path: &Path,
        within: Option<usize>,
        (phases, blocks): (&mut Vec<Phase>, &mut Vec<BlockDeclaration>),
    ) {
        let depth = std::iter::successors(within, |block| blocks[*block].within).count();
        if depth >= MAX_DEPTH {
            let message = "this block is inside two others; blocks can be nested two deep";
            self.error("too-long", path, message).help =
                Some("repeat its phases in one of the two outer blocks".into());
            return;
        }
        let WrittenBlock { repeat, items, until, when, phases: parts } = written;
        let begin = PhaseId(phases.len());
        if items.is_some() && repeat.is_some() {
            let message = "a block is played a number of times (`repeat`) or for each item of a list (`for`)";
            self.error("contradiction", &path.key("for"), message).help =
                Some("remove one of the two".into());
        }
        let is_over_items = items.is_some();
        let (names, items) = items.map(|items| self.items(&items, &path.key("for"))).unwrap_or_default();
        if is_over_items {
            self.names.items.push((path.clone(), names));
        }
        let when = when.and_then(|when| self.expression(when, path.key("when"), begin, &[]));
        let n_passes = match repeat {
            Some(repeat) => self.rounds(repeat, path.key("repeat")),
            None if is_over_items => items.len().max(1),
            None => {
                let message = "a block needs `repeat`, the maximum number of passes, or `for`";
                self.missing(&path.key("repeat"), message, "e.g. `repeat: 5`; `until` may end it earlier");
                1
            }
        };
        if n_passes == 0 && !self.is_broken(&path.key("repeat")) {
            self.error("bad-value", &path.key("repeat"), "a block must be played at least once").help =
                Some("remove the block, or give it a `when`".into());
        }
        let parts = parts.unwrap_or_default();
        if parts.is_empty() {
            let message = "a block needs `phases`: the phases to repeat";
            self.missing(&path.key("phases"), message, "e.g. `phases: [{ name: talk, agents: [ann, ben] }]`");
        }
        let id = blocks.len();
        blocks.push(BlockDeclaration {
            within,
            phases: begin.0..begin.0,
            n_passes: n_passes.max(1),
            items,
            when,
            until: None,
        });
        self.parts(parts, &path.key("phases"), Some(id), (phases, blocks));
        blocks[id].phases.end = phases.len();
        let end = PhaseId(phases.len());
        blocks[id].until = until.and_then(|until| self.expression(until, path.key("until"), end, &[]));
        if blocks[id].until.is_some() && n_passes == 1 {
            let message = "`until` has no effect here: the block has one pass";
            self.unused(&path.key("until"), message, "raise `repeat`");
        }
    }
}
