//! Allowed dependencies between crates (ARCHITECTURE.md): `ebb -> surface, node, client,
//! adapters`; `surface -> client`; `node, client -> core, ports, format`;
//! `node -> journal, store`; `journal -> ports, format`; `store -> ports, core`;
//! `adapters -> ports -> model`; `os -> certificates`; `core, consensus -> model`; `sim` replaces
//! the adapters.

use crate::{Outcome, tool};
use std::collections::BTreeMap;

/// A crate's allowed dependencies: `uses` for the product, additionally `tests` for its tests.
struct Rule {
    name: &'static str,
    uses: &'static [&'static str],
    tests: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule { name: "ebb-model", uses: &[], tests: &[] },
    Rule { name: "ebb-format", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-core", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-consensus", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-ports", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-journal", uses: &["ebb-format", "ebb-model", "ebb-ports"], tests: &[] },
    Rule { name: "ebb-store", uses: &["ebb-core", "ebb-model", "ebb-ports"], tests: &[] },
    Rule {
        name: "ebb-node",
        uses: &[
            "ebb-consensus",
            "ebb-core",
            "ebb-format",
            "ebb-journal",
            "ebb-model",
            "ebb-ports",
            "ebb-store",
        ],
        tests: &["ebb-bucket", "ebb-sim", "ebb-client"],
    },
    Rule {
        name: "ebb-client",
        uses: &["ebb-core", "ebb-format", "ebb-model", "ebb-ports"],
        tests: &["ebb-sim", "ebb-node"],
    },
    Rule {
        name: "ebb-os",
        uses: &["ebb-certificates", "ebb-format", "ebb-model", "ebb-ports"],
        tests: &[],
    },
    Rule {
        name: "ebb-bucket",
        uses: &["ebb-model", "ebb-ports"],
        tests: &["ebb-bucket", "ebb-s3-server"],
    },
    Rule { name: "ebb-certificates", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-encryption", uses: &["ebb-format", "ebb-ports"], tests: &[] },
    Rule { name: "ebb-fuse", uses: &["ebb-client", "ebb-model"], tests: &["ebb-ports"] },
    Rule { name: "ebb-cli", uses: &["ebb-model"], tests: &[] },
    Rule { name: "ebb-bench", uses: &[], tests: &[] },
    Rule {
        name: "ebb",
        uses: &[
            "ebb-bench",
            "ebb-bucket",
            "ebb-certificates",
            "ebb-cli",
            "ebb-client",
            "ebb-encryption",
            "ebb-fuse",
            "ebb-model",
            "ebb-node",
            "ebb-os",
            "ebb-ports",
        ],
        tests: &["ebb-s3-server"],
    },
    Rule {
        name: "ebb-sim",
        uses: &[
            "ebb-client",
            "ebb-core",
            "ebb-encryption",
            "ebb-format",
            "ebb-journal",
            "ebb-model",
            "ebb-node",
            "ebb-ports",
        ],
        tests: &["ebb-bucket"],
    },
    Rule {
        name: "ebb-fuzz",
        uses: &[
            "ebb-bucket",
            "ebb-cli",
            "ebb-client",
            "ebb-core",
            "ebb-encryption",
            "ebb-format",
            "ebb-fuse",
            "ebb-model",
            "ebb-node",
            "ebb-os",
            "ebb-ports",
            "ebb-sim",
        ],
        tests: &[],
    },
    Rule { name: "ebb-s3-server", uses: &["ebb-bucket", "ebb-ports"], tests: &[] },
    Rule { name: "ebb-linearize", uses: &[], tests: &[] },
    Rule { name: "ebb-rig", uses: &["ebb-bench", "ebb-cli", "ebb-fuse"], tests: &[] },
    Rule {
        name: "xtask",
        uses: &[
            "ebb-bench",
            "ebb-bucket",
            "ebb-cli",
            "ebb-fuse",
            "ebb-fuzz",
            "ebb-linearize",
            "ebb-model",
            "ebb-ports",
            "ebb-rig",
            "ebb-sim",
        ],
        tests: &[],
    },
];

pub fn run() -> Outcome<()> {
    let metadata = tool::metadata()?;
    let rules: BTreeMap<&str, &Rule> = RULES.iter().map(|rule| (rule.name, rule)).collect();
    let members: Vec<&str> = metadata["workspace_members"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|id| id.as_str())
        .collect();
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if !package["id"].as_str().is_some_and(|id| members.contains(&id)) {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        let Some(rule) = rules.get(name) else {
            wrong.push(format!(
                "{name} has no rule: say in xtask/src/arrows.rs what it may depend on"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            if !rules.contains_key(to) {
                continue;
            }
            arrows += 1;
            let in_tests = dependency["kind"] == "dev" && rule.tests.contains(&to);
            if !rule.uses.contains(&to) && !in_tests {
                wrong.push(format!("{name} must not depend on {to}"));
            }
        }
    }
    if wrong.is_empty() {
        println!("{arrows} arrows between {} crates, all as they should be", members.len());
        return Ok(());
    }
    Err(wrong.join("\n").into())
}
