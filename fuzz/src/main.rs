//! The driver: EBB_FUZZ_TARGET names the target that libFuzzer searches.

#![no_main]

use ebb_fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("EBB_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("EBB_FUZZ_TARGET={name:?} is no target"))
});

fuzz_target!(|data: &[u8]| (TARGET.run)(data));
