//! Bugs of the kind that a change could bring in, planted to show which check finds them
//! (`cargo xtask mutants`). One of them at most is on. Without the feature `planted`, which no
//! release has, [`Planted::is_on`] is constant and nothing of them is left in the binary.

/// The part of the product that a bug is planted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    Core,
    Consensus,
    Replication,
    Node,
    Client,
    Bucket,
    Fuse,
}

macro_rules! planted {
    ($($layer:ident { $($(#[$doc:meta])* $bug:ident,)* })*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Planted { $($($(#[$doc])* $bug,)*)* }

        impl Planted {
            pub const ALL: &[(Planted, Layer)] = &[$($((Planted::$bug, Layer::$layer),)*)*];
        }
    };
}

planted! {
    Core {
        /// A mutation that is sent again is executed again.
        RepeatExecuted,
        /// A write leaves the version of its file as it was.
        VersionKept,
        /// A write leaves mtime as it was.
        MtimeKept,
        /// A rename leaves ctime of the inode as it was.
        CtimeKept,
        /// Reading a directory goes on one entry too late.
        CookieSkipped,
        /// A punched hole reads as the object's bytes.
        HoleReadsObject,
        /// Truncation leaves the object's bytes behind the new end in use.
        CutKeepsTail,
        /// Growth of a file counts twice in its quotas.
        QuotaCountedTwice,
        /// No quota refuses anything.
        QuotaIgnored,
        /// The object of a removed file keeps its key.
        RemovedKeepsObject,
        /// The old object of a moved file is deleted before the copy is there.
        DeletedBeforeMoved,
        /// Unlocking a range unlocks all of the file.
        UnlockFreesAll,
        /// A shared lock keeps nobody from an exclusive one.
        SharedLockIgnored,
        /// A file that loses its last name goes though it is open.
        OpenFileGoes,
        /// XATTR_CREATE replaces an attribute that is there.
        XattrCreateReplaces,
        /// Eviction takes dirty blocks too.
        DirtyEvicted,
        /// A sync covers what was written after it began.
        SyncForgetsLater,
        /// What somebody else writes to the bucket replaces what was changed here.
        OutsiderWins,
        /// A rename in exchange leaves the number of subdirectories as it was.
        ExchangeKeepsLinks,
        /// The end of an upload ignores that the file was cut meanwhile.
        CutForgottenByUpload,
        /// A directory moved below itself.
        LoopAllowed,
        /// A default ACL is not inherited.
        AclNotInherited,
    }
    Consensus {
        /// A vote leaves before it is forced.
        VoteBeforeForce,
        /// An acceptance of entries leaves before they are forced.
        AcceptBeforeForce,
        /// The only voter of a group keeps its term when it starts again.
        TermKept,
        /// A leader answers a read without asking a quorum whether it still leads.
        ReadWithoutQuorum,
        /// The header of a snapshot has the members of the snapshot before.
        SnapshotKeepsMembers,
        /// A leader calls an entry committed that it alone has.
        CommittedAlone,
        /// A leader counts a follower's support from when the promise arrives.
        SupportOutlivesPromise,
        /// A replica that has lost its log votes under its old id.
        WipedReplicaVotes,
    }
    Replication {
        /// A leader answers as if everything were committed.
        AnsweredBeforeCommit,
        /// A leader that others have replaced still answers from its state.
        DeposedLeaderAnswers,
        /// The bytes of a file are said to be here before they have come.
        BroughtNothing,
        /// Writes that their holder has not forced are not known to the next leader.
        UnforcedNotKnown,
        /// A start performs effects again that later commands have written over.
        PastEffectsPerformed,
        /// A start follows an entry that another one has replaced.
        VoidEntryFollowed,
        /// The holder of bytes does not say that a power cut may have taken some.
        DoubtsNotTold,
    }
    Node {
        /// A lease is granted of an inode that is about to change.
        IntentIgnored,
        /// A mutation does not wait until leases are returned.
        RecallNotAwaited,
        /// A change under the author's own lease is shown while the author's caches are older.
        WrittenShown,
        /// Names are left in caches when they are recalled.
        NamesNotRecalled,
        /// A name that its client renames stays in its cache without a lease.
        MovedNameForgotten,
        /// After a restart leases of the earlier run are unknown.
        LeasesForgotten,
        /// An fsync is answered that forced nothing.
        SkippedFsync,
        /// A change is answered before its record of the log is written, which is only when the
        /// next one comes.
        LateRecord,
        /// Snapshots leave out the session table.
        LostSession,
        /// The end of an upload cleans also what was written while it was on its way.
        EarlyClean,
        /// A force counts for what was written to the file while it was under way.
        ForceCoversLater,
        /// The names of store files are not forced.
        NamesNotForced,
        /// A store file goes before the record of its removal is forced.
        RemovedBeforeForced,
        /// Downloaded bytes are not compared with their checksums.
        SumNotVerified,
        /// Blocks are recorded as present before their bytes are in the store file.
        PresentBeforeFilled,
        /// A listing is trusted that shows what this node has deleted.
        StaleListingTrusted,
        /// A download takes whatever version of the object is there.
        TagNotCompared,
        /// A start leaves out the last record of the log.
        ReplayStopsEarly,
        /// A run of the log has the terms of the run before.
        TermReused,
        /// The forced index of one group of the log counts for another group.
        ForcedOfOtherGroup,
        /// Staged bytes count for any command of the partition behind them.
        StagedKept,
        /// Extents follow commands of the partition that their snapshot has followed already.
        FollowedTwice,
        /// A follower leaves the effects of a command to the leader.
        EffectsLeft,
        /// What was answered is not forced in the background.
        IntervalForgotten,
        /// A key is written before the record that claims it is forced.
        ClaimNotForced,
        /// An object is deleted before the record of the removal is forced.
        DeleteNotForced,
        /// A deletion takes the object whatever its version is.
        DeleteUnguarded,
        /// An upload replaces what somebody else has put there.
        OtherReplaced,
        /// Uploads whose beginning was not answered are left open.
        UploadsLeft,
        /// A key is written while an earlier request to it may still take effect.
        LateEffectIgnored,
        /// Space that is used again is cleared before its last use is over for good.
        ClearedBeforeForced,
        /// The rest of a block that the bucket had is not forced before a write to it.
        RestNotForced,
        /// A snapshot is written before the bytes that it speaks of are forced.
        SnapshotNotForced,
        /// A file that is open by several clients is removed with its last name.
        HoldersForgotten,
        /// What was looked up for a mutation is not looked at again when it is logged.
        LookupNotChecked,
        /// Several clients get answers that a power cut takes back.
        SharedNotForced,
        /// An answer does not wait for the object that was asked for.
        BarrierForgetsSubject,
        /// An answer does not wait for the children that it shows.
        BarrierForgetsChildren,
        /// Bytes of another client are shown before they are forced.
        UnforcedBytesShown,
        /// A node that has started anew shows files whose bytes a client has yet to repeat.
        LackingBytesShown,
        /// While a second client is let in, the first one gets answers that a power cut takes back.
        EnteringNotCounted,
        /// A node goes on writing to the bucket after another one has taken over.
        HeadIgnored,
        /// What a power cut may have taken of a store file is trusted.
        DoubtForgotten,
        /// Upload of a file reads while it is written.
        UploadNotLatched,
        /// A write that a full disk cuts short is recorded and answered as a whole one.
        ShortWriteWhole,
        /// A write that a full disk cuts short fails, and its first bytes stay.
        FailedWriteKeepsBytes,
    }
    Client {
        /// After the node has started anew it is not told what is open.
        OpensNotDeclared,
        /// What a power cut took of answered mutations is not repeated.
        LostNotRepeated,
        /// A mutation whose answer was lost is sent under another id.
        FreshTransaction,
        /// Locks are not taken back from a node that has started anew.
        LocksNotReclaimed,
        /// A slot is used again while its last mutation has no outcome.
        SlotReused,
        /// What is to be dropped from caches stays.
        CachesKept,
        /// Leases are returned before caches have dropped the recalled subjects.
        ReturnedEarly,
        /// An answer that a recall has overtaken is cached.
        OvertakenCached,
        /// Leases do not end by themselves.
        LeaseOutlivesTerm,
        /// An error that a later sync must report is forgotten.
        BlameForgotten,
        /// The successor of a process asks for a change under a new id.
        HeirForgetsRequests,
    }
    Bucket {
        /// A directory as bucket replaces what is there though nothing is to be.
        DirectoryReplaces,
        /// A directory as bucket answers a put before its name is forced.
        DirectoryNotForced,
        /// Listing of a directory leaves out an entry between two pages.
        DirectoryListSkips,
        /// Changes to S3 are sent without their conditions.
        S3Unconditional,
        /// Ranges are asked of S3 one byte too short.
        S3RangeShort,
        /// What Google Cloud Storage has is replaced whatever its generation is.
        GcsUnconditional,
        /// Blocks of Azure are put together in the reverse order.
        AzureBlocksReversed,
        /// An upload to a store over HTTP that was not answered counts as never made.
        UnknownIsUnavailable,
    }
    Fuse {
        /// The kernel's stream of a directory goes on one entry too late.
        DirOffsetSkipped,
        /// Times of files have no nanoseconds.
        NanosecondsCut,
        /// A directory that is not empty is reported as busy.
        NotEmptyIsBusy,
        /// Closing a file keeps the POSIX locks that its process has on it.
        CloseKeepsLocks,
        /// O_APPEND writes where the file ended when it was opened.
        AppendIgnored,
        /// Names that were removed elsewhere stay in the kernel's cache.
        NamesKept,
    }
}

impl Planted {
    #[inline(always)]
    pub fn is_on(self) -> bool {
        #[cfg(feature = "planted")]
        return switch::on() == Some(self);
        #[cfg(not(feature = "planted"))]
        return false;
    }

    pub fn named(name: &str) -> Option<Planted> {
        Planted::ALL.iter().map(|(bug, _)| *bug).find(|bug| format!("{bug:?}") == name)
    }
}

#[cfg(feature = "planted")]
pub use switch::{VARIABLE, planted_during};

#[cfg(feature = "planted")]
mod switch {
    use super::Planted;
    use std::cell::Cell;
    use std::sync::LazyLock;

    /// Names the bug that is on in all threads of a process.
    pub const VARIABLE: &str = "EBB_PLANTED";

    #[expect(clippy::disallowed_methods, reason = "in builds for tests alone; no rule reads it")]
    static EVERYWHERE: LazyLock<Option<Planted>> = LazyLock::new(|| {
        let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
        Some(Planted::named(&name).unwrap_or_else(|| panic!("{VARIABLE}={name} is no bug")))
    });

    thread_local! {
        static HERE: Cell<Option<Planted>> = Cell::new(*EVERYWHERE);
    }

    pub(super) fn on() -> Option<Planted> {
        HERE.get()
    }

    /// Does something with a bug in what this thread does, or with none.
    pub fn planted_during<T>(bug: Option<Planted>, does: impl FnOnce() -> T) -> T {
        struct Before(Option<Planted>);
        impl Drop for Before {
            fn drop(&mut self) {
                HERE.set(self.0);
            }
        }
        let _before = Before(HERE.replace(bug));
        does()
    }
}
