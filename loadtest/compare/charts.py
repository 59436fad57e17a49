#!/usr/bin/env python3
"""What following 200 charts of a Helm repository costs an origin, beside `helm repo update` and `helm pull` of the same index.

loadtest/compare/charts.py [VERSIONS]: the versions of each chart (default 108: an index of 20 MiB). BIN is where weir and weir-origin are,
if not target/release; HELM is helm, if not on the path. The index is read once with one version of each chart and once with all: the
difference is what the index costs. Then a restart, and one with a new version of one chart.
"""
import gzip, hashlib, http.server, io, json, os, pathlib, re, resource, shutil, socket, subprocess, sys, tarfile, tempfile, threading, time, urllib.request

CHARTS = 200
root = pathlib.Path(__file__).resolve().parents[2]
bin_ = pathlib.Path(os.environ.get("BIN", root / "target/release"))
helm = os.environ.get("HELM", "helm")
versions = int(sys.argv[1]) if len(sys.argv) > 1 else 108
work = pathlib.Path(tempfile.mkdtemp())
site = work / "site"
site.mkdir()
requests = []


class Server(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args):
        super().__init__(*args, directory=site)

    def log_request(self, code="-", size="-"):
        requests.append((int(code), self.path))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def archive(chart, version):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        files = {"Chart.yaml": f"apiVersion: v2\nname: {chart}\nversion: {version}\n", "templates/one.yaml": f"version: {version}\n"}
        files |= {f"templates/{n}.yaml": f"# {n}\n" * 200 for n in range(20)}
        for name, text in files.items():
            info = tarfile.TarInfo(f"{chart}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def write_index(count, newest):
    """`count` versions of each chart; the last one of chart 0 is `newest`."""
    with open(site / "new", "w") as out:
        out.write("apiVersion: v1\nentries:\n")
        for chart in range(CHARTS):
            out.write(f"  chart-{chart}:\n")
            for number in reversed(range(count)):
                version = newest if chart == 0 and number == count - 1 else f"1.{number}.0"
                name = f"chart-{chart}-{version}.tgz"
                digest = hashlib.sha256(f"{chart} {version}".encode()).hexdigest()
                if number == count - 1:
                    bytes_ = archive(f"chart-{chart}", version)
                    (site / name).write_bytes(bytes_)
                    digest = hashlib.sha256(bytes_).hexdigest()
                words = " ".join(f"word{n}" for n in range(90))
                out.write(f"  - apiVersion: v2\n    appVersion: {version}\n    created: \"2026-01-02T03:04:05.123456789Z\"\n"
                          f"    description: '{words}'\n    digest: {digest}\n    keywords: [a, b, c]\n    maintainers:\n"
                          f"    - email: somebody@example.org\n      name: somebody\n    name: chart-{chart}\n"
                          f"    urls:\n    - {name}\n    version: {version}\n")
        out.write('generated: "2026-01-02T03:04:05.123456789Z"\n')
    os.utime(site / "new", (time.time() + 10 * write_index.calls,) * 2)
    write_index.calls += 1
    os.replace(site / "new", site / "index.yaml")


write_index.calls = 0


class Origin:
    def __init__(self, name, url):
        self.listen, self.admin = free_port(), free_port()
        services = "\n".join(f'[[service]]\nname = "s{n}"\nrepository = "charts"\nchart = "chart-{n}"' for n in range(CHARTS))
        self.config = work / f"{name}.toml"
        tls = 'tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }'
        self.config.write_text(f'{tls}\nname = "origin-1"\nlisten = "127.0.0.1:{self.listen}"\nadmin_listen = "127.0.0.1:{self.admin}"\n'
                               f'data_dir = "{work}/{name}"\n[[repository]]\nname = "charts"\nkind = "helm"\nurl = "{url}"\n'
                               f'poll_interval = "1h"\n{services}\n')
        self.start()

    def start(self):
        self.begun = time.monotonic()
        self.process = subprocess.Popen([bin_ / "weir-origin", "--config", self.config], env=os.environ | {"WEIR_LOG": "warn"})

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def memory(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def processor(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def wait(self, what):
        while not what():
            assert self.process.poll() is None, "the origin ended"
            time.sleep(0.05)


def published(origin):
    def ready():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{origin.admin}/readyz").status == 200
        except OSError:
            return False
    return ready


def seen(code, path):
    return sum(1 for request in requests if request == (code, path))


try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    subprocess.run([bin_ / "weir", "certificates", "--out", work], check=True, stdout=subprocess.DEVNULL)
    result = {}
    for name, count in [("one version each", 1), ("all versions", versions)]:
        write_index(count, f"1.{count - 1}.0")
        requests.clear()
        origin = Origin(name.split()[0], url)
        origin.wait(published(origin))
        result[name] = {"index, MiB": round((site / "index.yaml").stat().st_size / 2**20, 1), "seconds": round(time.monotonic() - origin.begun, 2),
                        "processor, s": origin.processor(), "peak memory, MiB": round(origin.memory(), 1),
                        "archives": sum(1 for _, path in requests if path.endswith(".tgz"))}
        origin.stop()
    for name in ["a restart", "a new version of one chart"]:
        if name != "a restart":
            write_index(versions, f"2.0.0")
        requests.clear()
        origin.start()
        origin.wait(lambda: seen(200, "/index.yaml"))
        origin.wait(published(origin))
        if name != "a restart":
            origin.wait(lambda: seen(200, "/chart-0-2.0.0.tgz"))
        result[name] = {"requests": sorted({request: requests.count(request) for request in requests}.items())}
        origin.stop()
    if shutil.which(helm):
        env = os.environ | {f"HELM_{part}_HOME": str(work / f"helm-{part.lower()}") for part in ["CACHE", "CONFIG", "DATA"]}
        run = lambda *args: subprocess.run([helm, *args], env=env, check=True, stdout=subprocess.DEVNULL, cwd=work)
        run("repo", "add", "charts", url)
        for name, args in [("helm repo update", ["repo", "update"]), ("helm pull", ["pull", "charts/chart-7"])]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begun = time.monotonic()
            run(*args)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            result[name] = {"seconds": round(time.monotonic() - begun, 2), "processor, s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
                            "peak memory of all children so far, MiB": after.ru_maxrss // 1024}
    print(json.dumps(result, indent=1))
finally:
    shutil.rmtree(work, ignore_errors=True)
