//! Combines a bucket's listing with the directory's page into names to install.

use super::page::{recorded_names, telling};
use super::pieces::ends;
use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// One entry of a listing by directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listed {
    Object {
        key: String,
        etag: String,
        len_bytes: u64,
        modified: Time,
    },
    /// Ends with `/`.
    Prefix {
        key: String,
    },
}

impl Listed {
    pub fn key(&self) -> &str {
        match self {
            Listed::Object { key, .. } | Listed::Prefix { key } => key,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Listing<'a> {
    pub dir: Ino,
    pub entries: &'a [Listed],
    /// For a page in pieces: only the entries of [these](pieces_of_listing) pieces.
    pub page: Option<&'a PageHead>,
    pub scope: Scope<'a>,
    /// Names up to this one have been installed.
    pub after: Option<&'a Name>,
}

/// The range in which the entries are complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// From the beginning: names that only the page has are installed, too.
    First,
    Next,
    /// The keys requested by [`LookupPlan`].
    Name(&'a Name),
}

/// Contents of [`BackingCommand::Install`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interpreted {
    pub entries: Vec<Installed>,
    pub hidden: Vec<String>,
    /// Keys that no name can represent.
    pub not_shown: Vec<String>,
}

/// One batch of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    pub entries: Vec<Listed>,
    /// The key after which the next batch begins. `None`: the listing is complete.
    pub last: Option<String>,
    /// An object deferred to the next batch, since only that shows whether a prefix of its name
    /// exists.
    pub left: Option<Listed>,
    /// Prefixes that can exist beyond the end of the batch and would share the name of an object in
    /// it (`a`, then `a!`, then `a/`). The caller probes them and adds those that exist.
    pub to_probe: Vec<String>,
}

impl Part {
    /// `more`: entries follow these.
    pub fn of(mut entries: Vec<Listed>, more: bool) -> Part {
        let Some(end) = entries.last().filter(|_| more).map(|last| last.key().to_owned()) else {
            return Part { entries, last: None, left: None, to_probe: Vec::new() };
        };
        let is_left = entries.len() > 1 && matches!(entries.last(), Some(Listed::Object { .. }));
        let left = if is_left { entries.pop() } else { None };
        let objects = entries.iter().filter(|entry| matches!(entry, Listed::Object { .. }));
        let prefixes = objects.map(|entry| format!("{}/", entry.key()));
        let to_probe = prefixes.filter(|prefix| *prefix > end && !prefix.ends_with("//")).collect();
        Part { last: entries.last().map(|last| last.key().to_owned()), entries, left, to_probe }
    }

    /// Ends the batch at a key, except for prefixes that share the name of an object up to it.
    pub fn end_at(&mut self, end: String) {
        self.entries
            .retain(|entry| entry.key().strip_suffix('/').unwrap_or(entry.key()) <= end.as_str());
        self.to_probe.retain(|prefix| prefix[..prefix.len() - 1] <= *end);
        self.left = None;
        self.last = Some(end);
    }
}

/// The pieces of a page that can contain names listed in `after < key <= last` (`None`: to the
/// end), or names between these. The first batch includes the pieces of all moved names: if a name
/// whose key holds another name's object were removed, the object would seem to be removed with it.
pub fn pieces_of_listing(
    head: &PageHead,
    prefix: &str,
    after: Option<&str>,
    entries: &[Listed],
    last: Option<&str>,
) -> Vec<PagePiece> {
    let within = pieces_within(head, prefix, after, last);
    let segments = entries.iter().filter_map(|entry| entry.key().strip_prefix(prefix));
    let names =
        segments.filter_map(|segment| keys::name_of(segment.strip_suffix('/').unwrap_or(segment)));
    let of_names = names.flat_map(|name| pieces_of_name(head, &name));
    let of_moved =
        head.moved.iter().filter(|_| after.is_none()).filter_map(|name| head.piece_of(name));
    let needed: BTreeMap<Name, PagePiece> = within
        .chain(of_moved)
        .cloned()
        .chain(of_names)
        .map(|piece| (piece.first.clone(), piece))
        .collect();
    needed.into_values().collect()
}

