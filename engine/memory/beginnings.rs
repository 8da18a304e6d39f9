//! What prompts begin with, below a block: f16 rows behind the last whole block of a session's first prompt.
//!
//! Blocks are shared by whoever has read the same, but the tokens behind the last border would be computed again by each repeat of a run,
//! each client with the same system prompt. So when a session's first prompt is read a copy of its open block's rows stays here, found by
//! the block before it, and serves up to the first token that differs. (A row depends on the tokens before it alone.)
//!
//! In memory only, the latest of them, within a part of the budget; they go before anything that somebody remembers.

use super::Memory;
use super::session::Session;
use crate::SessionKey;
use crate::kv::layout::BLOCK;
use crate::kv::table::{BlockHash, RowsId};
use std::collections::VecDeque;

/// Fewer tokens in common are not worth a copy.
const LEAST: usize = 8;

/// Part of the budget that beginnings take, at most.
const SHARE: u64 = 16;

/// Beginnings, the one used last at the end.
#[derive(Default)]
pub(super) struct Beginnings(VecDeque<Beginning>);

struct Beginning {
    /// Whose prompt it is of: when that is removed, it goes too.
    session: SessionKey,
    /// Address of the block before it, or the root of all.
    before: BlockHash,
    ids: Vec<u32>,
    rows: RowsId,
}

impl Beginnings {
    /// The one with most of `ids` at its beginning, and how many; it counts as used.
    fn find(&mut self, before: BlockHash, ids: &[u32]) -> Option<(&mut Beginning, usize)> {
        let common = |b: &Beginning| b.ids.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let behind = self.0.iter().enumerate().filter(|(_, b)| b.before == before);
        let (at, n) = behind.map(|(at, b)| (at, common(b))).max_by_key(|(_, n)| *n)?;
        let found = self.0.remove(at)?;
        self.0.push_back(found);
        Some((self.0.back_mut()?, n))
    }
}

impl Memory {
    /// Keeps how a session's first prompt, which was just read, begins behind its last whole block.
    pub(crate) fn remember_beginning(&mut self, key: &SessionKey, session: &Session) {
        let sequence = &session.sequence;
        let (n, n_open) = (sequence.len(), sequence.len() % BLOCK);
        let Some(rows) = sequence.open_rows().filter(|_| n_open >= LEAST) else { return };
        let before = sequence.table().last_hash().unwrap_or(sequence.root());
        let ids = &session.tokens[n - n_open..n];
        let bytes = (n_open * self.context.layout.row_bytes()) as u64;
        match self.beginnings.find(before, ids) {
            Some((_, common)) if common == n_open => return,
            // What begins with another one takes its place.
            Some((shorter, common)) if common == shorter.ids.len() => drop(self.drop_last_beginning()),
            _ => {}
        }
        let most = self.budget() / SHARE;
        while self.beginning_bytes() + bytes > most {
            if !self.evict_beginning() {
                return;
            }
        }
        if self.make_room(bytes, Some(u64::MAX)) {
            let rows = self.arena.copy_rows(rows, n_open);
            let (session, ids) = (key.clone(), ids.to_vec());
            self.beginnings.0.push_back(Beginning { session, before, ids, rows });
        }
    }

    /// Puts behind a session's whole blocks the rows of a prompt that goes on as its own does.
    pub(super) fn begin_as_another(&mut self, session: &mut Session) {
        let sequence = &session.sequence;
        let n = sequence.len();
        if n % BLOCK != 0 || sequence.open_rows().is_some() {
            return;
        }
        let before = sequence.table().last_hash().unwrap_or(sequence.root());
        let Some((found, common)) = self.beginnings.find(before, &session.tokens[n..]) else { return };
        if common >= LEAST {
            let rows = self.arena.copy_rows(found.rows, common);
            session.sequence.push_rows(rows, common);
        }
    }

    fn beginning_bytes(&self) -> u64 {
        let n_rows: usize = self.beginnings.0.iter().map(|beginning| beginning.ids.len()).sum();
        (n_rows * self.context.layout.row_bytes()) as u64
    }

    /// Lets go of the beginning that was used longest ago; `false`: there is none.
    pub(super) fn evict_beginning(&mut self) -> bool {
        let gone = self.beginnings.0.pop_front();
        gone.map(|gone| self.arena.release_rows(gone.rows)).is_some()
    }

    fn drop_last_beginning(&mut self) {
        if let Some(gone) = self.beginnings.0.pop_back() {
            self.arena.release_rows(gone.rows);
        }
    }

    /// Lets go of what a session's prompt began with.
    pub(super) fn drop_beginning(&mut self, key: &SessionKey) {
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
