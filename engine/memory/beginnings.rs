//! Rows of blocks in which first prompts part, by content: sessions that begin alike share whole blocks, and with these also the
//! beginning of the next one.
//!
//! A first prompt leaves a copy of the f16 rows of two blocks: the one in which its first message ends (a system text that many agents
//! have in common), and the one in which it ends itself (all of it, where a run is repeated). A session that is new goes on behind the
//! rows that it has in common with one of them, in steps of [`STEP`] tokens. Rows depend on the ids before them alone, so they are the
//! bits that it would compute. They are in memory only: in a part of its budget, and the first to go where there is no room.

use super::Memory;
use super::session::Session;
use crate::SessionKey;
use crate::kv::layout::BLOCK;
use crate::kv::table::{BlockHash, RowsId};
use crate::text::prefix::{Segment, SegmentKind};
use std::collections::VecDeque;

/// Copied rows, the least recently used first.
#[derive(Default)]
pub(super) struct Beginnings(VecDeque<Beginning>);

/// The first rows of a block, which may have sealed since where they come from.
struct Beginning {
    /// Session that they were copied from.
    session: SessionKey,
    /// Address of the block before, or the root of the session's addresses.
    before: BlockHash,
    /// Ids of the rows' tokens.
    ids: Vec<u32>,
    rows: RowsId,
}

/// Rows are shared in multiples of so many: what every prompt of a chat template has in common is not worth a copy.
const STEP: usize = 32;

/// Share of the budget that they may take.
const SHARE: u64 = 16;

impl Beginnings {
    /// The entry that has the most tokens in common with `ids` behind the block `before`, and how many.
    fn find(&self, before: BlockHash, ids: &[u32]) -> Option<(usize, usize)> {
        let here = self.0.iter().enumerate().filter(|(_, beginning)| beginning.before == before);
        let found = here.map(|(i, beginning)| (i, n_common(&beginning.ids, ids) / STEP * STEP));
        found.filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    /// Makes an entry the most recently used one.
    fn touch(&mut self, i: usize) {
        let used = self.0.remove(i);
        self.0.extend(used);
    }

    fn n_tokens(&self) -> usize {
        self.0.iter().map(|beginning| beginning.ids.len()).sum()
    }
}

impl Memory {
    /// Appends to a session that is new the rows that it has in common with earlier ones, behind the blocks that it shares with them,
    /// and marks the blocks whose rows it is to leave itself.
    pub(super) fn begin_alike(&mut self, session: &mut Session, prompt: &[Segment]) {
        let ends = end_of_first_message(prompt).into_iter().chain([session.tokens.len()]);
        session.sequence.mark(ends.map(|end| end / BLOCK));
        if session.sequence.open_rows().is_some() {
            return;
        }
        let at = session.sequence.len();
        let ids = &session.tokens[at..];
        if let Some((i, n)) = self.beginnings.find(session.sequence.end(), &ids[..ids.len().min(BLOCK - 1)]) {
            let rows = self.arena.copy_rows(self.beginnings.0[i].rows, n);
            session.sequence.push_rows(rows, n);
            self.beginnings.touch(i);
        }
    }

    /// Copies the marked rows of a session that reads its first prompt, of `n` tokens, once all of them are there, as far as none
    /// like them are here.
    pub(crate) fn leave_beginning(&mut self, key: &SessionKey, session: &mut Session, n: usize) {
        let marked = session.sequence.take_marked(n);
        if marked.is_empty() {
            return;
        }
        for (block, before, rows) in marked {
            let ids = &session.tokens[block * BLOCK..n.min((block + 1) * BLOCK)];
            let most = ids.len() / STEP * STEP;
            match self.beginnings.find(before, ids) {
                _ if most == 0 => continue,
                Some((i, n)) if n == most => {
                    self.beginnings.touch(i);
                    continue;
                }
                _ => {}
            }
            let rows = self.arena.copy_rows(rows, most);
            let ids = ids[..most].to_vec();
            self.beginnings.0.push_back(Beginning { session: key.clone(), before, ids, rows });
        }
        let most = self.budget() / SHARE;
        while (self.beginnings.n_tokens() * self.context.layout.row_bytes()) as u64 > most {
            self.evict_beginning();
        }
    }

    /// Lets go of the rows that nobody has asked for the longest; `false`: there are none.
    pub(super) fn evict_beginning(&mut self) -> bool {
        let gone = self.beginnings.0.pop_front();
        gone.map(|beginning| self.arena.release_rows(beginning.rows)).is_some()
    }

    /// Lets go of rows that a session left.
    pub(super) fn drop_beginnings(&mut self, key: &SessionKey) {
        let arena = &mut self.arena;
        self.beginnings.0.retain(|beginning| {
            let stays = beginning.session != *key;
            if !stays {
                arena.release_rows(beginning.rows);
            }
            stays
        });
    }
}

/// Tokens of a prompt up to the end of its first message; `None`: it has no messages.
fn end_of_first_message(prompt: &[Segment]) -> Option<usize> {
    let first = prompt.iter().position(|segment| segment.kind == SegmentKind::Message)?;
    Some(prompt[..=first].iter().map(|segment| segment.ids.len()).sum())
}

/// Tokens that two sequences of ids begin with alike.
fn n_common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
