//! Initial inputs of searches.

use crate::state;
use ebb_format::record::{GroupId, Position, Term};
use ebb_format::segment::VolumeId;
use ebb_format::snapshot::{SnapshotHeader, SnapshotWriter};
use ebb_model::*;

/// Decodes the hexadecimal lines of a golden file.
pub fn golden(file: &str) -> Vec<Vec<u8>> {
    let digit =
        |byte: u8| (byte as char).to_digit(16).expect("golden files are in hexadecimal") as u8;
    let bytes = |hex: &str| {
        hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    };
    file.lines().filter_map(|line| line.split(' ').nth(1)).map(bytes).collect()
}

/// Snapshots, each with a first byte that selects the read size; one is of a real partition.
pub fn snapshots() -> Vec<Vec<u8>> {
    let mut streams = golden(include_str!("../../crates/format/golden/snapshot.txt"));
    let header = SnapshotHeader {
        volume: VolumeId(1),
        group: GroupId(1),
        term: Term(1),
        index: LogIndex(1),
        position: Position(1),
        version: Version(1),
    };
    for partition in state::partitions() {
        let (mut writer, begin) = SnapshotWriter::new(&header);
        let mut stream = begin.to_vec();
        for item in partition.items() {
            stream.extend_from_slice(&writer.value(&item).expect("items have an encoding"));
        }
        stream.extend_from_slice(&writer.end());
        streams.push(stream);
    }
    streams.into_iter().map(|stream| [&[100], &stream[..]].concat()).collect()
}

/// The bytes behind the checksums of frames.
pub fn messages() -> Vec<Vec<u8>> {
    golden(include_str!("../../crates/format/golden/rpc.txt"))
        .into_iter()
        .map(|frame| frame[frame.len().min(HEADER)..].to_vec())
        .collect()
}

/// Bytes of a frame before its header (`docs/protocol/rpc.md`).
const HEADER: usize = 24;

pub fn root() -> InstalledRecord {
    let time = Time::from_secs(1);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    InstalledRecord {
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        atime,
        mtime,
        ctime,
        btime,
        xattrs: vec![],
        links: vec![],
    }
}

/// One listing batch of each store.
pub fn listings() -> Vec<Vec<u8>> {
    let s3 = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
        <NextContinuationToken>t</NextContinuationToken><Contents><Key>d/c%20x</Key><ETag>\"e\"</ETag><Size>5</Size>\
        <LastModified>2026-11-21T21:46:25.000Z</LastModified></Contents>\
        <CommonPrefixes><Prefix>d/e/</Prefix></CommonPrefixes></ListBucketResult>";
    let gcs = r#"{"kind":"storage#objects","nextPageToken":"t","prefixes":["d/e/"],
        "items":[{"name":"d/c","generation":"17","size":"5","updated":"2026-11-21T21:46:25.123Z"}]}"#;
    let azure = "<EnumerationResults><Blobs><Blob><Name \
        Encoded=\"true\">d%2Fc</Name><Properties><Etag>e</Etag>\
        <Content-Length>5</Content-Length><Last-Modified>Sat, 21 Nov 2026 21:46:25 \
        GMT</Last-Modified></Properties></Blob>\
        <BlobPrefix><Name>d/e/</Name></BlobPrefix></Blobs><NextMarker>m</NextMarker></EnumerationResults>";
    [s3, gcs, azure].map(|page| page.as_bytes().to_vec()).into()
}

/// A header of every operation, with zeros as arguments.
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
        "s3://bucket\x00/mnt\x00-o\x00rw,user,cache-size=1G,noatime,x-systemd.automount\x00-s",
    ]
    .map(|args| args.as_bytes().to_vec())
    .into()
}

