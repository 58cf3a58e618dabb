//! Arbitrary snapshots: the partition installs or rejects them; an installed state keeps every law.

use crate::seeds::root;
use ebb_core::partition::{Partition, SnapshotItem};
use ebb_core::state::State;
use ebb_model::*;

pub fn run(bytes: &[u8]) {
    let Ok(items) = postcard::from_bytes::<Vec<SnapshotItem>>(bytes) else { return };
    if let Ok(state) = State::from_items(items, []) {
        let partition = state.into_partition();
        let again: Vec<SnapshotItem> = partition.items().collect();
        let again = Partition::from_items(again)
            .expect("a partition that keeps the laws can be written and read");
        assert!(again.items().eq(partition.items()), "a partition was not read as it was written");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let items = |partition: Partition| partition.items().collect::<Vec<SnapshotItem>>();
    partitions()
        .into_iter()
        .map(|partition| postcard::to_stdvec(&items(partition)).expect("items have an encoding"))
        .collect()
}

pub fn partitions() -> Vec<Partition> {
    let mut partition = Partition::new(IdRange::whole(IdEpoch(1)), root(), true);
    let mut partitions = Vec::new();
    let make = |name: &str, ino: u64, what| Mutation::Make {
        parent: Ino::ROOT,
        name: Name::new(name.as_bytes()).expect("a name"),
        ino: Ino(ino),
        mode: 0o644,
        what,
    };
    let mutations = [make("file", 2 << 20, Make::Regular), make("dir", 3 << 20, Make::Directory)];
    let mut index = 1;
    let session = SessionId(1);
    partition.apply(
        LogIndex(index),
        &Command::SessionOpen { session, client: "client".into(), replaces: None },
    );
    for (at, mutation) in mutations.into_iter().enumerate() {
        index += 1;
        let tx = TxId { session, slot: 0, sequence: at as u64 + 1 };
        let stamp = Stamp { time: Time::from_secs(1), version: partition.next_version() };
        partition
            .apply(LogIndex(index), &Command::Client { tx, caller: Caller::ROOT, stamp, mutation });
        partitions.push(partition.clone());
    }
    let limits = Some(QuotaLimits { bytes: Some(1 << 20), inodes: None });
    let stamp = Stamp { time: Time::from_secs(2), version: partition.next_version() };
    partition.apply(LogIndex(index + 1), &Command::Quota { dir: Ino::ROOT, limits, stamp });
    partitions.push(partition);
    partitions
}
