//! The nodes of a replicated volume, one a line or as JSON.

use ebb_model::{NodeState, shown_text};
use serde_json::{Value, json};
use std::fmt::Write;

pub(crate) fn write(out: &mut String, nodes: &[NodeState]) -> std::fmt::Result {
    if nodes.is_empty() {
        return writeln!(out, "the volume is not replicated");
    }
    nodes.iter().try_for_each(|node| writeln!(out, "{}", line(node)))
}

fn line(state: &NodeState) -> String {
    let NodeState { node, address, is_leader, votes, held_files, behind } = state;
    let part = match (is_leader, votes) {
        (true, _) => "leads",
        (false, true) => "votes",
        (false, false) => "no vote",
    };
    let lag = match behind {
        _ if *is_leader => String::new(),
        None => ", not heard from".into(),
        Some(0) => ", up to date".into(),
        Some(entries) => format!(", {entries} entries behind"),
    };
    let held = match held_files {
        0 => String::new(),
        1 => ", has the only copy of 1 file".into(),
        files => format!(", has the only copy of {files} files"),
    };
    format!("{node}  {}  {part}{lag}{held}", shown_text(address))
}

pub(crate) fn json(state: &NodeState) -> Value {
    json!({
        "node": state.node.to_string(),
        "address": state.address,
        "leader": state.is_leader,
        "votes": state.votes,
        "held_files": state.held_files,
        "behind_entries": state.behind,
    })
}

/// The line of `ebb status`; `None` for a volume that is not replicated.
pub fn summary(nodes: &[NodeState]) -> Option<String> {
    if nodes.is_empty() {
        return None;
    }
    let leader = nodes.iter().find(|node| node.is_leader);
    let leader = leader.map_or_else(
        || "none leads".to_owned(),
        |leader| format!("{} leads at {}", leader.node, shown_text(&leader.address)),
    );
    let votes = nodes.iter().filter(|node| node.votes).count();
    let held: u64 = nodes.iter().filter(|node| !node.is_leader).map(|node| node.held_files).sum();
    let held = match held {
        0 => String::new(),
        files => format!("; files with bytes on another node alone: {files}"),
    };
    Some(format!("nodes     {}, of which {votes} vote; {leader}{held}\n", nodes.len()))
}

pub fn json_list(nodes: &[NodeState]) -> Value {
    nodes.iter().map(json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_model::NodeId;

    fn node(id: u64, is_leader: bool, votes: bool, behind: Option<u64>) -> NodeState {
        let address = format!("10.0.0.{id}:7170");
        NodeState { node: NodeId(id), address, is_leader, votes, held_files: 0, behind }
    }

    #[test]
    fn node_lines_show_part_and_lag() {
        let held = NodeState { held_files: 2, ..node(3, false, false, Some(5)) };
        let all = [node(1, true, true, Some(0)), node(2, false, true, None), held];
        let mut out = String::new();
        write(&mut out, &all).unwrap();
        assert_eq!(
            out,
            "0000000000000001  10.0.0.1:7170  leads\n\
             0000000000000002  10.0.0.2:7170  votes, not heard from\n\
             0000000000000003  10.0.0.3:7170  no vote, 5 entries behind, has the only copy of 2 \
             files\n"
        );
        assert_eq!(
            summary(&all).unwrap(),
            "nodes     3, of which 2 vote; 0000000000000001 leads at 10.0.0.1:7170; files with \
             bytes on another node alone: 2\n"
        );
        assert_eq!(summary(&[]), None);
        assert_eq!(json(&all[1])["behind_entries"], Value::Null);
    }
}
