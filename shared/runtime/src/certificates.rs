//! Writes a certificate authority and certificates for every role, for trials and tests.
//!
//! Production uses another authority (cert-manager, SPIRE, a company CA). Weir only needs the URI
//! `spiffe://weir/<role>/<name>` among a certificate's subject alternative names.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use rustls::pki_types::ServerName;

use super::identity::{Identity, Role, TrustDomain};
use super::tls;
use weir_protocol::name::NodeName;

const CA_NAME: &str = "Weir trial CA";
/// The roles whose nodes may have a certificate of their own, `<role>-<name>`.
const OF_THEIR_OWN: [Role; 3] = [Role::Origin, Role::Edge, Role::Agent];

/// The name in `agent.pem`.
pub const AGENT: &str = "cluster-1";
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const CA_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Clocks differ, so a certificate is valid from a little before it was issued.
const BACKDATE: Duration = Duration::from_secs(3600);

/// A certificate to write.
struct Leaf<'a> {
    /// The name of its files, without extension.
    file: String,
    name: &'a str,
    /// Whether it proves host names, to clients.
    serves: bool,
    /// The role that it proves, to servers.
    connects_as: Option<Role>,
    trust_domain: TrustDomain,
}

impl<'a> Leaf<'a> {
    fn server(file: impl Into<String>, name: &'a str) -> Self {
        Self { file: file.into(), name, serves: true, connects_as: None, trust_domain: TrustDomain::default() }
    }

    fn client(file: impl Into<String>, name: &'a str, role: Role) -> Self {
        Self { serves: false, connects_as: Some(role), ..Self::server(file, name) }
    }

    /// Origins of a cluster connect to each other with the certificate of their listener.
    fn origin(file: impl Into<String>, name: &'a str) -> Self {
        Self { connects_as: Some(Role::Origin), ..Self::server(file, name) }
    }

    /// The certificate of one node, which is all that it needs: an edge listens and connects to origins with the same.
    fn of_its_own((role, name): &'a (Role, NodeName)) -> Self {
        let file = file_of(*role, name);
        let serves = matches!(role, Role::Origin | Role::Edge);
        Self { serves, ..Self::client(file, name.as_str(), *role) }
    }

    fn local_names(&self) -> Vec<String> {
        if self.serves { LOCAL_NAMES.map(str::to_owned).to_vec() } else { Vec::new() }
    }
}

fn leaves() -> Vec<Leaf<'static>> {
    vec![
        Leaf::origin("origin", "origin-1"),
        Leaf::server("edge", "edge-1"),
        Leaf::client("edge-client", "edge-1", Role::Edge),
        Leaf::client("agent", AGENT, Role::Agent),
        Leaf::client("operator", "operator-1", Role::Operator),
    ]
}

/// Writes `ca.pem` with `ca.key`, and `origin`, `edge`, `edge-client`, `agent` and `operator`, each `.pem` with `.key`.
///
/// Servers are valid for `localhost`, `127.0.0.1`, `::1` and `hosts` (names or addresses). Keys are readable by their owner
/// alone. Returns the names of the files.
///
/// # Errors
/// A file cannot be read or written, or a host is neither a name nor an address.
pub fn write(dir: &Path, hosts: &[String]) -> anyhow::Result<Vec<String>> {
    write_for(dir, hosts, &[])
}

