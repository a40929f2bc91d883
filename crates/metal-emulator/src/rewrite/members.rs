//! Member functions with an address space: `T load() const device { ... }`.

use super::Rewriter;

impl Rewriter<'_> {
    /// Returns true if the address space at `i` belongs to the object of a member function.
    pub(super) fn is_member_space(&self, i: usize) -> bool {
        let mut before = i;
        while before > 0 && matches!(self.t.word(before - 1), "const" | "volatile") {
            before -= 1;
        }
        let mut after = i + 1;
        while matches!(self.t.word(after), "const" | "volatile") {
            after += 1;
        }
        before > 0
            && self.t.word(before - 1) == ")"
            && matches!(self.t.word(after), "{" | ";" | ":" | "=" | "->" | "noexcept")
    }

    /// Removes the address space at `i`, which a run does not have. In strict mode, members without
    /// one are those of `thread`.
    pub(super) fn member(&mut self, i: usize) -> usize {
        if !self.strict || self.t.word(i) == "thread" {
            self.replace(i, i + 1, "");
        }
        i + 1
    }
}
