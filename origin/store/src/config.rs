//! `[store]`: where objects are stored.

use std::fs;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use object_store::ObjectStoreScheme;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

/// The error for a bucket engine without a bucket.
pub const NEEDS_BUCKET: &str =
    "[cluster] engine = \"bucket\" needs [store] url of a bucket: write for example \"s3://bucket/prefix\"";

/// Where objects are stored. Records are in `data_dir`, or in the engine of `[cluster]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. A folder must exist. Default:
    /// the folder `objects` in `data_dir`.
    pub url: Option<String>,
    /// URL of a server that is compatible with the provider's. Default: that of the provider.
    pub endpoint: Option<String>,
    /// Allow `http://` in `endpoint`.
    pub allow_http: bool,
    /// File with the ID of an S3 access key; together with `secret_access_key_file`. Both are read for each request. `gs://` and `az://`
    /// use the variables `GOOGLE_*` and `AZURE_*`. Default: the usual environment of the provider.
    pub access_key_id_file: Option<PathBuf>,
    /// File with the secret of the S3 access key.
    pub secret_access_key_file: Option<PathBuf>,
    /// Size of the local copy of a bucket, in `data_dir`. The least recently used objects are removed first. `"0B"`: no copy.
    /// A local folder needs none.
    #[serde(with = "config::size")]
    pub cache: ByteSize,
    /// Store a copy of each mirror as Git bundles, so that another origin, or this one with an empty `data_dir`, needs no
    /// clone. Default: in a cluster.
    pub mirrors: Option<bool>,
    /// Largest mirror to store. The upstream is cloned again for a larger one. Its bundles may have twice the size.
    #[serde(with = "config::size")]
    pub max_mirror: ByteSize,
}

/// What `url` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// The folder `objects` below the data directory.
    DataDir,
    /// Another local folder, which must exist: an empty mount point must not pass for an empty store.
    Folder(PathBuf),
    /// A bucket, or a container of Azure, and what the keys of all objects start with.
    Bucket(Url),
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: None,
            endpoint: None,
            allow_http: false,
            access_key_id_file: None,
            secret_access_key_file: None,
            cache: ByteSize::gib(10),
            mirrors: None,
            max_mirror: ByteSize::gib(16),
        }
    }
}

impl StoreConfig {
    /// The paths of files, which are relative to the configuration.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.access_key_id_file.iter_mut().chain(&mut self.secret_access_key_file)
    }

    /// What `url` names.
    ///
    /// # Errors
    /// The URL names no store; the message says which key to change.
    pub fn location(&self) -> Result<StoreLocation, String> {
        let Some(text) = &self.url else { return Ok(StoreLocation::DataDir) };
        // The text is not repeated: somebody may have put a password into it.
        let wrong = |why: &str| format!("[store] url: {why}: write for example \"s3://bucket/prefix\"");
        let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("it contains a user name or a password: put them into files of their own"));
        }
        if url.query().is_some() || url.fragment().is_some() || url.port().is_some() {
            return Err(wrong("a port, a query or a fragment has no meaning here"));
        }
        match url.scheme() {
            "file" => {
                let folder = url.to_file_path().map_err(|()| wrong("a folder is written as file:///folder"))?;
                return Ok(StoreLocation::Folder(folder));
            }
            "s3" | "gs" | "az" => {}
            scheme => return Err(wrong(&format!("the scheme is `{scheme}://`, but must be file, s3, gs or az"))),
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(wrong("it has no bucket"));
        }
        ObjectStoreScheme::parse(&url).map_err(|error| wrong(&error.to_string()))?;
        Ok(StoreLocation::Bucket(url))
    }

    /// What is wrong with the section, without a look at its files.
    pub fn errors(&self) -> Vec<String> {
        let location = match self.location() {
            Ok(location) => location,
            Err(error) => return vec![error],
        };
        let mut errors = Vec::new();
        let mut wrong = |what: &str| errors.push(format!("[store] {what}"));
        let remote = matches!(location, StoreLocation::Bucket(_));
        let s3 = matches!(location, StoreLocation::Bucket(url) if url.scheme() == "s3");
        if let Some(endpoint) = &self.endpoint {
            match Url::parse(endpoint).map(|url| url.scheme().to_owned()).as_deref() {
                _ if !remote => wrong("endpoint needs a `url` of a bucket"),
                Ok("https") => {}
                Ok("http") if self.allow_http => {}
                Ok("http") => wrong(
                    "endpoint is http://, where others can read and change what is sent: use https://, or set allow_http = true",
                ),
                _ => wrong("endpoint must be a URL such as \"https://s3.example\""),
            }
        }
        match (&self.access_key_id_file, &self.secret_access_key_file) {
            (Some(_), None) => wrong("access_key_id_file needs secret_access_key_file"),
            (None, Some(_)) => wrong("secret_access_key_file needs access_key_id_file"),
            (Some(_), Some(_)) if !s3 => wrong(
                "access_key_id_file is only for s3://: gs:// and az:// use the environment variables GOOGLE_* and AZURE_*",
            ),
            _ => {}
        }
        errors
    }

    /// The files of the access key, if the configuration names them.
    pub fn access_key(&self) -> Option<AccessKeyFiles> {
        let (id, secret) = self.access_key_id_file.clone().zip(self.secret_access_key_file.clone())?;
        Some(AccessKeyFiles { id, secret })
    }

    /// What is wrong with the files and folders of this section, for `--check-config`.
    pub fn file_errors(&self) -> Vec<String> {
        let mut errors: Vec<_> = self.access_key().and_then(|files| files.read().err()).into_iter().collect();
        if let Ok(StoreLocation::Folder(folder)) = self.location()
            && !folder.is_dir()
        {
            errors.push(format!("[store] url: the folder {} does not exist: create it", folder.display()));
        }
        errors
    }
}

