//! Metadata tags of files' objects: the file that an object belongs to, and hints for other tools.
//! Checksum tags are in [`crate::sums`] (`docs/format/bucket.md`).

use ebb_model::{Attr, ClusterId, Incarnation, Ino, Time, Version};

const TAG: &str = "ebb-object";

const MODIFIED: &str = "mtime";

/// The file type bits of a regular file in `st_mode`.
const REGULAR: u32 = 0o100000;

type Tags = [(String, String)];

/// The file and the version of it whose bytes an object holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectOf {
    pub cluster: ClusterId,
    pub ino: Ino,
    pub incarnation: Incarnation,
    pub version: Version,
}

impl ObjectOf {
    /// `None` for an object that ebb did not write.
    pub fn decode(tags: &Tags) -> Option<ObjectOf> {
        let tag = object_tag(tags)?;
        let (cluster, rest) = tag.split_once('/')?;
        let (ino, rest) = rest.split_once('/')?;
        let (incarnation, version) = rest.split_once('.')?;
        let of = ObjectOf {
            cluster: ClusterId::parse(cluster)?,
            ino: Ino(u64::from_str_radix(ino, 16).ok()?),
            incarnation: Incarnation(incarnation.parse().ok()?),
            version: Version(version.parse().ok()?),
        };
        (of.encode() == tag).then_some(of)
    }

    fn encode(&self) -> String {
        let ObjectOf { cluster, ino, incarnation, version } = self;
        format!("{cluster}/{:016x}/{}.{}", ino.0, incarnation.0, version.0)
    }
}

/// The tags that ebb writes with an object.
pub fn object_tags(of: &ObjectOf, attr: &Attr) -> Vec<(String, String)> {
    vec![
        (TAG.into(), of.encode()),
        // rclone and s3fs write and read the same tag.
        (MODIFIED.into(), format!("{}.{:09}", attr.mtime.secs, attr.mtime.nanos)),
        ("mode".into(), format!("{}", REGULAR | u32::from(attr.mode))),
        ("uid".into(), attr.uid.to_string()),
        ("gid".into(), attr.gid.to_string()),
    ]
}

/// The tag that [`ObjectOf`] is decoded from. Equal tags imply equal bytes.
pub fn object_tag(tags: &Tags) -> Option<&str> {
    value(tags, TAG)
}

/// Time of the last modification of the file.
pub fn modified(tags: &Tags) -> Option<Time> {
    let (secs, nanos) = value(tags, MODIFIED)?.split_once('.')?;
    Some(Time {
        secs: secs.parse().ok()?,
        nanos: nanos.parse().ok().filter(|nanos| *nanos < 1_000_000_000)?,
    })
}

fn value<'a>(tags: &'a Tags, name: &str) -> Option<&'a str> {
    tags.iter().find(|(tag, _)| tag == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::FileKind;

    #[test]
    fn object_tags_identify_inode_and_version() {
        let of = ObjectOf {
            cluster: ClusterId(1),
            ino: Ino(0x2a),
            incarnation: Incarnation(3),
            version: Version(77),
        };
        let (time, version) = (Time { secs: 12, nanos: 34 }, Version(78));
        let attr = Attr {
            ino: of.ino,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 5,
            gid: 6,
            rdev: 0,
            size_bytes: 7,
            hole_bytes: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version,
        };
        let tags = object_tags(&of, &attr);
        let shown: Vec<String> =
            tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let object = "ebb-object=00000000-0000-0000-0000-000000000001/000000000000002a/3.77";
        assert_eq!(shown, [object, "mtime=12.000000034", "mode=33188", "uid=5", "gid=6"]);
        assert_eq!((ObjectOf::decode(&tags), modified(&tags)), (Some(of), Some(time)));
    }

    #[test]
    fn foreign_tags_decode_to_nothing() {
        let tags = |object: &str, mtime: &str| {
            [(TAG.to_owned(), object.to_owned()), (MODIFIED.to_owned(), mtime.to_owned())]
        };
        assert_eq!((ObjectOf::decode(&[]), modified(&[])), (None, None));
        let cluster = ClusterId(1);
        for text in [
            "",
            "/",
            "//.",
            "x/1/2.3",
            &format!("{cluster}/2a/3.77"),
            &format!("{cluster}/000000000000002a/18446744073709551616.1"),
        ] {
            assert_eq!(ObjectOf::decode(&tags(text, "")), None, "{text}");
        }
        for text in ["", "12", "12.1000000000", "x.0", "1.-1"] {
            assert_eq!(modified(&tags("", text)), None, "{text}");
        }
    }
}
