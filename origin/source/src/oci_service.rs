//! What an OCI form needs of a service.

use weir_tarball::Selection;

use crate::{OciChoice, Service};

impl Service {
    /// The same service, whose versions have an OCI form, or none. The form is made of the gzip representation.
    #[must_use]
    pub fn with_oci(mut self, oci: OciChoice) -> Self {
        self.selection.gzip |= oci.is_on();
        self.oci = oci;
        self
    }

    /// Whether an archive that it follows is published as its upstream has it, and not only its files.
    pub(crate) fn publishes_whole(&self) -> bool {
        let all = Selection { gzip: true, ..Selection::default() };
        self.oci.is_on() && self.parts.is_empty() && self.selection == all
    }

    /// The URL of the upstream that the OCI form names.
    pub fn source_url(&self) -> Option<String> {
        match &self.oci {
            OciChoice::On(source) => source.url.clone(),
            OciChoice::Off | OciChoice::NoName => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OciSource, ServiceConfig};

    #[test]
    fn a_form_needs_gzip_and_a_whole_archive_has_no_selection() {
        let config = ServiceConfig::new("shop-prod".parse().unwrap(), "shop".parse().unwrap());
        let service = |config: &ServiceConfig| Service::new(config, |_| None, None).unwrap();
        let url = Some("https://git.example/shop.git".to_owned());
        let on = service(&config).with_oci(OciChoice::On(OciSource { url: url.clone() }));
        assert_eq!((on.selection.gzip, on.source_url(), on.publishes_whole()), (true, url, true));
        let off = service(&config).with_oci(OciChoice::Off);
        assert_eq!((off.selection.gzip, off.source_url(), off.publishes_whole()), (false, None, false));
        let part = ServiceConfig { include: vec!["*.yaml".to_owned()], ..config };
        let part = service(&part).with_oci(OciChoice::On(OciSource { url: None }));
        assert!(part.selection.gzip && !part.publishes_whole());
    }
}
