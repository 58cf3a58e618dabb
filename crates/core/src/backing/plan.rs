//! Plans the node's next work on the bucket. Read-only.

use super::*;
use std::ops::Bound;

/// A file or page that the bucket does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirtyWork {
    File(Ino),
    Page(Ino),
}

/// State of a directory's page.
pub struct PageStatus {
    pub dir: Ino,
    /// The bucket can have one.
    pub stored: bool,
    /// Tag of the page that was written last or read.
    pub etag: Option<String>,
    /// Time since when the page is dirty.
    pub since: Option<Time>,
}

/// Counts of outstanding work on the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirt {
    pub files: u64,
    pub pages: u64,
    pub deletes: u64,
    /// Age of the oldest file or page.
    pub since: Option<Time>,
}

/// The next step that brings a file's object to its key and bytes. Before anything is sent to a
/// key, [`BackingCommand::UploadBegun`] is logged and checked in [`Backing::uploads`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlushStep {
    /// Upload the bytes to `key`. `replaces` is the tag of the object there; `None`: there is none.
    Put {
        key: String,
        replaces: Option<String>,
    },
    /// Copy the object with this tag.
    Move {
        from: String,
        to: String,
        etag: String,
    },
    /// First copy `occupant`, whose only object is at this file's key.
    Evict {
        occupant: Ino,
        from: String,
        to: String,
        etag: String,
    },
    /// First carry out this pending delete.
    AwaitDelete {
        key: String,
    },
    /// First wait for the end of this inode's upload.
    AwaitUpload {
        ino: Ino,
    },
    /// First move the objects below this directory's redirect.
    MakeWay {
        dir: Ino,
    },
    Nothing,
}

/// The next step that writes a directory's page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageStep {
    /// Write an empty object to `marker`, then the page to `key`. `merge`: the existing page has
    /// entries that are not loaded, and is an input of [`Backing::page`].
    Write {
        key: String,
        marker: Option<String>,
        merge: bool,
    },
    AwaitDelete {
        key: String,
    },
    AwaitUpload,
    Nothing,
}

/// Request for the next batch of a directory's listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadPlan {
    pub prefix: String,
    /// Only keys and common prefixes above this one.
    pub after: Option<String>,
    /// The directory's page, to be read as well.
    pub page_key: Option<String>,
    pub epoch: u64,
}

/// Requests that find one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupPlan {
    /// Keys of possible objects.
    pub objects: Vec<String>,
    /// Prefixes of possible directories.
    pub prefixes: Vec<String>,
    pub page_key: Option<String>,
    pub epoch: u64,
}

impl Backing {
    /// Amount of outstanding work.
    pub fn dirt(&self) -> Dirt {
        let pages = self.queue.iter().filter(|((_, is_dir, _), ())| *is_dir).count() as u64;
        let since = self.queue.first().map(|((since, ..), ())| since);
        let deletes = (self.deletes.len() + self.unwanted().count()) as u64;
        Dirt { files: self.queue.len() as u64 - pages, pages, deletes, since }
    }

    /// Keys being written for inodes that were removed or moved: the resulting object will be
    /// deleted.
    pub fn unwanted(&self) -> impl Iterator<Item = &str> {
        self.uploads
            .iter()
            .filter(|(ino, _)| !self.is_dirty(**ino))
            .map(|(_, upload)| upload.key.as_str())
    }

    /// Time since when a page that records the inode is dirty: the pages of the directories of its
    /// names and a directory's own page.
    pub fn page_since(&self, namespace: &Namespace, ino: Ino) -> Option<Time> {
        let inode = namespace.inode(ino);
        let parents = inode.iter().flat_map(|inode| namespace.parents(inode));
        let dirty = parents.chain([ino]).filter_map(|dir| self.dirs.get(&dir)?.dirty);
        dirty.map(|page| page.since).min()
    }

