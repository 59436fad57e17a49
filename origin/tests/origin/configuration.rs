//! Configuration files.

use std::time::Duration;

use weir_origin::config::Config;
use weir_origin::revision::Revision;

const EXAMPLE: &str = r#"
name = "origin-1"
listen = "127.0.0.1:7400"
operator_listen = "127.0.0.1:7401"
admin_listen = "127.0.0.1:7490"
data_dir = "origin-data"
[tls]
certificate = "origin.pem"
key = "origin.key"
client_ca = "ca.pem"
[[repository]]
name = "shop"
url = "https://git.example/acme/shop.git"
poll_interval = "2m"
ca = "git-ca.pem"
username = "ci"
password_file = "git-password"
[[service]]
name = "shop-prod"
repository = "shop"
ref = "main"
folder = "deploy/prod"
include = ["**/*.yaml"]
"#;

fn load(text: &str) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("origin.toml");
    std::fs::write(&path, text).unwrap();
    let loaded = Config::load(&path).map_err(|error| error.to_string());
    if let Ok(config) = &loaded {
        assert_eq!(config.data_dir, dir.path().join("origin-data"));
        assert_eq!(config.tls.client_ca, dir.path().join("ca.pem"));
    }
    loaded
}

/// The example with one line replaced, or one added.
fn refused(line: &str, by: &str) -> String {
    assert!(EXAMPLE.contains(line));
    load(&EXAMPLE.replacen(line, by, 1)).expect_err("it must be refused")
}

#[test]
fn the_contract_s_example_is_read() {
    let config = load(EXAMPLE).unwrap();
    let (repository, service) = (&config.repositories[0], &config.services[0]);
    assert_eq!(repository.poll_interval, Duration::from_secs(120));
    assert!(repository.password_file.as_ref().unwrap().is_absolute());
    assert_eq!(service.revision, Revision::Named("main".to_owned()));
    assert_eq!(service.folder.as_str(), "deploy/prod");
    assert_eq!(config.limits.concurrent_builds, 2);
    assert_eq!(config.limits.concurrent_fetches, 8);

    let without = load(&EXAMPLE.replace("ref = \"main\"\n", "")).unwrap();
    assert_eq!(without.services[0].revision, Revision::DefaultBranch);
    let limits = "[limits]\nmax_file = \"10 MiB\"\nbuild_threads = 1\n[tls]";
    let limited = load(&EXAMPLE.replace("[tls]", limits)).unwrap();
    assert_eq!((limited.limits.max_file.as_u64(), limited.limits.build_threads), (10 << 20, 1));
}

