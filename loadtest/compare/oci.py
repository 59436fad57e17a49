#!/usr/bin/env python3
"""What clients of registries cost an edge, beside nginx with the same bytes and Debian's docker-registry, in one run; and what `oci` costs
an origin.

loadtest/compare/oci.py serve: HEAD and GET of a manifest, and blobs of 1 MB and 50 MB, over HTTP/2 with TLS 1.3; then polls with
a token, beside the poll of Weir's agents. Each server has core 0 while it is measured, the load core 1; ROUNDS rounds (3) of SECONDS (1).
loadtest/compare/oci.py build REPOSITORY: the repository that the example `synthetic_repository` made, as one service: the first build
and a commit that touches one file, without gzip, with it, and with `oci`.

BIN is where the binaries are, if not target/release; WORK is a folder on the disk to measure on; NGINX_COMMAND and NGINX_ROOT are those of
servers.sh. On a busy machine begin with `chrt -r 1`. Needs git, taskset, and for `serve` h2load (Debian's nghttp2-client), nginx and docker-registry."""

import base64, hashlib, json, os, pathlib, re, shutil, ssl, statistics, subprocess, sys, tempfile, time, urllib.request

import frames
from frames import BIN, TICKS, Process, clone, commit, free_port, git, read, rev, until

ROUNDS = int(os.environ.get("ROUNDS", 3))
SECONDS = float(os.environ.get("SECONDS", 1))
SIZES = [1_000_000, 50_000_000]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ACCEPT = f"accept: {MANIFEST}, application/vnd.oci.image.index.v1+json"


class Server:
    """A process on core 0. What works is the process itself, or its only child."""

    def __init__(self, url, command, work, **environment):
        log = open(work / f"{pathlib.Path(command[0]).name}.log", "ab")
        self.url, self.process = url, subprocess.Popen(["taskset", "-c", "0", *command], cwd=work, stderr=log, stdout=log, env=os.environ | environment)
        self.all.append(self)

    all = []

    def seconds(self):
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = pathlib.Path(f"/proc/{(children or [pid])[0]}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def load(self, path, number, shape, headers, status):
        connections, streams = shape
        command = ["taskset", "-c", "1", "h2load", "-t1", "-n", number, "-c", min(connections, number), "-m", streams, "-w24", "-W24"]
        command += [word for header in headers for word in ("-H", header)] + [self.url + path]
        used = self.seconds()
        text = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
        used = self.seconds() - used
        if f"{number} succeeded" not in text or not re.search(rf"\b{number} {status}xx", text):
            sys.exit(f"{path} of {self.url}:\n{text}")
        took = re.search(r"finished in ([\d.]+)(us|ms|s)", text)
        return float(took[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[took[2]], used

    def measure(self, path, shape, *headers, status=2):
        """Requests in a second, and processor time for one."""
        number = max(4, shape[0] * shape[1])
        while (took := self.load(path, number, shape, headers, status)[0]) < SECONDS / 4:
            number = int(number * min(max(SECONDS / 2 / took, 2), 50))
        number = max(1, int(number * SECONDS / took))
        took, used = self.load(path, number, shape, headers, status)
        return number / took, used / number


class Registry:
    """Debian's docker-registry, with the manifest and the blobs of a repository at the edge."""

    def __init__(self, work, tls):
        self.url, self.tls = f"https://127.0.0.1:{(port := free_port())}", tls
        config = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(work / "registry")}, "cache": {"blobdescriptor": "inmemory"}},
            "http": {"addr": f"127.0.0.1:{port}", "secret": "one", "tls": {"certificate": str(work / "edge.pem"), "key": str(work / "edge.key")}},
        }
        (work / "registry.yml").write_text(json.dumps(config))
        self.server = Server(self.url, ["docker-registry", "serve", "registry.yml"], work, GOMAXPROCS="1")
        until("docker-registry answers", lambda: read(f"{self.url}/v2/", context=tls))

    def send(self, method, url, body=b"", **headers):
        return urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), context=self.tls)

    def push(self, name, manifest, blobs):
        for blob in blobs:
            with self.send("POST", f"{self.url}/v2/{name}/blobs/uploads/") as upload:
                location = upload.headers["location"]
            self.send("PUT", f"{location}&digest={digest(blob)}", blob, **{"content-type": "application/octet-stream"}).close()
        self.send("PUT", f"{self.url}/v2/{name}/manifests/latest", manifest, **{"content-type": MANIFEST}).close()


