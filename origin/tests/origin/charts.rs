//! Charts of a Helm repository: a static server with an index and archives, which a test writes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use tempfile::TempDir;
use weir_protocol::digest::Sha256;

use crate::prelude::*;

/// A Helm repository, until the process ends.
struct Charts {
    dir: TempDir,
    address: SocketAddr,
    /// Another host, which demands a pause of an hour. It has the chart `busy`.
    busy: SocketAddr,
    /// Status and path of each answer.
    answers: Arc<Mutex<Vec<String>>>,
    /// The entries of the index: chart, version, digest.
    entries: Mutex<Vec<(String, String, String)>>,
}

impl Charts {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (dir, address, answers) =
            (tempfile::tempdir().unwrap(), listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = other.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut socket in other.incoming().flatten() {
                let pause = "HTTP/1.1 429 x\r\nretry-after: 3600\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = read_head(&mut socket).and_then(|_| socket.write_all(pause.as_bytes()));
            }
        });
        let (folder, answered) = (dir.path().to_owned(), answers.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                // A client that gave up is no error of the server.
                let _ = answer(&folder, socket, &answered);
            }
        });
        Self { dir, address, busy, answers, entries: Mutex::default() }
    }

    /// Adds a version of a chart to the index.
    fn publish(&self, chart: &str, version: &str, members: &[(&str, &[u8])]) {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, contents) in members {
            let mut header = tar::Header::new_ustar();
            // Not by `set_path`, which refuses what leads out.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append(&header, *contents).unwrap();
        }
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&archive.into_inner().unwrap()).unwrap();
        let archive = encoder.finish().unwrap();
        fs::write(self.dir.path().join(format!("{chart}-{version}.tgz")), &archive).unwrap();
        self.index(chart, version, &Sha256::of(&archive).to_string());
    }

    /// Puts an entry into the index, in place of one of the same version.
    fn index(&self, chart: &str, version: &str, digest: &str) {
        let mut entries = self.entries.lock().unwrap();
        entries.retain(|(other, old, _)| (other.as_str(), old.as_str()) != (chart, version));
        entries.push((chart.to_owned(), version.to_owned(), digest.to_owned()));
        drop(entries);
        self.write_index("2026-01-01T00:00:00Z");
    }

    fn write_index(&self, generated: &str) {
        let mut entries = serde_json::Map::new();
        for (chart, version, digest) in &*self.entries.lock().unwrap() {
            let at = if chart == "busy" { format!("http://{}/", self.busy) } else { String::new() };
            let url = format!("{at}{chart}-{version}.tgz");
            let entry = json!({ "version": version, "digest": digest, "urls": [url] });
            let versions = entries.entry(chart).or_insert_with(|| json!([]));
            versions.as_array_mut().unwrap().push(entry);
        }
        // JSON is YAML.
        let index = json!({ "apiVersion": "v1", "generated": generated, "entries": entries });
        fs::write(self.dir.path().join("index.yaml"), index.to_string()).unwrap();
    }

    /// The answers since the last call.
    fn answers(&self) -> Vec<String> {
        std::mem::take(&mut *self.answers.lock().unwrap())
    }

    /// Services with the names of charts.
    fn config(&self, home: &Home, charts: &[&str]) -> Config {
        let mut config = home.config(&format!("http://{}", self.address));
        config.repositories[0].kind = serde_json::from_value(json!("helm")).unwrap();
        let service = |chart: &&str| {
            let document = json!({ "name": chart, "repository": REPOSITORY, "chart": chart, "ref": "semver:^1" });
            serde_json::from_value(document).unwrap()
        };
        config.services = charts.iter().map(service).collect();
        config
    }
}

fn read_head(socket: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap().to_ascii_lowercase())
}

fn answer(folder: &Path, mut socket: TcpStream, answers: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let head = read_head(&mut socket)?;
    let path = head.split(' ').nth(1).unwrap();
    let body = fs::read(folder.join(path.trim_start_matches('/')));
    let etag = format!("\"{}\"", blake3::hash(body.as_deref().unwrap_or_default()).to_hex());
    let (status, body) = match body {
        Err(_) => ("404", Vec::new()),
        Ok(_) if head.contains(&format!("if-none-match: {etag}")) => ("304", Vec::new()),
        Ok(body) => ("200", body),
    };
    answers.lock().unwrap().push(format!("{status} {path}"));
    let length = body.len();
    write!(socket, "HTTP/1.1 {status} x\r\netag: {etag}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")?;
    socket.write_all(&body)
}

