//! What a test lets an edge have, and how it lets it fail.

use super::*;

impl Answers {
    /// Publishes under the next generation, which is returned with the digest.
    pub(crate) fn publish(&self, service: &ServiceName, tar: Vec<u8>) -> (TarballDigest, u64) {
        let next = self.state().published.get(service).map_or(1, |published| published.generation + 1);
        (self.publish_at(service, tar, next), next)
    }

    pub(crate) fn publish_at(&self, service: &ServiceName, tar: Vec<u8>, generation: u64) -> TarballDigest {
        let digest = TarballDigest::of(&tar);
        let (tar, envelope, version, staged, described) = (tar.into(), None, None, None, None);
        let published = Published { tar, digest, generation, envelope, version, staged, described };
        let mut state = self.state();
        state.retained.insert(digest, published.clone());
        state.published.insert(service.clone(), published);
        digest
    }

    /// An older version is in force from now on, and what was published is staged for other agents. Returns its descriptor.
    pub(crate) fn stage_for_others(&self, service: &ServiceName, in_force: Vec<u8>, generation: u64) -> Value {
        let later = document(service, &self.state().published[service]);
        self.publish_at(service, in_force, generation);
        self.stage(service, &later);
        later
    }

    /// This descriptor is staged for other agents.
    pub(crate) fn stage(&self, service: &ServiceName, later: &Value) {
        let staged = json!({ "descriptor": later, "for": [{ "agents": "another" }] });
        self.state().published.get_mut(service).expect("it is published").staged = Some(staged);
    }

    /// The descriptor is this one from now on, as if it came from another edge.
    pub(crate) fn describe(&self, service: &ServiceName, descriptor: &Value) {
        self.state().published.get_mut(service).expect("it is published").described = Some(descriptor.clone());
    }

    /// What is published is this version of a chart.
    pub(crate) fn name_version(&self, service: &ServiceName, version: &'static str) {
        self.state().published.get_mut(service).expect("it is published").version = Some(version);
    }

    /// Nothing can be had by its digest any more.
    pub(crate) fn drop_retained(&self) {
        self.state().retained.clear();
    }

    /// Signs what is published as its origin would.
    pub(crate) fn sign(&self, service: &ServiceName, keys: &[SigningKey]) {
        let publication = self.publication(service);
        self.sign_as(service, &publication, keys);
    }

    /// The envelope of the descriptor is this publication, whatever is published.
    pub(crate) fn sign_as(&self, service: &ServiceName, publication: &Value, keys: &[SigningKey]) {
        let envelope = Envelope::sign(PUBLICATION_TYPE, publication.to_string().as_bytes(), keys);
        self.state().published.get_mut(service).expect("it is published").envelope = Some(envelope);
    }

    /// The publication that is published.
    pub(crate) fn publication(&self, service: &ServiceName) -> Value {
        publication(service, &self.state().published[service])
    }

    /// The headers and the descriptor claim this generation; the envelope stays.
    pub(crate) fn claim(&self, service: &ServiceName, generation: u64) {
        self.state().published.get_mut(service).expect("it is published").generation = generation;
    }

    /// The bytes are others; what is said of them stays.
    pub(crate) fn swap_bytes(&self, service: &ServiceName, tar: Vec<u8>) {
        self.state().published.get_mut(service).expect("it is published").tar = tar.into();
    }

    /// The same of the version that is staged.
    pub(crate) fn state_freshness_of_staged(&self, service: &ServiceName, envelope: Envelope) {
        self.state().staged_statements.insert(service.clone(), envelope);
    }

    /// Answers with this freshness statement from now on.
    pub(crate) fn state_freshness(&self, service: &ServiceName, envelope: Envelope) {
        self.state().statements.insert(service.clone(), envelope);
    }

    /// Sends this body as a delta to agents that have the dictionary.
    pub(crate) fn send_delta(&self, dictionary: Sha256, body: Vec<u8>) {
        self.state().delta = Some((dictionary, body.into()));
    }

    /// Bodies are other ones than those of other edges from now on, of the same tarballs.
    pub(crate) fn recode(&self) {
        self.state().recoded = true;
    }

    /// Bodies are frames of so many bytes of tar from now on, which manifests name.
    pub(crate) fn cut_frames(&self, tar_bytes: usize) {
        self.state().frame_bytes = Some(tar_bytes);
    }

    /// Frames and manifests are wrong from now on.
    pub(crate) fn fail_frames(&self, fault: impl Into<Option<FramesFault>>) {
        self.state().frames_fault = fault.into();
    }

    /// The manifest of what is published.
    pub(crate) fn manifest(&self, service: &ServiceName) -> Manifest {
        let state = self.state();
        body::manifest(&state.published[service].tar, &state)
    }

    /// The encoded body of what is published.
    pub(crate) fn encoded(&self, service: &ServiceName) -> Vec<u8> {
        let state = self.state();
        body::encoded(&state.published[service].tar, &state)
    }

    /// The next answers are wrong, one after the other.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// All answers are wrong.
    pub(crate) fn fail_always(&self, fault: impl Into<Option<Fault>>) {
        self.state().always = fault.into();
    }

    /// All answers about this service are wrong.
    pub(crate) fn fail_service(&self, service: &ServiceName, fault: Fault) {
        self.state().by_service.insert(service.clone(), fault);
    }

    pub(crate) fn count(&self, method: &Method, version: Version) -> usize {
        self.state().seen.iter().filter(|seen| seen.method == method && seen.version == version).count()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    pub(crate) fn forget(&self) {
        self.state().seen.clear();
    }
}
