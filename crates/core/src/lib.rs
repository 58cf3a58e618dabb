//! The rules of ebb as deterministic state machines without I/O.
