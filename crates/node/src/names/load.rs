//! Loads names from the bucket, lazily (O-25…27): a directory's page of `.ebb/` and the listing of
//! its prefix, page by page, or one name where the directory is large.
//!
//! One load per directory is under way at a time. The bucket's answer enters the log as `Install`,
//! which the partition refuses if names were removed since the question.

use crate::Node;
use crate::admin::troubles::Subject;
use crate::names::external_changes::vanished;
use crate::names::listings::{MOST_AGE, Page, list};
use crate::names::pages::LOAD_PIECES;
use crate::readahead::traversals::Look;
use ebb_core::backing::{Listed, Listing, LoadPlan, LookupPlan, Part, Scope};
use ebb_core::backing::{are_agreed, end_of_batch, page_key, pieces_of_listing, pieces_of_name};
use ebb_format::page::Head;
use ebb_model::*;
use ebb_ports::{BucketError, PortFuture};
use ebb_store::Mode;
use futures_util::future::{try_join, try_join_all};
use std::future::Future;
use std::rc::Rc;

/// Directories above each other that are loaded for one name: far above the depth of a path.
const MAX_DEPTH: usize = 4096;

/// More ids than clients can have been given in the operations that a power cut takes back.
const LOST_IDS: u32 = 1 << 17;

/// The purpose of a part of a listing.
#[derive(Clone, Copy)]
pub(crate) enum For {
    /// A lookup of a name.
    Name,
    /// A reader of the whole directory, part after part.
    Listing,
    /// Read-ahead: no client has asked yet, and a later one must not wait for this.
    Later,
}

/// The entries that the bucket has for one name.
pub(crate) struct Found {
    entries: Vec<Listed>,
    page: Option<Rc<Head>>,
    epoch: u64,
}

/// The outcome of logging a listing.
pub(crate) struct Entered {
    /// The directory was still in the epoch of the question.
    pub current: bool,
    /// Keys that cannot be names.
    pub not_shown: Vec<String>,
}

impl Node {
    /// Makes sure that the namespace has loaded `name` of `dir`, or its absence.
    pub(crate) async fn resolve(&self, dir: Ino, name: &Name) -> Result<(), RpcError> {
        if self.knows(dir, name) {
            return Ok(());
        }
        let _guard = self.names.loads.hold(dir, Mode::Exclusive).await;
        // An answer is void if the directory's objects have got another prefix since the question.
        // It shows nothing about the name then, and the request is repeated.
        while !self.knows(dir, name) {
            // The first page completes small directories.
            if self.is_untouched(dir) {
                Box::pin(self.load_page(dir, For::Name)).await?;
            } else if Box::pin(self.load_name(dir, name)).await? {
                break;
            }
        }
        Ok(())
    }

    /// As [`Node::resolve`], for a lookup only.
    pub(crate) async fn look_up(self: &Rc<Self>, dir: Ino, name: &Name) -> Result<Attr, RpcError> {
        if !self.knows(dir, name) {
            self.room_to_load()?;
            self.look_into(dir, Look::Up);
            self.resolve(dir, name).await?;
        } else if self.readahead.is_ahead(dir) {
            self.look_into(dir, Look::Up);
        }
        Ok(self.replica.view().namespace().lookup(dir, name)?)
    }

    /// Makes sure that the namespace holds every name of `dir`.
    pub(crate) async fn complete(&self, dir: Ino) -> Result<(), RpcError> {
        while !self.is_complete(dir) {
            // A removal must learn whether the directory is empty, even without room.
            if self.replica.view().namespace().has_more_names_than(dir, 0) {
                self.room_to_load()?;
            }
            self.load_next(dir).await?;
        }
        Ok(())
    }

    /// Loads one more page of a directory that is not complete.
    pub(crate) async fn load_next(&self, dir: Ino) -> Result<(), RpcError> {
        let _guard = self.names.loads.hold(dir, Mode::Exclusive).await;
        if !self.is_complete(dir) {
            Box::pin(self.load_page(dir, For::Listing)).await?;
        }
        Ok(())
    }

    pub(crate) fn is_untouched(&self, dir: Ino) -> bool {
        self.replica.view().backing().is_untouched(dir)
    }

