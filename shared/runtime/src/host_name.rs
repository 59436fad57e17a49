//! The name of a process whose configuration names none: that of its host. So one file serves all pods of a cluster.

use weir_protocol::name::{MAX_NAME_LENGTH, NodeName};

/// The host's name without invalid characters; `node` when nothing is left.
pub fn host_name() -> NodeName {
    let uname = rustix::system::uname();
    name_from(&uname.nodename().to_string_lossy())
}

fn name_from(host: &str) -> NodeName {
    let valid: String = host
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(MAX_NAME_LENGTH)
        .collect();
    valid.parse().unwrap_or_else(|_| "node".parse().expect("a valid name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_a_valid_one() {
        for (host, name) in [
            ("Node-1.Example", "node-1.example"),
            ("_-x", "x"),
            ("büro", "b-ro"),
            ("", "node"),
            ("---", "node"),
            (&"a".repeat(200), &"a".repeat(100)),
        ] {
            assert_eq!(name_from(host).as_str(), name);
        }
    }
}
