//! The labels that `check` and `exec` get: those that the configuration states, and those that edges send, as far as it allows
//! them. Edges send them unsigned, so they are bounded to what needs no quotes in a shell.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use weir_protocol::labels::Labels;
use weir_protocol::name_glob::LabelGlob;
use weir_runtime::durable_file;

use crate::config::Config;

/// The labels for hooks; `None` before there are any.
pub(crate) type LabelsReader = watch::Receiver<Option<Arc<Labels>>>;

/// Keeps what edges sent last, also over a restart.
pub(crate) struct HookLabels {
    own: Labels,
    allowed: Vec<LabelGlob>,
    file: PathBuf,
    known: watch::Sender<Option<Arc<Labels>>>,
    received: Mutex<Labels>,
}

impl HookLabels {
    /// Reads the labels of an earlier process. Blocks.
    pub(crate) fn open(config: &Config) -> Self {
        let file = config.root.join(format!(".labels-{}", config.name));
        let received = match std::fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json).map_err(|error| error.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Labels::default()),
            Err(error) => Err(error.to_string()),
        };
        let received = received.unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), error, "the last labels cannot be read: edges send them again");
            Labels::default()
        });
        let (own, allowed) = (config.labels.clone(), config.allowed_labels());
        let known = watch::Sender::new(for_hooks(&own, &allowed, &received).map(Arc::new));
        Self { own, allowed, file, known, received: Mutex::new(received) }
    }

    pub(crate) fn reader(&self) -> LabelsReader {
        self.known.subscribe()
    }

    fn received(&self) -> MutexGuard<'_, Labels> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the labels of an answer. One without labels changes nothing: the edge may be of an earlier version, or may not
    /// know yet what operators assert.
    pub(crate) async fn receive(&self, labels: &Labels) {
        if labels.is_empty() || *self.received() == *labels {
            return;
        }
        let (file, json) = (self.file.clone(), serde_json::to_vec(labels).expect("plain data"));
        let write = tokio::task::spawn_blocking(move || durable_file::replace(&file, &json));
        if let Err(error) = write.await.map_err(std::io::Error::other).flatten() {
            tracing::warn!(file = %self.file.display(), %error, "labels cannot be stored: after a restart the hooks wait for an edge");
        }
        let left_out: Vec<_> = left_out(&self.allowed, labels).collect();
        if !left_out.is_empty() {
            let keys = left_out.join(", ");
            tracing::warn!(
                keys,
                "labels of the edge are not given to hooks: they are not in `labels_from_edge`, or not of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`"
            );
        }
        *self.received() = labels.clone();
        let known = for_hooks(&self.own, &self.allowed, labels).map(Arc::new);
        self.known.send_if_modified(|before| {
            let is_other = *before != known;
            *before = known;
            is_other
        });
    }
}

/// Whether hooks may get a label that an edge sent.
fn is_given(allowed: &[LabelGlob], key: &str, value: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    allowed.iter().any(|glob| glob.matches(key)) && value.bytes().all(is_plain)
}

fn left_out<'l>(allowed: &[LabelGlob], received: &'l Labels) -> impl Iterator<Item = &'l str> {
    received.iter().filter(|(key, value)| !is_given(allowed, key, value)).map(|(key, _)| key)
}

/// The labels for hooks. Those of the configuration win. `None`: an edge has to send some first, or there are none.
fn for_hooks(own: &Labels, allowed: &[LabelGlob], received: &Labels) -> Option<Labels> {
    if received.is_empty() && !allowed.is_empty() {
        return None;
    }
    let given = received.iter().filter(|(key, value)| is_given(allowed, key, value));
    let given: BTreeMap<_, _> = given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let all = Labels::try_from(given).expect("some of valid labels").overridden_by(own);
    (!all.is_empty()).then_some(all)
}