/// Pieces in name order.
fn pieces_within<'a>(
    head: &'a PageHead,
    prefix: &'a str,
    after: Option<&'a str>,
    last: Option<&'a str>,
) -> impl Iterator<Item = &'a PagePiece> {
    let rest =
        |key: Option<&'a str>| key.and_then(|key| key.strip_prefix(prefix)).map(str::as_bytes);
    let (after, last) = (rest(after), rest(last));
    let within = head.pieces.iter().zip(ends(&head.pieces, None)).filter(move |(piece, end)| {
        let is_before = after.zip(*end).is_some_and(|(after, end)| end.as_bytes() <= after);
        let has_deferred = last.is_some_and(|last| piece.first.as_bytes() > last);
        !is_before && !has_deferred
    });
    within.map(|(piece, _)| piece)
}

/// Whether page and listing, requested at one time, contain exactly the same files and directories,
/// so their relative age does not matter. Returns false for cases that are hard to compare.
pub fn are_agreed(head: &PageHead, prefix: &str, entries: &[Listed], more: bool) -> bool {
    let recorded = head.page.entries.iter().filter_map(|entry| match &entry.what {
        InstalledKind::Object { key: None, etag, .. } => {
            Some((keys::segment_of(&entry.name), Some(etag)))
        }
        InstalledKind::Directory { prefix: None, .. } => {
            Some((keys::segment_of(&entry.name), None))
        }
        _ => None,
    });
    let listed = entries.iter().filter_map(|entry| {
        let segment = entry.key().strip_prefix(prefix)?;
        match entry {
            Listed::Object { etag, .. } => Some((segment.to_owned(), Some(etag))),
            Listed::Prefix { .. } => Some((segment.strip_suffix('/')?.to_owned(), None)),
        }
    });
    let is_reserved =
        |segment: &str| segment.is_empty() || prefix.is_empty() && segment == keys::RESERVED;
    let listed: BTreeSet<_> = listed.filter(|(segment, _)| !is_reserved(segment)).collect();
    !more && head.pieces.is_empty() && listed == recorded.collect()
}

/// The key at which to end a batch so that it needs at most `most` pieces: a page can have far more
/// pieces than the listing has keys. `None`: the end of the batch.
pub fn end_of_batch(
    head: &PageHead,
    prefix: &str,
    after: Option<&str>,
    last: Option<&str>,
    most: usize,
) -> Option<String> {
    let beyond = pieces_within(head, prefix, after, last).nth(most)?;
    let text = beyond.first.as_bytes().utf8_chunks().next().map_or("", |chunk| chunk.valid());
    // Between names that are not UTF-8 there may be no valid key.
    Some(format!("{prefix}{text}")).filter(|end| end.as_str() > after.unwrap_or(prefix))
}

/// The pieces of a page that can contain the names requested by [`LookupPlan`].
pub fn pieces_of_name(head: &PageHead, name: &Name) -> Vec<PagePiece> {
    let names = [Some(name.clone()), keys::shadowing(name), keys::name_of_shadowed(name)];
    let needed: BTreeMap<&Name, &PagePiece> = names
        .iter()
        .flatten()
        .filter_map(|name| head.piece_of(name))
        .map(|piece| (&piece.first, piece))
        .collect();
    needed.into_values().cloned().collect()
}

