//! Configuration files.

use std::process::Command;

use weir_runtime::file_check::FileCheck;
use weir_source::RefText;

use crate::prelude::*;

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
fn the_example_is_valid() {
    let config = load(EXAMPLE).unwrap();
    let (repository, service) = (&config.repositories[0], &config.services[0]);
    assert_eq!(repository.poll_interval, Duration::from_secs(120));
    assert!(repository.password_file.as_ref().unwrap().is_absolute());
    assert_eq!(service.followed_ref.to_string(), "main");
    assert_eq!(service.folder.as_str(), "deploy/prod");
    assert_eq!(config.limits.concurrent_builds, 3);
    assert_eq!(config.limits.concurrent_fetches, 8);

    let without = EXAMPLE.replace("username = \"ci\"\npassword_file = \"git-password\"\n", "");
    let local = load(&without.replace("https://git.example/acme/shop.git", "upstream/shop.git")).unwrap();
    assert!(Path::new(local.repositories[0].url.as_str()).is_absolute(), "relative to the file");
    let without = load(&EXAMPLE.replace("ref = \"main\"\n", "")).unwrap();
    assert_eq!(without.services[0].followed_ref, RefText::default());
    let limits = "[limits]\nmax_file = \"10 MiB\"\nbuild_threads = 1\n[tls]";
    let limited = load(&EXAMPLE.replace("[tls]", limits)).unwrap();
    assert_eq!((limited.limits.max_file.as_u64(), limited.limits.build_threads), (10 << 20, 1));
}

#[test]
fn origins_of_a_cluster_may_have_one_file() {
    let cluster = "[store]\nurl = \"s3://weir-hub\"\n[cluster]\nengine = \"bucket\"\nadvertise = \"https://{name}.example:7400\"\n[tls]";
    let text = EXAMPLE.replace("[tls]", cluster);
    let named = load(&text).unwrap().cluster.unwrap();
    assert_eq!(named.advertise, "https://origin-1.example:7400");
    let config = load(&text.replace("name = \"origin-1\"\n", "")).unwrap();
    assert_eq!(config.name, weir_runtime::host_name::host_name());
    assert_eq!(config.cluster.unwrap().advertise, format!("https://{}.example:7400", config.name));

    // Each origin has the sources of its own repositories.
    let parts =
        "parts = [{ repository = \"shop\", to = \"a\" }, { repository = \"shop\", folder = \"x\", to = \"b\" }]";
    let composed = format!("name = \"shop-prod\"\n{parts}");
    let service = &text[text.find("name = \"shop-prod\"").unwrap()..];
    load(&text.replace(service, &composed)).unwrap();
    let of_two =
        composed.replacen("\"shop\"", "\"blog\"", 1) + "\n[[repository]]\nname = \"blog\"\nurl = \"https://x/y\"";
    let error = load(&text.replace(service, &of_two)).unwrap_err();
    assert!(
        error.contains("service `shop-prod`: `parts`: the repositories `blog`, `shop` may have different owners"),
        "{error}"
    );
    load(&EXAMPLE.replace(service, &of_two)).unwrap();
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
        (refused("username = \"ci\"\n", ""), ["repository `shop`", "`username`"]),
        (refused("username = \"ci\"\n", "redirects = \"all\"\n"), ["redirects", "`all` is neither"]),
        (refused("poll_interval = \"2m\"", "poll_interval = \"100ms\""), ["shop", "poll_interval"]),
        (
            refused("data_dir", "generation_floor = 18446744073709551615\ndata_dir"),
            ["generation_floor", "milliseconds"],
        ),
        (refused("include = [\"**/*.yaml\"]", "include = [\"!x\"]"), ["shop-prod", "!x"]),
        (refused("folder = \"deploy/prod\"", "folder = \"../etc\""), ["../etc", "folder"]),
        (refused("name = \"shop-prod\"", "name = \"Shop\""), ["Shop", "service"]),
        (refused("poll_interval", "pol_interval"), ["pol_interval", "unknown field"]),
        (refused("ref = \"main\"", "ref = \"a..b\""), ["a..b", "branch"]),
        (refused("[tls]", "[limits]\nconcurrent_builds = 0\n[tls]"), ["concurrent_builds", "between 1"]),
        (refused("[tls]", "[limits]\nmax_delta_tarball = \"9MiB\"\n[tls]"), ["max_delta_tarball", "8MiB"]),
        (
            refused("username = \"ci\"", "username = \"ci\"\nverify = { mode = \"commit\" }"),
            ["shop", "ssh_allowed_signers"],
        ),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
}

