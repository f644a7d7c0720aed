//! Whose account a control group is, so that a user does not multiply its share.
//!
//! A user may make control groups below one that was delegated to it. A control group's account is that of its ancestor at a
//! configured depth: two is a unit of systemd (`/user.slice/user-1000.slice`, `/system.slice/job.service`). The ids that a user
//! may use beside its own are in [`burst_ledger::subordinate`].

/// The ancestor of a control group at a depth; 0: the group itself.
pub(crate) fn ancestor(group: &str, depth: usize) -> String {
    let parts: Vec<&str> = group.split('/').filter(|part| !part.is_empty()).collect();
    let kept = if depth == 0 { parts.len() } else { depth.min(parts.len()) };
    format!("/{}", parts[..kept].join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_below_a_delegated_one_is_that_one() {
        let scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/job";
        assert_eq!(ancestor(scope, 2), "/user.slice/user-1000.slice");
        assert_eq!(ancestor("/user.slice/user-1000.slice", 2), ancestor(scope, 2));
        assert_eq!(
            (ancestor(scope, 0).as_str(), ancestor("/a", 2).as_str(), ancestor("/", 2).as_str()),
            (scope, "/a", "/")
        );
    }
}
