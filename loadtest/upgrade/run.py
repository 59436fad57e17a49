#!/usr/bin/env python3
"""Upgrades a running hub from one release to another and back, under load, in both orders:

    loadtest/upgrade/run.py OLD NEW

OLD, NEW: folders with weir, weir-origin, weir-edge and weir-agent. An origin, two edges and two agents whose services are assigned
start as OLD. One after the other is stopped, and started as NEW with the same folders, first the origin and then the edges, and then
the same with the edges first; the agents are last. Then all go back in the same order. Meanwhile a commit comes every second, and
clients read from the edges. After each step a new commit must reach both agents; a request fails if no edge answers it. Needs git.
"""
import json
import pathlib
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

ORDERS = [["origin", "edges", "agents"], ["edges", "origin", "agents"]]
READERS = 4


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
            self.process = subprocess.Popen(command, cwd=self.hub.made, env={"WEIR_EDGE_NAME": self.name, "PATH": "/usr/bin:/bin"}, stdout=log, stderr=log)
        wait_for(f"{self.name} is ready", self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, f"{self.name} has ended"
        return self.ask("readyz") is not None

    def ask(self, path):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/{path}", timeout=5).read()
        except OSError:
            return None

    def replace(self, binaries):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert status == 0, f"{self.name} ended with {status}"
        self.start(binaries)


class Hub:
    def __init__(self, folder, tools):
        self.folder, self.made, self.repository = folder, folder / "made", folder / "repository"
        weir = tools / "weir"
        self.call(weir, "certificates", "--out", self.made)
        self.call(weir, "token", "key", "--out", self.made / "fleet.key")
        self.call(weir, "token", "issue", "--key", self.made / "fleet.key", "--subject", "reader", "--service", "*", "--out", self.made / "reader.token")
        self.call("git", "init", "--quiet", "-b", "main", self.repository)
        self.version, self.lock = 0, threading.Lock()
        self.commit()
        origin, self.edge_ports = port(), [port(), port()]
        self.origin = Node(self, "origin", "origin", self.config_of_origin(origin))
        self.edges = [Node(self, "edge", f"edge-{n}", self.config_of_edge(at, origin)) for n, at in enumerate(self.edge_ports)]
        self.agents = [Node(self, "agent", f"agent-{n}", self.config_of_agent(n, weir)) for n in range(2)]
        self.nodes = {"origin": [self.origin], "edges": self.edges, "agents": self.agents}
        self.requests, self.failed, self.ended = 0, [], threading.Event()

    def call(self, *command):
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def config_of_origin(self, at):
        return f"""listen = "127.0.0.1:{at}"
data_dir = "DATA"
tls = {{ certificate = "{self.made}/origin.pem", key = "{self.made}/origin.key", client_ca = "{self.made}/ca.pem" }}
repository = [{{ name = "shop", url = "{self.repository}", poll_interval = "1s" }}]
service = [{{ name = "shop", repository = "shop" }}]
agent = [{{ name = "agent-0", labels = {{ ring = "a" }} }}, {{ name = "agent-1", labels = {{ ring = "a" }} }}]
assignment = [{{ name = "all", agents = "agent-*", labels = {{ ring = "a" }}, services = ["shop"] }}]
"""

    def config_of_edge(self, at, origin):
        return f"""listen = "127.0.0.1:{at}"
tls = {{ certificate = "{self.made}/edge.pem", key = "{self.made}/edge.key" }}
auth = {{ mode = "required", keys = ["{self.made}/fleet.key.pub"], keys_from_origins = true }}
cache = {{ dir = "DATA", disk = "256MiB", memory = "64MiB" }}
[[origin]]
url = "https://127.0.0.1:{origin}"
ca = "{self.made}/ca.pem"
client_certificate = "{self.made}/edge-client.pem"
client_key = "{self.made}/edge-client.key"
"""

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
            (self.repository / "version").write_text(str(self.version))
            git = ["git", "-C", self.repository, "-c", "user.name=try", "-c", "user.email=try@weir.example"]
            self.call(*git, "add", ".")
            self.call(*git, "commit", "--quiet", "--message", self.version)
            return self.version

    def has(self, agent, version):
        try:
            return int((agent.folder / "data/shop/current/version").read_text()) >= version
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
                    request = urllib.request.Request(f"https://localhost:{at}/v1/services/shop", headers=headers)
                    urllib.request.urlopen(request, timeout=5, context=context).read()
                    break
                except OSError as error:
                    errors.append(f"{at}: {error}")
            self.requests += 1
            if len(errors) == len(self.edge_ports):
                self.failed.append(f"{time.strftime('%H:%M:%S')} {errors}")

    def step(self, roles, name, binaries):
        for node in self.nodes[roles]:
            node.replace(binaries)
        print(f"  {roles}: {name}; the next commit was at both agents after {self.arrives():.1f} s", flush=True)

    def run(self, old, new, order):
        for node in [self.origin, *self.edges, *self.agents]:
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
        print(f"  {self.version} commits, {self.requests} requests, of which no edge answered {len(self.failed)}")
        assert not self.failed, "\n".join(self.failed[:10])

    def stop(self):
        for node in [*self.agents, *self.edges, self.origin]:
            if node.process and node.process.poll() is None:
                node.process.terminate()
                node.process.wait(60)


def main(old, new):
    old, new = pathlib.Path(old).resolve(), pathlib.Path(new).resolve()
    for order in ORDERS:
        print(f"{', '.join(order)}:", flush=True)
        folder = pathlib.Path(tempfile.mkdtemp())
        hub = Hub(folder, old)
        try:
            hub.run(old, new, order)
        except BaseException:
            for log in sorted(folder.glob("*/log")):
                print(f"== {log}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            hub.stop()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