/// The environment variables of labels: capitals, and `_` for what is no letter or digit. Of keys with one variable none is set.
pub(crate) fn variables(labels: &Labels) -> BTreeMap<String, &str> {
    let mut variables: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    for (key, value) in labels.iter() {
        let name = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name = format!("WEIR_LABEL_{}", key.chars().map(name).collect::<String>());
        variables.entry(name).or_default().push((key, value));
    }
    let mut only = BTreeMap::new();
    for (name, labels) in variables {
        if let [(_, value)] = labels[..] {
            only.insert(name, value);
        } else {
            let keys = labels.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
            tracing::warn!(variable = name, keys, "labels with one variable: it is not set; `WEIR_LABELS` has them");
        }
    }
    only
}

/// A hash by which a change of labels is found, also over a restart.
pub(crate) fn hash(labels: &Labels) -> String {
    blake3::hash(&serde_json::to_vec(labels).expect("plain data")).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(json: &str) -> Labels {
        serde_json::from_str(json).unwrap()
    }

    fn globs(globs: &[&str]) -> Vec<LabelGlob> {
        globs.iter().map(|glob| glob.parse().unwrap()).collect()
    }

    #[test]
    fn hooks_get_what_the_configuration_states_or_allows() {
        let sent = labels(r#"{"ring":"canary","region-eu":"a.b_C-1","rack":"b2","bad":"$(id)"}"#);
        let own = labels(r#"{"rack":"own value"}"#);
        let given = |own: &Labels, allowed: &[&str], sent: &Labels| for_hooks(own, &globs(allowed), sent);
        let none = Labels::default();
        assert_eq!(given(&none, &["*"], &none), None, "an edge has to send some first");
        assert_eq!(given(&own, &["ring"], &none), None);
        assert_eq!(given(&own, &[], &sent), Some(own.clone()), "with `trust`");
        assert_eq!(given(&none, &[], &sent), None);
        assert_eq!(given(&none, &["other"], &sent), None);
        assert_eq!(
            given(&none, &["ring", "region-*"], &sent),
            Some(labels(r#"{"ring":"canary","region-eu":"a.b_C-1"}"#))
        );
        let all = labels(r#"{"ring":"canary","region-eu":"a.b_C-1","rack":"own value"}"#);
        assert_eq!(given(&own, &["*"], &sent), Some(all), "the edge overrides nothing");
        assert_eq!(left_out(&globs(&["r*"]), &sent).collect::<Vec<_>>(), ["bad"]);
    }

    #[test]
    fn keys_become_variables_unless_two_meet() {
        let labels = labels(r#"{"ring":"canary","k8s.io/zone":"a","a-b":"1","a.b":"2","Ring2":""}"#);
        let variables = variables(&labels);
        let expected = [("WEIR_LABEL_K8S_IO_ZONE", "a"), ("WEIR_LABEL_RING", "canary"), ("WEIR_LABEL_RING2", "")];
        assert_eq!(variables.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(), expected);
        assert_ne!(hash(&labels), hash(&Labels::default()));
    }

    #[tokio::test]
    async fn the_last_labels_outlive_the_process_and_answers_without() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(Vec::new(), "ca.pem", dir.path());
        config.name = "cluster-1".parse().unwrap();
        let open = || HookLabels::open(&config);
        let store = open();
        let mut reader = store.reader();
        assert_eq!(*reader.borrow_and_update(), None);
        store.receive(&labels(r#"{"ring":"canary"}"#)).await;
        assert!(reader.has_changed().unwrap());
        store.receive(&Labels::default()).await;
        let expected = Some(Arc::new(labels(r#"{"ring":"canary"}"#)));
        assert_eq!(*reader.borrow_and_update(), expected);
        store.receive(&labels(r#"{"ring":"canary","bad":"a b"}"#)).await;
        assert!(!reader.has_changed().unwrap(), "nothing is new for hooks");
        assert_eq!(*open().reader().borrow(), expected);
        std::fs::write(dir.path().join(".labels-cluster-1"), "torn").unwrap();
        assert_eq!(*open().reader().borrow(), None);
    }
}
