//! Ports over Linux: disk, net, clock, entropy, spawn.
