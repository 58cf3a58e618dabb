//! Take-overs of the head alone: which inode ids each owner reserves (decision 30).

mod world;

use ebb_format::head;
use ebb_model::*;
use ebb_node::head::{Candidate, Continues, HEAD_KEY, HeadError, HeadLease, Restored, TakeOver};
use ebb_ports::{Bucket, Condition};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use world::{Faulty, Random, now, ports};

/// A data directory, and what its log has of ids.
#[derive(Clone, Debug)]
struct DataDirectory {
    node: u128,
    continues: Option<Incarnation>,
    /// Of slot 0.
    ids: IdRange,
    next: u32,
}

impl DataDirectory {
    fn new(node: u128) -> DataDirectory {
        let ids = IdRange { epoch: IdEpoch(0), from: 0, upto: 0 };
        DataDirectory { node, continues: None, ids, next: 0 }
    }

    /// As a node that starts.
    fn open(&mut self, bucket: &Rc<Faulty>, random: &Rc<Random>) -> Result<HeadLease, HeadError> {
        let candidate = Candidate {
            node: self.node,
            owner: String::new(),
            address: String::new(),
            term: Duration::from_secs(30),
            patience: Duration::from_secs(3600),
            members: Vec::new(),
            rearrange: false,
            restores: None,
            continues: self.continues.map_or(Continues::Nothing, Continues::State),
        };
        let lease =
            now(HeadLease::acquire(bucket.clone(), ports(random), candidate, TakeOver::Now))?;
        match lease.taken_over() {
            Some(ids) => (self.ids, self.next) = (ids, ids.from),
            None => self.note(&lease),
        }
        self.continues = Some(lease.incarnation());
        Ok(lease)
    }

    fn note(&mut self, lease: &HeadLease) {
        assert_eq!(lease.ids().epoch, self.ids.epoch);
        assert!(self.next <= lease.ids().below, "{self:?} {:?}", lease.ids());
        self.ids.upto = lease.ids().below;
    }
}

/// The ids handed out: disjoint ranges.
#[derive(Default)]
struct HandedOut(BTreeMap<(IdEpoch, u32), u32>);

impl HandedOut {
    fn draw(&mut self, dir: &mut DataDirectory, count: u32) {
        let Range { start, end } = dir.next..dir.next.saturating_add(count).min(dir.ids.upto);
        if start == end {
            return;
        }
        let epoch = dir.ids.epoch;
        assert!(start >= Ino::FIRST_COUNTER && IdEpoch(0) < epoch && epoch < IdEpoch::READ_ONLY);
        let before = self.0.range(..(epoch, end)).next_back().map(|(key, upto)| (*key, *upto));
        if let Some(((other, from), upto)) = before {
            assert!(other < epoch || upto <= start, "{from}..{upto} twice, at {start}..{end}");
        }
        dir.next = end;
        // Ranges that continue each other are one.
        let continued = before.filter(|((other, _), upto)| *other == epoch && *upto == start);
        self.0.insert(continued.map_or((epoch, start), |(key, _)| key), end);
    }
}

/// Situation: data directories take a volume from each other 100,000 times: after releases, crashes
/// and lost replies; a deposed owner still draws the ids that it has reserved; a data directory
/// comes back. Danger: an id is handed out twice, or the volume has none left. Expectation:
/// neither; the incarnation has counted all take-overs.
#[test]
fn volume_taken_over_100_000_times_never_reuses_an_id() {
    let random = Rc::new(Random::new(1));
    let bucket = Rc::new(Faulty::new(random.clone()));
    let mut handed_out = HandedOut::default();
    let mut dirs: Vec<DataDirectory> = (1..=3).map(DataDirectory::new).collect();
    let (mut take_overs, mut made) = (0, 3);
    while take_overs < 100_000 {
        let at = random.below(dirs.len() as u64) as usize;
        let lease = dirs[at].open(&bucket, &random).unwrap();
        take_overs += u64::from(lease.taken_over().is_some());
        handed_out.draw(&mut dirs[at], random.below(1000) as u32);
        if random.below(4) == 0 {
            lease.want_ids(dirs[at].ids.upto.saturating_add(1 << random.below(24)));
            if now(lease.renew()).is_ok() {
                dirs[at].note(&lease);
            }
            handed_out.draw(&mut dirs[at], random.below(1 << 20) as u32);
        }
        if random.below(2) == 0 {
            // Lowered in the log before the head has it.
            dirs[at].ids.upto = dirs[at].next.saturating_add(64).min(dirs[at].ids.upto);
            let _ = now(lease.release(Some(dirs[at].ids.upto)));
        }
        // Another one, or the same one, deposed or mounted read-only, goes on with its range.
        let other = random.below(dirs.len() as u64) as usize;
        handed_out.draw(&mut dirs[other], random.below(100) as u32);
        if random.below(10) == 0 {
            made += 1;
            dirs[other] = DataDirectory::new(made);
        }
    }
    let head = head::decode(&now(bucket.get(HEAD_KEY, None, None)).unwrap().body).unwrap();
    assert!(head.incarnation >= Incarnation(100_000) && bucket.faults() > 1000);
    assert!(head.ids.epoch > IdEpoch(1), "the ids of more than one epoch were used");
}

