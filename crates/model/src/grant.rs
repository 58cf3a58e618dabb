//! Passthrough of store files to the kernel.

/// Relation of an open to a file's passthrough grant, by which the kernel reads the store file
/// directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantRequest {
    /// Reads, and can create the grant.
    Begin,
    /// Reads or writes through the node, and joins an existing grant.
    Join,
    /// Like `Join`, and can be mapped writable: stores to the mapping reach only the store file.
    Expose,
    /// An earlier run of the node granted the file, and the kernel still uses the grant.
    Resume,
}
