/// Memory that outlives the process which writes to it: as it was after the last store of that
/// process, wherever it ended. Zeros at first. Lost with the machine.
pub trait Words {
    fn count(&self) -> usize;

    /// `at` is below [`Words::count`].
    fn load(&self, at: usize) -> u64;

    /// One word is never half written, and words are written in the order of the calls.
    fn store(&self, at: usize, word: u64);
}
