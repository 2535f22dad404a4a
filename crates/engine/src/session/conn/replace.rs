//! A connection that takes the place of one that is lost.

use super::Conn;

impl Conn {
    /// Puts another connection in the place of this one, which is closed. The canceller of this one
    /// then cancels the other.
    pub(crate) fn replace_by(&mut self, other: Conn) {
        let canceller = self.canceller.clone();
        *self = other;
        canceller.is_of(self.raw);
        self.canceller = canceller;
    }
}