#[test]
fn errors_of_all_sections_are_reported_with_the_right_notation_of_sizes() {
    let limits = "[limits]\nconcurrent_builds = 0\nevents = 0\n[retention]\nversions = 20000\n[upstreams]\nmax_refs = 0\nhosts = [\"other.example\"]\n\
                  max_pack = \"1KiB\"\n[operator_api]\nkey = \"x\"\n[[repository]]\nname = \"shop\"\nurl = \"https://x/y\"\n[[repository]]";
    let text = EXAMPLE
        .replacen("[[repository]]", limits, 1)
        .replace("data_dir", "generation_floor = 9007199254740992\ndata_dir");
    let error = load(&text).unwrap_err();
    for part in [
        "concurrent_builds",
        "events = 0",
        "[retention] versions",
        "max_refs",
        "max_pack",
        "`git.example`",
        "[operator_api] `key`",
        "generation_floor",
        "two repositories",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    for (key, part) in [
        ("max_file = \"12 bananas\"", "`12 bananas` is not a size such as `64MiB`"),
        ("max_tarball = true", "expected a size such as `64MiB`"),
        ("min_free = -1", "must not be negative"),
    ] {
        let error = load(&EXAMPLE.replace("[tls]", &format!("[limits]\n{key}\n[tls]"))).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn an_operator_without_credentials_or_with_those_of_another_is_refused() {
    let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    // `printf '' | sha256sum`, in either notation.
    let of_nothing = "E3B0C44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let load = |operators: &str| load(&EXAMPLE.replacen("[[repository]]", &format!("{operators}\n[[repository]]"), 1));
    let one = |name: &str, keys: &str| format!("[[operator]]\nname = \"{name}\"\n{keys}\n");
    let ana = one("ana", &format!("role = \"view\"\ntoken_sha256 = \"{hash}\""));
    let config = load(&ana).unwrap();
    assert_eq!((config.operators.len(), config.has_former_operator), (1, false));
    for (operators, part) in [
        (one("ana", "role = \"view\""), "operator `ana`: give it `token_sha256` or `certificate`"),
        (one("ana", "role = \"view\"\ntoken_sha256 = \"secret\""), "64 hexadecimal digits"),
        (one("ana", &format!("role = \"view\"\ntoken_sha256 = \"{of_nothing}\"")), "the digest of an empty text"),
        (one("ana", "role = \"define\"\ncertificate = \"ana\""), "needs `repositories`"),
        (one("ana", "role = \"admin\"\ncertificate = \"ana\"\nservices = [\"x\"]"), "has no `services`"),
        (one("token", "role = \"view\"\ncertificate = \"ana\""), "`token` is the name of"),
        (one("ana", "role = \"root\"\ncertificate = \"ana\""), "unknown variant `root`"),
        (format!("{ana}{}", ana.replace("\"ana\"", "\"bob\"")), "two operators have the token_sha256"),
        (
            "[operator]\nkey = \"a\"\n[operator_api]\nkey = \"b\"\n".to_owned(),
            "[operator] is the former name of [operator_api]",
        ),
    ] {
        let error = load(&operators).unwrap_err();
        assert!(error.contains(part), "{operators}: {error}");
    }
}

#[test]
fn a_check_reads_each_file_and_reports_everything_that_prevents_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    weir_runtime::certificates::write(dir.path(), &[]).unwrap();
    std::fs::copy(at("ca.pem"), at("git-ca.pem")).unwrap();
    std::fs::write(at("git-password"), "s3cret\n").unwrap();
    std::fs::write(at("operator-token"), "a-token-of-an-operator").unwrap();
    std::fs::write(at("denied"), "").unwrap();
    weir_runtime::key_pair::write(&at("signing.key")).unwrap();
    let more = "[operator]\noperator_token_file = \"operator-token\"\n[access]\ndeny = \"denied\"\n\
                [signing]\nkeys = [\"signing.key\"]\n[[repository]]";
    std::fs::write(at("origin.toml"), EXAMPLE.replacen("[[repository]]", more, 1)).unwrap();
    let check = || Config::load(&at("origin.toml")).unwrap().check_files();
    let good = |found: FileCheck| assert!(found.errors.is_empty() && found.missing.is_empty(), "{found:?}");
    good(check());
    assert!(check().warnings.iter().any(|warning| warning.starts_with("[operator] is called [operator_api] now")));
    let for_the_start = ["origin.pem", "origin.key", "ca.pem", "operator-token", "denied", "signing.key"];
    for name in for_the_start {
        std::fs::rename(at(name), at("aside")).unwrap();
        let found = check();
        assert!(found.errors.len() == 1 && found.missing.is_empty(), "{name}: {found:?}");
        assert!(found.errors[0].contains(&at(name).display().to_string()), "{found:?}");
        std::fs::rename(at("aside"), at(name)).unwrap();
    }
    for name in ["git-ca.pem", "git-password"] {
        std::fs::rename(at(name), at("aside")).unwrap();
        let found = check();
        assert!(found.errors.is_empty() && found.missing.len() == 1, "{name}: {found:?}");
        assert!(found.missing[0].contains(&at(name).display().to_string()), "{found:?}");
        std::fs::write(at(name), "").unwrap();
        let found = check();
        assert!(found.errors.len() == 1 && found.errors[0].contains(name), "{found:?}");
        std::fs::rename(at("aside"), at(name)).unwrap();
    }
    good(check());
    // Missing files do not hide errors of others.
    std::fs::remove_file(at("git-password")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(at("signing.key"), open).unwrap();
    std::fs::write(at("denied"), "tokn t1\n").unwrap();
    std::fs::write(at("origin-data"), "").unwrap();
    let found = check();
    assert_eq!((found.errors.len(), found.missing.len()), (3, 1), "{found:?}");
    for part in ["mode 0644", "[access]", "is not a directory"] {
        assert!(found.errors.iter().any(|error| error.contains(part)), "{part}: {found:?}");
    }
    let run = Command::new(env!("CARGO_BIN_EXE_weir-origin"))
        .args(["--check-config", "--config"])
        .arg(at("origin.toml"))
        .output()
        .unwrap();
    let output = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.code() == Some(2) && run.stdout.is_empty(), "{output}");
    assert_eq!(output.lines().filter(|line| line.starts_with("weir-origin: ")).count(), 6, "{output}");
}

#[test]
fn a_failed_start_logs_one_line_with_the_reason() {
    let home = Home::new();
    std::fs::create_dir_all(home.data_dir()).unwrap();
    let run = |more: &str| {
        let file = home.write_config(more);
        let mut origin = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
        origin.env("RUST_BACKTRACE", "1").env("WEIR_LOG", "weir=info").arg("--config");
        let run = origin.arg(file).output().unwrap();
        let output = String::from_utf8(run.stderr).unwrap();
        let last: Value = serde_json::from_str(output.lines().last().unwrap()).expect(&output);
        assert!(output.lines().count() == 1 && last["level"] == "ERROR", "{output}");
        (run.status.code(), last["message"].as_str().unwrap().to_owned())
    };
    // No folder.
    std::fs::write(home.data_dir().join("objects"), "").unwrap();
    let (code, message) = run("");
    assert!(code == Some(1) && message.starts_with("weir-origin: ") && message.contains("data/objects"), "{message}");
    let (tail, text) = (message.rsplit(": ").next().unwrap(), message.clone());
    assert_eq!(text.matches(tail).count(), 1, "each cause once: {message}");
    let (code, message) = run("colour = 1\n");
    assert!(code == Some(2) && message.contains("colour"), "{message}");
}
