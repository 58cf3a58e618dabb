//! The server: drives the core through the ports.

pub mod log;
