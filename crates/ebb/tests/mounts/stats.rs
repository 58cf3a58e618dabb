//! stats, metrics, and log lines about slow operations.

use crate::detached::serve;
use crate::place::{Place, until};
use crate::switch::Switch;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

#[track_caller]
fn stats(place: &Place, of: &str) -> Value {
    place.ebb(&["stats", of, "--interval", "0", "--json"]).good().json()
}

#[test]
fn stats_count_operations_and_sources_of_bytes() {
    let place = Place::new();
    // Passthrough reads are not counted.
    place.mount_with(&["--flush-interval", "1h", "--passthrough", "off"]);
    fs::write(place.path("mnt/file"), vec![1; 300_000]).unwrap();
    assert!(fs::metadata(place.path("mnt/no such file")).is_err());
    place.ebb(&["flush", "mnt"]).good();
    place.ebb(&["evict", "mnt"]).good();
    let before = stats(&place, "mnt");
    let (operations, node) = (&before["mount"]["operations"], &before["node"]);
    assert_eq!(
        (&operations["CREATE"]["count"], &operations["WRITE"]["bytes"]),
        (&1.into(), &300_000.into()),
        "{before}"
    );
    assert_eq!(node["requests"]["make"]["count"], 1, "{before}");
    assert_eq!(
        (&node["bucket"]["put"]["errors"], &node["reads"]["from_bucket"]),
        (&0.into(), &0.into()),
        "{before}"
    );

    // O_DIRECT leaves nothing in the page cache.
    let read = || {
        let mut file = fs::File::open(place.path("mnt/file")).unwrap();
        // SAFETY: the descriptor is open.
        unsafe {
            libc::posix_fadvise(
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
                0,
                libc::POSIX_FADV_DONTNEED,
            )
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content.len(), 300_000);
    };
    read();
    let first = stats(&place, "mnt");
    assert!(first["node"]["reads"]["from_bucket"].as_u64().unwrap() >= 1, "{first}");
    assert_eq!(
        first["node"]["bucket"]["get"]["bytes"].as_u64().unwrap() - got(&before),
        300_000,
        "{first}"
    );
    read();
    let second = stats(&place, "mnt");
    assert_eq!(
        second["node"]["reads"]["from_bucket"], first["node"]["reads"]["from_bucket"],
        "{second}"
    );
    assert!(
        second["node"]["reads"]["from_cache"].as_u64()
            > first["node"]["reads"]["from_cache"].as_u64(),
        "{second}"
    );
    assert_eq!(second["mount"]["operations"]["READ"]["bytes"], 600_000, "{second}");

    let text = place.ebb(&["stats", "mnt/file", "--interval", "0"]).good().out;
    assert!(
        ["kernel ", "  WRITE ", "node ", "reads ", "bucket ", "  get "]
            .iter()
            .all(|part| text.contains(part)),
        "{text}"
    );
    place.umount();
}

fn got(stats: &Value) -> u64 {
    stats["node"]["bucket"]["get"]["bytes"].as_u64().unwrap_or(0)
}

/// Each table is of its own interval.
#[test]
fn stats_tables_cover_their_own_interval() {
    let place = Place::new();
    place.mount();
    fs::write(place.path("mnt/file"), "x").unwrap();
    let done = place.ebb(&["stats", "mnt", "--interval", "200ms", "--count", "2", "--json"]).good();
    let tables: Vec<Value> =
        done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(tables.len(), 2, "{done:?}");
    for table in &tables {
        assert_eq!(table["mount"]["operations"].get("CREATE"), None, "{table}");
        let seconds = table["mount"]["seconds"].as_f64().unwrap();
        assert!((0.1..10.0).contains(&seconds), "{table}");
    }
    place.ebb(&["stats", "mnt", "--interval", "0", "--count", "2"]).refused(2, "one table");
    place.ebb(&["stats", "elsewhere"]).refused(2, "is on no mount");
    place.kill("mnt");
    place.ebb(&["stats", "mnt", "--count", "1"]).refused(1, "has ended");
}

/// Situation: the reader of the tables closes the pipe. Danger: the command runs for ever.
/// Expectation: it ends with success.
#[test]
fn stats_end_when_their_reader_closes_the_pipe() {
    let place = Place::new();
    place.mount();
    let script = format!(
        "timeout 20 {} stats mnt --interval 100ms | head -1; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_ebb")
    );
    let done = place.program("bash", &["-c", &script]).good();
    assert_eq!(done.out.lines().last(), Some("0"), "{done:?}");
    place.umount();
}