    pub(crate) fn is_complete(&self, dir: Ino) -> bool {
        self.replica.view().backing().is_complete(dir)
    }

    /// Whether the namespace has the name, or the bucket is known not to have it.
    pub(super) fn knows(&self, dir: Ino, name: &Name) -> bool {
        let state = self.replica.view();
        match state.namespace().lookup(dir, name) {
            Ok(_) => true,
            // Not a directory, or gone: there is nothing to load.
            Err(error) if error != FsError::NotFound => true,
            Err(_) => state.backing().knows_absent(state.namespace(), dir, name),
        }
    }

    pub(crate) fn load_epoch(&self, dir: Ino) -> Option<u64> {
        self.replica.view().backing().load_epoch(dir)
    }

    fn load_plan(&self, dir: Ino) -> Option<LoadPlan> {
        let state = self.replica.view();
        state.backing().load_plan(state.namespace(), dir)
    }

    pub(crate) async fn load_page(&self, dir: Ino, whom: For) -> Result<(), RpcError> {
        let Some(asked) = self.load_plan(dir) else { return Ok(()) };
        let began = self.ports.clock.monotonic();
        let page_key = asked.page_key.clone();
        let (has_page, early) = self
            .patiently(
                whom,
                try_join(
                    self.see_head(dir, page_key.as_deref()),
                    self.list_beside_page(dir, &asked),
                ),
            )
            .await?;
        let head = if has_page { self.head_of(dir, page_key.as_deref()).await? } else { None };
        // A newly found head has an epoch of its own.
        let Some(plan) = self.load_plan(dir).filter(|plan| plan.page_key == page_key) else {
            return Ok(());
        };
        let agree = |page: &Page| match &head {
            Some((head, _)) => are_agreed(head, &plan.prefix, &page.entries, page.more),
            None => !has_page,
        };
        let most_age = self.revalidates().map_or(MOST_AGE, |interval| interval.min(MOST_AGE));
        let is_new = self.ports.clock.monotonic() < began + most_age;
        let early = early.filter(|page| is_new && plan == asked && agree(page));
        let LoadPlan { prefix, after, epoch, .. } = plan.clone();
        let first = after.is_none();
        if first {
            self.names.revalidation.asked_for(dir, began);
        }
        let end = |part: &Part| {
            end_of_batch(
                &head.as_ref()?.0,
                &prefix,
                after.as_deref(),
                part.last.as_deref(),
                LOAD_PIECES,
            )
        };
        let Part { entries, last, to_probe, .. } =
            self.patiently(whom, self.list_part(dir, &plan, early, whom, end)).await?;
        let mut entries = self.patiently(whom, self.drop_stale(entries)).await?;
        entries.extend(self.patiently(whom, self.probe(to_probe)).await?);
        let page = match &head {
            Some((head, _)) => {
                let needed =
                    pieces_of_listing(head, &prefix, after.as_deref(), &entries, last.as_deref());
                // A page that is out of date is read again, and the entries listed with it are
                // void.
                let Some(page) = self.patiently(whom, self.with_pieces(dir, head, needed)).await?
                else {
                    return Ok(());
                };
                Some(page)
            }
            None => None,
        };
        // Each piece is loaded when the listing reaches it, a whole page with the first part.
        let is_in_pieces = page.as_ref().is_some_and(|page| !page.pieces.is_empty());
        let scope = if first || is_in_pieces { Scope::First } else { Scope::Next };
        let progress = last.map_or(LoadProgress::Complete, LoadProgress::UpTo);
        let Entered { current, not_shown } = self
            .install(
                Listing { dir, entries: &entries, page: page.as_deref(), scope, after: None },
                epoch,
                progress,
            )
            .await?;
        if current {
            self.names.not_shown.found(dir, first, &not_shown, self.ports.clock.wall());
        }
        if current && self.load_plan(dir) == Some(plan) {
            // A repeated request would get the same answer, for ever.
            self.trouble(
                Subject::Listing(dir),
                Some(format!(
                    "directory {dir} cannot be listed: the bucket tells of it what cannot be"
                )),
            );
            return Err(FsError::Io.into());
        }
        self.trouble(Subject::Listing(dir), None);
        Ok(())
    }

