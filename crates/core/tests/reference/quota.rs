//! Quotas as in `docs/semantics.md`: every query examines the whole tree.

use super::{NodeRef, Outcome, Reference};
use ebb_model::*;

impl Reference {
    /// Directories with a quota, from `dir` upwards.
    pub fn roots_from(&self, dir: Ino) -> Vec<Ino> {
        let all = self.all();
        let (mut roots, mut at) = (Vec::new(), Some(dir));
        while let Some((node, _)) = at.and_then(|ino| all.get(&ino)) {
            let node = node.borrow();
            if node.quota.is_some() {
                roots.push(node.ino);
            }
            at = node.names.first().map(|(parent, _)| *parent);
        }
        roots
    }

    /// The roots in which the node counts, innermost first.
    pub fn roots_of(&self, node: &NodeRef) -> Vec<Ino> {
        let node = node.borrow();
        let above = node.names.first().map(|(parent, _)| *parent).or(node.stray);
        above.map_or(vec![], |ino| self.roots_from(ino))
    }

    pub fn quotas(&self) -> Vec<(Ino, QuotaLimits, Usage)> {
        let all = self.all();
        let counted: Vec<(Vec<Ino>, u64)> = all
            .values()
            .filter(|(node, _)| node.borrow().ino != Ino::ROOT)
            .map(|(node, _)| {
                (
                    self.roots_of(node),
                    if node.borrow().kind == FileKind::Regular { node.borrow().size } else { 0 },
                )
            })
            .collect();
        let quota = |node: &NodeRef| {
            let (ino, limits) = (node.borrow().ino, node.borrow().quota?);
            let below = counted.iter().filter(|(roots, _)| roots.contains(&ino));
            Some((
                ino,
                limits,
                below.fold(Usage::default(), |sum, (_, size)| Usage {
                    bytes: sum.bytes + size,
                    inodes: sum.inodes + 1,
                }),
            ))
        };
        all.values().filter_map(|(node, _)| quota(node)).collect()
    }

    pub fn room(&self, roots: &[Ino], bytes: u64, inodes: u64) -> Outcome {
        let over = |limit: Option<u64>, used: u64, more: u64| {
            more > 0 && limit.is_some_and(|limit| used + more > limit)
        };
        let full = |(root, limits, used): &(Ino, QuotaLimits, Usage)| {
            roots.contains(root)
                && (over(limits.bytes, used.bytes, bytes)
                    || over(limits.inodes, used.inodes, inodes))
        };
        if !roots.is_empty() && self.quotas().iter().any(full) {
            Err(FsError::QuotaExceeded)
        } else {
            Ok(())
        }
    }

    pub fn one_side(a: &[Ino], b: &[Ino]) -> Outcome {
        if a.first() == b.first() { Ok(()) } else { Err(FsError::CrossDevice) }
    }

    pub fn set_quota(&mut self, now: Time, ino: Ino, limits: Option<QuotaLimits>) -> Outcome {
        let dir = self.dir(ino)?;
        if limits.is_none() && dir.borrow().quota.is_none() {
            return Err(FsError::NoAttribute);
        }
        if limits == Some(QuotaLimits::default()) {
            return Err(FsError::Invalid);
        }
        let outer = self.roots_of(&dir).first().copied();
        dir.borrow_mut().quota = limits;
        dir.borrow_mut().stamp(now, false);
        if limits.is_none() {
            self.end_quota(ino, outer);
        }
        Ok(())
    }

    /// Nodes without a name that counted in an ended root count in the next one.
    pub fn end_quota(&mut self, ended: Ino, outer: Option<Ino>) {
        for (node, _) in &self.nameless {
            let mut node = node.borrow_mut();
            if node.stray == Some(ended) {
                node.stray = outer;
            }
        }
    }
}