/// Situation: the node of a mount is another process, which then dies. Expectation: the mount's own
/// figures are available; the node's are, by its address, while it lives.
#[test]
fn a_mount_is_asked_without_its_node() {
    let mut place = Place::new();
    let (node, address) = serve(&mut place, "127.0.0.1:0");
    let volume = format!("ebb://{address}/volume");
    place.ebb(&["mount", &volume, "mnt", "--data", "client"]).good();
    fs::write(place.path("mnt/file"), "x").unwrap();
    let both = stats(&place, "mnt");
    assert_eq!(
        (
            &both["mount"]["operations"]["CREATE"]["count"],
            &both["node"]["requests"]["make"]["count"]
        ),
        (&1.into(), &1.into())
    );
    for name in [&address, &volume] {
        let alone = stats(&place, name);
        assert_eq!(
            (&alone["mount"], &alone["node"]["requests"]["make"]["count"]),
            (&Value::Null, &1.into()),
            "{alone}"
        );
    }
    place.ebb(&["stats", &format!("ebb://{address}/other")]).refused(1, "serves volume");
    fs::create_dir(place.path("mnt/d")).unwrap();
    assert!(place.ebb(&["explain", &format!("{volume}/d")]).good().out.contains("/d"));
    place.ebb(&["warmup", &format!("ebb://{address}/other/d")]).refused(1, "serves volume");
    place.ebb(&["stats", "s3://bucket"]).refused(2, "is storage");
    place.signal(node, libc::SIGKILL);
    let alone = stats(&place, "mnt");
    assert_eq!(
        (&alone["mount"]["operations"]["CREATE"]["count"], &alone["node"]),
        (&1.into(), &Value::Null),
        "{alone}"
    );
    assert!(alone["node_error"].as_str().unwrap().contains("cannot be reached"), "{alone}");
    let text = place.ebb(&["stats", "mnt", "--interval", "0"]).good().out;
    assert!(text.contains("  CREATE ") && text.contains("cannot be asked"), "{text}");
    place.ebb(&["stats", &address]).refused(1, "cannot be reached");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // Of a request that is refused half-way the answer may be lost.
    stream.read_to_string(&mut answer).ok();
    answer
}

#[track_caller]
fn metrics(port: u16) -> String {
    let answer = ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_owned()
}

#[test]
fn prometheus_is_answered() {
    let mut place = Place::new();
    let (port, other) = (free_port(), free_port());
    let has = |page: &str, series: &str| page.lines().any(|line| line.starts_with(series));
    place.mount_with(&["--metrics", &port.to_string()]);
    fs::write(place.path("mnt/file"), "x").unwrap();
    let page = metrics(port);
    let expected = [
        "ebb_kernel_request_duration_seconds_count{operation=\"CREATE\"} 1",
        "ebb_node_request_duration_seconds_bucket{request=\"make\",le=\"+Inf\"} 1",
        "ebb_bucket_request_errors_total{request=\"list\"} 0",
        "ebb_read_bytes_total{tier=\"cache\"} ",
        "ebb_cache_limit_bytes ",
    ];
    assert!(expected.iter().all(|series| has(&page, series)), "{page}");
    // Other requests get an error without side effects.
    assert!(ask(port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask(port, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(port, &"x".repeat(8 << 10)).starts_with("HTTP/1.1 431 "));
    assert_eq!(ask(port, "HEAD /metrics HTTP/1.1\r\n\r\n").split_once("\r\n\r\n").unwrap().1, "");
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", port))).collect();
    drop(idle);
    until("those who said nothing are forgotten", || {
        ask(port, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ")
    });

    // An address in use is reported before the mount.
    let second = format!("file://{}", place.text("data2"));
    fs::create_dir(place.path("data2")).unwrap();
    place
        .ebb(&["mount", &second, "mnt2", "--data", "node2", "--metrics", &port.to_string()])
        .refused(1, "--metrics");
    assert!(!place.is_mounted("mnt2"));
    place.umount();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "it ends with the mount");

    // A node without a mount has metrics, and so has a mount with its node elsewhere.
    let url = place.url().to_owned();
    let (_, line) = place.start(&[
        "serve",
        "--data",
        "node",
        "--backing",
        &url,
        "--name",
        "v",
        "--listen",
        "127.0.0.1:0",
        "--take-over=now",
        "--metrics",
        &port.to_string(),
    ]);
    let volume = line.split_whitespace().find(|word| word.starts_with("ebb://")).unwrap();
    place
        .ebb(&[
            "mount",
            volume,
            "mnt",
            "--data",
            "client",
            "--metrics",
            &format!("127.0.0.1:{other}"),
        ])
        .good();
    let (node, mount) = (metrics(port), metrics(other));
    assert!(has(&node, "ebb_node_") && !has(&node, "ebb_kernel_"), "{node}");
    assert!(has(&mount, "ebb_kernel_") && !has(&mount, "ebb_node_"), "{mount}");
}

/// Situation: a read waits for a slow bucket. Expectation: the log names the slow operation, its
/// file, and the cause; fast operations are not logged.
#[test]
fn a_slow_operation_is_told_of() {
    let switch = Switch::default();
    let place = Place::behind(&switch);
    place.mount();
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/slow"), vec![1; 1 << 20]).unwrap();
    place.umount();
    place.drop_cache();
    place.mount_with(&["--slow-operation", "300ms"]);
    assert_eq!(fs::metadata(place.path("mnt/d/slow")).unwrap().len(), 1 << 20);
    switch.close();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(place.path("mnt/d/slow")).unwrap().len());
        std::thread::sleep(std::time::Duration::from_millis(600));
        switch.open();
        assert_eq!(reader.join().unwrap(), 1 << 20);
    });
    let read_log = || fs::read_to_string(place.path("data/ebb.log")).unwrap();
    // It is written when the reader has its answer.
    until("both are told of", || read_log().contains("a slow operation"));
    let log = read_log();
    let of = |what: &str| {
        log.lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{what}: {log}"))
            .to_owned()
    };
    let request = of("a slow request");
    assert!(
        request.contains("request=\"read\"") && request.contains("path=\"/d/slow\""),
        "{request}"
    );
    assert!(request.contains("ms for the bucket"), "{request}");
    assert!(of("a slow operation").contains("operation=\"READ\""), "{log}");
    assert!(!log.contains("GETATTR"), "{log}");
    place.umount();
}

