mod laws;
mod naive_blocks;
mod reads;

use super::*;
use crate::namespace::Change;
use ebb_model::{Attr, FileKind, Ino, Time, Version};

const INO: Ino = Ino(7);

/// Content and extents, as a partition has them.
#[derive(Default)]
struct Maps {
    content: Content,
    extents: Extents,
}

impl Maps {
    fn view(&self) -> ByteMap<'_> {
        ByteMap::new(&self.content, &self.extents)
    }

    fn change(&mut self) -> ByteMapMut<'_> {
        ByteMapMut::new(&mut self.content, &mut self.extents)
    }

    fn items(&self) -> Vec<ExtentItem> {
        items(&self.content, &self.extents).collect()
    }

    fn restored(items: Vec<ExtentItem>) -> Maps {
        let mut maps = Maps::default();
        for item in items {
            restore(&mut maps.content, &mut maps.extents, item);
        }
        maps
    }

    fn check(&self) -> Vec<String> {
        check(&self.content, &self.extents)
    }
}

fn gone() -> Change {
    let (time, version) = (Time::default(), Version(1));
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (kind, mode, nlink, uid, gid, rdev, size_bytes, hole_bytes) =
        (FileKind::Regular, 0, 0, 0, 0, 0, 0, 0);
    let attr = Attr {
        ino: INO,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size_bytes,
        hole_bytes,
        atime,
        mtime,
        ctime,
        btime,
        version,
    };
    Change::Gone { ino: INO, attr }
}
