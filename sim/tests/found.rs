//! Seeds of embedded volumes that once broke a promise and are no scenario of their own.

use ebb_sim::volume::run;

/// The bucket forbade the abort of an upload, which was then forgotten and its parts kept.
#[test]
fn an_upload_whose_abort_is_forbidden_is_not_forgotten() {
    run(298).unwrap_or_else(|broken| panic!("{broken}"));
}
