//! Every target over its seeds, mutated in many ways, and over earlier findings.

use ebb_fuzz::TARGETS;
use std::fs;
use std::path::Path;

/// Mutates a seed in one of many ways: a flipped bit, a cut, a repetition, a huge number.
fn damaged(seed: &[u8], draw: &mut impl FnMut() -> usize) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + draw() % 3 {
        if bytes.is_empty() {
            return bytes;
        }
        let at = draw() % bytes.len();
        match draw() % 5 {
            0 => bytes[at] ^= 1 << (draw() % 8),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_within(at..),
            3 => bytes[at] = 0xff,
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

fn xorshift(mut state: u64) -> impl FnMut() -> usize {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    }
}

#[test]
fn no_target_minds_damage() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut draw = xorshift(0x9e37_79b9);
        for seed in &seeds {
            (target.run)(seed);
            for _ in 0..1 + 400 / seeds.len() {
                (target.run)(&damaged(seed, &mut draw));
            }
        }
    }
}

#[test]
fn what_was_found_stays_mended() {
    for target in TARGETS {
        let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target.name);
        for file in fs::read_dir(found).into_iter().flatten() {
            (target.run)(&fs::read(file.unwrap().path()).unwrap());
        }
    }
}