/// The same, with `<role>-<name>` for each of `nodes`: origins, edges or agents.
///
/// An existing authority is kept. It issues the certificates of `nodes`, and without any all certificates again: each with the
/// host names that it has, and `hosts`.
///
/// # Errors
/// As [`write()`], or an existing certificate cannot be read, or a name is that of another file.
pub fn write_for(dir: &Path, hosts: &[String], nodes: &[(Role, NodeName)]) -> anyhow::Result<Vec<String>> {
    for (role, name) in nodes {
        let file = file_of(*role, name);
        anyhow::ensure!(
            leaves().iter().all(|leaf| leaf.file != file),
            "the {role} cannot be called `{name}`: {file}.pem is another certificate",
            role = role.as_str()
        );
    }
    for host in hosts {
        ServerName::try_from(host.as_str())
            .map_err(|_| anyhow::anyhow!("the host `{host}` is neither a DNS name nor an IP address"))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut written = Vec::new();
    let mut put = |name: String, contents: String| -> anyhow::Result<()> {
        let path = dir.join(&name);
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        // A new file is renamed over the old one, so that readers never see half of one, and the mode is right.
        let temporary = dir.join(format!(".{name}.new"));
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(contents.as_bytes())?;
        fs::rename(&temporary, &path).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(name);
        Ok(())
    };

    let (ca_pem, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
    // Certificates of a new authority are useless to everything that trusts the old one.
    anyhow::ensure!(
        ca_key.exists() || !ca_pem.exists(),
        "{} exists without its key ca.key: restore the key to sign with it, or remove ca.pem to create a new authority, which \
         every node must then be given",
        ca_pem.display()
    );
    let is_new = !ca_pem.exists();
    let key = if is_new {
        let key = KeyPair::generate()?;
        put("ca.key".to_owned(), key.serialize_pem())?;
        put("ca.pem".to_owned(), authority()?.self_signed(&key)?.pem())?;
        key
    } else {
        let pem = fs::read_to_string(&ca_key).with_context(|| format!("cannot read {}", ca_key.display()))?;
        KeyPair::from_pem(&pem).with_context(|| format!("{} is not a private key", ca_key.display()))?
    };
    let issuer = Issuer::new(authority()?, key);
    let of_roles = if is_new || nodes.is_empty() { leaves() } else { Vec::new() };
    let nodes = if nodes.is_empty() { nodes_in(dir)? } else { nodes.to_vec() };
    let nodes: BTreeMap<String, _> = nodes.into_iter().map(|node| (file_of(node.0, &node.1), node)).collect();
    for leaf in of_roles.into_iter().chain(nodes.values().map(Leaf::of_its_own)) {
        let pem = dir.join(format!("{}.pem", leaf.file));
        let mut names = if pem.exists() { tls::host_names(&pem)? } else { leaf.local_names() };
        if leaf.serves {
            names.extend(hosts.iter().filter(|host| !names.contains(host)).cloned().collect::<Vec<_>>());
        }
        let (certificate, key) = leaf.issue(&issuer, names, from_now(LEAF_LIFE))?;
        put(format!("{}.pem", leaf.file), certificate)?;
        put(format!("{}.key", leaf.file), key)?;
    }
    Ok(written)
}

/// Writes `<name>.pem` and `<name>.key` for another origin of a cluster, signed by the authority in the directory, for
/// loopback and `hosts`.
///
/// # Errors
/// There is no authority, or a file cannot be read or written.
pub fn write_origin(dir: &Path, name: &NodeName, hosts: &[String]) -> anyhow::Result<()> {
    let leaf = Leaf::origin(name.as_str(), name.as_str());
    let names = [leaf.local_names(), hosts.to_vec()].concat();
    write_leaf(dir, &leaf, names, from_now(LEAF_LIFE))
}

/// Writes `agent-<name>.pem` and `.key` for an agent in another trust domain, signed by the authority in the directory.
///
/// # Errors
/// As [`write_origin`].
pub fn write_agent_in(dir: &Path, name: &NodeName, trust_domain: TrustDomain) -> anyhow::Result<()> {
    let agent = (Role::Agent, name.clone());
    write_leaf(dir, &Leaf { trust_domain, ..Leaf::of_its_own(&agent) }, Vec::new(), from_now(LEAF_LIFE))
}

/// Replaces one of the certificates by one that has expired, for tests.
///
/// # Errors
/// There is no such certificate or no authority, or a file cannot be read or written.
pub fn write_expired(dir: &Path, file: &str) -> anyhow::Result<()> {
    let now = SystemTime::now();
    write_valid(dir, file, now - BACKDATE..now - BACKDATE / 2)
}

/// Replaces one of the certificates by one that is not valid yet, for tests.
///
/// # Errors
/// As [`write_expired`].
pub fn write_not_yet_valid(dir: &Path, file: &str) -> anyhow::Result<()> {
    let now = SystemTime::now();
    write_valid(dir, file, now + BACKDATE..now + LEAF_LIFE)
}

fn write_valid(dir: &Path, file: &str, validity: Range<SystemTime>) -> anyhow::Result<()> {
    let leaf =
        leaves().into_iter().find(|leaf| leaf.file == file).with_context(|| format!("there is no {file}.pem"))?;
    write_leaf(dir, &leaf, leaf.local_names(), validity)
}

fn write_leaf(dir: &Path, leaf: &Leaf<'_>, names: Vec<String>, validity: Range<SystemTime>) -> anyhow::Result<()> {
    let file = &leaf.file;
    let issuer = Issuer::new(authority()?, KeyPair::from_pem(&fs::read_to_string(dir.join("ca.key"))?)?);
    let (certificate, key) = leaf.issue(&issuer, names, validity)?;
    fs::write(dir.join(format!("{file}.pem")), certificate)?;
    fs::write(dir.join(format!("{file}.key")), key)?;
    Ok(())
}

fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let validity = from_now(CA_LIFE);
    (params.not_before, params.not_after) = (validity.start.into(), validity.end.into());
    Ok(params)
}

fn from_now(life: Duration) -> Range<SystemTime> {
    let now = SystemTime::now();
    now - BACKDATE..now + life
}

/// The name of a node's own files, without extension.
fn file_of(role: Role, name: &NodeName) -> String {
    format!("{}-{name}", role.as_str())
}

/// The nodes that have a certificate of their own in a directory.
fn nodes_in(dir: &Path) -> anyhow::Result<Vec<(Role, NodeName)>> {
    let mut nodes = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let file = entry?.file_name();
        let Some(file) = file.to_str().and_then(|file| file.strip_suffix(".pem")) else { continue };
        if leaves().iter().any(|leaf| leaf.file == file) {
            continue;
        }
        nodes.extend(OF_THEIR_OWN.iter().filter_map(|role| {
            let name = file.strip_prefix(role.as_str())?.strip_prefix('-')?;
            Some((*role, name.parse().ok()?))
        }));
    }
    Ok(nodes)
}