/// A chart with one setting.
fn shop(setting: &str) -> Vec<(&'static str, Vec<u8>)> {
    vec![("shop/Chart.yaml", b"name: shop".to_vec()), ("shop/templates/map.yaml", setting.as_bytes().to_vec())]
}

fn publish(charts: &Charts, version: &str, setting: &str) {
    let members = shop(setting);
    let members: Vec<(&str, &[u8])> = members.iter().map(|(path, contents)| (*path, contents.as_slice())).collect();
    charts.publish("shop", version, &members);
}

fn is_version(version: &str) -> impl Fn(&Descriptor) -> bool + '_ {
    move |descriptor| descriptor.publication().version.as_ref().is_some_and(|other| other.as_str() == version)
}

/// The reason for which a service does not follow its chart, once there is one.
async fn failure(node: &Node, service: &str) -> String {
    let mut condition = node.running.condition(&service.parse().unwrap()).unwrap();
    let is = |condition: &Condition| matches!(condition, Condition::Unhealthy { .. });
    match in_time(condition.wait_for(is)).await.unwrap().clone() {
        Condition::Unhealthy { step, reason, .. } => format!("[{step}] {reason}"),
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn a_chart_is_followed_and_what_is_published_is_never_fetched_again() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    publish(&charts, "1.1.0", "a: 2");
    publish(&charts, "2.0.0", "a: 3");
    let config = charts.config(&home, &["shop"]);
    let node = home.start(config.clone()).await;
    let first = node.published_of("shop", |_| true).await;
    let digest = charts.entries.lock().unwrap()[1].2.clone();
    let publication = first.publication();
    assert_eq!(publication.revision_id.as_str(), format!("helm:1.1.0+sha256:{digest}"));
    assert!(is_version("1.1.0")(&first) && publication.commit.is_none());
    assert_eq!(names(&node.tarball(&first).await), ["Chart.yaml", "templates/", "templates/map.yaml"]);
    // After the permit to fetch, the index is requested again.
    let answers = charts.answers();
    assert_eq!(answers.last().unwrap(), "200 /shop-1.1.0.tgz");
    assert!(answers.iter().filter(|answer| answer.ends_with(".tgz")).count() == 1, "{answers:?}");

    node.poll().await;
    assert_eq!(charts.answers(), ["304 /index.yaml"], "a poll without a change");
    charts.write_index("2026-02-02T00:00:00Z");
    node.poll().await;
    assert_eq!(charts.answers(), ["200 /index.yaml"], "the time of an index is no change");
    let unchanged = "weir_origin_polls_total{repository=\"shop\",result=\"unchanged\"}";
    assert_eq!(node.metric(unchanged).await, 2.0);

    publish(&charts, "1.2.0", "a: 4");
    node.poll().await;
    let second = node.published_of("shop", is_version("1.2.0")).await;
    assert_eq!(charts.answers().last().unwrap(), "200 /shop-1.2.0.tgz");
    // Another version with the same files is the same publication.
    publish(&charts, "1.2.1", "a: 4");
    node.poll().await;
    assert_eq!(node.published_of("shop", |_| true).await.publication().digest, second.publication().digest);
    charts.answers();
    node.stop().await;

    let node = home.start(config.clone()).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(charts.answers().last().unwrap(), "200 /shop-1.2.1.tgz", "its revision is not the published one");
    publish(&charts, "1.3.0", "a: 5");
    node.poll().await;
    let third = node.published_of("shop", is_version("1.3.0")).await;
    charts.answers();
    node.stop().await;

    let node = home.start(config.clone()).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(charts.answers(), ["200 /index.yaml"], "a restart downloads nothing that is published");
    assert_eq!(node.published_of("shop", |_| true).await.version(), third.version());
    node.stop().await;

    // Another folder of the published version needs its archive.
    let mut config = config;
    config.services[0].folder = "templates".parse().unwrap();
    let node = home.start(config).await;
    let folder = node.published_of("shop", |now| now.publication().digest != third.publication().digest).await;
    assert_eq!(names(&node.tarball(&folder).await), ["map.yaml"]);
    assert!(charts.answers().contains(&"200 /shop-1.3.0.tgz".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn one_bad_chart_stops_no_other_service_of_its_repository() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    charts.publish("out", "1.0.0", &[("out/Chart.yaml", b"x"), ("out/../../x", b"x")]);
    charts.publish("bomb", "1.0.0", &[("bomb/zeros", &vec![0; 3 << 20])]);
    charts.publish("large", "1.0.0", &[("large/zeros", &vec![0; 600 << 10])]);
    charts.publish("loose", "1.0.0", &[("Chart.yaml", b"x")]);
    charts.publish("stale", "1.0.0", &[("stale/Chart.yaml", b"x")]);
    let good = charts.entries.lock().unwrap().last().unwrap().2.clone();
    let wrong = "ab".repeat(32);
    charts.index("stale", "1.0.0", &wrong);
    charts.index("gone", "1.0.0", &wrong);
    charts.index("later", "2.0.0", &wrong);
    charts.index("busy", "1.0.0", &wrong);
    let bad = ["busy", "out", "bomb", "large", "loose", "stale", "gone", "later", "none"];
    let mut config = charts.config(&home, &[&bad[..], &["shop"]].concat());
    config.repositories[0].redirects = serde_json::from_value(json!(["127.0.0.1"])).unwrap();
    config.upstreams.max_unpacked = bytesize::ByteSize::mib(2);
    config.limits.max_file = bytesize::ByteSize::kib(500);
    let node = home.start(config).await;
    node.published_of("shop", |_| true).await;
    for (service, reason) in [
        ("busy", "[fetch] chart `busy` 1.0.0 cannot be fetched: ".to_owned()),
        ("out", "[fetch] chart `out` 1.0.0 has the member `out/../../x`, which leads out of it".to_owned()),
        ("bomb", "[fetch] chart `bomb` 1.0.0 has the file `bomb/zeros` of 3145728 bytes".to_owned()),
        (
            "large",
            "[fetch] chart `large` 1.0.0 has the file `large/zeros` of 614400 bytes, more than `[limits]".to_owned(),
        ),
        ("loose", "has `Chart.yaml` outside of its folder: package it with `helm package`".to_owned()),
        (
            "stale",
            format!("has the SHA-256 digest `{good}`, but the index says `{wrong}`: publish it again, or repair"),
        ),
        ("gone", "[fetch] chart `gone` 1.0.0 is in the index, but not at its URL: it answered 404".to_owned()),
        ("later", "[resolve] no version of chart `later` in `semver:^1`: 1 version; highest `2.0.0`".to_owned()),
        ("none", "[resolve] the index has no chart `none`".to_owned()),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.contains(&reason), "{shown} / {reason}");
    }
    let healthy = node.repository(|state| state.applied_polls > 0).await;
    assert!(matches!(healthy.health, Health::Healthy { .. }), "{healthy:?}");
    charts.answers();
    node.poll().await;
    // Those that may be mended without another index are downloaded again after a back-off of seconds.
    let again = |answer: &String| answer.ends_with(".tgz") && !answer.contains("/stale") && !answer.contains("/gone");
    let answers = charts.answers();
    assert!(!answers.iter().any(again) && answers[0] == "304 /index.yaml", "{answers:?}");

    charts.index("stale", "1.0.0", &good);
    publish(&charts, "1.0.1", "a: 2");
    node.poll().await;
    node.published_of("stale", |_| true).await;
    node.published_of("shop", is_version("1.0.1")).await;
    assert_eq!(node.metric("weir_origin_archives_fetched_total{result=\"fetched\"}").await, 3.0);
    node.stop().await;
}

#[tokio::test]
async fn a_lost_object_is_rebuilt_of_an_archive_that_is_fetched_for_it() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    let config = charts.config(&home, &["shop"]);
    let node = home.start(config.clone()).await;
    let published = node.published_of("shop", |_| true).await;
    node.stop().await;
    fs::remove_file(home.object(&object_of(&published))).unwrap();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    charts.answers();
    until(async || {
        let answer = node.try_request(Method::GET, &object_path(&object_of(&published)), &[]).await;
        answer.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    let fetched = || charts.answers().into_iter().filter(|answer| answer.ends_with(".tgz")).count();
    assert_eq!(fetched(), 1, "once for all requests");

    // An unpacked archive that is damaged is fetched again.
    let mirrors = fs::read_dir(home.file("data/mirrors/shop")).unwrap();
    for spool in mirrors.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap()) {
        fs::write(spool.unwrap().path(), "damaged").unwrap();
    }
    fs::remove_file(home.object(&object_of(&published))).unwrap();
    until(async || {
        let answer = node.try_request(Method::GET, &object_path(&object_of(&published)), &[]).await;
        answer.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    assert_eq!(fetched(), 1);
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), published.bytes());
    node.stop().await;
}
