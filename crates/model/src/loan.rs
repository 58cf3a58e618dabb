/// What an open is to the loan of a file: to its store file being read past the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Borrow {
    /// It reads, and may be the first.
    Begin,
    /// As `Begin`, while others write who do not go through the kernel's pages: no file is too
    /// small for it.
    Follow,
    /// It reads or writes through the node, and joins those that have the file.
    Join,
    /// As `Join`; besides, it can be mapped, and what is then stored reaches the store file alone.
    Expose,
    /// An earlier run of the node has lent the file, and the kernel has it still.
    Resume,
}

impl Borrow {
    /// It reads, and is not there only for what others have.
    pub fn begins(self) -> bool {
        matches!(self, Borrow::Begin | Borrow::Follow)
    }
}
