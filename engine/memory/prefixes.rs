//! Prefixes that first prompts share within a block.
//!
//! New sessions share sealed blocks by content. What two prompts have in common of the block in which they
//! part is shared here: a first prompt leaves a copy of the f16 rows of two blocks, the one in which its
//! first message ends (a system prompt of many agents) and the one in which the prompt itself ends (a
//! repeated run). A new session continues after the rows that it has in common with one of them, in steps of
//! [`STEP`] tokens. Rows depend only on the ids before them, so they have the bits that it would compute.
//! Copies are in memory only: in a part of its budget, and the first to be evicted.

use super::Memory;
use super::arena::Arena;
use super::session::Session;
use crate::SessionKey;
use crate::kv::layout::BLOCK;
use crate::kv::table::{BlockHash, RowsId};
use crate::text::prefix::common_prefix;
use std::collections::VecDeque;

/// Copies of rows, the least recently used first.
#[derive(Default)]
pub(super) struct Prefixes(VecDeque<Prefix>);

/// The first rows of a block; where they were copied from it may have sealed since.
struct Prefix {
    /// Session that they were copied from.
    session: SessionKey,
    /// Address of the block before, or the root of the session's addresses.
    before: BlockHash,
    /// Ids of the rows' tokens.
    ids: Vec<u32>,
    rows: RowsId,
}

/// Rows are shared in multiples of this number: the few tokens with which all prompts of a chat template
/// begin are not worth a copy.
const STEP: usize = 32;

/// Copies take at most one part in so many of the budget.
const SHARE: u64 = 16;

impl Prefixes {
    /// The entry that has the most tokens in common with `ids` after the block `before`, and how many.
    fn find(&self, before: BlockHash, ids: &[u32]) -> Option<(usize, usize)> {
        let here = self.0.iter().enumerate().filter(|(_, prefix)| prefix.before == before);
        let found = here.map(|(i, prefix)| (i, common_prefix(&prefix.ids, ids) / STEP * STEP));
        found.filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    /// Makes an entry the most recently used one.
    fn touch(&mut self, i: usize) {
        let used = self.0.remove(i);
        self.0.extend(used);
    }

    fn n_tokens(&self) -> usize {
        self.0.iter().map(|prefix| prefix.ids.len()).sum()
    }

    /// Appends to a new session, after the blocks that it shares with earlier ones, the rows that it has in
    /// common with one of them, and marks the blocks whose rows it will leave itself. `first_message`: tokens
    /// up to the end of the prompt's first message, if it has messages.
    pub(super) fn reuse(&mut self, session: &mut Session, first_message: Option<usize>, arena: &mut Arena) {
        let ends = first_message.into_iter().chain([session.tokens.len()]);
        session.sequence.mark(ends.map(|end| end / BLOCK));
        if session.sequence.open_rows().is_some() {
            return;
        }
        let at = session.sequence.len();
        let ids = &session.tokens[at..];
        if let Some((i, n)) = self.find(session.sequence.end(), &ids[..ids.len().min(BLOCK - 1)]) {
            let rows = arena.copy_rows(self.0[i].rows, n);
            session.sequence.push_rows(rows, n);
            self.touch(i);
        }
    }

    /// Copies the marked rows of a session that reads its first prompt, of `n` tokens, as soon as all of them
    /// are computed, unless there are such copies already; they take at most `most` tokens' rows.
    fn keep(&mut self, key: &SessionKey, session: &mut Session, n: usize, most: usize, arena: &mut Arena) {
        for (block, before, rows) in session.sequence.take_marked(n) {
            let ids = &session.tokens[block * BLOCK..n.min((block + 1) * BLOCK)];
            let ids = &ids[..ids.len() / STEP * STEP];
            match self.find(before, ids) {
                _ if ids.is_empty() => continue,
                Some((i, common)) if common == ids.len() => {
                    self.touch(i);
                    continue;
                }
                // All of it is a part of the new one.
                Some((i, common)) if common == self.0[i].ids.len() => self.remove(i, arena),
                _ => {}
            }
            let rows = arena.copy_rows(rows, ids.len());
            self.0.push_back(Prefix { session: key.clone(), before, ids: ids.to_vec(), rows });
        }
        while self.n_tokens() > most {
            self.evict(arena);
        }
    }

    fn remove(&mut self, i: usize, arena: &mut Arena) {
        if let Some(prefix) = self.0.remove(i) {
            arena.release_rows(prefix.rows);
        }
    }

    /// Drops the least recently used copy; `false`: there is none.
    pub(super) fn evict(&mut self, arena: &mut Arena) -> bool {
        let any = !self.0.is_empty();
        self.remove(0, arena);
        any
    }

    /// Drops the copies that a session left.
    pub(super) fn forget(&mut self, key: &SessionKey, arena: &mut Arena) {
        while let Some(i) = self.0.iter().position(|prefix| prefix.session == *key) {
            self.remove(i, arena);
        }
    }
}

impl Memory {
    /// Leaves copies of what a session has read of its first prompt, of `n` tokens, to new sessions.
    pub(crate) fn keep_prefix(&mut self, key: &SessionKey, session: &mut Session, n: usize) {
        let most = self.budget() / SHARE / self.context.layout.row_bytes().max(1) as u64;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.prefixes.keep(key, session, n, most, &mut self.arena);
    }
}
