//! Requests to the store itself, made by `curl`.

use super::place::Places;
use crate::Outcome;
use crate::rig::Store;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Parallel requests of a parallel workload.
pub const AT_ONCE: u64 = 8;

pub struct Request {
    key: String,
    what: What,
}

enum What {
    Get {
        offset: u64,
        len_bytes: u64,
    },
    /// Keys below the prefix of the request, after this key if one is given.
    List {
        after: Option<String>,
    },
    Save(PathBuf),
    Put(PathBuf),
}

impl Request {
    /// Downloads a range of an object and discards it.
    pub fn get(key: &str, offset: u64, len_bytes: u64) -> Request {
        Request { key: key.into(), what: What::Get { offset, len_bytes } }
    }

    /// Lists a thousand keys of a directory and discards them.
    pub fn list(prefix: &str, after: Option<String>) -> Request {
        Request { key: prefix.into(), what: What::List { after } }
    }

    /// Downloads an object to a file.
    pub fn save(key: &str, path: &Path) -> Request {
        Request { key: key.into(), what: What::Save(path.into()) }
    }

    /// Uploads a file as an object.
    pub fn put(key: &str, path: &Path) -> Request {
        Request { key: key.into(), what: What::Put(path.into()) }
    }

    /// `below`: a prefix in the bucket above all keys.
    fn config(&self, bucket: &str, below: &str, user: &str) -> String {
        let Request { key, what } = self;
        let nowhere = Path::new("/dev/null");
        let object = format!("{bucket}/{below}/{key}");
        let (url, output, more) = match what {
            What::Get { offset, len_bytes } => {
                (object, nowhere, format!("range = \"{offset}-{}\"", offset + len_bytes - 1))
            }
            What::List { after } => {
                let encoded = |key: &str| format!("{below}/{key}").replace('/', "%2F");
                // In the order of the signature.
                let after = after
                    .as_ref()
                    .map_or_else(String::new, |after| format!("&start-after={}", encoded(after)));
                (
                    format!("{bucket}?delimiter=%2F&list-type=2&prefix={}{after}", encoded(key)),
                    nowhere,
                    String::new(),
                )
            }
            What::Save(path) => (object, path.as_path(), String::new()),
            What::Put(path) => (object, nowhere, format!("upload-file = \"{}\"", path.display())),
        };
        format!(
            "url = \"{url}\"\n{more}\noutput = \"{}\"\nfail\nsilent\nshow-error\naws-sigv4 = \
             \"aws:amz:us-east-1:s3\"\n\
             user = \"{user}\"\nheader = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\n",
            output.display()
        )
    }
}

/// All ranges of an object in order, split into eight lists of equal length.
pub fn ranges(key: &str, len_bytes: u64, range_bytes: u64) -> Vec<Vec<Request>> {
    let part = len_bytes.div_ceil(AT_ONCE).next_multiple_of(range_bytes);
    let starts = (0..len_bytes).step_by(part as usize);
    let list = |start: u64| {
        let end = (start + part).min(len_bytes);
        (start..end)
            .step_by(range_bytes as usize)
            .map(|at| Request::get(key, at, range_bytes.min(end - at)))
            .collect()
    };
    starts.map(list).collect()
}

/// Starts one process per list; each runs its requests one after the other.
pub fn run(places: &mut Places, lists: Vec<Vec<Request>>) -> Outcome<()> {
    let store = &places.rig()?.store;
    run_below(store, &store.url, lists)
}

/// As [`run`], with keys below another URL of the store.
pub fn run_below(store: &Store, url: &str, lists: Vec<Vec<Request>>) -> Outcome<()> {
    let user = store
        .variable("AWS_ACCESS_KEY_ID")
        .zip(store.variable("AWS_SECRET_ACCESS_KEY"))
        .map(|(id, secret)| format!("{id}:{secret}"));
    let user = user.ok_or("the store's credentials are not known")?;
    let (bucket, below) =
        url.trim_start_matches("s3://").split_once('/').ok_or("nothing is below the bucket")?;
    let bucket = format!("{}/{bucket}", store.endpoint().ok_or("the store has no endpoint")?);
    let mut clients = Vec::new();
    for list in lists {
        let mut client =
            Command::new("curl").args(["--config", "-"]).stdin(Stdio::piped()).spawn()?;
        let requests = list
            .iter()
            .map(|request| request.config(&bucket, below, &user))
            .collect::<Vec<_>>()
            .join("next\n");
        client.stdin.take().ok_or("curl has no input")?.write_all(requests.as_bytes())?;
        clients.push(client);
    }
    for mut client in clients {
        let status = client.wait()?;
        if !status.success() {
            return Err(format!("curl: {status}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_whole_object() {
        for (len_bytes, range_bytes) in
            [(1, 1), (7, 2), (1 << 20, 3000), (512 << 20, 52 << 20), (512 << 20, 8 << 20)]
        {
            let lists = ranges("key", len_bytes, range_bytes);
            assert!(lists.len() as u64 <= AT_ONCE);
            let mut at = 0;
            for request in lists.iter().flatten() {
                let What::Get { offset, len_bytes } = request.what else { panic!("it is read") };
                assert!(offset == at && len_bytes > 0 && len_bytes <= range_bytes);
                at += len_bytes;
            }
            assert_eq!(at, len_bytes);
        }
    }
}
