//! Memory that outlives a process.

/// Memory that outlives the process that writes to it, zeroed at first. A reader finds the state
/// after the writer's last store, wherever the writer ended. Lost with the machine.
pub trait SharedMemory {
    fn count(&self) -> usize;

    /// `at` is below [`SharedMemory::count`].
    fn load(&self, at: usize) -> u64;

    /// Stores are atomic and take effect in the order of the calls.
    fn store(&self, at: usize, word: u64);
}