    /// Requests the beginning of a directory's listing while its page is on the way. A caller that
    /// cannot use it asks again.
    async fn list_beside_page(&self, dir: Ino, plan: &LoadPlan) -> Result<Option<Page>, RpcError> {
        let is_first =
            plan.after.is_none() && plan.page_key.is_some() && self.names.pages.head(dir).is_none();
        if !is_first {
            return Ok(None);
        }
        let ask = || -> PortFuture<'_, Result<Page, BucketError>> {
            Box::pin(list(self.buckets.bucket(), &plan.prefix, None))
        };
        self.bucket_read("list", &plan.prefix, 0, ask).await.map(Some)
    }

    /// Waits for the bucket as long as the purpose allows.
    async fn patiently<T>(
        &self,
        whom: For,
        asking: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        match whom {
            For::Name | For::Listing => asking.await,
            For::Later => self.in_time(asking).await,
        }
    }

    /// Loads one name of a directory that is too large to be loaded for it. False if the answer is
    /// void.
    async fn load_name(&self, dir: Ino, name: &Name) -> Result<bool, RpcError> {
        match self.ask_for_name(dir, name).await? {
            Some(found) => {
                let epoch = found.epoch;
                Ok(self.install_name(dir, name, found).await?
                    && self.load_epoch(dir) == Some(epoch))
            }
            None => Ok(true),
        }
    }

    /// The bucket's entries for one name; `None` if it cannot have any.
    pub(crate) async fn ask_for_name(
        &self,
        dir: Ino,
        name: &Name,
    ) -> Result<Option<Found>, RpcError> {
        let plan = || {
            let state = self.replica.view();
            state.backing().lookup_plan(state.namespace(), dir, name)
        };
        let (LookupPlan { objects, prefixes, epoch, .. }, page) = loop {
            let Some(LookupPlan { page_key: asked, .. }) = plan() else { return Ok(None) };
            let head = self.head_of(dir, asked.as_deref()).await?;
            // A newly found head has an epoch of its own.
            let Some(plan) = plan().filter(|plan| plan.page_key == asked) else { continue };
            let Some((head, _)) = head else { break (plan, None) };
            if let Some(page) = self.with_pieces(dir, &head, pieces_of_name(&head, name)).await? {
                break (plan, Some(page));
            }
        };
        let heads = objects.into_iter().map(|key| self.ask_for_object(key));
        let (found, mut entries) = try_join(try_join_all(heads), self.probe(prefixes)).await?;
        entries.extend(found.into_iter().flatten());
        Ok(Some(Found { entries, page, epoch }))
    }

    pub(crate) async fn install_name(
        &self,
        dir: Ino,
        name: &Name,
        found: Found,
    ) -> Result<bool, RpcError> {
        let Found { entries, page, epoch } = found;
        let listing = Listing {
            dir,
            entries: &entries,
            page: page.as_deref(),
            scope: Scope::Name(name),
            after: None,
        };
        Ok(self.install(listing, epoch, LoadProgress::Unchanged).await?.current)
    }

    /// Those of the prefixes with any object below.
    pub(crate) async fn probe(&self, prefixes: Vec<String>) -> Result<Vec<Listed>, RpcError> {
        let probes = prefixes.into_iter().map(|key| self.ask_for_prefix(key));
        Ok(try_join_all(probes).await?.into_iter().flatten().collect())
    }

    /// Looks up every name of an inode: all must be loaded before it is changed.
    pub(crate) async fn see_all_names(&self, ino: Ino) -> Result<(), RpcError> {
        loop {
            let unseen = self.replica.view().backing().unresolved_links(ino).first().cloned();
            let Some((dir, name)) = unseen else { return Ok(()) };
            if Box::pin(self.bring_in(dir)).await? {
                self.resolve(dir, &name).await?;
            }
            let still = self.replica.view().backing().unresolved_links(ino).first().cloned();
            if still == Some((dir, name.clone())) {
                // The record has a name that is not there, or is another inode now.
                self.commit_stamped(|state, stamp| {
                    Ok(Command::Backing(vanished(state, dir, &name, stamp)))
                })
                .await?;
            }
        }
    }

    /// Loads a directory that a record names by its inode id; false if it is nowhere.
    async fn bring_in(&self, dir: Ino) -> Result<bool, RpcError> {
        let mut missing = Vec::new();
        let mut at = dir;
        while self.replica.view().namespace().inode(at).is_none() {
            let Some((head, _)) = self.read_head(&page_key(at)).await? else { return Ok(false) };
            let Some((parent, name)) = head.page.parent.clone() else { return Ok(false) };
            if missing.len() >= MAX_DEPTH {
                return Ok(false);
            }
            missing.push((parent, name));
            at = parent;
        }
        for (parent, name) in missing.into_iter().rev() {
            self.resolve(parent, &name).await?;
        }
        Ok(self.replica.view().namespace().inode(dir).is_some())
    }

    /// A client that was alone and has yet to come back after a power cut may bring ids that the
    /// log has lost. Clients of a read-only node have made nothing.
    pub(crate) fn ids_to_skip(&self) -> u32 {
        if self.attachments.awaits_sole() && !self.read_only() { LOST_IDS } else { 0 }
    }

    /// Logs the found entries, in pieces that fit a record.
    pub(crate) async fn install(
        &self,
        listing: Listing<'_>,
        epoch: u64,
        progress: LoadProgress,
    ) -> Result<Entered, RpcError> {
        let dir = listing.dir;
        let time = self.ports.clock.wall();
        let mut upto: Option<Name> = None;
        loop {
            let (mut not_shown, mut current, mut more) = (Vec::new(), false, false);
            let (index, applied) = self
                .replica
                .propose(|state| {
                    current = state.backing().load_epoch(dir) == Some(epoch);
                    let mut ids = state.namespace().draw_ids(self.ids_to_skip());
                    let mut are_left = true;
                    let draw = |kind| {
                        let ino = ids.draw(self.slot_of_new(dir, kind));
                        are_left &= ino.is_some();
                        ino.unwrap_or(Ino::NONE)
                    };
                    let rest = Listing { after: upto.as_ref(), ..listing };
                    let found = state.backing().interpret(state.namespace(), &rest, draw);
                    if !are_left {
                        return Err(FsError::NoSpace.into());
                    }
                    not_shown = found.not_shown;
                    // In the order of names.
                    let (mut entries, hidden) = (found.entries, found.hidden);
                    let fitting = fitting(&entries);
                    more = fitting < entries.len();
                    entries.truncate(fitting);
                    upto = entries.last().map(|entry| entry.name.clone());
                    let progress = if more { LoadProgress::Unchanged } else { progress.clone() };
                    let owner = (self.options.uid, self.options.gid);
                    let stamp = Stamp { time, version: state.next_version() };
                    Ok(Command::Backing(BackingCommand::Install {
                        dir,
                        epoch,
                        entries,
                        hidden,
                        owner,
                        progress,
                        stamp,
                    }))
                })
                .await?;
            self.names.found.set(index);
            self.perform_effects(applied, None).await?;
            if more && current {
                continue;
            }
            if self.is_complete(dir) {
                self.names.pages.forget(dir);
            }
            return Ok(Entered { current, not_shown });
        }
    }
}

