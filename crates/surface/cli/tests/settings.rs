//! Flag, environment, configuration file, default: in that order, and nothing unknown.

use ebb_cli::args::{Ack, Addressing, Consistency, Member, Mount, ServerSideEncryption, TakeOver};
use ebb_cli::config::{ConfigError, parse};
use ebb_cli::{Cli, Command};
use ebb_model::MemberDir;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn read(args: &[&str]) -> Result<Cli, ConfigError> {
    parse(["ebb"].iter().chain(args).map(|arg| arg.into()))
}

fn mount(args: &[&str]) -> Mount {
    match read(&[&["mount", "s3://b", "/mnt"], args].concat()).unwrap().command {
        Command::Mount(mount) => mount,
        other => panic!("{other:?}"),
    }
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ebb.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn a_flag_counts_before_the_file_and_the_file_before_the_default() {
    let (_dir, config) = file(
        "cache-size = \"5G\"\nflush-interval = 3\nack = \"durable\"\nanonymous = true\nendpoint = \
         \"http://x\"\ntake-over = \"never\"\noptions = \"ro\"\n[advanced]\nflush-jobs = 3",
    );
    let plain = mount(&[]);
    assert_eq!(
        (plain.node.cache_size.0, plain.node.flush_jobs, plain.bucket.anonymous),
        (20 << 30, 16, false)
    );
    let set = mount(&["--config", &config, "--flush-interval", "7"]);
    assert_eq!(
        (set.node.cache_size.0, set.node.flush_jobs, set.bucket.anonymous),
        (5 << 30, 3, true)
    );
    assert_eq!(set.node.flush_interval.0, Duration::from_secs(7));
    assert_eq!((set.node.ack, set.node.take_over), (Ack::Durable, TakeOver::Never));
    assert_eq!(set.bucket.endpoint.as_deref(), Some("http://x"));
    assert_eq!(set.options, ["ro"]);
    assert_eq!(
        set.node.commit_interval.0,
        Duration::from_secs(1),
        "what the file does not say keeps its default"
    );
}

#[test]
fn mounts_are_strong_unless_they_are_told() {
    let (_dir, config) = file("consistency = \"close-to-open\"");
    assert_eq!(mount(&[]).consistency, Consistency::Strong);
    assert_eq!(mount(&["--config", &config]).consistency, Consistency::CloseToOpen);
    assert_eq!(
        mount(&["--config", &config, "--consistency", "strong"]).consistency,
        Consistency::Strong
    );
    assert!(read(&["mount", "s3://b", "/mnt", "--consistency", "eventual"]).is_err());
    assert!(
        read(&["serve", "--backing", "s3://b", "--name", "v", "--consistency", "strong"]).is_err(),
        "it is the mount's own"
    );
    for value in [Consistency::Strong, Consistency::CloseToOpen] {
        assert_eq!(mount(&["--consistency", value.name()]).consistency, value);
    }
}

/// A file lists several ranges in one string.
#[test]
fn maps_of_ids_have_several_ranges() {
    let (_dir, config) = file("[advanced]\nmap-uid = \"0:1:1,2:3:4\"");
    assert_eq!(mount(&["--config", &config]).map_uid, ["0:1:1", "2:3:4"]);
}

/// Situation: a command line or a file sets an advanced setting as version 0.1.0 had it.
/// Expectation: it is in force, and reported as deprecated.
#[test]
fn advanced_settings_still_work_as_flags() {
    let parsed = |args: &[&str]| read(&[&["mount", "s3://b", "/mnt"], args].concat()).unwrap();
    let cli = parsed(&["--flush-jobs=3", "--squash=root", "--cache-size=1G"]);
    assert_eq!(cli.deprecated, ["--squash", "--flush-jobs"]);
    let Command::Mount(mount) = cli.command else { panic!() };
    assert_eq!(mount.node.flush_jobs, 3);
    let (_dir, config) = file("flush-jobs = 3");
    let [deprecated] = &parsed(&["--config", &config]).deprecated[..] else { panic!() };
    assert!(deprecated.ends_with("\"flush-jobs\" above the table [advanced]"), "{deprecated}");
    let (_dir, config) = file("[advanced]\nflush-jobs = 3");
    let cli = parsed(&["--config", &config]);
    assert!(cli.deprecated.is_empty());
    let cli = parsed(&["--config", &config, "--flush-jobs", "4"]);
    let Command::Mount(mount) = cli.command else { panic!() };
    assert_eq!(mount.node.flush_jobs, 4, "a flag overrides the file");
}

#[test]
fn advanced_table_has_advanced_settings_only() {
    let refused = |text: &str| {
        let (_dir, config) = file(text);
        let args = ["mount", "s3://b", "/mnt", "--config", &config];
        read(&args).map(|_| ()).unwrap_err().to_string()
    };
    let message = refused("[advanced]\nlog = \"debug\"");
    assert!(message.contains("belongs above the table [advanced]"), "{message}");
    assert!(refused("advanced = 3").contains("is to be a table"));
}

/// The limit of decision 27, beside `--help`.
#[test]
fn help_lists_at_most_thirty_flags() {
    use clap::CommandFactory;
    let mut command = Cli::command();
    command.build();
    for name in ["mount", "serve"] {
        let command = command.find_subcommand(name).unwrap();
        let flags =
            command.get_arguments().filter(|arg| arg.get_long().is_some() && !arg.is_hide_set());
        let flags: Vec<_> =
            flags.map(|flag| flag.get_id().as_str()).filter(|id| *id != "help").collect();
        assert!(flags.len() <= 30, "{name}: {} {flags:?}", flags.len());
    }
}

#[test]
fn config_file_supplies_required_arguments() {
    let (_dir, config) = file("backing = \"file:///srv\"\nname = \"v\"");
    let Command::Serve(serve) = read(&["serve", "--config", &config]).unwrap().command else {
        panic!()
    };
    assert_eq!((serve.backing.as_str(), serve.name.as_str()), ("file:///srv", "v"));
    assert!(read(&["serve"]).is_err());
}

#[test]
fn replicated_volume_has_1_3_or_5_voters() {
    let serve = |more: &[&str]| {
        let args = [&["serve", "--backing", "s3://b", "--name", "v"], more].concat();
        read(&args).map(|cli| match cli.command {
            Command::Serve(serve) => (serve.voters, serve.join),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(serve(&[]).unwrap(), (None, None));
    assert_eq!(serve(&["--voters", "5", "--join", "h:1"]).unwrap(), (Some(5), Some("h:1".into())));
    for wrong in ["0", "2", "4", "6", "many"] {
        assert!(serve(&["--voters", wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn node_ids_have_16_digits() {
    let remove = |id: &str| read(&["node", "remove", "mnt", id]);
    assert!(remove("00c6da2b1c89f15e").is_ok());
    for wrong in ["c6da2b1c89f15e", "00c6da2b1c89f15g", "+0c6da2b1c89f15e", ""] {
        assert!(remove(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn config_errors_name_the_key() {
    let wrong = |text: &str| {
        let (_dir, config) = file(text);
        read(&["mount", "s3://b", "/mnt", "--config", &config]).map(|_| ()).unwrap_err().to_string()
    };
    assert!(wrong("cash-size = 1").contains("unknown key \"cash-size\""));
    assert!(wrong("config = \"other\"").contains("unknown key"));
    assert!(wrong("source = \"s3://x\"").contains("unknown key"), "arguments are not settings");
    assert!(wrong("cache-size = ").contains("ebb.toml"));
    assert!(wrong("cache-size = [1]").contains("cache-size is to be a text"));
    assert!(wrong("cache-size = \"much\"").contains("is no size"));
    assert!(
        wrong("[advanced]\nflush-jobs = 0").contains("for 'flush-jobs in /")
            && wrong("log = \"foo\"").contains("ebb.toml'")
    );
    let missing = read(&["mount", "s3://b", "/mnt", "--config", "/no/such.toml"])
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("/no/such.toml: "), "{missing}");
    assert!(read(&["mount", "s3://b"]).is_err());
    assert!(read(&["frobnicate"]).is_err());
    assert!(read(&["mount", "s3://b", "/mnt", "--flush-interval", "soon"]).is_err());
}

#[test]
fn tables_put_buckets_side_by_side() {
    let (_dir, config) = file(
        "endpoint = \"http://x\"\n[[bucket]]\ndir = \"a b\"\nurl = \"s3://c/p\"\nendpoint = \
         \"http://y\"\nregion = \"r\"\nprofile = \"p\"\n\
         addressing = \"virtual\"\nserver-side-encryption = \"aws:kms:dsse\"\nkms-key = \
         \"k\"\nanonymous = true\n[[bucket]]\ndir = \"z\"\nurl = \"file:///z\"",
    );
    let members = mount(&["--config", &config]).bucket.members;
    let first = Member {
        dir: MemberDir::new("a b").unwrap(),
        url: "s3://c/p".into(),
        endpoint: Some("http://y".into()),
        region: Some("r".into()),
        profile: Some("p".into()),
        addressing: Some(Addressing::Virtual),
        server_side_encryption: Some(ServerSideEncryption::KmsDsse),
        kms_key: Some("k".into()),
        request_payer: None,
        anonymous: true,
    };
    let (endpoint, region, profile) = (None, None, None);
    let dir = MemberDir::new("z").unwrap();
    let (server_side_encryption, kms_key) = (None, None);
    let url = "file:///z".into();
    let second = Member {
        dir,
        url,
        endpoint,
        region,
        profile,
        addressing: None,
        server_side_encryption,
        kms_key,
        request_payer: None,
        anonymous: false,
    };
    assert_eq!(members, [first, second], "a table takes nothing from the flags");
    let serve = ["serve", "--backing", "s3://b", "--name", "n", "--config", &config];
    let Command::Serve(serve) = read(&serve).unwrap().command else { panic!() };
    assert_eq!(serve.bucket.members, members);
}

#[test]
fn config_errors_in_a_table_name_the_key() {
    let wrong = |text: &str, what: &str| {
        let (_dir, config) = file(text);
        let error = read(&["mount", "s3://b", "/mnt", "--config", &config])
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("ebb.toml: ") && error.contains(what), "{text}: {error}");
    };
    let table =
        |dir: &str, more: &str| format!("[[bucket]]\ndir = {dir:?}\nurl = \"s3://x\"\n{more}\n");
    wrong("bucket = 1", "is to be tables");
    wrong("[bucket]\ndir = \"a\"", "is to be tables");
    wrong("bucket = [1]", "number 1 is to be a table");
    wrong("[[bucket]]\nurl = \"s3://x\"", "number 1: dir is missing");
    wrong("[[bucket]]\ndir = \"a\"", "url is missing");
    wrong("[[bucket]]\ndir = 1\nurl = \"s3://x\"", "dir is to be a text");
    wrong(&table("a", "anonymous = 1"), "anonymous is to be true or false");
    wrong(&table("a", "addressing = \"both\""), "addressing is to be path or virtual");
    wrong(&table("a", "access-key = \"k\""), "unknown key \"access-key\"");
    wrong(&table("a", "bucket = \"k\""), "unknown key \"bucket\"");
    for dir in ["", ".", "..", "a/b", "/", ".ebb", ".ebb%2e", &"n".repeat(256)] {
        wrong(&table("fine", "").replace("s3://x", "s3://y").add(&table(dir, "")), "number 2: ");
    }
    wrong("[[bucket]]\ndir = \"a\\u0000\"\nurl = \"s3://x\"", "it holds a NUL");
    wrong(
        &(table("a", "") + &table("a", "").replace("s3://x", "s3://y")),
        "is the directory of another bucket",
    );
    for other in ["s3://x", "s3://x/", "s3://x/p", "s3://x/p/"] {
        wrong(&(table("a", "") + &table("b", "").replace("s3://x", other)), "objects in common");
    }
    let (_dir, config) = file(
        &(table("a", "")
            + &table("b", "").replace("s3://x", "s3://xy")
            + &table("c", "endpoint = \"http://e\"")),
    );
    assert_eq!(mount(&["--config", &config]).bucket.members.len(), 3);
}

/// docs/configuration.md is generated from the table that defines the settings.
#[test]
fn configuration_page_matches_the_settings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/configuration.md");
    let now = ebb_cli::page::configuration();
    if std::env::var_os("EBB_WRITE_DOCS").is_some() {
        std::fs::write(&page, &now).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(
        written == now,
        "docs/configuration.md is not what the table says: run this test with EBB_WRITE_DOCS=1"
    );
}

#[test]
fn every_setting_has_a_variable() {
    use clap::CommandFactory;
    for command in Cli::command()
        .get_subcommands()
        .filter(|command| ["mount", "serve"].contains(&command.get_name()))
    {
        let flags = command.get_arguments().filter(|arg| arg.get_long().is_some());
        for arg in flags.filter(|arg| arg.get_id() != "help" && !arg.is_hide_set()) {
            let expected = format!("EBB_{}", arg.get_id().as_str().to_uppercase());
            assert_eq!(arg.get_env(), Some(expected.as_ref()), "{}", arg.get_id());
        }
    }
}

#[test]
fn paths_stay_as_they_are_given() {
    assert_eq!(mount(&["--data", "../d"]).node.data, Some(PathBuf::from("../d")));
}

#[test]
fn metrics_are_of_this_machine_unless_it_is_said() {
    let (_dir, config) = file("metrics = 9180\n[advanced]\nslow-operation = \"250ms\"");
    let plain = mount(&[]);
    assert_eq!((plain.node.metrics, plain.node.slow_operation.0), (None, Duration::from_secs(1)));
    let set = mount(&["--config", &config]);
    assert_eq!(
        (set.node.metrics.unwrap().0.as_str(), set.node.slow_operation.0),
        ("127.0.0.1:9180", Duration::from_millis(250))
    );
    assert_eq!(mount(&["--metrics", "0.0.0.0:1"]).node.metrics.unwrap().0, "0.0.0.0:1");
    assert_eq!(mount(&["--metrics", "[::1]:1"]).node.metrics.unwrap().0, "[::1]:1");
    for wrong in ["", "host", "host:", ":9180", "host:port", "1:99999"] {
        assert!(read(&["mount", "s3://b", "/mnt", "--metrics", wrong]).is_err(), "{wrong:?}");
    }
}
