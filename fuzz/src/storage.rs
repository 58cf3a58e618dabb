//! Replies of stores and of the services around them.

use crate::{file, formats};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Input: one byte selects the store; then, separated by zero bytes, `NAME=VALUE` lines of the
/// environment, the contents of each file that they name, and the replies. The first line is a URL.
pub fn credentials(bytes: &[u8]) {
    let Some((store, rest)) = bytes.split_first() else { return };
    let mut pieces = rest.splitn(3, |byte| *byte == 0);
    let (said, content, answers) =
        (pieces.next(), pieces.next().unwrap_or_default(), pieces.next().unwrap_or_default());
    let said = String::from_utf8_lossy(said.unwrap_or_default()).into_owned();
    ebb_bucket::fuzz::location(said.lines().next().unwrap_or_default());
    file::holding(content, |path| {
        let variable = |line: &str| {
            let (name, value) = line.split_once('=')?;
            // Only the test's own file, never another one of this machine.
            let value = if is_of_a_file(name) { path } else { value };
            (name != "HOME" && name != "CLOUDSDK_CONFIG")
                .then(|| (name.to_owned(), value.to_owned()))
        };
        let environment: BTreeMap<String, String> = said.lines().filter_map(variable).collect();
        ebb_bucket::fuzz::credentials(
            *store,
            Arc::new(move |name| environment.get(name).cloned()),
            answers,
        );
    });
}

fn is_of_a_file(name: &str) -> bool {
    name.ends_with("_FILE") || name == "GOOGLE_APPLICATION_CREDENTIALS"
}

/// Metadata of an object: the value of a tag, tags in a note of a directory, and the target of an
/// upload.
pub fn metadata(bytes: &[u8]) {
    formats::sums(bytes);
    ebb_bucket::fuzz::notes(bytes);
}
