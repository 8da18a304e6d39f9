//! Adoption: going on with a memory that another device computed.
//!
//! Blocks and rows have the same bytes on all devices, so a device can read another's. But it computes other
//! bits from them than from its own, so an adopted memory is kept apart from both: its numerics say how many
//! of its tokens which device computed, and its blocks' addresses depend on these. It is found and read under
//! the other device's addresses, like any memory, and gets its own addresses when a turn continues it; they
//! are written at the turn's end. The other device's files stay, except the session's manifest and tail,
//! which are replaced.

use super::Memory;
use super::session::Session;
use crate::SessionKey;
use crate::store::manifest::Identity;
use crate::store::numerics::Numerics;

impl Memory {
    /// Reason why a session's memory of identity `there` can't be continued; `None`: it can.
    pub(super) fn refuses(&self, key: &SessionKey, there: &Identity) -> Option<String> {
        let here = self.context.identity_of(&key.tenant);
        here.differs(there).filter(|_| !(self.context.adopt && here.can_adopt(there)))
    }

    /// True if a session whose first `n` tokens are in memory can't go on with them under their addresses.
    pub(super) fn must_adopt(&self, session: &Session, n: usize) -> bool {
        let Some(there) = &session.numerics else { return false };
        n == 0 || there.continued_by(&self.device_name(), n) != *there
    }

    fn device_name(&self) -> String {
        Numerics::parse(&self.context.identity.numerics).device
    }

    /// Gives a session whose first `n` tokens are in memory, all of their layers, addresses that say which of
    /// them another device computed.
    ///
    /// # Errors
    /// The device fails; then it holds nothing.
    pub(super) fn adopt(&mut self, session: &mut Session, key: &SessionKey, n: usize) -> Result<(), String> {
        let Some(there) = session.numerics.clone() else { return Ok(()) };
        let numerics = (n > 0).then(|| there.continued_by(&self.device_name(), n));
        let parts = session.sequence.table().parts().flatten().flatten();
        let copied = parts.filter(|id| self.arena.is_shared(*id)).map(|id| self.arena.block_bytes(id)).sum();
        self.make_room(copied, None);
        let root = self.context.root(&self.context.identity_with(&key.tenant, numerics.as_ref()));
        let readdressed = session.readdress(root, &mut self.arena);
        readdressed.map_err(|e| format!("can't adopt a memory from {there}: {e}"))?;
        if n > 0 {
            tracing::info!("`{}`: adopting {n} tokens of a memory from {there}", key.agent);
        }
        session.numerics = numerics;
        Ok(())
    }
}