def digest(blob):
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def nginx(work, files):
    """nginx with these files by their paths, and with the field that a registry sends with each."""
    root = os.environ.get("NGINX_ROOT", "")
    site = pathlib.Path(tempfile.mkdtemp(dir=f"{root}/tmp"))
    inside = str(site).removeprefix(root)
    locations = ""
    for number, (path, (media_type, contents)) in enumerate(files.items()):
        (site / str(number)).write_bytes(contents)
        locations += f'location = {path} {{ alias {inside}/{number}; types {{}} default_type {media_type}; add_header docker-content-digest {digest(contents)}; }}\n'
    for name in ("edge.pem", "edge.key"):
        shutil.copy(work / name, site)
    port = free_port()
    (site / "nginx.conf").write_text(f"""
worker_processes 1; daemon off; user root; pid {inside}/pid; error_log {inside}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 100000000; keepalive_timeout 300s; open_file_cache max=100;
    ssl_certificate {inside}/edge.pem; ssl_certificate_key {inside}/edge.key; ssl_protocols TLSv1.3;
    server {{ listen 127.0.0.1:{port} ssl http2; {locations} }}
}}""")
    return site, Server(f"https://127.0.0.1:{port}", [*os.environ.get("NGINX_COMMAND", "nginx").split(), "-c", f"{inside}/nginx.conf"], work)


def edge(work, name, origin, auth):
    port, admin = free_port(), free_port()
    (work / f"{name}.toml").write_text(f"""
name = "{name}"
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ {auth} }}
cache = {{ dir = "cache-of-{name}" }}
freshness = {{ fresh = "1h" }}
origin = [{{ url = "https://127.0.0.1:{origin}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
""")
    return Server(f"https://127.0.0.1:{port}", [BIN / "weir-edge", "--config", f"{name}.toml"], work, TOKIO_WORKER_THREADS="1", WEIR_LOG="error")


def serve(work):
    run = lambda *command: subprocess.run(command, cwd=work, check=True, capture_output=True)
    run(BIN / "weir", "certificates", "--out", work)
    run(BIN / "weir", "token", "key", "--out", "fleet.key")
    run(BIN / "weir", "token", "issue", "--key", "fleet.key", "--subject", "cluster-1", "--service", "bytes-*", "--out", "token")
    token = (work / "token").read_text().strip()
    tls = ssl.create_default_context(cafile=work / "ca.pem")
    repository = work / "shop.git"
    run("git", "init", "-q", "--bare", repository)
    # Bytes that do not compress.
    head = commit(repository, None, [("100644", f"{size}/file", os.urandom(size)) for size in SIZES])
    git(repository, "update-ref", "refs/heads/main", head)
    services = "".join(f'[[service]]\nname = "bytes-{size}"\nrepository = "shop"\nref = "main"\nfolder = "{size}"\noci = true\n' for size in SIZES)
    listen = free_port()
    Process("weir-origin", work, f"""
name = "origin-1"
listen = "127.0.0.1:{listen}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
repository = [{{ name = "shop", url = "{repository}" }}]
{services}""")
    weir = edge(work, "edge-1", listen, 'mode = "open"')
    required = edge(work, "edge-2", listen, 'mode = "required", keys = ["fleet.key.pub"]')
    registry = Registry(work, tls)
    files = {}
    for size in SIZES:
        path = f"/v2/weir/bytes-{size}"
        manifest = until("the edge has a manifest", lambda: read(f"{weir.url}{path}/manifests/latest", context=tls)).encode()
        layer = json.loads(manifest)["layers"][0]["digest"]
        blob = urllib.request.urlopen(f"{weir.url}{path}/blobs/{layer}", context=tls).read()
        files |= {f"{path}/manifests/latest": (MANIFEST, manifest), f"{path}/blobs/{layer}": ("application/octet-stream", blob)}
        registry.push(f"weir/bytes-{size}", manifest, [blob, b"{}"])
    site, peer = nginx(work, files)
    until("nginx answers", lambda: read(peer.url + next(iter(files)), context=tls))
    try:
        requests(weir, peer, registry.server, [path for path in files])
        polls(required, token, f"/v2/weir/bytes-{SIZES[0]}/manifests/latest", f"/v1/services/bytes-{SIZES[0]}/tarball")
    finally:
        shutil.rmtree(site, ignore_errors=True)


def in_turn(measured):
    """The medians of all rounds."""
    taken = {what: [] for what in measured}
    for _ in range(ROUNDS):
        for what, measure in measured.items():
            taken[what].append(measure())
    return {what: [statistics.median(column) for column in zip(*rows)] for what, rows in taken.items()}, taken