    /// The pages that record an inode: those of the directories of its names and a directory's own.
    pub fn pages_of(&self, namespace: &Namespace, ino: Ino) -> Vec<PageStatus> {
        let inode = namespace.inode(ino);
        let is_recorded = self.files.get(&ino).is_none_or(|file| file.recorded)
            && self.dirs.get(&ino).is_none_or(|dir| dir.recorded);
        let parents: BTreeSet<Ino> = inode
            .iter()
            .filter(|_| is_recorded)
            .flat_map(|inode| namespace.parents(inode))
            .collect();
        let page = |dir: Ino| {
            let state = self.dirs.get(&dir).filter(DirBacking::has_page)?;
            Some(PageStatus {
                dir,
                stored: state.stored,
                etag: state.page,
                since: state.dirty.map(|dirty| dirty.since),
            })
        };
        parents.into_iter().filter(|parent| *parent != ino).chain([ino]).filter_map(page).collect()
    }

    /// Dirty files and directories, oldest first.
    pub fn dirty_inodes(&self) -> impl Iterator<Item = (Time, Ino)> {
        self.dirty_after(None).map(|DirtyPoint { since, ino, .. }| (since, ino))
    }

    /// The same, after this position.
    pub fn dirty_after(&self, after: Option<DirtyPoint>) -> impl Iterator<Item = DirtyPoint> {
        let from = after.map_or(Bound::Unbounded, |DirtyPoint { since, is_dir, ino }| {
            Bound::Excluded((since, is_dir, ino))
        });
        self.queue.range((from, Bound::Unbounded)).map(|((since, is_dir, ino), ())| DirtyPoint {
            since,
            is_dir,
            ino,
        })
    }

    /// Dirty files and pages, oldest first, with the time since when.
    pub fn dirty_work(&self) -> impl Iterator<Item = (Time, DirtyWork)> {
        self.queue.iter().map(|((since, is_dir, ino), ())| {
            (since, if is_dir { DirtyWork::Page(ino) } else { DirtyWork::File(ino) })
        })
    }

