//! Directory streams: pages of entries, while names come and go.

use super::*;

/// A stream that a client reads from the first page to the last one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stream {
    dir: NodeId,
    /// The names that have been in the directory at all times since the first page was read, and
    /// whether a page has shown them.
    shown: BTreeMap<Name, bool>,
}

impl Tree {
    /// Drops the names that a directory no longer has: made again, they have another position.
    pub(super) fn streams_follow(&mut self) {
        for stream in self.streams.values_mut() {
            let entries = self.nodes.get(&stream.dir).map(|dir| &dir.entries);
            stream
                .shown
                .retain(|name, _| entries.is_some_and(|entries| entries.contains_key(name)));
        }
    }

    pub(super) fn read_dir(
        &mut self,
        asked: &Asked<'_>,
        dir: Ino,
        after: Cookie,
        limit: u32,
    ) -> Result<(), Mismatch> {
        let dir = match self.at(dir) {
            Err(errors) => return asked.expect_one_of(&errors),
            Ok(dir) if self.nodes[&dir].kind != FileKind::Directory => {
                return asked.expect_one_of(&[FsError::NotDirectory]);
            }
            Ok(dir) => dir,
        };
        let removed = self.nodes[&dir].links == 0;
        let (entries, end) = match asked.outcome {
            None => return Ok(()),
            Some(Outcome::Entries { entries, end }) => (entries, *end),
            Some(Outcome::Failed(FsError::NotFound)) if removed => return Ok(()),
            Some(other) => return Err(format!("{other:?} in place of entries")),
        };
        if entries.len() > limit as usize || entries.is_empty() && !end {
            return Err(format!("a page of {} entries in place of {limit}", entries.len()));
        }
        let mut position = after;
        for (entry, attr) in entries {
            let Some(node) = self.nodes[&dir].entries.get(&entry.name).copied() else {
                return Err(format!("shows {} which is not there", entry.name));
            };
            if entry.cookie <= position {
                return Err(format!(
                    "shows {} at {:?} after {position:?}",
                    entry.name, entry.cookie
                ));
            }
            position = entry.cookie;
            self.bind(node, entry.ino)?;
            self.check_attr(node, attr, &asked.span)
                .map_err(|why| format!("{}: {why}", entry.name))?;
        }
        let names: Vec<&Name> = entries.iter().map(|(entry, _)| &entry.name).collect();
        match asked.stream {
            Some(stream) => self.follow_stream(stream, dir, after, &names, end),
            None => {
                let mut shown = Stream::of(dir, &self.nodes[&dir]);
                shown.show(&names)?;
                if after == Cookie::START && end { shown.end() } else { Ok(()) }
            }
        }
    }

    fn follow_stream(
        &mut self,
        id: StreamId,
        dir: NodeId,
        after: Cookie,
        names: &[&Name],
        end: bool,
    ) -> Result<(), Mismatch> {
        let mut stream = match self.streams.remove(&id) {
            Some(stream) => stream,
            None if after == Cookie::START => Stream::of(dir, &self.nodes[&dir]),
            None => return Err("is a page of a stream without a first page".into()),
        };
        stream.show(names)?;
        if end {
            return stream.end();
        }
        self.streams.insert(id, stream);
        Ok(())
    }
}

impl Stream {
    fn of(id: NodeId, dir: &Node) -> Stream {
        let names = dir.entries.keys().map(|name| (name.clone(), false));
        Stream { dir: id, shown: names.collect() }
    }

    fn show(&mut self, names: &[&Name]) -> Result<(), Mismatch> {
        for name in names {
            if let Some(shown) = self.shown.get_mut(*name)
                && std::mem::replace(shown, true)
            {
                return Err(format!("shows {name} twice"));
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<(), Mismatch> {
        match self.shown.iter().find(|(_, shown)| !**shown) {
            Some((missing, _)) => Err(format!("does not show {missing}")),
            None => Ok(()),
        }
    }
}
