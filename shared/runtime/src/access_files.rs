//! Files of public keys and denied tokens, reloaded when they change.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::shutdown::Drain;
use weir_protocol::access_list::{AccessList, AccessListError};

/// How often the files are read. A change is applied when two reads in a row agree, so a denial is in force after twice this
/// time.
pub const REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The largest file that is read, in bytes: ten thousand denied tokens with a comment each.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The paths of the files.
#[derive(Debug, Clone, Default)]
pub struct AccessFiles {
    /// Files of public keys.
    pub keys: Vec<PathBuf>,
    /// A deny file.
    pub deny: Option<PathBuf>,
}

/// A file of keys or denials cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the {what} {}: {message}", path.display())]
pub struct AccessFileError {
    what: &'static str,
    path: PathBuf,
    message: String,
}

/// The text of the files, to detect changes. File times are not reliable: a copy may keep them, and two quick changes may have
/// the same.
type Contents = Vec<String>;

impl AccessFiles {
    /// Reads all files. Blocks.
    ///
    /// # Errors
    /// A file is missing, too large or invalid; the message names it, and the line.
    pub fn read(&self) -> Result<AccessList, AccessFileError> {
        self.parse(&self.contents()?)
    }

    /// Reads all files, and reloads them when they change, until the drain, or until nobody receives the list. One read may see a file that is half written, so a
    /// change is applied when two reads in a row agree. While a file cannot be used, the last list stays in force, the log
    /// says why, and `readable` is 0.
    ///
    /// # Errors
    /// As [`read`](Self::read), at the start.
    pub async fn follow(
        self,
        readable: IntGauge,
        drain: &Drain,
    ) -> Result<watch::Receiver<Arc<AccessList>>, AccessFileError> {
        let files = Arc::new(self);
        let first = files.clone();
        let begun = spawn_blocking(move || {
            let contents = first.contents()?;
            Ok((first.parse(&contents)?, contents))
        });
        let (list, contents) = begun.await.expect("reading does not panic")?;
        readable.set(1);
        let (sender, receiver) = watch::channel(Arc::new(list));
        if !(files.keys.is_empty() && files.deny.is_none()) {
            let follower = Follower { files, contents, candidate: None, sender, readable };
            drain.spawn(follower.run(drain.clone()));
        }
        Ok(receiver)
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let keys = self.keys.iter().map(|path| ("public keys", path.as_path()));
        keys.chain(self.deny.iter().map(|path| ("deny file", path.as_path())))
    }

    fn contents(&self) -> Result<Contents, AccessFileError> {
        self.named().map(|(what, path)| contents(path).map_err(|message| error(what, path, message))).collect()
    }

    fn parse(&self, contents: &Contents) -> Result<AccessList, AccessFileError> {
        let mut list = AccessList::default();
        for (index, ((what, path), text)) in self.named().zip(contents).enumerate() {
            let added = if index < self.keys.len() { list.add_key_file(text) } else { list.add_deny_file(text) };
            added.map_err(|problem: AccessListError| error(what, path, problem.to_string()))?;
        }
        Ok(list)
    }
}

fn error(what: &'static str, path: &Path, message: String) -> AccessFileError {
    AccessFileError { what, path: path.to_owned(), message }
}

fn contents(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    Ok(text)
}

/// The task that reloads the files.
struct Follower {
    files: Arc<AccessFiles>,
    /// The contents in force.
    contents: Contents,
    /// The contents at the last read, if they differ.
    candidate: Option<Contents>,
    sender: watch::Sender<Arc<AccessList>>,
    readable: IntGauge,
}

impl Follower {
    async fn run(mut self, drain: Drain) {
        // The last logged error, so that each is logged once.
        let mut reported = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(REREAD_INTERVAL) => {}
                () = drain.begun() => return,
                () = self.sender.closed() => return,
            }
            let problem = self.check().await.err().map(|error| error.to_string());
            self.readable.set(problem.is_none().into());
            if let Some(problem) = &problem
                && reported.as_ref() != Some(problem)
            {
                tracing::error!("{problem}; the last keys and denials stay in force");
            }
            reported = problem;
        }
    }

    async fn check(&mut self) -> Result<(), AccessFileError> {
        let files = self.files.clone();
        let contents = spawn_blocking(move || files.contents()).await.expect("reading does not panic")?;
        let before = self.candidate.take();
        if contents != self.contents {
            if before.as_ref() != Some(&contents) {
                self.candidate = Some(contents);
                return Ok(());
            }
            // Stored for the next read, in case it is invalid.
            self.candidate = Some(contents.clone());
            let list = self.files.parse(&contents)?;
            self.contents = contents;
            tracing::info!(keys = list.keys().count(), "keys and denials were reloaded");
            self.sender.send_replace(Arc::new(list));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_half_written_file_is_not_applied() {
        let dir = tempfile::tempdir().unwrap();
        let deny = dir.path().join("denied");
        let write = |text: &str| std::fs::write(&deny, text).unwrap();
        write("token t1\ntoken t2\n");
        let files = AccessFiles { keys: Vec::new(), deny: Some(deny.clone()) };
        let contents = files.contents().unwrap();
        let (sender, list) = watch::channel(Arc::new(files.parse(&contents).unwrap()));
        let readable = IntGauge::new("readable", "readable").unwrap();
        let mut follower = Follower { files: files.into(), contents, candidate: None, sender, readable };
        let denied = || list.borrow().denied_tokens(0).count();
        // Rewritten in place: emptied, half of it, all of it.
        for torn in ["", "token t1\n", "token t1\ntoken t2\ntoken t3\n"] {
            write(torn);
            follower.check().await.unwrap();
            assert_eq!(denied(), 2, "{torn}");
        }
        follower.check().await.unwrap();
        assert_eq!(denied(), 3);
        // An empty file is applied once it stays empty; an invalid one never is.
        write("");
        follower.check().await.unwrap();
        follower.check().await.unwrap();
        assert_eq!(denied(), 0);
        write("tokn t4");
        assert!(follower.check().await.is_ok() && follower.check().await.is_err() && follower.check().await.is_err());
        assert_eq!(denied(), 0);
    }

    #[tokio::test]
    async fn a_change_is_applied_and_an_invalid_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let deny = dir.path().join("denied");
        std::fs::write(&deny, "token t1\n").unwrap();
        let files = AccessFiles { keys: Vec::new(), deny: Some(deny.clone()) };
        let readable = IntGauge::new("readable", "readable").unwrap();
        let drain = Drain::new();
        let mut list = files.clone().follow(readable.clone(), &drain).await.unwrap();
        let denied = |list: &AccessList| list.denied_tokens(0).map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(denied(&list.borrow_and_update().clone()), ["t1"]);

        std::fs::write(&deny, "token t1\ntoken t2\n").unwrap();
        list.changed().await.unwrap();
        assert_eq!(denied(&list.borrow_and_update().clone()), ["t1", "t2"]);

        std::fs::write(&deny, "tokn t3\n").unwrap();
        let noticed = async {
            while readable.get() == 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), noticed).await.unwrap();
        assert_eq!(denied(&list.borrow().clone()), ["t1", "t2"]);
        std::fs::write(&deny, "token t3\n").unwrap();
        list.changed().await.unwrap();
        assert_eq!(denied(&list.borrow().clone()), ["t3"]);
        assert!(drain.finish(Duration::from_secs(5)).await);

        std::fs::remove_file(&deny).unwrap();
        let error = files.follow(readable, &Drain::new()).await.unwrap_err().to_string();
        assert!(error.contains("deny file") && error.contains("denied"), "{error}");
    }
}
