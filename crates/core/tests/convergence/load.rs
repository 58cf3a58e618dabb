//! Loads names from the bucket.

use super::flush::RECORD_PIECES;
use super::world::{Dice, Flight, Stored, World, names};
use ebb_core::backing::{self, Listed, Listing, Part, Scope, Standing, found_pieces, keys};
use ebb_model::*;
use std::collections::BTreeMap;

impl World {
    pub fn load_all(&mut self) {
        self.flights
            .retain(|flight| !matches!(flight, Flight::Listed { .. } | Flight::ListedAgain { .. }));
        for _ in 0..100 {
            let mut loaded = false;
            let trash = self.state.namespace().trash_of(Ino::ROOT);
            for dir in self.directories().into_iter().chain(trash) {
                loaded |= self.load_next(dir);
            }
            if !loaded {
                return;
            }
        }
        panic!("loading does not end");
    }

    pub fn load_next(&mut self, dir: Ino) -> bool {
        let flight = self.list(dir);
        if let Some(flight) = &flight {
            self.install(flight);
        }
        flight.is_some()
    }

    pub fn begin_load(&mut self, dice: &mut Dice) {
        let Some(dir) = dice.of(&self.directories()) else { return };
        if dice.below(2) == 0 {
            let name = dice.of(&names()).unwrap();
            self.resolve(dir, &name);
        } else if let Some(flight) = self.list(dir) {
            self.flights.push(flight);
        } else {
            self.list_again(dir);
        }
    }

    fn list_again(&mut self, dir: Ino) {
        self.log(BackingCommand::Revalidating { dir });
        let Some((prefix, epoch)) =
            self.state.backing().revalidation_plan(self.state.namespace(), dir)
        else {
            return;
        };
        let (entries, _) = self.list_keys(&prefix, None, usize::MAX);
        self.flights.push(Flight::ListedAgain { dir, epoch, entries });
    }

    /// No other writer has changed anything. So a listing, however old, adds no name, and each name
    /// that it contradicts matches the namespace.
    pub fn revalidate(&mut self, dir: Ino, epoch: u64, entries: &[Listed]) {
        let names = |world: &World| {
            world.state.namespace().read_dir(dir, Cookie::START, usize::MAX).map(|(names, _)| names)
        };
        let before = names(self);
        self.install_found(dir, epoch, entries, None, Scope::Next, LoadProgress::Complete);
        assert_eq!(names(self), before, "a listing of existing names");
        let (backing, namespace) = (self.state.backing(), self.state.namespace());
        let agreed = entries.iter().filter_map(|entry| backing.agrees(namespace, entry)).collect();
        for name in backing.contradicted(namespace, dir, &agreed) {
            match backing.standing(namespace, dir, &name).unwrap() {
                Standing::Object { key, etag, .. } => {
                    assert_eq!(self.bucket[&key].etag, etag, "{key}")
                }
                Standing::Prefix { prefix, .. } => {
                    assert!(self.probe(&prefix).is_some(), "{prefix}")
                }
            }
        }
    }

    pub fn list(&mut self, dir: Ino) -> Option<Flight> {
        self.tell_pieces(dir);
        let plan = self.state.backing().load_plan(self.state.namespace(), dir)?;
        let (entries, more) = self.list_keys(&plan.prefix, plan.after.as_deref(), 3);
        let Part { mut entries, last, to_probe, .. } = Part::of(entries, more);
        let progress = last.map_or(LoadProgress::Complete, LoadProgress::UpTo);
        entries.extend(to_probe.iter().filter_map(|prefix| self.probe(prefix)));
        let upto = match &progress {
            LoadProgress::UpTo(last) => Some(last.as_str()),
            _ => None,
        };
        let needed = |head: &PageHead| {
            backing::pieces_of_listing(head, &plan.prefix, plan.after.as_deref(), &entries, upto)
        };
        let page = plan.page_key.as_ref().and_then(|_| self.page_at(dir, needed));
        let first =
            plan.after.is_none() || page.as_ref().is_some_and(|page| !page.pieces.is_empty());
        Some(Flight::Listed { dir, epoch: plan.epoch, entries, page, first, progress })
    }

    pub fn probe(&self, prefix: &str) -> Option<Listed> {
        let found = self
            .bucket
            .range(prefix.to_string()..)
            .next()
            .is_some_and(|(key, _)| key.starts_with(prefix));
        found.then(|| Listed::Prefix { key: prefix.into() })
    }

