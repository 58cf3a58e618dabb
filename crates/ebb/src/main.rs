//! The ebb binary: wires adapters into node, client and surface.
fn main() {}
