//! The tables of the demo.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// The pools of load balancers with the names of their members.
pub(super) type Pools = BTreeMap<String, BTreeSet<String>>;

/// A table with a heading. Columns are as wide as their longest cell.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let mut widths = vec![0; columns];
    for row in rows {
        for (cell, width) in row.iter().zip(&mut widths) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub(super) fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// How many members every pool had at each moment.
pub(super) fn members(moments: &[(String, Pools)]) -> String {
    let mut heading = row(&["POOL"]);
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (title, pools) in moments {
        heading.push(title.clone());
        for (pool, members) in pools {
            let line = lines.entry(pool).or_insert_with(|| vec![String::new(); heading.len() - 2]);
            line.push(members.len().to_string());
        }
    }
    let mut rows = vec![heading];
    for (pool, counts) in lines {
        let mut line = row(&[pool]);
        line.extend(counts);
        rows.push(line);
    }
    table(&rows)
}

/// A step of the demo, with its time and its calls.
pub(super) struct Step {
    pub(super) title: String,
    pub(super) seconds: f64,
    /// Calls by kind.
    pub(super) calls: BTreeMap<String, u64>,
    /// How many of them change something.
    pub(super) writes: u64,
}

impl Step {
    pub(super) fn total(&self) -> u64 {
        self.calls.values().sum()
    }
}

/// The number of calls that change something.
pub(super) fn writes(calls: &BTreeMap<String, u64>, is_write: impl Fn(&str) -> bool) -> u64 {
    calls.iter().filter(|(kind, _)| is_write(kind)).map(|(_, count)| count).sum()
}

/// Whether calls of a kind change something on OpenStack: `floating_ip_create` of the simulator, `POST neutron` of a real cloud.
pub(super) fn is_openstack_write(kind: &str) -> bool {
    if kind.ends_with(" keystone") || kind.starts_with("token_") {
        return false;
    }
    ["POST ", "PUT ", "DELETE ", "PATCH "].iter().any(|method| kind.starts_with(method))
        || ["_create", "_update", "_delete", "_add", "_remove", "_replace"]
            .iter()
            .any(|verb| kind.ends_with(verb))
}

/// The calls between two moments.
pub(super) fn since(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let more = now.iter().map(|(kind, count)| {
        let known = before.get(kind).copied().unwrap_or_default();
        (kind.clone(), count.saturating_sub(known))
    });
    more.filter(|(_, count)| *count > 0).collect()
}

/// The table of the steps.
pub(super) fn steps(steps: &[Step]) -> String {
    let mut rows = vec![row(&["STEP", "SECONDS", "CLOUD CALLS", "WRITES"])];
    for step in steps {
        rows.push(vec![
            step.title.clone(),
            format!("{:.1}", step.seconds),
            step.total().to_string(),
            step.writes.to_string(),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
    }

    #[test]
    fn a_step_counts_its_own_calls_and_logins_are_not_writes() {
        let before = counts(&[("server_list", 2), ("token_create", 1)]);
        let now = counts(&[
            ("server_list", 2),
            ("token_create", 2),
            ("port_list", 1),
            ("loadbalancer_members_update", 3),
            ("POST octavia", 1),
            ("POST keystone", 1),
        ]);
        let calls = since(&before, &now);
        let step = Step {
            title: String::new(),
            seconds: 0.0,
            writes: writes(&calls, is_openstack_write),
            calls,
        };
        assert_eq!(step.calls.get("server_list"), None);
        assert_eq!((step.total(), step.writes), (7, 4));
    }

    #[test]
    fn members_are_below_the_moment_of_their_count() {
        let pool = |name: &str, members: &[&str]| {
            let members = members.iter().map(|member| (*member).to_owned()).collect();
            (name.to_owned(), members)
        };
        let moments = [
            ("BEFORE".to_owned(), Pools::from([pool("a", &["n1"])])),
            ("AFTER".to_owned(), Pools::from([pool("a", &["n1", "n2"]), pool("b", &["n1"])])),
        ];
        assert_eq!(members(&moments), "POOL  BEFORE  AFTER\na     1       2\nb             1\n");
    }
}