impl Backing {
    /// `draw` assigns ids to names without a recorded inode, by the kind of the inode.
    ///
    /// - An object that matches its record has the record's attributes. A changed object has its
    ///   own size and times and the record's other attributes.
    /// - A recorded file whose key should be in the listing and is not there was removed.
    /// - Where page and listing disagree on the kind of a name, the page wins, except for a new
    ///   prefix beside an object.
    pub fn interpret(
        &self,
        namespace: &Namespace,
        listing: &Listing,
        mut draw: impl FnMut(FileKind) -> Ino,
    ) -> Interpreted {
        let Some(prefix) = self.prefix_of(namespace, listing.dir) else {
            return Interpreted::default();
        };
        let page = listing.page.map(|head| &head.page);
        let records = Records::new(listing.page);
        let mut names = Names { found: BTreeMap::new(), not_shown: Vec::new() };
        let is_known = self.is_complete(listing.dir);
        let hidden: BTreeSet<&str> =
            page.iter().flat_map(|page| page.hidden.iter().map(String::as_str)).collect();
        let segment = |key: &'_ str| {
            key.strip_prefix(&prefix).map(|rest| rest.strip_suffix('/').unwrap_or(rest).to_string())
        };
        for entry in listing.entries {
            let Listed::Prefix { key } = entry else { continue };
            let Some(segment) = segment(key) else { continue };
            let reserved = listing.dir == Ino::ROOT && segment == keys::RESERVED;
            let foreign = hidden.contains(segment.as_str())
                || self.is_hidden(listing.dir, &segment)
                || self.redirects.contains_key(key);
            if !reserved && !foreign {
                names.add_prefix(&records, &segment, key);
            }
        }
        for entry in listing.entries {
            let Listed::Object { key, .. } = entry else { continue };
            let Some(segment) =
                segment(key).filter(|segment| !segment.is_empty() && !key.ends_with('/'))
            else {
                continue;
            };
            if listing.dir != Ino::ROOT || segment != keys::RESERVED {
                let beside =
                    |name: &Name| is_known && self.keeps_directory(namespace, listing.dir, name);
                names.add_object(&records, &segment, entry, beside);
            }
        }
        for (name, record) in &records.by_name {
            let elsewhere = !matches!(record.what, InstalledKind::Object { key: None, .. });
            let wanted = match listing.scope {
                Scope::First => true,
                Scope::Next => false,
                Scope::Name(asked) => asked == *name,
            };
            if elsewhere && wanted && !names.has(name, &record.what) {
                names.found.entry((*name).clone()).or_insert_with(|| (*record).clone());
            }
        }
        if let Scope::Name(asked) = listing.scope {
            // Installs the object beside a directory together with the directory. Otherwise a
            // rename of the directory would make its name and the object's key seem free.
            let beside = keys::name_of_shadowed(asked);
            names.found.retain(|name, _| name == asked || Some(name) == beside.as_ref());
            names.not_shown.clear();
        }
        let recorded = page.map(|page| recorded_names(&page.entries)).unwrap_or_default();
        let mut drawn = BTreeSet::new();
        let mut entries = Vec::new();
        for entry in names
            .found
            .into_values()
            .filter(|entry| listing.after.is_none_or(|after| entry.name > *after))
        {
            let ino = match self.identity(namespace, (listing.dir, &prefix), &entry, &drawn) {
                Identity::Known(ino) => ino,
                Identity::New => draw(entry.what.kind()),
                Identity::Claimed => continue,
            };
            // A loaded inode has its list of names already.
            let is_first = drawn.insert(ino);
            let names =
                recorded.get(&entry.ino).filter(|_| is_first && namespace.inode(ino).is_none());
            entries.push(Installed { ino, ..telling(entry, names) });
        }
        let hidden = match listing.scope {
            Scope::First | Scope::Name(_) => hidden.into_iter().map(String::from).collect(),
            Scope::Next => Vec::new(),
        };
        Interpreted { entries, hidden, not_shown: names.not_shown }
    }

    /// The identity of an entry: a loaded inode only if the entry is one of its names not loaded
    /// yet.
    fn identity(
        &self,
        namespace: &Namespace,
        (dir, prefix): (Ino, &str),
        entry: &Installed,
        drawn: &BTreeSet<Ino>,
    ) -> Identity {
        let is_awaited = |ino| self.awaits(ino, dir, &entry.name);
        if let InstalledKind::Object { key, .. } = &entry.what {
            let owner = match key {
                Some(key) => self.owner(namespace, key),
                None => self.owner_of(
                    namespace,
                    dir,
                    &entry.name,
                    &format!("{prefix}{}", keys::segment_of(&entry.name)),
                ),
            };
            match owner {
                Some(owner) if is_awaited(owner) => return Identity::Known(owner),
                Some(_) => return Identity::Claimed,
                None => {}
            }
        }
        let Some(record) = &entry.record else { return Identity::New };
        let is_shared = !record.links.is_empty();
        let fits = match namespace.inode(entry.ino) {
            Some(_) => is_awaited(entry.ino),
            None => {
                namespace.ids.may_exist(entry.ino) && (is_shared || !drawn.contains(&entry.ino))
            }
        };
        if fits && entry.ino != Ino::NONE { Identity::Known(entry.ino) } else { Identity::New }
    }
}

enum Identity {
    Known(Ino),
    New,
    /// The object belongs to a file that has left this name.
    Claimed,
}

struct Names {
    found: BTreeMap<Name, Installed>,
    not_shown: Vec<String>,
}

/// Entries of a page, by name and by key.
struct Records<'a> {
    by_name: BTreeMap<&'a Name, &'a Installed>,
    /// Entries with objects at keys other than their own.
    by_key: BTreeMap<&'a str, &'a Installed>,
}