/// Some replies of each store, with its form of an error.
pub fn answers() -> Vec<Vec<u8>> {
    let xml = "<?xml version=\"1.0\"?>";
    let bad = |code: &str| {
        format!(
            "{xml}<Error><Code>{code}</Code><Message>m</Message><Region>eu-west-1</Region></Error>"
        )
    };
    let got = "200\netag: \"1700000000000000\"\nlast-modified: Sat, 21 Nov 2026 21:46:25 \
        GMT\ncontent-length: 2\n\
        content-range: bytes 1-2/9\nx-amz-meta-mode: 33188\n\
        x-goog-meta-mode: 33188\nx-ms-meta-a_b: c\nx-goog-generation: 1700000000000000\n\
        x-ms-copy-id: i\nx-ms-copy-status: success\nx-amz-checksum-algorithm: CRC32C\n\nbb";
    let missing = format!("404\nx-ms-error-code: BlobNotFound\n\n{}", bad("NoSuchKey"));
    let slow = format!("503\nretry-after: Sat, 21 Nov 2026 21:46:25 GMT\n\n{}", bad("SlowDown"));
    let denied = format!("403\n\n{}", bad("ExpiredToken"));
    let google =
        "403\n\n{\"error\":{\"errors\":[{\"reason\":\"rateLimitExceeded\"}],\"message\":\"m\"}}";
    let late = format!("200\n\n{}", bad("InternalError"));
    let begun =
        format!("200\nx-amz-checksum-algorithm: CRC32C\n\n{xml}<R><UploadId>u</UploadId></R>");
    let copied = format!(
        "200\n\n{xml}<R><ETag>&quot;e&quot;</ETag><ChecksumCRC32C>6Le+Qw==</ChecksumCRC32C></R>"
    );
    let rewriting = "200\n\n{\"done\":false,\"rewriteToken\":\"t\"}";
    let rewritten = "200\n\n{\"done\":true,\"resource\":{\"generation\":\"1700000000000000\"}}";
    let pages = listings().into_iter().map(|page| [b"200\n\n", &page[..]].concat());
    let all: Vec<Vec<u8>> =
        [got, &missing, &slow, &denied, google, &late, &begun, &copied, rewriting, rewritten]
            .into_iter()
            .map(|answer| answer.as_bytes().to_vec())
            .chain(pages)
            .collect();
    let after = |store: u8, operation: u8| {
        let answers = all.iter().cycle().skip(usize::from(operation)).take(all.len());
        [vec![store, operation]].into_iter().chain(answers.cloned()).collect::<Vec<_>>().join(&0)
    };
    (0..3)
        .flat_map(|store| (0..15).map(move |operation| (store, operation)))
        .map(|(store, operation)| after(store, operation))
        .collect()
}

