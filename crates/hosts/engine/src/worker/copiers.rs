//! Copiers of programs: a program opens one before it registers memory of a device.

use crate::copiers::Copier;
use crate::worker::Worker;
use burst_base::heap::OutOfMemory;
use burst_base::verbs::QpType;

impl Worker {
    /// Adds the copier of a context: its queue pairs have their bytes placed by it from now on. Targets of XRC, which several
    /// programs hold, do not.
    ///
    /// # Errors
    /// There is no memory. Nothing has changed for the program then, but that completions take a longer way.
    pub fn add_copier(&mut self, context: u32, copier: Copier) -> Result<(), OutOfMemory> {
        self.core.outbox.copiers.add(context, copier)?;
        for slot in self.core.qps.iter_mut().flatten().filter(|slot| slot.holder.context == context) {
            if slot.qp.qp_type() != QpType::XrcRecv
                && let Err(why) = slot.qp.use_copies()
            {
                self.core.outbox.copiers.remove(context);
                return Err(why);
            }
        }
        Ok(())
    }
}
