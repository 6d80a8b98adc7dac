//! Texts that callers save and restore by name.

use super::disk::Name;
use super::request::SlotFile;
use super::{Disk, Scheduler};
use crate::model::{Error, Result};

impl Scheduler {
    /// Saves one of [`Scheduler::slots`] in which no request runs to a file of the directory of
    /// [`SchedulerParams::disk`](super::SchedulerParams), in place of an earlier one of this owner and name. The file
    /// is written on the caller's thread.
    ///
    /// # Errors
    /// Returns an error if there is no such sequence of this owner; if a request runs in it; if the name is not 1 to 64 of
    /// a-z, 0-9, '.', '_', and '-', the first a letter or a digit; if saved texts have half of the directory's bytes; if
    /// texts are not kept on disk; [`Error::Interrupted`] if the scheduler has stopped; and those of the file system.
    pub fn save(&self, owner: &[u8], slot: usize, name: &str) -> Result<SlotFile> {
        let (disk, name) = (self.directory()?, Name::new(owner, name)?);
        let owner = owner.to_vec();
        let (packed, attachment) = self.with_slot(slot, move |engine, seq| engine.copy(&owner, seq))?;
        let n_bytes = disk.save(&name, &packed, &attachment)?;
        Ok(SlotFile { slot, n_tokens: packed.tokens().len(), n_bytes })
    }

    /// Puts a saved text into a slot, where it stays for requests with this salt, which begins with `owner`. What the slot
    /// held leaves it as if its room were needed. Returns the slot that holds the text: another one if that holds more of it.
    ///
    /// # Errors
    /// Returns an error if there is no saved text of this owner and name; if it was saved with another salt, or under
    /// another model, adapter, plan, or type of cache; if its file is damaged; if the slot is somebody else's or a request
    /// runs in it; if there is no room; and the errors of [`Scheduler::save`]. In all cases but the last two, the slot is
    /// as it was.
    pub fn restore(&self, owner: &[u8], salt: &[u8], slot: usize, name: &str) -> Result<SlotFile> {
        if !salt.starts_with(owner) {
            return Err(Error::argument("salt", "one that begins with the owner", "another"));
        }
        let (disk, name) = (self.directory()?, Name::new(owner, name)?);
        let (packed, attachment, n_bytes) = disk.load(&name)?;
        let (n_tokens, salt) = (packed.tokens().len(), salt.to_vec());
        let owner = owner.to_vec();
        let slot =
            self.with_slot(slot, move |engine, seq| engine.put(&owner, seq, salt, &packed, &attachment))?;
        Ok(SlotFile { slot, n_tokens, n_bytes })
    }

    fn directory(&self) -> Result<&Disk> {
        self.disk.as_deref().ok_or_else(|| Error::Invalid("slots: no texts are kept on disk".into()))
    }
}