/// Each credential source of each store, with the replies that it expects.
pub fn credentials() -> Vec<Vec<u8>> {
    let profile = "[default]\naws_access_key_id = k\naws_secret_access_key = s\nregion = \
        eu-west-1\nendpoint_url = http://127.0.0.1:1\n";
    let role = "{\"AccessKeyId\":\"k\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"2026-11-21T21:46:25Z\"}";
    let sts = "<R><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>k</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
        <SessionToken>t</SessionToken><Expiration>2026-11-21T21:46:25Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></R>";
    let bearer = "{\"access_token\":\"t\",\"expires_in\":\"3599\"}";
    let user = "{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\",\"refresh_token\":\"r\"}";
    let service = "{\"type\":\"service_account\",\"client_email\":\"a@b\",\"private_key\":\"\
        -----BEGIN PRIVATE KEY-----\\nMA==\\n-----END PRIVATE KEY-----\"}";
    let machine = format!("200\n\ntoken\0200\n\nrole\0200\n\n{role}");
    let google_machine = format!("200\nmetadata-flavor: Google\n\n{bearer}");
    let account = "az://c@a\nAZURE_STORAGE_CONNECTION_STRING=DefaultEndpointsProtocol=http;AccountName=account;AccountKey=aHVzaA==;\
        BlobEndpoint=http://127.0.0.1:1/account;";
    let tenant = "az://c\nAZURE_TENANT_ID=t\nAZURE_CLIENT_ID=c\nAZURE_FEDERATED_TOKEN_FILE=f";
    let agent = "IDENTITY_ENDPOINT=http://127.0.0.1:1/\nIDENTITY_HEADER=h";
    [
        (0, "s3://b/p\nAWS_SHARED_CREDENTIALS_FILE=f", profile, ""),
        (
            0,
            "s3://b\nAWS_ROLE_ARN=r\nAWS_WEB_IDENTITY_TOKEN_FILE=f",
            "token",
            &format!("200\n\n{sts}"),
        ),
        (
            0,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:1/",
            "",
            &format!("200\n\n{role}"),
        ),
        (0, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1", "", &machine),
        (1, "gs://b\nGOOGLE_APPLICATION_CREDENTIALS=f", user, &format!("200\n\n{bearer}")),
        (1, "gs://b\nGOOGLE_APPLICATION_CREDENTIALS=f", service, &format!("200\n\n{bearer}")),
        (1, "gs://b", "", &google_machine),
        (1, "STORAGE_EMULATOR_HOST=127.0.0.1:1", "", "404\n\n"),
        (2, account, "", "200\n\n"),
        (2, "az://c\nAZURE_STORAGE_SAS_TOKEN=?sv=1&sig=x", "", "200\n\n"),
        (2, tenant, "token", &format!("200\n\n{bearer}")),
        (
            2,
            agent,
            "",
            &format!("401\n\n{{\"error\":\"e\",\"error_description\":\"d\"}}\0200\n\n{bearer}"),
        ),
    ]
    .into_iter()
    .map(|(store, said, file, answers)| {
        [&[store], [said, file, answers].join("\0").as_bytes()].concat()
    })
    .collect()
}

pub fn metadata() -> Vec<Vec<u8>> {
    let all = [
        "BK7WaADjBpKD",
        "1-2-3\nmode=33188\nebb-object=1/1.1\n",
        r#"{"key":"k","tags":[["mode","33188"],["uid","0"]]}"#,
    ];
    all.map(|text| text.as_bytes().to_vec()).into()
}

pub fn configs() -> Vec<Vec<u8>> {
    let volume = "bucket = \"s3://bucket/prefix\"\nmountpoint = \"/mnt\"\ncache-size = \
        \"20G\"\nread-only = true\nrevalidate = 5\n";
    let members = "backing = \"s3://bucket\"\n[[bucket]]\ndir = \"photos\"\nurl = \
        \"gs://photos\"\nkms-key = \"k\"\n[[bucket]]\n\
        dir = \"other\"\nurl = \"s3://other/p\"\nregion = \"eu-west-1\"\naddressing = \"path\"\n\
        server-side-encryption = \"aws:kms\"\nanonymous = true\n";
    [volume, members].map(|text| text.as_bytes().to_vec()).into()
}

/// One input of each kind, with a first byte that selects the kind.
pub fn machine() -> Vec<Vec<u8>> {
    let mounts = "36 35 0:98 / /mnt/a\\040b\\134c rw,noatime master:1 shared:2 - fuse.ebb s3://x \
        rw,user_id=0\n1 2 0:1 / / rw - ext4 /dev/vda rw";
    let groups = "5:cpu,cpuacct:/docker\n4:memory:/docker\n0::/a/b\n\n512\n";
    let record = r#"{"mountpoint":"/mnt","source":"s3://b","daemon":{"pid":1,"started":2},"supervisor":{"pid":3,"started":4},
        "control":"unix:/run/x","subdirectory":"","root":1,"embedded":true,"data_dir":"/var",
        "left":{"files":1,"bytes":2,"deletes":3,"why":"w"}}"#;
    let json = |told: serde_json::Result<String>| told.expect("counters encode");
    let counted = MountStats { uptime_ms: 9, operations: vec![] };
    let line = Profiled {
        ino: Ino(1),
        operation: "READ".into(),
        count: 2,
        errors: 1,
        bytes: 9,
        sum_us: 8,
        most_us: 7,
    };
    let profile = Profile { took_ms: 9, lines: vec![line], left_out: 0 };
    let texts = [
        (0, mounts),
        (1, groups),
        (1, "MemTotal:       24576000 kB\n"),
        (2, record),
        (3, &json(serde_json::to_string(&counted))),
        (4, &json(serde_json::to_string(&profile))),
        (5, "6465666768696a6b6c6d6e6f707172737475767778797A7B7C7D7E7F80818283\n"),
        (6, "1.5T"),
        (6, "250ms"),
        (7, "ro,allow_other,fsname=s3://a/b,max_read=131072"),
    ];
    texts.into_iter().map(|(what, text)| [&[what], text.as_bytes()].concat()).collect()
}

/// Frame streams, each with a first byte that selects the read size.
pub fn frames() -> Vec<Vec<u8>> {
    let frames = golden(include_str!("../../crates/format/golden/rpc.txt"));
    let stream: Vec<u8> = frames
        .iter()
        .take(8)
        .flat_map(|frame| [&(frame.len() as u32).to_le_bytes(), &frame[..]].concat())
        .collect();
    [1, 3, 255].map(|piece| [&[piece], &stream[..]].concat()).into()
}
