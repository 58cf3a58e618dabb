//! Conformance suite of the bucket port: each clause of the port's documentation as a check for any
//! bucket. Every clause uses a prefix of its own.

mod listings;
mod objects;
mod odd_keys;
mod uploads;

use crate::Prefixed;
use ebb_ports::{Bucket, BucketError, ListEntry, ListRequest};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;

type Clause = for<'a> fn(&'a dyn Bucket) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! clauses {
    ($($module:ident :: $name:ident),* $(,)?) => {
        const CLAUSES: &[(&str, Clause)] = &[$((stringify!($name), |bucket| Box::pin($module::$name(bucket)))),*];
    };
}

clauses![
    objects::put_objects_are_read_back,
    objects::ranges_are_cut_at_the_end,
    objects::reads_are_guarded_by_the_tag,
    objects::missing_objects_are_not_found,
    objects::absent_is_won_once,
    objects::match_is_won_once,
    objects::concurrent_conditions_have_one_winner,
    objects::every_put_has_a_tag_that_changes_with_content,
    objects::deletes_are_idempotent_and_guarded,
    objects::copies_carry_content_and_tags,
    objects::a_copy_takes_nobody_elses_place,
    objects::bad_tags_are_refused,
    objects::many_at_once,
    odd_keys::odd_keys_are_kept_apart_or_refused,
    odd_keys::long_keys_are_kept_or_refused,
    odd_keys::a_file_and_its_directory,
    listings::keys_come_in_byte_order,
    listings::directories_come_once,
    listings::listings_go_on_after_any_text,
    listings::pages_cover_thousands_of_keys,
    listings::listing_sees_acknowledged_changes,
    uploads::parts_become_one_object,
    uploads::large_parts_arrive_whole,
    uploads::a_completion_keeps_to_its_condition,
    uploads::aborted_uploads_are_gone,
    uploads::wrong_parts_are_refused,
    uploads::parts_are_copied_from_objects,
    uploads::unfinished_ones_are_told,
];

/// Runs every clause, or those whose name contains `only`; panics at the end with the names of the
/// failed ones. `skip` names clauses that the store is known to break.
pub fn run(bucket: &Rc<dyn Bucket>, only: Option<&str>, skip: &[&str]) {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor for the suite");
    let mut failed = Vec::new();
    for (name, clause) in CLAUSES {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let place = Prefixed::over(bucket.clone(), &format!("{name}/"));
        let started = std::time::Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async {
                empty(&*place).await;
                clause(&*place).await;
                empty(&*place).await;
            });
        }));
        let took = started.elapsed().as_millis();
        match outcome {
            Ok(()) => println!("ok      {name} ({took} ms)"),
            Err(_) if skip.contains(name) => println!("known   {name} ({took} ms)"),
            Err(panic) => {
                println!("FAILED  {name}: {}", text(&*panic));
                failed.push(*name);
            }
        }
    }
    assert!(failed.is_empty(), "{} fails: {}", bucket.describe(), failed.join(", "));
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}

/// Every entry from the first to the last, page by page.
async fn list_all(
    bucket: &dyn Bucket,
    prefix: &str,
    by_directory: bool,
    limit: usize,
) -> Vec<ListEntry> {
    let mut entries: Vec<ListEntry> = Vec::new();
    loop {
        let after = entries.last().map(|last| last.key().to_string());
        let page = bucket
            .list(ListRequest { prefix: prefix.into(), by_directory, after, limit })
            .await
            .expect("a page");
        assert!(
            page.entries.len() <= limit,
            "{} entries where at most {limit} were asked for",
            page.entries.len()
        );
        assert!(!page.more || !page.entries.is_empty(), "an empty page that says more follows");
        entries.extend(page.entries);
        if !page.more {
            return entries;
        }
    }
}

fn keys(entries: &[ListEntry]) -> Vec<&str> {
    entries.iter().map(ListEntry::key).collect()
}

/// Leftovers of an earlier run must not decide this one. Children go before their directories.
async fn empty(bucket: &dyn Bucket) {
    let mut entries = list_all(bucket, "", false, 1000).await;
    entries.reverse();
    for some in entries.chunks(32) {
        for deleted in futures_util::future::join_all(
            some.iter().map(|entry| bucket.delete(entry.key(), None)),
        )
        .await
        {
            deleted.expect("a deletion");
        }
    }
}

fn is_refused<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Refused { .. }))
}

fn is_changed<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::Precondition { .. }))
}

fn is_missing<T>(result: &Result<T, BucketError>) -> bool {
    matches!(result, Err(BucketError::NotFound { .. }))
}

/// Bytes that differ at every position of a block and from seed to seed.
fn bytes(len: usize, seed: u8) -> bytes::Bytes {
    (0..len)
        .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect::<Vec<u8>>()
        .into()
}
