//! Writes a certificate authority and certificates for every role, for a laptop, a trial and the tests.
//!
//! Fleets have an authority of their own (cert-manager, SPIRE, a company CA); all that Weir asks of it is the URI
//! `spiffe://weir/<role>/<name>` among a certificate's subject alternative names.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use rustls::pki_types::ServerName;

use super::identity::{Identity, Role};

const CA_NAME: &str = "Weir trial CA";
const CA_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Clocks differ: a certificate is valid a little before it was made.
const BACKDATE: Duration = Duration::from_secs(3600);

/// A certificate to write: file name without ending, identity, whether it serves, whether it connects.
struct Leaf {
    file: &'static str,
    role: Role,
    name: &'static str,
    serves: bool,
    connects: bool,
}

const LEAVES: [Leaf; 5] = [
    Leaf { file: "origin", role: Role::Origin, name: "origin-1", serves: true, connects: false },
    Leaf { file: "edge", role: Role::Edge, name: "edge-1", serves: true, connects: false },
    Leaf { file: "edge-client", role: Role::Edge, name: "edge-1", serves: false, connects: true },
    Leaf { file: "agent", role: Role::Agent, name: "cluster-1", serves: false, connects: true },
    Leaf { file: "operator", role: Role::Operator, name: "operator-1", serves: false, connects: true },
];

/// Writes `ca.pem` with `ca.key`, and `origin`, `edge`, `edge-client`, `agent` and `operator`, each `.pem` with `.key`.
///
/// An authority that is there already is kept and signs anew, so that hosts can be added. Servers are valid for
/// `localhost`, `127.0.0.1`, `::1` and `hosts` (names or addresses). Keys are readable by their owner alone. Returns
/// the names of the files.
///
/// # Errors
/// A file cannot be read or written, or a host is neither a name nor an address.
pub fn write(dir: &Path, hosts: &[String]) -> anyhow::Result<Vec<String>> {
    for host in hosts {
        ServerName::try_from(host.as_str())
            .map_err(|_| anyhow::anyhow!("the host `{host}` is neither a DNS name nor an IP address"))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut written = Vec::new();
    let mut put = |name: String, contents: String| -> anyhow::Result<()> {
        let path = dir.join(&name);
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        // Into a new file that takes the old one's place: a reader never sees half of one, and the mode is the new one's.
        let temporary = dir.join(format!(".{name}.new"));
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(contents.as_bytes())?;
        fs::rename(&temporary, &path).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(name);
        Ok(())
    };

    let (ca_pem, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
    // A new one would cut off everybody who trusts the old one.
    anyhow::ensure!(
        ca_key.exists() || !ca_pem.exists(),
        "{} is there without its key, ca.key: put the key back to sign with it, or take ca.pem away to make a new \
         authority, which whoever trusts this one must then be given",
        ca_pem.display()
    );
    let key = if ca_pem.exists() {
        let pem = fs::read_to_string(&ca_key).with_context(|| format!("cannot read {}", ca_key.display()))?;
        KeyPair::from_pem(&pem).with_context(|| format!("{} is not a private key", ca_key.display()))?
    } else {
        let key = KeyPair::generate()?;
        put("ca.key".to_owned(), key.serialize_pem())?;
        put("ca.pem".to_owned(), authority()?.self_signed(&key)?.pem())?;
        key
    };
    let issuer = Issuer::new(authority()?, key);
    for leaf in &LEAVES {
        let (certificate, key) = leaf.issue(&issuer, hosts, SystemTime::now() + LEAF_LIFE)?;
        put(format!("{}.pem", leaf.file), certificate)?;
        put(format!("{}.key", leaf.file), key)?;
    }
    Ok(written)
}

/// Writes one of the certificates anew, under its name, with a life that is over: for trying what is said then.
///
/// # Errors
/// There is none of that name or no authority, or a file cannot be read or written.
pub fn write_ended(dir: &Path, file: &str) -> anyhow::Result<()> {
    let leaf = LEAVES.iter().find(|leaf| leaf.file == file).with_context(|| format!("there is no {file}.pem"))?;
    let issuer = Issuer::new(authority()?, KeyPair::from_pem(&fs::read_to_string(dir.join("ca.key"))?)?);
    let (certificate, key) = leaf.issue(&issuer, &[], SystemTime::now() - BACKDATE / 2)?;
    fs::write(dir.join(format!("{file}.pem")), certificate)?;
    fs::write(dir.join(format!("{file}.key")), key)?;
    Ok(())
}

fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, SystemTime::now() + CA_LIFE);
    Ok(params)
}

fn validity(params: &mut CertificateParams, not_after: SystemTime) {
    params.not_before = (SystemTime::now() - BACKDATE).into();
    params.not_after = not_after.into();
}

impl Leaf {
    fn issue(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        hosts: &[String],
        not_after: SystemTime,
    ) -> anyhow::Result<(String, String)> {
        let hosts: Vec<String> = if self.serves {
            ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).chain(hosts.iter().cloned()).collect()
        } else {
            Vec::new()
        };
        let mut params = CertificateParams::new(hosts)?;
        let identity = Identity { role: self.role, name: self.name.parse()? };
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.subject_alt_names.push(SanType::URI(identity.to_string().try_into()?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        if self.serves {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.connects {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        validity(&mut params, not_after);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls;

    #[test]
    fn each_role_proves_itself_and_a_second_run_keeps_the_authority() {
        let dir = tempfile::tempdir().unwrap();
        let written = write(dir.path(), &["edge.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        assert_eq!(written.len(), 12);
        for leaf in &LEAVES {
            let certificates =
                tls::read_certificates(&dir.path().join(format!("{}.pem", leaf.file)), "a certificate").unwrap();
            let identity = Identity::of_certificate(&certificates[0]).unwrap();
            assert_eq!((identity.role, identity.name.as_str()), (leaf.role, leaf.name));
        }
        let ca = fs::read(dir.path().join("ca.pem")).unwrap();
        assert_eq!(write(dir.path(), &[]).unwrap().len(), 10);
        assert_eq!(fs::read(dir.path().join("ca.pem")).unwrap(), ca);
        assert!(write(dir.path(), &["käse".to_owned()]).is_err());
    }
}