/// Situation: a program works on a mount, and other programs elsewhere on it. Expectation: its
/// profile shows its operations by file, none from before, and ends with the program.
#[test]
fn a_profile_tells_files_apart() {
    let place = Place::new();
    place.mount();
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/before"), "x").unwrap();
    let work = "cp /bin/true mnt/d/copy && echo x > mnt/gone && rm mnt/gone && echo done";
    let done = place.ebb(&["profile", "mnt", "--json", "--", "sh", "-c", work]).good();
    let (said, profile) = done.out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said, "done");
    let profile: Value = serde_json::from_str(profile).unwrap();
    let lines = profile["lines"].as_array().unwrap();
    let find = |path: Option<&str>, operation: &str| {
        lines
            .iter()
            .find(|line| line["path"].as_str() == path && line["operation"] == operation)
            .unwrap_or_else(|| panic!("{profile:#}"))
    };
    let length = fs::metadata("/bin/true").unwrap().len();
    assert_eq!(find(Some("d/copy"), "WRITE")["bytes"], length);
    assert_eq!(
        (&find(Some("d"), "CREATE")["count"], &find(Some(""), "UNLINK")["count"]),
        (&1.into(), &1.into())
    );
    assert_eq!(find(None, "WRITE")["bytes"], 2, "it has no name any more");
    assert!(!lines.iter().any(|line| line["path"] == "d/before"), "{profile:#}");
    let table =
        place.ebb(&["profile", "mnt", "--top", "1", "--", "touch", "mnt/d/before"]).good().out;
    assert!(table.contains("requests in") && table.contains("lines more"), "{table}");

    // The program's output and exit status are passed on.
    let failed = place.ebb(&["profile", "mnt", "--", "sh", "-c", "exit 3"]);
    assert!(
        failed.status == 1
            && failed.err.contains("exit status: 3")
            && failed.out.contains("requests in"),
        "{failed:?}"
    );
    place.ebb(&["profile", "mnt", "--", "no such program"]).refused(1, "no such program");
    place.ebb(&["profile", "backing", "--for", "1s"]).refused(2, "is on no mount");
    assert_eq!(place.ebb(&["profile", "mnt"]).status, 2);
    place.umount();
}

/// Situation: a second profile is requested while one runs; the first one is killed. Expectation:
/// one runs at a time, and none is left over; SIGINT ends one early with its results.
#[test]
fn one_profile_is_taken_at_a_time() {
    let mut place = Place::new();
    let (_node, address) = serve(&mut place, "127.0.0.1:0");
    // A directory of the volume is the root of the mount.
    place.ebb(&["mount", &format!("ebb://{address}/volume"), "mnt2", "--data", "client2"]).good();
    fs::create_dir(place.path("mnt2/sub")).unwrap();
    place.ebb(&["mount", &format!("ebb://{address}/volume/sub"), "mnt", "--data", "client"]).good();
    // Its program runs once it has begun.
    let first =
        place.start_silent(&["profile", "mnt", "--", "sh", "-c", "touch started && exec sleep 3"]);
    until("the first one has begun", || place.path("started").exists());
    place.ebb(&["profile", "mnt", "--for", "0"]).refused(1, "being taken already");
    place.signal(first, libc::SIGKILL);
    until("the first one is over", || place.ebb(&["profile", "mnt", "--for", "0"]).status == 0);

    let profile = place
        .ebb(&["profile", "mnt", "--json", "--", "sh", "-c", "echo xyz > mnt/file"])
        .good()
        .json();
    let lines = profile["lines"].as_array().unwrap();
    let has = |path: &str, operation: &str| {
        lines.iter().any(|line| line["path"] == path && line["operation"] == operation)
    };
    assert!(has("sub", "CREATE") && has("sub/file", "WRITE"), "{profile:#}");

    let interrupted = place.start_silent(&["profile", "mnt", "--for", "1h", "--json"]);
    until("it hears an interrupt", || place.hears(interrupted, libc::SIGINT));
    let (status, out) = place.output(interrupted, libc::SIGINT);
    let profile: Value = serde_json::from_str(&out).unwrap();
    assert!(status == 0 && profile["lines"].is_array(), "{profile:#}");
}
