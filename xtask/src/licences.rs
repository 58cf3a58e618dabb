//! Licences of all linked dependencies: each offers one that is allowed.
//!
//! Replaces cargo-deny, whose build takes longer than all checks together. `deny.toml` keeps
//! cargo-deny's format, so that both can read it.

use crate::{Outcome, tool};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

pub fn run() -> Outcome<()> {
    let deny = fs::read_to_string(tool::root().join("deny.toml"))?;
    let allowed = allowed(&deny);
    if allowed.is_empty() {
        return Err("deny.toml allows nothing".into());
    }
    let metadata = tool::metadata()?;
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let mut wrong = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let source = package["source"].as_str();
        if source.is_some_and(|source| !source.starts_with("registry+")) {
            wrong.push(format!("{name} is not from the registry"));
        }
        match package["license"].as_str() {
            Some(licence) if satisfied(licence, &allowed) => {}
            licence => wrong.push(format!(
                "{name}: {} is not allowed",
                licence.unwrap_or("a licence that is not stated")
            )),
        }
    }
    if wrong.is_empty() {
        println!("{} packages, all under licences that are allowed", packages.len());
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

/// The quoted words of `allow = [ … ]`.
fn allowed(deny: &str) -> BTreeSet<&str> {
    let list = deny
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Evaluates an SPDX expression: `OR` needs one operand, `AND` both; an exception only adds rights;
/// parentheses nest.
fn satisfied(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut tokens = spaced.split_whitespace().peekable();
    let met = either(&mut tokens, allowed);
    met && tokens.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    let mut met = both(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        met |= both(tokens, allowed);
    }
    met
}

fn both(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    let mut met = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut Tokens, allowed: &BTreeSet<&str>) -> bool {
    if tokens.next_if_eq(&"(").is_some() {
        let met = either(tokens, allowed);
        return tokens.next() == Some(")") && met;
    }
    let met = tokens.next().is_some_and(|licence| allowed.contains(licence));
    if tokens.next_if_eq(&"WITH").is_some() {
        return tokens.next().is_some() && met;
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0"]);
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "MIT AND (Apache-2.0 OR X)",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR X) AND MIT",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND X", "(MIT", "MIT)", "X OR Y", "MIT MIT", "MIT WITH"] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }
}
