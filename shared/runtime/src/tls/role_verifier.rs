//! Verifies each client certificate by the authority of the role that it claims.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::identity::{Identity, Role, TrustDomain};

#[derive(Debug)]
pub(super) struct RoleVerifier {
    /// At least one. The first also verifies other roles.
    verifiers: Vec<(Role, Arc<dyn ClientCertVerifier>)>,
    hints: Vec<DistinguishedName>,
    trust_domain: TrustDomain,
}

impl RoleVerifier {
    pub(super) fn new(verifiers: Vec<(Role, Arc<dyn ClientCertVerifier>)>, trust_domain: TrustDomain) -> Self {
        let hints = verifiers.iter().flat_map(|(_, verifier)| verifier.root_hint_subjects().to_vec()).collect();
        Self { verifiers, hints, trust_domain }
    }

    /// What does not depend on the authority.
    fn first(&self) -> &dyn ClientCertVerifier {
        &*self.verifiers[0].1
    }
}

impl ClientCertVerifier for RoleVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.first().client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The claim selects the authority, which then proves it.
        let role = Identity::of_certificate(end_entity, &self.trust_domain).map(|identity| identity.role);
        let of_role = self.verifiers.iter().find(|(verifies, _)| Some(*verifies) == role);
        of_role.map_or(self.first(), |(_, verifier)| &**verifier).verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first().supported_verify_schemes()
    }
}