    pub fn list_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<Listed>, bool) {
        let mut listed = BTreeMap::new();
        for (key, object) in
            self.bucket.range(prefix.to_string()..).take_while(|(key, _)| key.starts_with(prefix))
        {
            let entry = match key[prefix.len()..].find('/') {
                Some(at) => Listed::Prefix { key: key[..prefix.len() + at + 1].into() },
                None => self.object(key, object),
            };
            if after.is_none_or(|after| entry.key() > after) {
                listed.insert(entry.key().to_string(), entry);
            }
        }
        let more = listed.len() > limit;
        (listed.into_values().take(limit).collect(), more)
    }

    pub fn object(&self, key: &str, object: &Stored) -> Listed {
        let modified = Time::from_secs(3);
        Listed::Object {
            key: key.into(),
            etag: object.etag.clone(),
            len_bytes: object.body.len() as u64,
            modified,
        }
    }

    pub fn resolve(&mut self, dir: Ino, name: &Name) {
        self.tell_pieces(dir);
        let namespace = self.state.namespace();
        if !matches!(namespace.lookup(dir, name), Err(FsError::NotFound)) {
            return;
        }
        let Some(plan) = self.state.backing().lookup_plan(namespace, dir, name) else { return };
        let objects =
            plan.objects.iter().filter_map(|key| Some(self.object(key, self.bucket.get(key)?)));
        let entries: Vec<Listed> =
            objects.chain(plan.prefixes.iter().filter_map(|prefix| self.probe(prefix))).collect();
        let page = plan
            .page_key
            .as_ref()
            .and_then(|_| self.page_at(dir, |head| backing::pieces_of_name(head, name)));
        self.install_found(
            dir,
            plan.epoch,
            &entries,
            page.as_ref(),
            Scope::Name(name),
            LoadProgress::Unchanged,
        );
    }

    pub fn install(&mut self, flight: &Flight) {
        let Flight::Listed { dir, epoch, entries, page, first, progress } = flight else { return };
        let scope = if *first { Scope::First } else { Scope::Next };
        self.install_found(*dir, *epoch, entries, page.as_ref(), scope, progress.clone());
    }

    pub fn install_found(
        &mut self,
        dir: Ino,
        epoch: u64,
        entries: &[Listed],
        page: Option<&PageHead>,
        scope: Scope,
        progress: LoadProgress,
    ) {
        let namespace = self.state.namespace();
        let (applied, mut drawn) = (self.state.applied().0, namespace.draw_ids(0));
        let draw = |kind| {
            let slot = match kind {
                FileKind::Directory => Slot((applied * 40_503) as u16),
                _ => dir.slot(),
            };
            drawn.draw(slot).unwrap()
        };
        let found = self.state.backing().interpret(
            namespace,
            &Listing { dir, entries, page, scope, after: None },
            draw,
        );
        let stamp = Stamp { time: Time::from_secs(4), version: self.state.next_version() };
        let inos: Vec<Ino> = found.entries.iter().map(|entry| entry.ino).collect();
        self.log(BackingCommand::Install {
            dir,
            epoch,
            entries: found.entries,
            hidden: found.hidden,
            owner: (0, 0),
            progress,
            stamp,
        });
        for ino in inos {
            if !self.truth.contains_key(&ino)
                && self.state.backing().backing_object(self.state.namespace(), ino).is_some()
            {
                self.truth.insert(ino, self.home(ino).body.clone());
            }
        }
    }

    pub fn head_at(&self, dir: Ino) -> Option<PageHead> {
        let object = self.bucket.get(&keys::page_key(dir))?;
        Some(postcard::from_bytes(&object.body).expect("a page is a page"))
    }

    /// The page with the entries of the needed pieces, which must exist.
    pub fn page_at(
        &self,
        dir: Ino,
        needed: impl FnOnce(&PageHead) -> Vec<PagePiece>,
    ) -> Option<PageHead> {
        let head = self.head_at(dir)?;
        if head.pieces.is_empty() {
            return Some(head);
        }
        let pieces = needed(&head);
        let entries = pieces.iter().flat_map(|piece| self.piece_at(dir, piece)).collect();
        Some(PageHead { page: DirectoryPage { entries, ..head.page }, pieces, moved: head.moved })
    }

    pub fn piece_at(&self, dir: Ino, piece: &PagePiece) -> Vec<Installed> {
        let object = self
            .bucket
            .get(&keys::piece_key(dir, piece.id))
            .unwrap_or_else(|| panic!("a piece of {dir} is gone"));
        let entries: Vec<Installed> =
            postcard::from_bytes(&object.body).expect("a piece is a piece");
        assert_eq!(entries.len(), piece.entries as usize);
        entries
    }

    /// The first reader of a page records its pieces.
    pub fn tell_pieces(&mut self, dir: Ino) {
        let wanted =
            self.head_at(dir).filter(|head| self.state.backing().wants_pieces(dir, &head.pieces));
        if let Some(PageHead { pieces, .. }) = wanted {
            for found in found_pieces(dir, &pieces, RECORD_PIECES, Time::from_secs(1)) {
                self.log(found);
            }
        }
    }
}
