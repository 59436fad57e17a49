//! Through a proxy: a small one that knows CONNECT.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{Method, Version};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use weir_agent::doctor::{Verdict, doctor};

use crate::agent_under_test::{Agent, World, shop};
use crate::tarball::with_content;

/// The first line of a request, and its authorization.
type Tunnel = (String, Option<String>);

/// A proxy that opens tunnels for those who know its password, to one address whatever the name.
struct Proxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Tunnel>>>,
    _task: JoinSet<()>,
}

impl Proxy {
    async fn start(to: SocketAddr, authorization: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let (seen, mut task) = (requests.clone(), JoinSet::new());
        task.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let seen = seen.clone();
                tunnels.spawn(async move {
                    let mut client = BufReader::new(client);
                    let mut lines = Vec::new();
                    loop {
                        let mut line = String::new();
                        if client.read_line(&mut line).await.unwrap_or(0) == 0 {
                            return;
                        }
                        match line.trim_end() {
                            "" => break,
                            line => lines.push(line.to_owned()),
                        }
                    }
                    let found = lines.iter().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
                    let is_known = found == Some(authorization);
                    seen.lock().expect("no panic").push((lines[0].clone(), found.map(str::to_owned)));
                    let status = if is_known { "200 OK" } else { "407 Proxy Authentication Required" };
                    let _ = client.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
                    if is_known && let Ok(mut edge) = TcpStream::connect(to).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut edge).await;
                    }
                });
            }
        });
        Self { address, requests, _task: task }
    }

    fn requests(&self) -> Vec<Tunnel> {
        self.requests.lock().expect("no panic").clone()
    }
}

#[tokio::test]
async fn an_agent_reaches_its_edge_through_a_proxy_and_no_text_has_the_password() {
    let world = World::new();
    // Nobody but the proxy knows this name.
    weir_runtime::certificates::write(world.path(), &["edge.invalid".to_owned()]).unwrap();
    let edge = world.edge().await;
    edge.answers.publish(&shop(), with_content("one"));
    // user:s3cret
    let proxy = Proxy::start(edge.address, "Basic dXNlcjpzM2NyZXQ=").await;
    let port = edge.address.port();
    let mut config = world.config(&[format!("https://edge.invalid:{port}")]);
    config.proxy = Some(format!("http://user:s3cret@{}", proxy.address).parse().unwrap());
    let agent = Agent::with_release(config.clone()).await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
    let requests = proxy.requests();
    let tunnel = format!("CONNECT edge.invalid:{port} HTTP/1.1");
    assert!(requests.iter().all(|(line, _)| *line == tunnel) && !requests.is_empty(), "{requests:?}");
    assert!(edge.answers.count(&Method::GET, Version::HTTP_2) > 0);
    assert!(edge.answers.seen().iter().all(|seen| seen.version == Version::HTTP_2));
    assert_eq!(agent.metric_if_any("weir_agent_http3_usable", &[]), None);
    agent.stop().await;

    let report = doctor(&config).await;
    assert!(!report.has_failed(), "{report}");
    let udp = report.findings.iter().find(|finding| finding.check == "udp").unwrap();
    assert!(udp.verdict == Verdict::Ok && udp.message.contains("`proxy`"), "{report}");
    assert!(!report.to_string().contains("s3cret") && !format!("{config:?}").contains("s3cret"), "{report}");

    config.proxy = Some(format!("http://user:wr0ng@{}", proxy.address).parse().unwrap());
    let mut agent = Agent::start(config).await;
    // Of the requests that share a connection, the one that opens it learns the reason.
    let told = |error: &String| error.contains("the proxy requires a user and a password");
    let status =
        agent.until("the proxy's reason is known", |status| status.last_error.as_ref().is_some_and(told)).await;
    assert!(!status.last_error.as_ref().unwrap().contains("wr0ng"), "{status:?}");
    agent.stop().await;
}
