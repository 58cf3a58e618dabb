//! The pages under `docs/` match the code.

use crate::samples::{ALL_KINDS, Draw};
use ebb_format::crc32c;
use ebb_format::record::Payload;
use ebb_format::rpc::Message;
use ebb_model::*;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

/// Type, number and name of the variants that have samples.
#[derive(Default)]
struct Variants(BTreeSet<(&'static str, u8, String)>);

impl Variants {
    fn add<T: Serialize + Debug>(&mut self, name: &'static str, value: &T) {
        let number = postcard::to_allocvec(value).expect("it can be written")[0];
        let variant =
            format!("{value:?}").chars().take_while(char::is_ascii_alphanumeric).collect();
        self.0.insert((name, number, variant));
    }

    /// Each type has a row, and the row lists exactly these variants.
    fn check(&self, page: &str) {
        let text = text_of(page);
        let types: BTreeSet<&str> = self.0.iter().map(|(name, ..)| *name).collect();
        for name in types {
            let cell = format!("`{name}` | ");
            let row =
                text.lines().find_map(|line| line.split_once(&cell)).map(|(_, variants)| variants);
            let row = row.unwrap_or_else(|| panic!("{page} has no row of {name}"));
            let listed: Vec<String> =
                row.trim_end_matches(" |").split(", ").map(String::from).collect();
            let real = self
                .0
                .iter()
                .filter(|(of, ..)| *of == name)
                .map(|(_, number, variant)| format!("{number} {variant}"));
            assert_eq!(listed, real.collect::<Vec<_>>(), "{page}: {name}");
        }
    }
}

fn text_of(page: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page))
        .expect("the page is there")
}

#[test]
fn the_page_of_the_wire_names_its_version() {
    assert!(
        text_of("protocol/rpc.md")
            .contains(&format!("| version, {}: of the protocol", ebb_format::rpc::VERSION))
    );
}

#[test]
fn the_log_page_numbers_the_variants_right() {
    let mut variants = Variants::default();
    for payload in Draw(0).payloads() {
        let Payload::Command(command) = payload else { continue };
        variants.add("Command", &command);
        match &command {
            Command::Client { mutation, .. } => {
                variants.add("Mutation", mutation);
                match mutation {
                    Mutation::Make { what, .. } => variants.add("Make", what),
                    Mutation::Rename { mode, .. } => variants.add("RenameMode", mode),
                    Mutation::SetXattr { mode, .. } => variants.add("XattrMode", mode),
                    Mutation::SetAcl { class, .. } => variants.add("AclClass", class),
                    _ => {}
                }
            }
            Command::Extent(extent) => variants.add("LocalCommand", extent),
            Command::Backing(backing) => {
                variants.add("BackingCommand", backing);
                if let BackingCommand::Install { entries, progress, .. } = backing {
                    variants.add("LoadProgress", progress);
                    entries.iter().for_each(|entry| variants.add("InstalledKind", &entry.what));
                }
            }
            _ => {}
        }
    }
    ALL_KINDS.iter().for_each(|kind| variants.add("FileKind", kind));
    [SetTime::Now, SetTime::To(Time::default()), SetTime::Reading]
        .iter()
        .for_each(|time| variants.add("SetTime", time));
    variants.check("format/log.md");
}

#[test]
fn the_protocol_page_numbers_the_variants_right() {
    let mut variants = Variants::default();
    for message in Draw(0).messages() {
        match message {
            Message::Request { request, .. } => {
                variants.add("Request", &request);
                match &request {
                    Request::Mutate(mutate) => variants.add("ClientMutation", &mutate.mutation),
                    Request::Admin(admin) => variants.add("AdminRequest", admin),
                    _ => {}
                }
            }
            Message::Reply { reply, .. } => {
                variants.add("Reply", &reply);
                if let Reply::Admin(admin) = &reply {
                    variants.add("AdminReply", admin);
                }
            }
            Message::Error { error, .. } => {
                variants.add("RpcError", &error);
                if let RpcError::Refused(refused) = &error {
                    variants.add("FsError", refused);
                }
            }
            Message::Notice(notice) => variants.add("Notice", &notice),
            Message::Peer { .. } => {}
        }
    }
    variants.check("protocol/rpc.md");
}

#[test]
fn the_checksum_is_the_one_that_the_pages_name() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(b""), 0);
}
