//! Prompt tokens that unfinished turns had read: whole blocks, kept in memory for the next turn that needs
//! them.
//!
//! Such a turn leaves its session as it found it, but its blocks are found by content ([`Memory::recall`]) as
//! long as something holds them. They are held here until a turn of the session begins, which takes those
//! that its prompt begins with; until the session is forgotten; or until their room is needed: they are
//! dropped before anything of finished turns that would have to be computed again.

use super::Memory;
use super::arena::Arena;
use super::session::Session;
use super::states::States;
use crate::SessionKey;
use crate::kv::layout::BLOCK;
use crate::kv::table::BlockId;
use crate::text::prefix::n_tokens;
use std::collections::{HashSet, VecDeque};

/// Blocks by the session whose turn did not end, the oldest first; of each in their order.
#[derive(Default)]
pub(super) struct Unfinished(VecDeque<(SessionKey, Vec<BlockId>)>);

impl Unfinished {
    /// True if nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Releases what a session's turn had read that did not end.
    pub(super) fn forget(&mut self, key: &SessionKey, arena: &mut Arena) {
        self.0.retain(|(session, blocks)| {
            let stays = session != key;
            if !stays {
                blocks.iter().for_each(|id| arena.release(*id));
            }
            stays
        });
    }

    /// Evicts the last block of what is held longest; `false`: there is none.
    pub(super) fn evict(&mut self, arena: &mut Arena) -> bool {
        let Some((_, blocks)) = self.0.front_mut() else { return false };
        blocks.pop().into_iter().for_each(|id| arena.release(id));
        if blocks.is_empty() {
            self.0.pop_front();
        }
        true
    }
}

impl Memory {
    /// Takes a session back whose turn did not end: it is as it was when the turn began, and what the turn
    /// read of its prompt's first `prompt_len` tokens is kept block by block.
    pub(crate) fn give_back(
        &mut self,
        key: SessionKey,
        mut session: Session,
        prompt_len: usize,
        next_use: Option<u64>,
    ) {
        let of_prompt = session.sequence.table().parts().take(prompt_len / BLOCK);
        let states = session.sequence.states().into_iter().flat_map(States::known);
        let states = states.filter(|(at, ..)| *at <= prompt_len).filter_map(|(.., id)| id);
        let read: Vec<BlockId> = of_prompt.flatten().flatten().chain(states).collect();
        read.iter().for_each(|id| self.arena.retain(*id));
        let n = n_tokens(&session.segments);
        session.tokens.truncate(n);
        session.truncate(n, &mut self.arena);
        session.sequence.end_turn(&mut self.arena);
        let held: HashSet<BlockId> = session.sequence.ids().collect();
        let (held, kept): (Vec<BlockId>, _) = read.into_iter().partition(|id| held.contains(id));
        held.into_iter().for_each(|id| self.arena.release(id));
        self.unfinished.forget(&key, &mut self.arena);
        if !kept.is_empty() {
            self.unfinished.0.push_back((key.clone(), kept));
        }
        self.take_back(key.clone(), session, next_use);
        self.saved(&key);
    }
}
