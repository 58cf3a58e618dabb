//! What a node stages before a write.

use ebb_core::blocks::touched_blocks;
use ebb_model::*;
use std::ops::Range;

/// The bytes of a write, as they are on the disk before its command. `range`: in a pack file.
pub fn staged(command: &Command, range: Option<PackRange>) -> Vec<LocalCommand> {
    let (Command::Client { stamp, mutation, .. } | Command::Repeated { stamp, mutation, .. }) =
        command
    else {
        return Vec::new();
    };
    let staged = |ino, blocks: Range<u64>, sum| {
        let (version, first, sums) = (stamp.version, blocks.start, vec![sum; blocks.count()]);
        LocalCommand::Staged { ino, version, first, sums, range }
    };
    match *mutation {
        Mutation::Write { ino, offset, len_bytes, .. } if len_bytes > 0 => {
            vec![staged(ino, touched_blocks(offset, len_bytes), Some(1))]
        }
        Mutation::Fallocate { ino, ref edges, .. } => {
            edges.iter().map(|&edge| staged(ino, edge..edge + 1, None)).collect()
        }
        _ => Vec::new(),
    }
}