def requests(weir, peer, registry, paths):
    manifest, small, _, large = paths
    kinds = {
        "HEAD of a manifest": (manifest, (4, 16), ":method: HEAD"),
        "GET of a manifest": (manifest, (4, 16)),
        "a blob of 1 MB": (small, (2, 4)),
        "a blob of 50 MB": (large, (1, 1)),
    }
    for what, (path, shape, *headers) in kinds.items():
        servers = {"edge": weir, "nginx": peer, "docker-registry": registry}
        medians, taken = in_turn({name: lambda server=server: server.measure(path, shape, ACCEPT, *headers) for name, server in servers.items()})
        rate, cost = medians["edge"]
        print(what)
        for name, (rate_of, cost_of) in medians.items():
            spread = [used * 1e6 for _, used in taken[name]]
            print(f"    {name:16} {rate_of:10,.1f} a second, {cost_of * 1e6:10,.1f} us of processor each ({min(spread):,.1f} to {max(spread):,.1f}); "
                  f"the edge: {rate / rate_of:.3g} of its rate, {cost / cost_of:.3g} of its processor time", flush=True)


def polls(weir, token, manifest, tarball):
    bearer = f"authorization: Bearer {token}"
    basic = "authorization: Basic " + base64.b64encode(f"weir:{token}".encode()).decode()
    head = subprocess.run(["curl", "-sSkI", "-H", bearer, weir.url + tarball], check=True, capture_output=True, text=True).stdout
    tag = re.search(r"(?im)^etag: (\S+)", head)[1]
    agent = ["accept-encoding: zstd", f"if-none-match: {tag}", bearer, ":method: HEAD"]
    kinds = {
        "HEAD of a tarball, 304, as agents": lambda: weir.measure(tarball, (4, 16), *agent, status=3),
        "HEAD of a manifest, Bearer": lambda: weir.measure(manifest, (4, 16), ACCEPT, bearer, ":method: HEAD"),
        "HEAD of a manifest, Basic": lambda: weir.measure(manifest, (4, 16), ACCEPT, basic, ":method: HEAD"),
    }
    medians, taken = in_turn(kinds)
    reference = medians[next(iter(kinds))][1]
    print("polls with a token")
    for what, (rate, cost) in medians.items():
        spread = [used * 1e6 for _, used in taken[what]]
        print(f"    {what:36} {rate:9,.0f} a second, {cost * 1e6:6.2f} us ({min(spread):.2f} to {max(spread):.2f}), {cost / reference:5.2f} of a poll of an agent")


def build(work, source):
    for key in ("", "gzip = true", "oci = true"):
        folder = work / (key[:4].strip() or "zstd")
        folder.mkdir()
        subprocess.run([BIN / "weir", "certificates", "--out", folder], check=True, stdout=subprocess.DEVNULL)
        repository = clone(source, folder)
        git(repository, "update-ref", "refs/heads/main", rev(source, "main"))
        origin = Process("weir-origin", folder, f"""
name = "origin-1"
listen = "127.0.0.1:{free_port()}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
repository = [{{ name = "shop", url = "{repository}", poll_interval = "1s" }}]
service = [{{ name = "shop", repository = "shop", ref = "main", {key} }}]
""")
        published = lambda: sum(map(int, re.findall(r"(?m)^weir_origin_publications_total (\d+)", read(f"{origin.admin}/metrics"))))
        stored = lambda: sum(file.stat().st_size for file in (folder / "origin-data/objects").rglob("*") if file.is_file())
        used = size = 0
        for number, what in [(1, "the first build, with the clone"), (2, "a commit of one file")]:
            began = time.monotonic()
            if number == 2:
                git(repository, "update-ref", "refs/heads/main", rev(source, "one-file"))
            until("the origin has published", lambda: published() >= number)
            took = time.monotonic() - began
            # What follows a publication.
            time.sleep(3)
            print(f"{key or 'zstd alone':12} {what:32} {origin.seconds() - used:6.2f} s of processor, {took:5.1f} s, {stored() - size:13,} bytes more", flush=True)
            used, size = origin.seconds(), stored()
        origin.stop()


def main():
    work = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("WORK")))
    try:
        {"serve": serve, "build": build}[sys.argv[1]](work, *sys.argv[2:])
    finally:
        for server in Server.all:
            server.process.terminate()
            server.process.wait()
        for process in [*Process.running]:
            process.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