#[test]
fn an_error_names_the_object_and_says_what_to_do() {
    let repository = "[[repository]]\nname = \"shop\"\nurl = \"https://x/y\"\n[[service]]";
    for (error, words) in [
        (refused("[[service]]", repository), ["two repositories", "shop"]),
        (
            refused("[[service]]", "[[service]]\nname = \"shop-prod\"\nrepository = \"shop\"\n[[service]]"),
            ["two services", "shop-prod"],
        ),
        (refused("repository = \"shop\"", "repository = \"shap\""), ["shop-prod", "shap"]),
        (refused("username = \"ci\"\n", ""), ["shop", "username"]),
        (refused("password_file = \"git-password\"\n", ""), ["shop", "password_file"]),
        (refused("poll_interval = \"2m\"", "poll_interval = \"100ms\""), ["shop", "poll_interval"]),
        (refused("poll_interval = \"2m\"", "poll_interval = \"500000000000y\""), ["shop", "at most"]),
        (
            refused("data_dir", "generation_floor = 18446744073709551615\ndata_dir"),
            ["generation_floor", "milliseconds"],
        ),
        (refused("include = [\"**/*.yaml\"]", "include = [\"!x\"]"), ["shop-prod", "!x"]),
        (refused("folder = \"deploy/prod\"", "folder = \"../etc\""), ["../etc", "folder"]),
        (refused("name = \"shop-prod\"", "name = \"Shop\""), ["Shop", "service"]),
        (refused("poll_interval", "pol_interval"), ["pol_interval", "unknown field"]),
        (refused("ref = \"main\"", "ref = \"a..b\""), ["a..b", "branch"]),
        (refused("[tls]", "[limits]\nconcurrent_builds = 0\n[tls]"), ["concurrent_builds", "at least 1"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = EXAMPLE
        .replace("poll_interval = \"2m\"", "poll_interval = \"1ms\"\nstall_timeout = \"400d\"")
        .replace("username = \"ci\"", "")
        .replace("repository = \"shop\"", "repository = \"none\"")
        .replace("[\"**/*.yaml\"]", "[\"!a\", \"#b\"]");
    let error = load(&text).unwrap_err();
    for part in [
        "repository `shop`: `poll_interval`: it must be at least `1s`",
        "`stall_timeout`: it must be at most `366d`",
        "`password_file`: it needs `username`",
        "service `shop-prod`: `include`:",
        "!a",
        "#b",
        "`repository`: there is no [[repository]] `none`",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_url_with_user_info_is_refused_without_repeating_it() {
    for url in ["https://ci:s3cret@git.example/a.git", "https://s3cret@git.example/a.git"] {
        let error = refused("https://git.example/acme/shop.git", url);
        assert!(error.contains("`username`") && error.contains("`password_file`"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn a_password_is_for_https_alone_and_ssh_needs_a_key_and_known_hosts() {
    for url in ["http://git.example/a.git", "git://git.example/a.git", "file:///srv/a.git", "upstream/a.git"] {
        let error = refused("https://git.example/acme/shop.git", url);
        assert!(error.contains("shop") && error.contains("https://"), "{error}");
        let without = EXAMPLE.replace("username = \"ci\"\npassword_file = \"git-password\"\n", "");
        load(&without.replace("https://git.example/acme/shop.git", url)).unwrap();
    }
    let for_https = "ca = \"git-ca.pem\"\nusername = \"ci\"\npassword_file = \"git-password\"\n";
    let for_ssh = "ssh_key = \"key\"\nssh_known_hosts = \"hosts\"\n";
    for url in ["ssh://me@git.example:2222/a.git", "git@git.example:a.git"] {
        let with =
            |keys: &str| load(&EXAMPLE.replace("https://git.example/acme/shop.git", url).replace(for_https, keys));
        let config = with(for_ssh).unwrap();
        assert!(config.repositories[0].ssh_key.as_ref().unwrap().is_absolute());
        assert!(with("").unwrap_err().contains("`ssh_known_hosts`"));
        assert!(with(&format!("{for_https}{for_ssh}")).unwrap_err().contains("means nothing for SSH"));
    }
    let error = refused("https://git.example/acme/shop.git", "ssh://git:s3cret@git.example/a.git");
    assert!(error.contains("`url`") && !error.contains("s3cret"), "{error}");
}

#[test]
fn each_key_of_an_upstream_needs_what_belongs_to_it() {
    let password = "username = \"ci\"\npassword_file = \"git-password\"";
    for (keys, part) in [
        ("username = \"ci\"", "`username`: it needs `password_file`"),
        ("password_file = \"x\"", "`password_file`: it needs `username`"),
        ("username = \"ci\"\npassword_file = \"x\"\ntoken_file = \"y\"", "exclude each other"),
        ("client_key = \"x\"", "`client_key`: it needs `client_certificate`"),
        (
            "client_certificate = \"x\"\nclient_key = \"x\"\nproxy = \"https://proxy.example:3129\"",
            "`client_certificate`: it would be shown to a `proxy` of `https://`",
        ),
        ("proxy_username = \"x\"\nproxy_password_file = \"y\"", "`proxy_username`: it needs `proxy`"),
        ("proxy = \"proxy:3128\"", "`proxy`: it is not an address"),
        ("proxy = \"http://me:s3cret@proxy:3128\"", "`proxy_username`"),
        ("ssh_key = \"x\"", "for an `url` of SSH"),
        ("redirects = \"all\"", "`all` is none of"),
        ("redirects = [\"https://x\"]", "is neither a host"),
    ] {
        let error = refused(password, keys);
        assert!(error.contains(part) && !error.contains("s3cret"), "{keys}: {error}");
    }
    load(&EXAMPLE.replace(password, "token_file = \"t\"\nredirects = [\"*.mirror.example\"]\nproxy = \"http://p:1\""))
        .unwrap();
    let upstreams =
        |keys: &str| load(&EXAMPLE.replace("[[repository]]", &format!("[upstreams]\n{keys}\n[[repository]]")));
    upstreams("hosts = [\"git.example\"]\nmax_refs = 10\nmax_pack = \"1GiB\"").unwrap();
    assert!(upstreams("hosts = [\"other.example\"]").unwrap_err().contains("`shop`"));
    assert!(upstreams("max_refs = 0").unwrap_err().contains("max_refs"));
}

#[test]
fn a_check_opens_the_files_and_names_the_one_that_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    weir_shared::process::certificates::write(dir.path(), &[]).unwrap();
    std::fs::copy(at("ca.pem"), at("git-ca.pem")).unwrap();
    std::fs::write(at("git-password"), "s3cret\n").unwrap();
    std::fs::write(at("origin.toml"), EXAMPLE).unwrap();
    let check = || Config::load(&at("origin.toml")).unwrap().check_files().map_err(|error| error.to_string());
    check().unwrap();
    for name in ["origin.pem", "origin.key", "ca.pem", "git-ca.pem", "git-password"] {
        let good = std::fs::read(at(name)).unwrap();
        std::fs::remove_file(at(name)).unwrap();
        let error = check().unwrap_err();
        assert!(error.contains(&at(name).display().to_string()), "{name}: {error}");
        assert_eq!(Config::load(&at("origin.toml")).unwrap().missing_files(), [at(name)]);
        std::fs::write(at(name), "").unwrap();
        let error = check().unwrap_err();
        assert!(error.contains(name), "{name}: {error}");
        std::fs::write(at(name), good).unwrap();
    }
    check().unwrap();
}

#[test]
fn a_path_as_url_is_relative_to_the_file() {
    let without = EXAMPLE.replace("username = \"ci\"\npassword_file = \"git-password\"\n", "");
    let config = load(&without.replace("https://git.example/acme/shop.git", "upstream/shop.git")).unwrap();
    assert!(std::path::Path::new(&config.repositories[0].url).is_absolute());
}
