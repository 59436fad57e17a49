#!/usr/bin/env python3
"""Upgrades a running hub from one release to another and back, under load, in both orders:

    loadtest/upgrade/run.py OLD NEW [ORIGINS]

OLD, NEW: folders with weir, weir-origin, weir-edge and weir-agent. An origin, two edges and two agents whose services are assigned
start as OLD. One after the other is stopped, and started as NEW with the same folders, first the origin and then the edges, and then
the same with the edges first; the agents are last. Then all go back in the same order. Meanwhile a commit comes every second, and
clients read from the edges. After each step a new commit must reach both agents; a request fails if no edge answers it.

Then the same with three origins that share a bucket and six repositories (ORIGINS: 1 or 3, for one of the two alone). The origins are
replaced one by one: the others must own all repositories before one starts again, and in the end each must own some. An operator
changes the document of an agent at each origin that has been replaced. Needs git, and moto_server for the bucket.
"""
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[2]
ORDERS = [["origin", "edges", "agents"], ["edges", "origin", "agents"]]
READERS = 4
REPOSITORIES = {1: 1, 3: 6}  # by origins


def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)


class Node:
    def __init__(self, hub, role, name, config):
        self.hub, self.role, self.name = hub, role, name
        self.admin = port()
        self.folder = hub.folder / name
        self.folder.mkdir()
        self.file = self.folder / f"{role}.toml"
        self.file.write_text(f'admin_listen = "127.0.0.1:{self.admin}"\n' + config.replace("DATA", str(self.folder / "data")))
        self.process = None

    def start(self, binaries):
        with (self.folder / "log").open("a") as log:
            command = [binaries / f"weir-{self.role}", "--config", self.file]
            env = {"WEIR_EDGE_NAME": self.name, "PATH": "/usr/bin:/bin"}
            self.process = subprocess.Popen(command, cwd=self.hub.made, env=env, stdout=log, stderr=log)
        wait_for(f"{self.name} is ready", self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, f"{self.name} has ended"
        return self.ask("readyz") is not None

    def ask(self, path):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/{path}", timeout=5).read()
        except OSError:
            return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert status == 0, f"{self.name} ended with {status}"

    def owned(self):
        """The repositories that this origin of a cluster owns."""
        status = json.loads(self.ask("status") or "{}")
        return {each["repository"] for each in status.get("cluster", {}).get("owned", [])}


class Bucket:
    """The store that several origins share."""

    def __init__(self, folder):
        self.at, self.key = port(), folder / "bucket.key"
        self.key.write_text("key")
        self.key.chmod(0o600)
        log = (folder / "moto.log").open("w")
        # What the tests of the store change in moto: of writers that race one wins.
        env = {**os.environ, "PYTHONPATH": str(TOP / "origin/store/tests/moto"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(["moto_server", "-H", "127.0.0.1", "-p", str(self.at)], env=env, stdout=log, stderr=log)
        wait_for("the bucket is created", self.is_created)

    def is_created(self):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.at}/weir", method="PUT")
            return urllib.request.urlopen(request, timeout=5).status == 200
        except OSError:
            return False

    def config(self, at):
        return f"""
[store]
url = "s3://weir/upgrade"
endpoint = "http://127.0.0.1:{self.at}"
allow_http = true
access_key_id_file = "{self.key}"
secret_access_key_file = "{self.key}"
[cluster]
engine = "bucket"
advertise = "https://127.0.0.1:{at}"
"""


class Hub:
    def __init__(self, folder, tools, origins):
        self.folder, self.made = folder, folder / "made"
        self.repositories = [f"shop-{n}" for n in range(REPOSITORIES[origins])]
        weir = tools / "weir"
        self.call(weir, "certificates", "--out", self.made)
        self.call(weir, "token", "key", "--out", self.made / "fleet.key")
        self.call(weir, "token", "issue", "--key", self.made / "fleet.key", "--subject", "reader", "--service", "*", "--out", self.made / "reader.token")
        self.token = self.made / "operator.token"
        self.token.write_text("the-token-of-the-operator")
        self.token.chmod(0o600)
        for name in self.repositories:
            self.call("git", "init", "--quiet", "-b", "main", folder / name)
        self.version, self.lock = 0, threading.Lock()
        self.commit()
        ports, self.edge_ports = [port() for _ in range(origins)], [port(), port()]
        self.bucket = Bucket(folder) if origins > 1 else None
        self.origins = [Node(self, "origin", f"origin-{n}", self.config_of_origin(n, at)) for n, at in enumerate(ports)]
        self.edges = [Node(self, "edge", f"edge-{n}", self.config_of_edge(at, ports[:2])) for n, at in enumerate(self.edge_ports)]
        self.agents = [Node(self, "agent", f"agent-{n}", self.config_of_agent(n, weir)) for n in range(2)]
        self.nodes = {"origin": self.origins, "edges": self.edges, "agents": self.agents}
        self.requests, self.failed, self.ended = 0, [], threading.Event()
        self.moved, self.changes, self.refused = 0, 0, []

    def call(self, *command):
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def config_of_origin(self, n, at):
        repositories = [f'{{ name = "{name}", url = "{self.folder / name}", poll_interval = "1s" }}' for name in self.repositories]
        services = [f'{{ name = "{name}", repository = "{name}" }}' for name in self.repositories]
        return f"""name = "origin-{n}"
listen = "127.0.0.1:{at}"
data_dir = "DATA"
tls = {{ certificate = "{self.made}/origin.pem", key = "{self.made}/origin.key", client_ca = "{self.made}/ca.pem" }}
limits = {{ requests_per_minute_per_host = 1200 }}
repository = [{", ".join(repositories)}]
service = [{", ".join(services)}]
agent = [{{ name = "agent-0", labels = {{ ring = "a" }} }}, {{ name = "agent-1", labels = {{ ring = "a" }} }}]
assignment = [{{ name = "all", agents = "agent-*", labels = {{ ring = "a" }}, services = ["shop-*"] }}]
operator_listen = "127.0.0.1:{port()}"
operator_api = {{ operator_token_file = "{self.token}" }}
""" + (self.bucket.config(at) if self.bucket else "")

    def config_of_edge(self, at, origins):
        return f"""listen = "127.0.0.1:{at}"
tls = {{ certificate = "{self.made}/edge.pem", key = "{self.made}/edge.key" }}
auth = {{ mode = "required", keys = ["{self.made}/fleet.key.pub"], keys_from_origins = true }}
cache = {{ dir = "DATA", disk = "256MiB", memory = "64MiB" }}
""" + "".join(f"""[[origin]]
url = "https://127.0.0.1:{origin}"
ca = "{self.made}/ca.pem"
client_certificate = "{self.made}/edge-client.pem"
client_key = "{self.made}/edge-client.key"
""" for origin in origins)

    def config_of_agent(self, n, weir):
        token = self.made / f"agent-{n}.token"
        self.call(weir, "token", "issue", "--key", self.made / "fleet.key", "--subject", f"agent-{n}", "--service", "*", "--out", token)
        edges = [f"https://127.0.0.1:{at}" for at in self.edge_ports]
        return f"""name = "agent-{n}"
edges = {json.dumps(edges)}
ca = "{self.made}/ca.pem"
token_file = "{token}"
root = "DATA"
poll_interval = "2s"
services = "assigned"
"""

    def commit(self):
        with self.lock:
            self.version += 1
            for name in self.repositories:
                repository = self.folder / name
                (repository / "version").write_text(str(self.version))
                git = ["git", "-C", repository, "-c", "user.name=try", "-c", "user.email=try@weir.example"]
                self.call(*git, "add", ".")
                self.call(*git, "commit", "--quiet", "--message", self.version)
            return self.version

    def has(self, agent, version):
        try:
            found = [(agent.folder / "data" / name / "current/version").read_text() for name in self.repositories]
            return all(int(each) >= version for each in found)
        except (OSError, ValueError):
            return False

    def arrives(self):
        """How long a commit takes to both agents."""
        version, began = self.commit(), time.monotonic()
        wait_for(f"both agents have version {version}", lambda: all(self.has(agent, version) for agent in self.agents))
        return time.monotonic() - began

    def load(self):
        while not self.ended.wait(1):
            self.commit()

    def read(self):
        context = ssl.create_default_context(cafile=self.made / "ca.pem")
        headers = {"Authorization": f"Bearer {(self.made / 'reader.token').read_text().strip()}"}
        while not self.ended.wait(0.02):
            errors = []
            for at in self.edge_ports:
                try:
                    request = urllib.request.Request(f"https://localhost:{at}/v1/services/shop-0", headers=headers)
                    urllib.request.urlopen(request, timeout=5, context=context).read()
                    break
                except OSError as error:
                    errors.append(f"{at}: {error}")
            self.requests += 1
            if len(errors) == len(self.edge_ports):
                self.failed.append(f"{time.strftime('%H:%M:%S')} {errors}")

    def step(self, roles, name, binaries):
        for node in self.nodes[roles]:
            began = time.monotonic()
            owned = node.owned()
            node.stop()
            if self.bucket and roles == "origin":
                others = [each for each in self.origins if each is not node]
                wait_for("the others own all repositories", lambda: set(self.repositories) <= set().union(*(each.owned() for each in others)))
                self.moved += len(owned)
            moved = f"; the others owned its {len(owned)} repositories after {time.monotonic() - began:.1f} s" if owned else ""
            node.start(binaries)
            if roles == "origin":
                self.change(node)
            print(f"  {node.name}: {name}{moved}; the next commit was at both agents after {self.arrives():.1f} s", flush=True)
        if self.bucket and roles == "origin":
            # Owners begin to hand over a minute after the last change of the members.
            wait_for("each origin owns a repository", lambda: all(each.owned() for each in self.origins), 180)

    def change(self, origin):
        """Defines an agent that is not there, at an origin that has just been replaced."""
        self.changes += 1
        at = re.search('operator_listen = "([^"]+)"', origin.file.read_text())[1]
        headers = {"Authorization": f"Bearer {self.token.read_text()}", "Content-Type": "application/json"}
        body = json.dumps({"labels": {"change": str(self.changes)}}).encode()
        context = ssl.create_default_context(cafile=self.made / "ca.pem")

        def ask(method, body=None):
            request = urllib.request.Request(f"https://{at}/v1/agents/absent", body, headers, method=method)
            return json.loads(urllib.request.urlopen(request, timeout=10, context=context).read())

        def is_accepted():
            try:
                ask("PUT", body)
                return ask("GET")["labels"] == {"change": str(self.changes)}
            except OSError as error:
                self.refused.append(f"{origin.name}: {error}")
                return False

        wait_for(f"{origin.name} takes a change", is_accepted)

    def run(self, old, new, order):
        for node in [*self.origins, *self.edges, *self.agents]:
            node.start(old)
        self.arrives()
        threads = [threading.Thread(target=self.load), *[threading.Thread(target=self.read) for _ in range(READERS)]]
        for thread in threads:
            thread.start()
        try:
            for name, binaries in [("new", new), ("old", old)]:
                for roles in order:
                    self.step(roles, name, binaries)
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()
        print(f"  {self.version} commits, {self.requests} requests, of which no edge answered {len(self.failed)}; "
              f"{self.moved} repositories moved; {self.changes} changes, refused {len(self.refused)} times {self.refused[-1:]}")
        assert not self.failed, "\n".join(self.failed[:10])
        assert not self.bucket or self.moved, "no repository moved"

    def stop(self):
        for node in [*self.agents, *self.edges, *self.origins]:
            if node.process and node.process.poll() is None:
                node.process.terminate()
                node.process.wait(60)
        if self.bucket:
            self.bucket.process.terminate()
            self.bucket.process.wait(60)


def main(old, new, *origins):
    old, new = pathlib.Path(old).resolve(), pathlib.Path(new).resolve()
    for origins, order in itertools.product(map(int, origins or REPOSITORIES), ORDERS):
        print(f"{', '.join(order)}; origins: {origins}", flush=True)
        folder = pathlib.Path(tempfile.mkdtemp())
        hub = Hub(folder, old, origins)
        try:
            hub.run(old, new, order)
        except BaseException:
            if kept := os.environ.get("WEIR_KEEP_LOGS"):
                shutil.copytree(folder, kept, symlinks=True)
            for log in sorted(folder.glob("*/log")):
                print(f"== {log}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            hub.stop()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
