"""Runs what compose.yaml says as processes, each with a network, a root and a host name of its own:

    unshare --net --mount --pid --fork --mount-proc python processes.py BINARIES FOLDER

It ends when both agents have two releases, the second without the origin that published the first, and when Prometheus has
what the dashboards show. moto has the place of MinIO; Grafana is not run. FOLDER is empty, and has mounts of the machine's
folders meanwhile: only what left the namespaces may remove it.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import yaml

HERE = pathlib.Path(__file__).resolve().parent
NETWORK = "10.89.0"
PROMETHEUS = ["/usr/bin/prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp"]
ROLES = ["origin", "edge", "agent"]


def ok(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def bind(source, target, read_only):
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    ok("mount", "--bind", source, target)
    if read_only:
        ok("mount", "--options", "remount,bind,ro", target)


def wait_for(what, condition):
    """Until the condition is true, which may fail meanwhile."""
    until = time.monotonic() + 120
    while True:
        try:
            if found := condition():
                return found
        except (OSError, KeyError):
            pass
        assert time.monotonic() < until, f"not within two minutes: {what}"
        time.sleep(0.5)


class Hub:
    def __init__(self, binaries, folder):
        self.binaries, self.folder = binaries, folder
        self.services = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(self.services, 2)}
        self.running = {}

    def network(self):
        """A bridge, and a network for each service. The machine has others, and sees nothing of these."""
        os.makedirs("/run/netns", exist_ok=True)
        ok("mount", "-t", "tmpfs", "none", "/run/netns")
        ok("ip", "link", "set", "lo", "up")
        ok("ip", "link", "add", "weir", "type", "bridge")
        ok("ip", "address", "add", f"{NETWORK}.1/24", "dev", "weir")
        ok("ip", "link", "set", "weir", "up")
        for number, (name, address) in enumerate(self.addresses.items()):
            ok("ip", "netns", "add", name)
            ok("ip", "link", "add", f"weir{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ok("ip", "link", "set", f"weir{number}", "master", "weir", "up")
            ok("ip", "-netns", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ["lo", "eth0"]:
                ok("ip", "-netns", name, "link", "set", device, "up")

    def root(self, name):
        """The root of a service: programs of this machine, its volumes, and the names of all services."""
        root = self.folder / "roots" / name
        if root.exists():
            return root
        for path in ["/usr", "/etc/ssl", "/dev", "/proc"]:
            bind(pathlib.Path(path), root / path[1:], read_only=path in ["/usr", "/etc/ssl"])
        bind(self.binaries, root / "opt", read_only=True)
        for path in ["bin", "sbin", "lib", "lib64"]:
            (root / path).symlink_to(f"usr/{path}")
        (root / "tmp").mkdir()
        for path in ["/etc/passwd", "/etc/group"]:
            shutil.copy(path, root / "etc")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{at} {host}\n" for host, at in self.addresses.items()))
        for volume in self.services[name]["volumes"]:
            # Of `${VARIABLE:-default}` the variable or the default.
            volume = re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: os.environ.get(found[1], found[2]), volume)
            source, target, *options = volume.split(":")
            is_path = source.startswith((".", "/"))
            source = HERE / source if is_path else self.folder / "volumes" / source
            if not is_path:
                source.mkdir(parents=True, exist_ok=True)
            bind(source.resolve(), root / target[1:], options == ["ro"])
        return root

    def start(self, name, *arguments):
        service = self.services[name]
        role = service["image"].removeprefix("weir-")
        command = PROMETHEUS
        if "entrypoint" in service:
            command = [*service["entrypoint"], *service.get("command", []), *arguments]
        elif role in ROLES:
            command = [f"/opt/weir-{role}"]
        environment = {"PATH": "/opt:/usr/sbin:/usr/bin", "WEIR_CONFIG": f"/etc/weir/{role}.toml", **service.get("environment", {})}
        self.spawn(name, self.inside(name, *[text.replace("$$", "$") for text in command]), environment)
        return self.running[name]

    def inside(self, name, *command):
        """In the root of a service, with its host name."""
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.services[name].get("hostname", name)]
        return ["unshare", "--uts", "chroot", self.root(name), *named, *command]

    def spawn(self, name, command, environment):
        with (self.folder / f"{name}.log").open("w") as log:
            command = ["ip", "netns", "exec", name, *command]
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def run(self, name, *arguments):
        """Runs a service to its end, and returns what it printed."""
        assert self.start(name, *arguments).wait() == 0, self.log(name)
        return self.log(name)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def bucket(self):
        # What the tests of the store change in moto: of writers that race one wins.
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "origin/store/tests/moto"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.spawn("bucket", ["moto_server", "-H", "0.0.0.0", "-p", "9000"], environment)
        name = urllib.request.Request(f"http://{self.addresses['bucket']}:9000/weir", method="PUT")
        wait_for("a bucket", lambda: urllib.request.urlopen(name))

    def query(self, expression):
        address = f"http://{self.addresses['prometheus']}:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.load(urllib.request.urlopen(address))["data"]["result"]


def commit(repository, text):
    (repository / "version").write_text(text)
    git = ["git", "-C", repository, "-c", "user.name=try", "-c", "user.email=try@weir.example"]
    ok(*git, "add", ".")
    ok(*git, "commit", "--quiet", "--message", text)


def expressions(dashboard):
    """The queries of a dashboard, with values in place of its variables."""
    panels = json.loads(dashboard.read_text())["panels"]
    panels += [inner for panel in panels for inner in panel.get("panels", [])]
    for panel in panels:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "5m").replace("$__interval", "1m")
            yield re.sub(r"\$\{?\w+(:\w+)?\}?", ".*", text)


def check_dashboards(hub):
    for dashboard in sorted((HERE.parent / "grafana").iterdir()):
        found = [bool(hub.query(expression)) for expression in expressions(dashboard)]
        # Rates need more time, and what counts failures has nothing to count.
        assert sum(found) > len(found) / 3, f"{dashboard.name}: {sum(found)} of {len(found)} queries have an answer"
        print(f"{dashboard.name}: {sum(found)} of {len(found)} queries have an answer")


def check_grafana(services):
    """What it reads is mounted, its source is the Prometheus of the file, and its dashboards are those of deploy/grafana."""
    grafana = services["grafana"]
    mounted = {target: HERE / source for source, target, _ in (volume.split(":") for volume in grafana["volumes"])}
    (source,) = yaml.safe_load(mounted["/etc/grafana/provisioning/datasources/weir.yaml"].read_text())["datasources"]
    address = urllib.parse.urlsplit(source["url"])
    assert f"127.0.0.1:{address.port}:{address.port}" in services[address.hostname]["ports"], source
    (provider,) = yaml.safe_load(mounted["/etc/grafana/provisioning/dashboards/weir.yaml"].read_text())["providers"]
    dashboards = mounted[provider["options"]["path"]]
    home = pathlib.PurePosixPath(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"] and (dashboards / home.name).is_file(), home


def main(binaries, folder):
    hub = Hub(pathlib.Path(binaries).resolve(), pathlib.Path(folder).resolve())
    check_grafana(hub.services)
    repository = hub.folder / "repository"
    ok("git", "init", "--quiet", "-b", "main", repository)
    os.environ["WEIR_REPOSITORY"] = str(repository)
    commit(repository, "one")
    hub.network()
    hub.run("certificates")
    hub.bucket()
    roles = [name for name in hub.services if name.rsplit("-")[0] in ROLES]
    for name in [*roles, "prometheus"]:
        hub.start(name)
    try:
        follow(hub, repository, roles)
    except BaseException:
        for name in hub.running:
            print(f"== {name}\n{hub.log(name)[-1500:]}", file=sys.stderr)
        raise


def follow(hub, repository, roles):
    agents = [name for name in roles if name.startswith("agent")]

    def have(text):
        return all((hub.folder / f"volumes/{name}/shop/current/version").read_text() == text for name in agents)

    wait_for("both agents have version one", lambda: have("one"))
    wait_for("each edge follows three origins", lambda: all(hub.log(f"edge-{n}").count("is in sync") >= 3 for n in [1, 2]))
    wait_for("operators see both agents", lambda: all(name in hub.run("weir", "fleet") for name in agents))
    # docs/how-to/cluster-behind.md
    for name in roles:
        role = name.rsplit("-")[0]
        ok(*hub.inside(name, f"/opt/weir-{role}", "status", "--config", f"/etc/weir/{role}.toml"))
    for name in roles:
        if name.startswith("origin") and '"published"' in hub.log(name):
            hub.running[name].kill()
            gone = name
    commit(repository, "two")
    wait_for("both agents have version two", lambda: have("two"))
    print(f"{' and '.join(agents)} have two releases, the second without {gone}")
    others = set(roles) - {gone}
    wait_for("Prometheus reads all others", lambda: {row["metric"]["instance"].split(":")[0] for row in hub.query("up == 1")} == others)
    check_dashboards(hub)


if __name__ == "__main__":
    main(*sys.argv[1:])