/// Situation: a volume of release 0.1.0, then one whose epochs are all reserved. Expectation: the
/// first one continues with the next epoch and counts on from its incarnation; the second one is
/// refused and unchanged.
#[test]
fn head_of_release_0_1_0_is_taken_over_while_epochs_are_left() {
    let random = Rc::new(Random::new(2));
    for (epoch, taken) in [(13, true), (65_534, true), (65_535, false)] {
        let bucket = Rc::new(Faulty::new(random.clone()));
        // As such a head is read.
        let mut head = owned(IdMark { epoch: IdEpoch(epoch), below: 1 });
        head.incarnation = Incarnation(u64::from(epoch) - 1);
        put(&bucket, &head);
        let mut dir = DataDirectory::new(head.node);
        let opened = dir.open(&bucket, &random);
        match opened {
            Ok(lease) => {
                assert!(taken);
                assert_eq!(lease.incarnation(), Incarnation(u64::from(epoch)));
                let ids = IdRange { epoch: IdEpoch(epoch), from: 1, upto: 1 + (1 << 20) };
                assert_eq!(lease.taken_over(), Some(ids));
            }
            Err(error) => {
                assert!(!taken && matches!(error, HeadError::NoIds { .. }), "{error}");
                let left = now(bucket.get(HEAD_KEY, None, None)).unwrap();
                assert_eq!(left.body, head::encode(&head));
            }
        }
    }
}

/// Situation: a backup is restored over a volume that went on since, and into an empty bucket.
/// Danger: ids that the node drew after the backup are drawn again. Expectation: the ids are above
/// the head's mark and above the backup's epoch.
#[test]
fn restore_draws_ids_above_head_and_backup() {
    let random = Rc::new(Random::new(3));
    let restored = Restored {
        cluster: ClusterId(7),
        incarnation: Incarnation(4),
        ids: IdMark { epoch: IdEpoch(9), below: 1 },
    };
    let at = |epoch, below| Some(IdMark { epoch: IdEpoch(epoch), below });
    for (found, expected) in [
        (None, at(9, 1)),
        (at(8, 5000), at(9, 1)),
        (at(9, 5000), at(9, 5000)),
        (at(11, 6), at(11, 6)),
    ] {
        let bucket = Rc::new(Faulty::new(random.clone()));
        if let Some(mark) = found {
            put(&bucket, &owned(mark));
        }
        let candidate = Candidate {
            node: 99,
            owner: String::new(),
            address: String::new(),
            term: Duration::from_secs(30),
            patience: Duration::from_secs(3600),
            members: Vec::new(),
            rearrange: false,
            restores: Some(restored),
            continues: Continues::Nothing,
        };
        let lease =
            now(HeadLease::acquire(bucket, ports(&random), candidate, TakeOver::Now)).unwrap();
        let IdRange { epoch, from, .. } = lease.taken_over().unwrap();
        // A lost reply makes one more take-over.
        assert!(Some(IdMark { epoch, below: from }) >= expected);
        assert!(lease.incarnation() > Incarnation(4));
    }
}

fn owned(ids: IdMark) -> head::Head {
    head::Head {
        cluster: ClusterId(7),
        incarnation: Incarnation(3),
        ids,
        node: 1,
        run: 2,
        owner: String::new(),
        address: String::new(),
        started: Time::from_secs(0),
        term_secs: 30,
        beat: 0,
        released: false,
        members: Vec::new(),
    }
}

fn put(bucket: &Faulty, head: &head::Head) {
    bucket.without_faults(|bucket| {
        now(bucket.put(HEAD_KEY, head::encode(head), Condition::Always, Vec::new())).unwrap();
    });
}