impl<'a> Records<'a> {
    fn new(head: Option<&'a PageHead>) -> Records<'a> {
        let mut records = Records { by_name: BTreeMap::new(), by_key: BTreeMap::new() };
        let Some(head) = head else { return records };
        for entry in head.page.entries.iter().filter(|entry| is_possible(&entry.what)) {
            records.by_name.insert(&entry.name, entry);
            if let InstalledKind::Object { key: Some(key), .. } = &entry.what {
                records.by_key.entry(key).or_insert(entry);
            }
        }
        records
    }

    fn get(&self, name: &Name) -> Option<&'a Installed> {
        self.by_name.get(name).copied()
    }
}

/// Whether such an inode can exist without an object, if it has none. Contents of a page are not
/// trusted.
fn is_possible(what: &InstalledKind) -> bool {
    match what {
        InstalledKind::Object { .. } | InstalledKind::Directory { .. } => true,
        InstalledKind::Recorded(Make::Regular | Make::Directory) => false,
        InstalledKind::Recorded(Make::Symlink { target }) => {
            (1..=MAX_SYMLINK_BYTES).contains(&target.len())
        }
        InstalledKind::Recorded(Make::Special { kind, .. }) => {
            matches!(
                kind,
                FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket
            )
        }
    }
}

impl Names {
    fn add_prefix(&mut self, records: &Records, segment: &str, key: &str) {
        let Some(name) = keys::name_of(segment) else {
            self.not_shown.push(key.into());
            return;
        };
        let bare = Installed {
            name: name.clone(),
            ino: Ino::NONE,
            what: InstalledKind::Directory { prefix: None, page: false },
            record: None,
        };
        let entry = match records.get(&name).map(|record| (&record.what, record)) {
            Some((InstalledKind::Directory { prefix: None, .. }, record)) => record.clone(),
            Some((InstalledKind::Object { key: None, .. }, _)) | None => bare,
            Some(_) => {
                self.not_shown.push(key.into());
                return;
            }
        };
        self.found.insert(name, entry);
    }

    /// `beside`: whether a name is that of a directory, which keeps it.
    fn add_object(
        &mut self,
        records: &Records,
        segment: &str,
        object: &Listed,
        beside: impl Fn(&Name) -> bool,
    ) {
        let Listed::Object { key, etag, len_bytes, modified } = object else { return };
        let (len_bytes, modified) = (*len_bytes, *modified);
        let Some(own) = keys::name_of(segment) else {
            self.not_shown.push(key.into());
            return;
        };
        let is_own =
            |record: &&Installed| matches!(record.what, InstalledKind::Object { key: None, .. });
        let is_directory =
            |entry: &Installed| matches!(entry.what, InstalledKind::Directory { .. });
        let own_record = records.get(&own);
        let shadowed =
            self.found.contains_key(&own) || own_record.is_some_and(is_directory) || beside(&own);
        let (name, record) = match own_record.filter(is_own) {
            Some(record) if !shadowed => (Some(own), Some(record)),
            Some(record) => (keys::name_of_shadowed(&own), Some(record)),
            None => match records.by_key.get(key.as_str()).copied() {
                Some(record) => (Some(record.name.clone()), Some(record)),
                None if shadowed => {
                    (keys::name_of_shadowed(&own).filter(|name| records.get(name).is_none()), None)
                }
                None => (own_record.is_none().then_some(own), None),
            },
        };
        let Some(name) = name.filter(|name| !self.found.contains_key(name)) else {
            self.not_shown.push(key.into());
            return;
        };
        let is_listed = keys::segment_of(&name) == segment;
        let what = InstalledKind::Object {
            key: (!is_listed).then(|| key.clone()),
            etag: etag.clone(),
            len_bytes,
            modified,
        };
        let mut entry = Installed {
            name: name.clone(),
            ino: record.map_or(Ino::NONE, |record| record.ino),
            what,
            record: None,
        };
        entry.record = record.and_then(|record| {
            let mut attributes = record.record.clone()?;
            if !matches!(&record.what, InstalledKind::Object { etag: known, .. } if known == etag) {
                attributes.mtime = modified;
                attributes.ctime = attributes.ctime.max(modified);
            }
            Some(attributes)
        });
        self.found.insert(name, entry);
    }

    /// Whether the record's object is installed already, under any name.
    fn has(&self, name: &Name, what: &InstalledKind) -> bool {
        self.found.get(name).is_some_and(|found| {
            std::mem::discriminant(&found.what) == std::mem::discriminant(what)
        })
    }
}