/// The number of entries that fit one command, at least one.
fn fitting(entries: &[Installed]) -> usize {
    let mut room = INSTALL_BYTES;
    let fits = |entry: &&Installed| {
        let bytes = encoded_bytes(entry);
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    };
    entries.iter().take_while(fits).count().max(1)
}

/// The approximate length of the entry in a record.
fn encoded_bytes(entry: &Installed) -> usize {
    let what = match &entry.what {
        InstalledKind::Object { key, etag, .. } => key.as_ref().map_or(0, String::len) + etag.len(),
        InstalledKind::Directory { prefix, .. } => prefix.as_ref().map_or(0, String::len),
        InstalledKind::Recorded(Make::Symlink { target }) => target.len(),
        InstalledKind::Recorded(_) => 0,
    };
    let record = entry.record.as_ref().map_or(0, |record| {
        let xattrs: usize =
            record.xattrs.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let links: usize = record.links.iter().map(|(_, name)| name.as_bytes().len() + 16).sum();
        xattrs + links
    });
    ENTRY_BYTES + entry.name.as_bytes().len() + what + record
}

/// The bytes of entries in one command: well below the longest record.
const INSTALL_BYTES: usize = 512 << 10;

/// The size of an entry beside its names, keys and values.
const ENTRY_BYTES: usize = 160;