impl Leaf<'_> {
    fn issue(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        hosts: Vec<String>,
        validity: Range<SystemTime>,
    ) -> anyhow::Result<(String, String)> {
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        if self.serves {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if let Some(role) = self.connects_as {
            let identity = Identity { role, name: self.name.parse()? };
            params.subject_alt_names.push(SanType::URI(identity.uri(&self.trust_domain).try_into()?));
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        (params.not_before, params.not_after) = (validity.start.into(), validity.end.into());
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_certificates_have_a_role_and_server_certificates_host_names() {
        let dir = tempfile::tempdir().unwrap();
        let written =
            write_for(dir.path(), &["edge.example".to_owned()], &[(Role::Agent, "cluster-2".parse().unwrap())])
                .unwrap();
        assert_eq!(written.len(), 14);
        for (file, shown) in [
            ("origin", Some("spiffe://weir/origin/origin-1")),
            ("edge", None),
            ("edge-client", Some("spiffe://weir/edge/edge-1")),
            ("agent", Some("spiffe://weir/agent/cluster-1")),
            ("agent-cluster-2", Some("spiffe://weir/agent/cluster-2")),
            ("operator", Some("spiffe://weir/operator/operator-1")),
        ] {
            let certificates = tls::read_certificates(&dir.path().join(format!("{file}.pem")), "it").unwrap();
            let weir = TrustDomain::default();
            let identity = Identity::of_certificate(&certificates[0], &weir).map(|identity| identity.uri(&weir));
            assert_eq!(identity.as_deref(), shown, "{file}");
        }
        assert!(write(dir.path(), &["käse".to_owned()]).is_err());
    }

    #[test]
    fn a_second_run_keeps_the_authority_the_host_names_and_the_agents() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let node = |role, name: &str| [(role, name.parse().unwrap())];
        write_for(dir.path(), &["edge.example".to_owned(), "10.0.0.1".to_owned()], &node(Role::Agent, "b")).unwrap();
        let read = |name: &str| fs::read(file(name)).unwrap();
        let before = ["ca.pem", "edge.pem", "agent-b.pem"].map(read);
        let more = write_for(dir.path(), &["paris.example".to_owned()], &node(Role::Edge, "paris")).unwrap();
        assert_eq!(more, ["edge-paris.pem", "edge-paris.key"], "what is there is as it was");
        assert!(tls::host_names(&file("edge-paris.pem")).unwrap().contains(&"paris.example".to_owned()));
        let certificates = tls::read_certificates(&file("edge-paris.pem"), "it").unwrap();
        let identity = Identity::of_certificate(&certificates[0], &TrustDomain::default()).unwrap();
        assert_eq!((identity.role, identity.name.as_str()), (Role::Edge, "paris"));
        let error = write_for(dir.path(), &[], &node(Role::Edge, "client")).unwrap_err().to_string();
        assert!(error.contains("edge-client.pem is another certificate"), "{error}");
        let written = write_for(dir.path(), &["fe80::1".to_owned()], &[]).unwrap();
        assert_eq!(written.len(), 14);
        let now = ["ca.pem", "edge.pem", "agent-b.pem"].map(read);
        assert_eq!([0, 1, 2].map(|file| before[file] == now[file]), [true, false, false]);
        let mut expected = [&LOCAL_NAMES[..], &["edge.example", "10.0.0.1", "fe80::1"]].concat();
        expected.sort_unstable();
        let mut names = tls::host_names(&file("edge.pem")).unwrap();
        names.sort_unstable();
        assert_eq!(names, expected);
    }
}
