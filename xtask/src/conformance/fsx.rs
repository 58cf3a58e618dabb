//! fsx (the Rust crate): random operations on one file, each read compared with what was written.

use super::{Mounts, Results, Verdict, ground, results};
use crate::Outcome;
use crate::tool::{self, Change};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const VERSION: &str = "0.3.2";

/// Unmaps each mapping after its read; otherwise the process reaches its limit of mappings.
const GIVES_BACK: Change = Change {
    file: "src/main.rs",
    from: "self.check_eofpage(offset, p.as_ptr(), size);\n        }",
    to: "self.check_eofpage(offset, p.as_ptr(), size);\n            munmap(p, \
        map_size).unwrap();\n        }",
};

/// A file, and the node that stores it.
struct Setting {
    name: &'static str,
    file_bytes: u64,
    flags: &'static [&'static str],
}

const SETTINGS: [Setting; 2] = [
    Setting { name: "file of 1 MiB", file_bytes: 1 << 20, flags: &[] },
    // The cache holds neither the clean nor the dirty bytes of the file at once.
    Setting {
        name: "file of 48 MiB, cache of 20 MiB",
        file_bytes: 48 << 20,
        flags: &["--cache-size=20M", "--dirty-size=16M"],
    },
];

/// All operations of fsx. It treats EINVAL of an empty posix_fallocate as a failure.
const OPERATIONS: &str = r#"
[opsize]
min = 1
max = 65536

[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
"#;

pub fn run(on: &Mounts, seeds: Range<u64>, operations: u64) -> Outcome<()> {
    let fsx = tool::install_changed("fsx", VERSION, &GIVES_BACK)?;
    let place = tool::conformance()?.join("fsx");
    fs::create_dir_all(&place)?;
    let mut all: Vec<(String, Results)> = Vec::new();
    for setting in &SETTINGS {
        let config = place.join("fsx.toml");
        fs::write(&config, format!("flen = {}\n{OPERATIONS}", setting.file_bytes))?;
        let results = ground::everywhere(on, setting.flags, |ground| {
            let began = Instant::now();
            let mut results = Results::default();
            for seed in seeds.clone() {
                let mut command = Command::new(&fsx);
                command
                    .arg("-f")
                    .arg(&config)
                    .args(["-S", &seed.to_string(), "-N", &operations.to_string(), "-P"])
                    .arg(&place);
                let verdict = verdict(command.arg(ground.dir.join(format!("fsx-{seed}"))), &place)?;
                println!(
                    "{}: {}, seed {seed}: {verdict} after {:.0} s",
                    ground.name,
                    setting.name,
                    began.elapsed().as_secs_f64()
                );
                results.cases.insert(
                    format!("{}, seed {seed}, {operations} operations", setting.name),
                    verdict,
                );
                ground.fsck()?;
            }
            results.seconds = began.elapsed().as_secs_f64();
            Ok(results)
        })?;
        if all.is_empty() {
            all = results;
            continue;
        }
        for ((_, before), (_, now)) in all.iter_mut().zip(results) {
            before.seconds += now.seconds;
            before.cases.extend(now.cases);
        }
    }
    results::judge("fsx", &all)
}

fn verdict(command: &mut Command, place: &Path) -> Outcome<Verdict> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(Verdict::Passed);
    }
    let said = place.join("failure.log");
    fs::write(&said, [output.stdout, output.stderr].concat())?;
    Ok(Verdict::Failed(format!("{}: {}", output.status, said.display())))
}
