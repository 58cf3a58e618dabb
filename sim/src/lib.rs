//! A whole cluster in one process under one seed.
