//! The log of release 0.1.0, as that release has written it: a session, a file of 6 bytes that was
//! not sent, and the death of the process.

use crate::disk::{TestDisk, port};
use crate::world::{Tasks, run};
use ebb_format::segment::{self, Generation, SegmentHeader, VolumeId};
use ebb_journal::{Log, Log010, LogError};
use ebb_model::{Command, LogIndex, Make, Mutation};
use ebb_ports::OpenMode;

const VOLUME: VolumeId = VolumeId(0xb57bde0bcae5c70096e8314d19a175f2);

const SNAPSHOT: &str = "
    454242534e4150010100000000000000f275a1194d31e89600c7e5ca0bde7bb50100000000000000000000000000
    000000000000000000009916d3765200000021047407060000000100010101000201020101ed03020000008020f8
    a3edb00d8883a4e602f8a3edb00d8883a4e602f8a3edb00d8883a4e602f8a3edb00d8883a4e60200000000020400
    010402010100000101010000ffffffff9261bde60100000000000000
";

const RECORDS: &str = "
    403a133e140000000100000000000000010000000000000000000000000000000100000000000000000000000000
    0000232c856c030100000000000000000000ebdc879f9caebafe9da9ada1e2efa0878afc67010000000000000000
    000000000000000000000000000000000000000000000000000000000000000000000000bc7c7763280000000100
    000000000000020000000000000001000000000000000100000000000000010000000000000069859e1001010000
    0000000000000000eb00c1a2ddf1b794f4d87b1c746865206d6f756e74206f6620746865206e6f64652069747365
    6c660000000000000000000000000000000000000000000000002cb48b1901000000010000000000000003000000
    00000000010000000000000001000000000000000100000000000000be256ea7020100000000000000000000eb01
    00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
    0000000000000000000000000000000025c181031400000001000000000000000400000000000000030000000000
    0000010000000000000002000000000000008a223be4010100000000000000000000eb050001000000000002f8a3
    edb00dc4f0b9f1020100000000000000000000000000000000000000000000000000000000000000000000000000
    000000000000381c8535290000000100000000000000050000000000000003000000000000000100000000000000
    03000000000000000f1760a0010100000000000000000000eb02c1a2ddf1b794f4d87b000100000001f8a3edb00d
    ed96c0f102020001017a82808080808040a4030000000000000000000000000000000000000000000000c63c238d
    3100000001000000000000000600000000000000030000000000000001000000000000000400000000000000eebe
    19b7010100000000000000000000eb02c1a2ddf1b794f4d87b000200000001f8a3edb00de3ffcdf102030d828080
    8080804000060101dcf5b88f0f00010080200000000000000000000000000000
";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// What the log of that release says, with `damage` done to its records.
fn read(damage: impl Fn(&mut Vec<u8>)) -> Result<Option<Log010>, LogError> {
    let disk = TestDisk::new(1);
    let main = async {
        let header = SegmentHeader { generation: Generation(1), volume: VOLUME, len_bytes: 0 };
        let mut segment = segment::encode(&header);
        segment.extend(bytes(RECORDS));
        damage(&mut segment);
        segment.resize(16 << 10, 0);
        let disk = port(&disk);
        for (path, content) in
            [("log/00000001", segment), ("snapshot/0000000000000000", bytes(SNAPSHOT))]
        {
            let file = disk.open(path, OpenMode::Create).await?;
            file.write_at(0, content.into()).await?;
        }
        Log::read_0_1_0(&*disk, VOLUME).await
    };
    run(&disk, &Tasks::default(), main).expect("it lives")
}

#[test]
fn log_of_release_0_1_0_is_read() {
    let log = read(|_| {}).expect("it is whole").expect("it is there");
    assert_eq!(log.snapshot.header().index, LogIndex(0));
    let indices: Vec<u64> = log.commands.iter().map(|(index, _)| index.0).collect();
    assert_eq!(indices, Vec::from_iter(1..=indices.len() as u64));
    let mutations: Vec<&Mutation> = log
        .commands
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Client { mutation, .. } => Some(mutation),
            _ => None,
        })
        .collect();
    assert!(matches!(log.commands[0].1, Command::SessionOpen { .. }));
    assert!(matches!(mutations[0], Mutation::Make { what: Make::Regular, .. }));
    assert!(mutations.iter().any(|mutation| mutation.span().is_some_and(|span| span.2 == 6)));
}

#[test]
fn damaged_log_of_release_0_1_0_is_not_taken_for_an_empty_one() {
    for at in (4096..4096 + 5 * 64).step_by(64) {
        assert!(read(|segment| segment[at + 20] ^= 1).is_err(), "the line at {at}");
    }
}