/// An access key of S3. It has no `Debug`, so that no log shows it.
pub struct AccessKey {
    pub id: String,
    pub secret: String,
}

/// The files with an access key of S3.
#[derive(Debug, Clone)]
pub struct AccessKeyFiles {
    id: PathBuf,
    secret: PathBuf,
}

impl AccessKeyFiles {
    /// Reads the access key. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or holds no key; the message names the key of the configuration, and no secret.
    pub fn read(&self) -> Result<AccessKey, String> {
        let id = read_line("access_key_id_file", &self.id)?;
        Ok(AccessKey { id, secret: read_line("secret_access_key_file", &self.secret)? })
    }
}

fn read_line(key: &str, file: &Path) -> Result<String, String> {
    let wrong = |why: &str| format!("[store] {key}: the file {} {why}", file.display());
    let text = fs::read_to_string(file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    match text.trim_end() {
        "" => Err(wrong("is empty")),
        line if line.chars().any(char::is_control) => Err(wrong("contains more than one line")),
        line => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<StoreConfig, config::ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.toml");
        fs::write(&file, toml).unwrap();
        config::read(&file)
    }

    fn config(toml: &str) -> StoreConfig {
        read(toml).unwrap()
    }

    #[test]
    fn a_url_names_a_folder_or_a_bucket() {
        assert_eq!(config("").location(), Ok(StoreLocation::DataDir));
        let folder = StoreLocation::Folder("/srv/objects".into());
        assert_eq!(config("url = 'file:///srv/objects'").location(), Ok(folder));
        for url in ["s3://weir-hub/prod", "s3://weir-hub", "gs://weir_hub/a/b/", "az://weir-hub/"] {
            let config = config(&format!("url = '{url}'"));
            let location = StoreLocation::Bucket(url.parse().unwrap());
            assert_eq!((config.location(), config.errors()), (Ok(location), vec![]), "{url}");
        }
        for (url, why) in [
            ("weir-hub", "relative URL"),
            ("https://weir-hub.example", "https://"),
            ("s3://id:s3cret@weir-hub", "files of their own"),
            ("s3:///prod", "no bucket"),
            ("s3://weir-hub/a//b", "empty"),
            ("s3://weir-hub?region=x", "query"),
        ] {
            let error = config(&format!("url = '{url}'")).errors().concat();
            assert!(error.starts_with("[store] url: ") && error.contains(why) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn contradictory_keys_are_reported() {
        for (toml, named) in [
            ("endpoint = 'https://s3.example'", vec!["[store] endpoint"]),
            ("url = 's3://b'\nendpoint = 'http://s3.example'", vec!["[store] endpoint", "allow_http = true"]),
            ("url = 's3://b'\nendpoint = 's3.example'", vec!["[store] endpoint", "https://s3.example"]),
            ("url = 's3://b'\naccess_key_id_file = 'id'", vec!["[store] access_key_id_file", "secret_access_key_file"]),
            ("url = 'gs://b'\naccess_key_id_file = 'id'\nsecret_access_key_file = 's'", vec!["s3://", "GOOGLE_"]),
        ] {
            let errors = config(toml).errors();
            assert!(errors.len() == 1 && named.iter().all(|part| errors[0].contains(part)), "{toml}: {errors:?}");
        }
        let plain = config("url = 's3://b'\nendpoint = 'http://127.0.0.1:9000'\nallow_http = true\ncache = '1GiB'");
        assert_eq!((plain.errors(), plain.cache), (vec![], ByteSize::gib(1)));
        assert!(read("bucket = 'b'").unwrap_err().to_string().contains("bucket"));
    }

    #[test]
    fn files_are_checked_before_the_start_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let check = |url: &str, secret: &str| {
            fs::write(dir.path().join("id"), "AKIA\n").unwrap();
            fs::write(dir.path().join("secret"), secret).unwrap();
            let mut config =
                config(&format!("url = '{url}'\naccess_key_id_file = 'id'\nsecret_access_key_file = 'secret'"));
            config.paths().for_each(|path| *path = dir.path().join(&path));
            (config.file_errors().join("; "), config.access_key())
        };
        let (errors, key) = check("s3://b", "s3cret\n");
        assert_eq!((errors.as_str(), key.unwrap().read().unwrap().secret.as_str()), ("", "s3cret"));
        for (secret, why) in [("\n", "is empty"), ("s3cret\nmore", "more than one line")] {
            let (errors, _) = check("s3://b", secret);
            assert!(errors.starts_with("[store] secret_access_key_file: ") && errors.contains(why), "{errors}");
            assert!(!errors.contains("s3cret"), "{errors}");
        }
        let absent = dir.path().join("absent");
        let (errors, _) = check(&format!("file://{}", absent.display()), "s3cret");
        assert!(errors.contains("absent does not exist"), "{errors}");
    }
}
