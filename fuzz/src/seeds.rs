//! Where searches begin.

use ebb_model::*;

/// The bytes of a golden file's lines.
pub fn golden(file: &str) -> Vec<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("golden files are in hexadecimal") as u8;
    let bytes = |hex: &str| hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    file.lines().filter_map(|line| line.split(' ').nth(1)).map(bytes).collect()
}

/// What stands behind the checksums of frames.
pub fn messages() -> Vec<Vec<u8>> {
    golden(include_str!("../../crates/format/golden/rpc.txt")).into_iter().map(|frame| frame[frame.len().min(HEADER)..].to_vec()).collect()
}

/// Bytes of a frame before its header (`docs/protocol/rpc.md`).
const HEADER: usize = 24;

pub fn root() -> InstalledRecord {
    let time = Time::from_secs(1);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord { mode: 0o755, nlink: 2, uid: 0, gid: 0, atime, mtime, ctime, btime, xattrs: vec![], links: vec![] }
}

/// A page of each store.
pub fn listings() -> Vec<Vec<u8>> {
    let s3 = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
        <NextContinuationToken>t</NextContinuationToken><Contents><Key>d/c%20x</Key><ETag>\"e\"</ETag><Size>5</Size>\
        <LastModified>2026-11-21T21:46:25.000Z</LastModified></Contents>\
        <CommonPrefixes><Prefix>d/e/</Prefix></CommonPrefixes></ListBucketResult>";
    let gcs = r#"{"kind":"storage#objects","nextPageToken":"t","prefixes":["d/e/"],
        "items":[{"name":"d/c","generation":"17","size":"5","updated":"2026-11-21T21:46:25.123Z"}]}"#;
    let azure = "<EnumerationResults><Blobs><Blob><Name Encoded=\"true\">d%2Fc</Name><Properties><Etag>e</Etag>\
        <Content-Length>5</Content-Length><Last-Modified>Sat, 21 Nov 2026 21:46:25 GMT</Last-Modified></Properties></Blob>\
        <BlobPrefix><Name>d/e/</Name></BlobPrefix></Blobs><NextMarker>m</NextMarker></EnumerationResults>";
    [s3, gcs, azure].map(|page| page.as_bytes().to_vec()).into()
}

/// A header of every operation, with arguments of zeros.
pub fn fuse() -> Vec<Vec<u8>> {
    (1..60u32)
        .map(|opcode| {
            let mut message = vec![0; 40 + 64];
            message[..4].copy_from_slice(&(40 + 64u32).to_le_bytes());
            message[4..8].copy_from_slice(&opcode.to_le_bytes());
            message
        })
        .collect()
}

pub fn arguments() -> Vec<Vec<u8>> {
    [
        "mount\x00s3://bucket\x00/mnt\x00--cache-size\x001G",
        "serve\x00--backing\x00file:///x\x00--name\x00v",
        "umount\x00/mnt\x00--lazy",
        "status\x00/mnt\x00--json",
    ]
    .map(|args| args.as_bytes().to_vec())
    .into()
}
