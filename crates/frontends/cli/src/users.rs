//! `burst ls --users`: what the programs of each user use of the daemon's limited resources, and how much they may use.

use burst_client::Daemon;
use burst_control::monitor::{UserResource, UserUse, UserWork};
use burst_ledger::time::{RECENT_SECONDS, WHOLE_SHARE};
use burst_ledger::{Resource, Scope};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

/// The users' use, as JSON or as a table.
///
/// # Errors
/// A sentence.
pub fn show(daemon: &mut Daemon, as_json: bool) -> Result<String, String> {
    let (users, hidden) = daemon.users().map_err(|e| e.to_string())?;
    Ok(if as_json { crate::json_text(&json_of(&users, hidden)) } else { text_of(&users, hidden) })
}

fn json_of(users: &[UserUse], hidden: u32) -> Value {
    let resources = |user: &UserUse| -> Map<String, Value> {
        let each = Resource::ALL.iter().zip(&user.resources);
        each.map(|(r, u)| (r.name().to_owned(), json!({ "used": u.used, "limit": u.limit }))).collect()
    };
    let places = |user: &UserUse| -> Vec<Value> {
        let each = Resource::places().zip(&user.places);
        let row = |((resource, scope), u): ((Resource, Scope), &UserResource)| json!({ "name": resource.name(), "of": scope.words(), "used": u.used, "limit": u.limit });
        each.map(row).collect()
    };
    let list = users.iter().map(|user| {
        json!({
            "owner": user.owner,
            "privileged": user.privileged,
            "refused": user.refused,
            "control": { "time_ns": user.control.total_ns, "recent_share": share_of(user.control.recent_share) },
            "work": { "turns": user.work.turns, "requests": user.work.requests, "bytes": user.work.bytes },
            "resources": resources(user),
            "places": places(user),
        })
    });
    json!({ "users": list.collect::<Vec<_>>(), "hidden": hidden })
}

/// Millionths as a fraction.
fn share_of(millionths: u32) -> f64 {
    f64::from(millionths) / f64::from(WHOLE_SHARE)
}

/// One block for each user; resources that a user does not use are left out.
fn text_of(users: &[UserUse], hidden: u32) -> String {
    let mut text = String::new();
    for user in users {
        let limit = if user.privileged { "limited by the daemon's capacity alone" } else { "limited to a share" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}  {limit}; {} requests refused", user.owner, user.refused);
        let seconds = Duration::from_nanos(user.control.total_ns).as_secs_f64();
        let percent = 100.0 * share_of(user.control.recent_share);
        let _ = writeln!(
            text,
            "  {:<14} {seconds:>12.3} s  of the control thread, {percent:.1} % of the last {RECENT_SECONDS} s",
            "control_time"
        );
        let UserWork { turns, requests, bytes } = user.work;
        if turns > 0 {
            let _ = writeln!(
                text,
                "  {:<14} {turns:>14}  of workers: {requests} work requests, {bytes} bytes sent",
                "turns"
            );
        }
        for (resource, used) in Resource::ALL.iter().zip(&user.resources).filter(|(_, u)| u.used > 0) {
            let _ = writeln!(
                text,
                "  {:<14} {:>14} of {:>14}  {}",
                resource.name(),
                used.used,
                used.limit,
                resource.words()
            );
        }
        for ((resource, scope), used) in Resource::places().zip(&user.places).filter(|(_, u)| u.used > 0) {
            let (name, words) = (resource.name(), resource.words());
            let of = scope.words();
            let _ = writeln!(
                text,
                "  {name:<14} {:>14} of {:>14}  {words} of {of}, the most of any",
                used.used, used.limit
            );
        }
    }
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} other users are not shown; root and the daemon's user see them.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::monitor::UserTime;

    fn user() -> UserUse {
        let mut resources = vec![UserResource { used: 0, limit: 7 }; Resource::COUNT];
        resources[Resource::Qp as usize] = UserResource { used: 3, limit: 45_000 };
        let mut places = vec![UserResource { used: 0, limit: 0 }; Resource::places().count()];
        let worker = Resource::places().position(|row| row == (Resource::Qp, Scope::Worker)).expect("a row");
        places[worker] = UserResource { used: 2, limit: 58_983 };
        let control = UserTime { total_ns: 1_234_567_890, recent_share: 34_400 };
        let work = UserWork { turns: 7, requests: 70, bytes: 7000 };
        UserUse { owner: "user 1001".into(), privileged: false, refused: 2, control, work, resources, places }
    }

    #[test]
    fn the_table_names_what_is_used_and_who_is_hidden() {
        let text = text_of(&[user()], 4);
        assert!(text.contains("user 1001") && text.contains("2 requests refused"), "{text}");
        let time: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
        assert_eq!(time.join(" "), "control_time 1.235 s of the control thread, 3.4 % of the last 10 s");
        let work: Vec<&str> = text.lines().nth(2).expect("a row").split_whitespace().collect();
        assert_eq!(work.join(" "), "turns 7 of workers: 70 work requests, 7000 bytes sent");
        let row: Vec<&str> = text.lines().nth(3).expect("a row").split_whitespace().collect();
        assert_eq!(row, ["qps", "3", "of", "45000", "queue", "pairs", "and", "Jetties"]);
        let row: Vec<&str> = text.lines().nth(4).expect("a row").split_whitespace().collect();
        assert_eq!(row.join(" "), "qps 2 of 58983 queue pairs and Jetties of one worker, the most of any");
        assert!(text.contains("4 other users are not shown") && text.lines().count() == 6, "{text}");
    }

    #[test]
    fn json_has_every_resource() {
        let value = json_of(&[user()], 0);
        let resources = value["users"][0]["resources"].as_object().expect("an object");
        assert_eq!(resources.len(), Resource::COUNT);
        assert_eq!(value["users"][0]["control"], json!({ "time_ns": 1_234_567_890u64, "recent_share": 0.0344 }));
        assert_eq!(value["users"][0]["work"], json!({ "turns": 7, "requests": 70, "bytes": 7000 }));
        let places = value["users"][0]["places"].as_array().expect("a list");
        assert_eq!(places.len(), Resource::places().count());
        assert!(places.contains(&json!({ "name": "qps", "of": "one worker", "used": 2, "limit": 58_983 })));
        assert_eq!(resources["qps"], json!({ "used": 3, "limit": 45_000 }));
    }
}
