//! What ebb asks of the world: disk, net, bucket, clock, entropy, spawn.
