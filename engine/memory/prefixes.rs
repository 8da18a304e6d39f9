//! Prefixes that first prompts share within a block.
//!
//! New sessions share sealed blocks by content. What two prompts have in common of the block in which they
//! part is shared here: a first prompt leaves a copy of the f16 rows of two blocks, the one in which its
//! first message ends (a system prompt of many agents) and the one in which the prompt itself ends (a
//! repeated run). A new session continues after the rows that it has in common with one of them, in steps of
//! [`STEP`] tokens. Rows depend only on the ids before them, so they have the bits that it would compute.
//! Copies are in memory only: in a part of its budget, and the first to be evicted.

use super::Memory;
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
}

impl Memory {
    /// Appends to a new session, after the blocks that it shares with earlier ones, the rows that it has in
    /// common with one of them, and marks the blocks whose rows it will leave itself. `first_message`: tokens
    /// up to the end of the prompt's first message, if it has messages.
    pub(super) fn reuse_prefix(&mut self, session: &mut Session, first_message: Option<usize>) {
        let ends = first_message.into_iter().chain([session.tokens.len()]);
        session.sequence.mark(ends.map(|end| end / BLOCK));
        if session.sequence.open_rows().is_some() {
            return;
        }
        let at = session.sequence.len();
        let ids = &session.tokens[at..];
        if let Some((i, n)) = self.prefixes.find(session.sequence.end(), &ids[..ids.len().min(BLOCK - 1)]) {
            let rows = self.arena.copy_rows(self.prefixes.0[i].rows, n);
            session.sequence.push_rows(rows, n);
            self.prefixes.touch(i);
        }
    }

    /// Copies the marked rows of a session that reads its first prompt, of `n` tokens, as soon as all of them
    /// are computed, unless there are such copies already.
    pub(crate) fn keep_prefix(&mut self, key: &SessionKey, session: &mut Session, n: usize) {
        let marked = session.sequence.take_marked(n);
        if marked.is_empty() {
            return;
        }
        for (block, before, rows) in marked {
            let ids = &session.tokens[block * BLOCK..n.min((block + 1) * BLOCK)];
            let ids = &ids[..ids.len() / STEP * STEP];
            match self.prefixes.find(before, ids) {
                _ if ids.is_empty() => continue,
                Some((i, common)) if common == ids.len() => {
                    self.prefixes.touch(i);
                    continue;
                }
                // All of it is a part of the new one.
                Some((i, common)) if common == self.prefixes.0[i].ids.len() => self.remove_prefix(i),
                _ => {}
            }
            let rows = self.arena.copy_rows(rows, ids.len());
            self.prefixes.0.push_back(Prefix { session: key.clone(), before, ids: ids.to_vec(), rows });
        }
        let most = self.budget() / SHARE;
        while (self.prefixes.n_tokens() * self.context.layout.row_bytes()) as u64 > most {
            self.evict_prefix();
        }
    }

    fn remove_prefix(&mut self, i: usize) {
        if let Some(prefix) = self.prefixes.0.remove(i) {
            self.arena.release_rows(prefix.rows);
        }
    }

    /// Drops the least recently used copy; `false`: there is none.
    pub(super) fn evict_prefix(&mut self) -> bool {
        let any = !self.prefixes.0.is_empty();
        self.remove_prefix(0);
        any
    }

    /// Drops the copies that a session left.
    pub(super) fn drop_prefixes(&mut self, key: &SessionKey) {
        while let Some(i) = self.prefixes.0.iter().position(|prefix| prefix.session == *key) {
            self.remove_prefix(i);
        }
    }
}
