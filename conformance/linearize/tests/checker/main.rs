//! The checker against executions of its own model, planted violations, and a naive checker.

mod execution;
mod naive;
mod planted;
mod random;
