//! The buckets of a volume: their owners, the requests to them, and the bandwidth of their lines.

pub(crate) mod ask;
pub(crate) mod bandwidth;
pub(crate) mod borders;
pub mod head;
pub(crate) mod id_ranges;
pub(crate) mod members;
pub(crate) mod rate_limit;
pub mod side_by_side;
pub(crate) mod upload_window;

use ask::Answers;
use borders::BucketIndex;
use ebb_model::{FsError, Ino, Name, RpcError};
use ebb_ports::{Bucket, BucketError};
use head::HeadLease;
use side_by_side::Member;
use std::rc::Rc;
use std::time::Duration;

/// The buckets of a volume, and the time of each bucket's last answer. The set of buckets is fixed
/// while the node runs.
pub(crate) struct Buckets {
    /// All buckets of the volume as one.
    all: Option<Rc<dyn Bucket>>,
    members: Rc<[Member]>,
    head_lease: Option<Rc<HeadLease>>,
    /// The last answers of each bucket.
    answers: Vec<Answers>,
}

impl Buckets {
    pub fn new(
        all: Option<Rc<dyn Bucket>>,
        members: Rc<[Member]>,
        head_lease: Option<Rc<HeadLease>>,
    ) -> Buckets {
        let answers = (0..=members.len()).map(|_| Answers::default()).collect();
        Buckets { all, members, head_lease, answers }
    }

    /// The volume has no bucket: all of it is on the node's disk.
    pub fn is_none(&self) -> bool {
        self.all.is_none()
    }

    pub fn is_some(&self) -> bool {
        self.all.is_some()
    }

    /// All buckets of the volume as one, if it has any.
    pub fn all(&self) -> Option<&Rc<dyn Bucket>> {
        self.all.as_ref()
    }

    /// The same for a volume that has one: the callers run only there.
    pub fn bucket(&self) -> &dyn Bucket {
        &**self
            .all
            .as_ref()
            .expect("only a volume with a bucket has names or bytes to fetch and to flush")
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The right to write to the root bucket. A node that only reads has none.
    pub fn head_lease(&self) -> Option<&Rc<HeadLease>> {
        self.head_lease.as_ref()
    }

    pub fn head_lease_of(&self, bucket_index: BucketIndex) -> Option<&Rc<HeadLease>> {
        match bucket_index {
            BucketIndex::ROOT => self.head_lease.as_ref(),
            BucketIndex(member) => self.members[member - 1].head_lease(),
        }
    }

    pub fn head_leases(&self) -> impl Iterator<Item = &Rc<HeadLease>> {
        self.head_lease.iter().chain(self.members.iter().filter_map(Member::head_lease))
    }

    /// When all requests of the run before this one can no longer arrive.
    pub fn late_until(&self) -> Duration {
        self.head_leases().map(|head_lease| head_lease.late_until()).max().unwrap_or_default()
    }

    /// The node that has taken the volume from this one.
    pub fn lost_to(&self) -> Option<String> {
        self.head_lease.as_ref().and_then(|head_lease| head_lease.lost_to())
    }

    /// Refuses unless this node may write to the root bucket.
    pub fn check_writes(&self) -> Result<(), RpcError> {
        match (self.lost_to(), &self.head_lease) {
            (Some(owner), _) => {
                Err(RpcError::Denied(format!("the volume was taken over by {owner}")))
            }
            (None, None) => Err(FsError::ReadOnly.into()),
            (None, Some(_)) => Ok(()),
        }
    }

    pub fn bucket_indexes(&self) -> impl Iterator<Item = BucketIndex> + use<> {
        (0..=self.members.len()).map(BucketIndex)
    }

    /// The bucket that a key is in.
    pub fn bucket_of_key(&self, key: &str) -> BucketIndex {
        match side_by_side::member_of(&self.members, key) {
            None => BucketIndex::ROOT,
            Some(found) => {
                let at = self.members.iter().position(|member| member.dir() == found.dir());
                BucketIndex(at.map_or(0, |at| at + 1))
            }
        }
    }

    pub fn is_member_dir(&self, dir: Ino, name: &Name) -> bool {
        dir == Ino::ROOT && self.members.iter().any(|member| member.dir().name() == name)
    }

    /// Names a trouble together with its bucket, so that troubles of different buckets stay apart.
    pub fn subject(&self, what: &str, bucket_index: BucketIndex) -> String {
        match bucket_index.0.checked_sub(1).and_then(|at| self.members.get(at)) {
            Some(member) => format!("{what} of {}", member.dir()),
            None => what.to_owned(),
        }
    }

    /// The name of a bucket of the volume for people and logs.
    pub fn describe(&self, bucket_index: BucketIndex) -> String {
        match bucket_index.0.checked_sub(1).and_then(|at| self.members.get(at)) {
            Some(member) => member.describe(),
            None => self.bucket().describe(),
        }
    }

    pub fn answers(&self, bucket_index: BucketIndex) -> &Answers {
        &self.answers[bucket_index.0]
    }

    /// Records the answer to a write request.
    pub fn heard<T>(&self, key: &str, answer: &Result<T, BucketError>, now: Duration) {
        if !answer.as_ref().is_err_and(BucketError::is_silence) {
            let answers = self.answers(self.bucket_of_key(key));
            answers.any.set(now);
            answers.writes.set(now);
        }
    }
}
