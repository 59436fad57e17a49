//! Public keys of signers in PEM, as `cosign generate-key-pair` and OpenSSL write them.

use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The object identifiers of algorithms and curves.
const EC: &str = "1.2.840.10045.2.1";
const P256: &str = "1.2.840.10045.3.1.7";
const RSA: &str = "1.2.840.113549.1.1.1";
const EDWARDS_25519: &str = "1.3.101.112";

/// The shortest modulus of RSA, in bits.
const MIN_RSA_BITS: usize = 2048;

/// A key of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    EcdsaP256,
    Ed25519,
    Rsa,
}

impl PublicKey {
    /// Reads the one key of a PEM file.
    ///
    /// # Errors
    /// There is none, or it is of another algorithm: the end of a sentence that begins with the name of the file.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem);
        let der = keys.next().and_then(Result::ok);
        let der = der.ok_or_else(|| "is not a public key in PEM (`-----BEGIN PUBLIC KEY-----`)".to_owned())?;
        if keys.next().is_some() {
            return Err("has more than one public key: put each one into a file of its own".to_owned());
        }
        let invalid = || "is not a valid public key".to_owned();
        let (rest, key) = SubjectPublicKeyInfo::from_der(&der).map_err(|_| invalid())?;
        if !rest.is_empty() {
            return Err(invalid());
        }
        let curve = || key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let algorithm = match key.algorithm.algorithm.to_id_string().as_str() {
            EC if curve().is_some_and(|curve| curve.to_id_string() == P256) => Algorithm::EcdsaP256,
            EDWARDS_25519 => Algorithm::Ed25519,
            RSA => match key.parsed() {
                Ok(Parsed::RSA(rsa)) if rsa.key_size() >= MIN_RSA_BITS => Algorithm::Rsa,
                Ok(Parsed::RSA(_)) => return Err(format!("is a key of RSA with less than {MIN_RSA_BITS} bits")),
                _ => return Err(invalid()),
            },
            _ => {
                return Err(
                    "is a key of an algorithm that is not supported: use ECDSA P-256, Ed25519 or RSA".to_owned()
                );
            }
        };
        Ok(Self { algorithm, bytes: key.subject_public_key.data.into_owned() })
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
            Algorithm::EcdsaP256 => &ECDSA_P256_SHA256_ASN1,
            Algorithm::Ed25519 => &ED25519,
            Algorithm::Rsa => &RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.bytes).verify(message, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_data::{ED25519_PH, P256, RSA};
    use super::*;

    /// A key of P-384, and one of RSA with 1024 bits.
    const P384: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE29GkoQ0t6l9nYN7EKDx8z1dQ9W7tViAX
22RoVuI7upip/1i9QIa3t9Q22rbRUQKFQped5Syy6Cv3RE3hBvhpkIucgg5Ieyhj
qQDdIwiWhXLSQb9fI3LpZoi/ogjm4X3G
-----END PUBLIC KEY-----
";
    const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQC5zF/HFN1awAaMaG7bLk1eTN70
aWvufe3rqDmDuz0/SjacZ3+WjMGAL6qiPajVTnY+bc5qDKhfLdD1X1WcZ+uJcD+a
UdQmbpfHZlFn4sdKIKRycx7W6tR7YN17GjKMqzYA5V8MrzfDJDU0UI+pSZDq9aMf
gMvLit11ytNgxBy36QIDAQAB
-----END PUBLIC KEY-----
";

    #[test]
    fn keys_of_three_algorithms_are_read() {
        for (signed, algorithm) in
            [(P256, Algorithm::EcdsaP256), (ED25519_PH, Algorithm::Ed25519), (RSA, Algorithm::Rsa)]
        {
            assert_eq!(PublicKey::from_pem(signed.key.as_bytes()).unwrap().algorithm, algorithm);
        }
        for (pem, reason) in [
            ("", "is not a public key in PEM (`-----BEGIN PUBLIC KEY-----`)"),
            (&P256.key.replace("PUBLIC", "PRIVATE"), "is not a public key in PEM"),
            (&P256.key.replace("MFkw", "MFkx"), "is not a valid public key"),
            (&[P256.key, RSA.key].concat(), "has more than one public key: put each one into a file"),
            (P384, "is a key of an algorithm that is not supported: use ECDSA P-256, Ed25519 or RSA"),
            (RSA_1024, "is a key of RSA with less than 2048 bits"),
        ] {
            let error = PublicKey::from_pem(pem.as_bytes()).unwrap_err();
            assert!(error.starts_with(reason), "{reason}: {error}");
        }
    }
}
