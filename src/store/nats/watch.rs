//! What a standby hears: each change of a document, by a consumer that begins with what stands.

use super::{Keys, document};
use crate::store::StoreError;
use crate::store::lease_store::documents::{EachSeen, Key};
use crate::time::BootInstant;

impl Keys {
    /// Shows what the server pushes, until `each` breaks.
    pub(super) async fn follow(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let names: Vec<String> = keys.iter().map(|&key| document::key_of(key)).collect();
        let mut known = self.known_of(&[]).await?;
        let mut pushed = self.bucket.consume(&names).await?;
        let mut awaited: Vec<usize> = (0..names.len()).collect();
        loop {
            if pushed.pending == 0 {
                // What was not pushed by now is not there.
                for index in std::mem::take(&mut awaited) {
                    if each(index, document::read(&names[index], None, &known.incarnation())).is_break() {
                        return Ok(());
                    }
                }
            }
            let message = pushed.next().await?;
            let stored = document::stored_millis(&message).saturating_sub(1);
            self.clock.lock().at_least(stored, known.slack(), BootInstant::now());
            let Some(index) = names.iter().position(|name| name == self.key_in(&message)) else { continue };
            awaited.retain(|&other| other != index);
            let message = [Some(message)];
            known = self.known_of(&message).await?;
            if each(index, document::read(&names[index], message[0].as_ref(), &known.incarnation())).is_break() {
                return Ok(());
            }
        }
    }
}