    /// Whether the bucket lacks changes of the file or of the directory's page.
    pub fn is_dirty(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino).is_some_and(|file| file.dirty.is_some());
        file || self.dirs.get(&ino).is_some_and(|dir| dir.dirty.is_some())
    }

    /// Whether a delete of the key is pending.
    pub fn is_to_be_deleted(&self, key: &str) -> bool {
        self.deletes.contains_key(&key.to_owned())
    }

    /// Whether no work on the bucket is outstanding or in progress.
    pub fn is_settled(&self) -> bool {
        self.queue.is_empty() && self.deletes.is_empty() && self.uploads.is_empty()
    }

    /// The key of a pending delete with this tag.
    pub fn deleted_with(&self, tag: &str) -> Option<String> {
        self.deletes.iter().find(|(_, deleted)| deleted.as_deref() == Some(tag)).map(|(key, _)| key)
    }

    /// Pending deletes, with the tag that guards against changes of other writers. Excluded are
    /// keys that an upload in progress can write again, and objects that identify an upload's copy
    /// of a removed file.
    pub fn deletes(&self) -> impl Iterator<Item = (String, Option<String>)> {
        let is_kept = |key: &str, tag: &Option<String>| {
            let may_be_of = |ino: &Ino, upload: &Upload| {
                tag.is_some() && upload.from == *tag && !self.files.contains_key(ino)
            };
            self.uploads.iter().any(|(ino, upload)| upload.claims(key) || may_be_of(ino, upload))
        };
        self.deletes.iter().filter(move |(key, tag)| !is_kept(key, tag))
    }

    /// Writes in progress. A restarted node determines the outcome of each before it changes their
    /// keys.
    pub fn uploads(&self) -> impl Iterator<Item = (Ino, &Upload)> {
        self.uploads.iter().map(|(ino, upload)| (*ino, upload))
    }

    /// The write in progress of the inode.
    pub fn upload(&self, ino: Ino) -> Option<&Upload> {
        self.uploads.get(&ino)
    }

    /// Directories with a prefix other than that of their path.
    pub fn redirects(&self) -> impl Iterator<Item = Ino> {
        self.redirects.iter().map(|(_, dir)| dir)
    }

    /// Where a directory's objects are, if that is not what its path says.
    pub fn redirect_of(&self, dir: Ino) -> Option<String> {
        self.dirs.get(&dir)?.prefix
    }

    /// Whether the directory has a redirect, is completely loaded, and the prefix of its path is
    /// free.
    pub fn can_unredirect(&self, namespace: &Namespace, dir: Ino) -> bool {
        self.redirect_to_give_up(namespace, dir).is_some_and(|(_, is_taken)| !is_taken)
    }

    /// The directory has a redirect, and its objects can be where its path says once all names in
    /// it are known.
    pub fn is_path_free(&self, namespace: &Namespace, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|dir| dir.prefix.is_some())
            && self
                .own_prefix(namespace, dir)
                .is_some_and(|prefix| !self.is_taken(namespace, &prefix))
    }

    /// The redirect of a complete directory, and whether the prefix of its path is in use.
    pub(super) fn redirect_to_give_up(
        &self,
        namespace: &Namespace,
        dir: Ino,
    ) -> Option<(String, bool)> {
        let prefix = self.dirs.get(&dir)?.prefix.filter(|_| self.is_complete(dir))?;
        Some((prefix, self.is_taken(namespace, &self.own_prefix(namespace, dir)?)))
    }

    /// The next step for a file's object. Uploads and conflicts at the key go first.
    pub fn flush_step(&self, namespace: &Namespace, ino: Ino) -> FlushStep {
        if self.uploads.contains_key(&ino) {
            return FlushStep::AwaitUpload { ino };
        }
        let Some(dirty) = self.files.get(&ino).and_then(|file| file.dirty) else {
            return FlushStep::Nothing;
        };
        // An inode with names that are not loaded keeps its key.
        let own = if self.unresolved_links.has(ino) {
            self.object_key(namespace, ino)
        } else {
            self.key_of(namespace, ino)
        };
        let Some(to) = own else { return FlushStep::Nothing };
        if let Some(wait) = self.obstacle(namespace, ino, &to) {
            return wait;
        }
        match (self.backing_object(namespace, ino), dirty.content) {
            (Some((from, object)), None) if from != to => {
                FlushStep::Move { from, to, etag: object.etag }
            }
            (_, None) => FlushStep::Nothing,
            (object, Some(_)) => {
                let replaces =
                    object.filter(|(from, _)| *from == to).map(|(_, object)| object.etag);
                FlushStep::Put { key: to, replaces }
            }
        }
    }

    /// The step required before an object is written to `key` for `ino`.
    fn obstacle(&self, namespace: &Namespace, ino: Ino, key: &str) -> Option<FlushStep> {
        if self.deletes.contains_key(&key.to_string()) {
            return Some(FlushStep::AwaitDelete { key: key.into() });
        }
        if let Some((other, _)) = self.uploads.iter().find(|(_, upload)| upload.claims(key)) {
            return Some(FlushStep::AwaitUpload { ino: *other });
        }
        let occupant = self.explicit_keys.get(&key.to_string())?;
        if occupant == ino {
            return None;
        }
        let is_free = |key: &String| {
            let sent = self.uploads.values().any(|upload| upload.claims(key));
            !sent && !self.deletes.contains_key(key) && !self.explicit_keys.contains_key(key)
        };
        let own = self.key_of(namespace, occupant).filter(is_free);
        self.evict(occupant, key, own.unwrap_or_else(|| keys::waiting_key(occupant)))
    }

    pub(super) fn evict(&self, occupant: Ino, from: &str, to: String) -> Option<FlushStep> {
        if self.uploads.contains_key(&occupant) {
            return Some(FlushStep::AwaitUpload { ino: occupant });
        }
        let etag = self.files.get(&occupant)?.object?.etag;
        if self.deletes.contains_key(&to) {
            return Some(FlushStep::AwaitDelete { key: to });
        }
        Some(FlushStep::Evict { occupant, from: from.into(), to, etag })
    }

    /// The next step for a directory's page. A pending delete of its marker goes first.
    pub fn page_step(&self, namespace: &Namespace, dir: Ino) -> PageStep {
        let Some(state) = self.dirs.get(&dir).filter(|dir| dir.dirty.is_some()) else {
            return PageStep::Nothing;
        };
        if self.uploads.contains_key(&dir) {
            return PageStep::AwaitUpload;
        }
        let marker = self.marker(namespace, dir);
        if let Some(key) = marker.iter().find(|key| self.deletes.contains_key(*key)) {
            return PageStep::AwaitDelete { key: key.clone() };
        }
        PageStep::Write {
            key: keys::page_key(dir),
            marker,
            merge: state.stored && !self.is_complete(dir),
        }
    }

    /// Tag of the directory's page, if this volume has written it.
    pub fn page_tag(&self, dir: Ino) -> Option<String> {
        self.dirs.get(&dir)?.page
    }

    /// The marker object, which makes a directory created by ebb visible to tools that see only
    /// keys.
    pub(super) fn marker(&self, namespace: &Namespace, dir: Ino) -> Option<String> {
        let state = self.dirs.get(&dir)?;
        // A directory created here has a marker for certain once its page exists.
        let is_there = state.marked && (state.load != Load::Native || state.page.is_some());
        if is_there || state.prefix.is_some() {
            return None;
        }
        self.prefix_of(namespace, dir).filter(|prefix| !prefix.starts_with(".ebb/"))
    }

    /// `None` for a complete directory.
    pub fn load_plan(&self, namespace: &Namespace, dir: Ino) -> Option<LoadPlan> {
        let state = self.dirs.get(&dir)?;
        let after = match state.load {
            Load::Native | Load::Complete | Load::Revalidating => return None,
            Load::Unknown => None,
            Load::UpTo(last) => Some(last),
        };
        let page_key = state.stored.then(|| keys::page_key(dir));
        Some(LoadPlan {
            prefix: self.prefix_of(namespace, dir)?,
            after,
            page_key,
            epoch: state.epoch,
        })
    }

    /// `None` if the bucket cannot have the name.
    pub fn lookup_plan(&self, namespace: &Namespace, dir: Ino, name: &Name) -> Option<LookupPlan> {
        let state = self.dirs.get(&dir)?;
        let settled = match state.load {
            // What was listed may have changed since.
            Load::Revalidating | Load::UpTo(_) => {
                is_reserved(dir, name) || self.removed.contains_key(&(dir, name.clone()))
            }
            _ => self.knows_absent(namespace, dir, name),
        };
        if settled {
            return None;
        }
        let prefix = self.prefix_of(namespace, dir)?;
        let names = std::iter::once(name.clone()).chain(keys::shadowing(name));
        let objects: Vec<String> = names
            .map(|name| keys::segment_of(&name))
            .filter(|segment| !segment.is_empty() && segment.len() <= keys::MAX_SEGMENT_BYTES)
            .map(|segment| format!("{prefix}{segment}"))
            .filter(|key| key.len() <= keys::MAX_KEY_BYTES)
            .collect();
        let mut prefixes: Vec<String> = objects.iter().map(|key| format!("{key}/")).collect();
        if keys::segment_of(name).is_empty() {
            prefixes.push(format!("{prefix}/"));
        }
        prefixes.retain(|prefix| prefix.len() <= keys::MAX_KEY_BYTES);
        // The page of a directory that was complete once has no name that the namespace lacks, nor
        // has the part of a page that was read with the listing.
        let is_page_known = self.is_complete(dir) || self.knows_absent(namespace, dir, name);
        let page_key = (state.stored && !is_page_known).then(|| keys::page_key(dir));
        Some(LookupPlan { objects, prefixes, page_key, epoch: state.epoch })
    }
}
