//! The helper of mount(8): its arguments, and the resulting arguments of `ebb`.

use ebb_cli::args::TakeOver;
use ebb_cli::helper::{Asked, HelperError, name, parse};
use ebb_cli::{Cli, Command};
use std::ffi::OsStr;
use std::path::Path;

/// The mount options of these tests.
fn is_mount_option(option: &str) -> bool {
    ["ro", "rw", "allow_other"].contains(&option)
}

fn asked(args: &[&str]) -> Result<Asked, HelperError> {
    parse(["/sbin/mount.ebb"].iter().chain(args).map(|arg| arg.into()), is_mount_option)
}

fn given(args: &[&str]) -> Vec<String> {
    match asked(&[&["s3://b", "/mnt"], args].concat()).unwrap() {
        Asked::Mount { args } => args.into_iter().map(|arg| arg.into_string().unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_helper_is_known_by_its_name() {
    for (program, helper) in [
        ("/sbin/mount.ebb", Some("mount.ebb")),
        ("mount.fuse.ebb", Some("mount.fuse.ebb")),
        ("/usr/bin/ebb", None),
        ("/mount.ebb/ebb", None),
        ("", None),
    ] {
        assert_eq!(name(OsStr::new(program)), helper, "{program}");
    }
}

/// Settings become flags, mount options stay together, options for mount(8) are dropped.
#[test]
fn options_are_settings_and_mount_options() {
    let table: [(&str, &[&str]); 12] = [
        ("rw", &["-osuid,dev,rw"]),
        ("rw,cache-size=10G,allow_other", &["--cache-size=10G", "-osuid,dev,rw,allow_other"]),
        ("endpoint=http://h:1/?a=b", &["--endpoint=http://h:1/?a=b", "-osuid,dev,"]),
        ("anonymous,rearrange", &["--anonymous", "--rearrange", "-osuid,dev,"]),
        ("map_uid=0:1:1,map_gid=5:6:7", &["-osuid,dev,map_uid=0:1:1,map_gid=5:6:7"]),
        ("take-over=now,take-over=join", &["--take-over=join", "-osuid,dev,"]),
        (
            "defaults,_netdev,nofail,noauto,x-systemd.automount,x-systemd.requires=a.mount,X-mount.mkdir,comment=x,norelatime",
            &["-osuid,dev,"],
        ),
        ("rw,user,exec", &["-osuid,dev,rw,noexec,nosuid,nodev,exec"]),
        ("consistency=close-to-open,ro", &["--consistency=close-to-open", "-osuid,dev,ro"]),
        ("owner", &["-osuid,dev,nosuid,nodev"]),
        ("relatime,nodiratime", &["-osuid,dev,relatime,nodiratime"]),
        (",,unknown=1,,", &["-osuid,dev,unknown=1"]),
    ];
    for (options, expected) in table {
        let expected: Vec<&str> = ["ebb", "mount"]
            .iter()
            .chain(expected)
            .chain(&["--", "s3://b", "/mnt"])
            .copied()
            .collect();
        assert_eq!(given(&["-o", options]), expected, "{options}");
    }
    assert_eq!(
        given(&["-o", "region=a,ro", "-o", "region=b"]),
        ["ebb", "mount", "--region=b", "-osuid,dev,ro", "--", "s3://b", "/mnt"]
    );
    assert_eq!(
        given(&["-sn", "-v", "-r", "-t", "fuse.ebb", "-o", "unknown,rw"]),
        ["ebb", "mount", "-osuid,dev,rw,ro", "--", "s3://b", "/mnt"]
    );
}

/// `ebb` accepts the result, the configuration file included.
#[test]
fn every_flag_can_be_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ebb.toml");
    std::fs::write(&file, "cache-size = \"1G\"\n[advanced]\nflush-jobs = 3\ngid = 7").unwrap();
    let options = format!(
        "rw,config={},cache-size=10G,take-over=join,listen=127.0.0.1:0,x-y=z,anonymous",
        file.display()
    );
    let args = given(&["-o", &options]);
    let Cli { command: Command::Mount(mount), .. } =
        ebb_cli::parse(args.into_iter().map(Into::into)).unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (mount.node.cache_size.0, mount.node.flush_jobs, mount.node.gid),
        (10 << 30, 3, Some(7))
    );
    assert_eq!(
        (mount.node.take_over, mount.bucket.anonymous, mount.options),
        (TakeOver::Join, true, vec!["suid,dev,rw".to_owned()])
    );
    assert_eq!((mount.source.as_str(), mount.mountpoint.as_path()), ("s3://b", Path::new("/mnt")));
}

#[test]
fn helper_refuses_invalid_arguments() {
    for args in [
        &["s3://b"][..],
        &[],
        &["s3://b", "/mnt", "more"],
        &["s3://b", "/mnt", "-q"],
        &["s3://b", "/mnt", "-N", "1"],
    ] {
        assert!(matches!(asked(args), Err(HelperError::Usage(_))), "{args:?}");
    }
    for option in ["foreground", "options=ro", "foreground=1"] {
        assert!(
            matches!(asked(&["s3://b", "/mnt", "-o", option]), Err(HelperError::Misplaced(_))),
            "{option}"
        );
    }
    for option in ["cache-size", "cache-size=much", "anonymous=perhaps", "take-over=by force"] {
        assert!(
            ebb_cli::parse(given(&["-o", option]).into_iter().map(Into::into)).is_err(),
            "{option}"
        );
    }
}

#[test]
fn trials_and_remounts_are_no_mounts() {
    assert!(matches!(asked(&["s3://b", "/mnt", "-f", "-o", "ro"]), Ok(Asked::Fake { .. })));
    // As mount(8) merges fstab, the existing mount and its command line.
    let options = "rw,nosuid,relatime,user_id=0,group_id=0,allow_other,cache-size=1G,remount,ro";
    let expected =
        Asked::Remount { dir: "/mnt".into(), options: "rw,nosuid,relatime,allow_other,ro".into() };
    assert_eq!(asked(&["s3://b", "/mnt", "-o", options]).unwrap(), expected);
}
