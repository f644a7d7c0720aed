//! Hosts that stand for RDMA adapters: `[[adapter]]`.
//!
//! An adapter is another implementation of RoCEv2. It runs the same engine here, but speaks only the standard family
//! (go-back-N), drops management datagrams, as adapters drop those that they do not know, so that its peers take it for what
//! it is, and has a congestion control of its own. It may also leave marks unanswered, as an adapter does whose congestion
//! control needs no notifications.

use super::file::AdapterTable;
use super::{ScenarioError, Text, read_choice};
use crate::node::NodeConfig;
use burst_cc::CcTable;
use std::collections::BTreeSet;
use toml::Spanned;

/// What adapters use if the table does not say.
const CC_DEFAULT: &str = "dcqcn";

/// Settings of some adapters.
#[derive(Clone, Debug)]
pub struct AdapterSettings {
    /// Numbers of the hosts.
    pub hosts: BTreeSet<u32>,
    /// Congestion control.
    pub cc: CcTable,
    /// Whether they answer marked packets.
    pub answers_marks: bool,
}

impl AdapterSettings {
    /// What a node of this kind has, where others have `config`.
    #[must_use]
    pub fn apply(&self, mut config: NodeConfig) -> NodeConfig {
        (config.cc, config.selective, config.is_adapter) = (self.cc, false, true);
        (config.port.knows_management, config.port.sees_marks) = (false, self.answers_marks);
        config
    }
}

/// Reads the tables; `window`: the largest window of those that have none.
pub(super) fn read_adapters(
    text: &Text<'_>,
    tables: &[Spanned<AdapterTable>],
    hosts: u32,
    window: u64,
) -> Result<Vec<AdapterSettings>, ScenarioError> {
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    for table in tables {
        let (span, t) = (table.span(), table.get_ref());
        let numbers: BTreeSet<u32> = t.hosts.get_ref().iter().copied().collect();
        if numbers.is_empty() {
            return text.refuse(t.hosts.span(), "hosts: none; expected the numbers of one host or more");
        }
        for number in &numbers {
            text.host("hosts", &Spanned::new(t.hosts.span(), *number), hosts)?;
            if !known.insert(*number) {
                return text.refuse(t.hosts.span(), format!("hosts: host {number} is in two tables"));
            }
        }
        let window = t.window.map_or(window, |size| size.0);
        let cc = read_choice(text, &span, &t.cc, CC_DEFAULT, window)?.params;
        // Nobody has chosen it, as far as the engine is concerned: otherwise it would ask peers what they are.
        all.push(AdapterSettings { hosts: numbers, cc: CcTable::from(cc), answers_marks: t.cnps.unwrap_or(true) });
    }
    Ok(all)
}
