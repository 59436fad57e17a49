#!/usr/bin/env python3
"""What event streams of many agents cost an edge: memory, and processor time while nothing happens, for one publication, for an edit
that touches one agent, and for the start of its origin.

loadtest/compare/streams.py AGENTS GROUPS [h2|h3] [own]: so many agents with one of so many labels, each label with an assignment of 50
services. With `own` each token opens something of its own, so that no two agents are in one group.

BIN is where the binaries are, if not target/release; BEFORE is where an older edge is, to be measured, too; WORK is a folder to work in;
SERVICES the number of services (50); IDLE the seconds in which nothing happens (30). Needs git."""

import json, os, pathlib, re, shutil, ssl, subprocess, sys, tempfile, time, urllib.request

import frames
from frames import Process, commit, free_port, git, read, until

SERVICES = int(os.environ.get("SERVICES", 50))
IDLE = float(os.environ.get("IDLE", 30))


def rss(process):
    return int(re.search(r"VmRSS:\s+(\d+)", process.file("status").read_text())[1])


class Driver:
    def __init__(self, work, edge, agents, groups, http, own):
        command = [frames.BIN / "weir-loadtest", "streams", "--server", edge, "--ca", work / "ca.pem", "--key-file", work / "keys"]
        command += ["--agents", str(agents), "--groups", str(groups), "--http", http] + (["--own-scopes"] if own else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def say(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the driver has ended")
        return line.strip()

    def counts(self):
        return json.loads(self.say())


def measure(work, agents, groups, http, own, binaries):
    subprocess.run([frames.BIN / "weir", "certificates", "--out", work], check=True, stdout=subprocess.DEVNULL)
    repository = work / "shop.git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    names = [f"service-{number:03}" for number in range(SERVICES)]
    head = commit(repository, None, [("100644", f"{name}/app.yaml", b"one\n") for name in names])
    git(repository, "update-ref", "refs/heads/main", head)
    listen, operators, edge = free_port(), free_port(), f"127.0.0.1:{free_port()}"
    (work / "operator-token").write_text("a-token-for-operators-of-this-test\n")
    services = "".join(f'[[service]]\nname = "{name}"\nrepository = "shop"\nref = "main"\nfolder = "{name}"\n' for name in names)
    assignments = "".join(
        f'[[assignment]]\nname = "of-group-{group}"\nlabels = {{ group = "{group}" }}\nservices = ["service-*", "group-{group}-*"]\n'
        for group in range(groups)
    )
    origin_config = f"""
name = "origin-1"
listen = "127.0.0.1:{listen}"
operator_listen = "127.0.0.1:{operators}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
operator = {{ operator_token_file = "operator-token" }}
repository = [{{ name = "shop", url = "{repository}", poll_interval = "1s" }}]
{services}{assignments}"""
    driver = Driver(work, edge, agents, groups, http, own)
    origin = Process("weir-origin", work, origin_config)
    edge_process = Process("weir-edge", work, f"""
name = "edge-1"
listen = "{edge}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "required", keys = ["keys"] }}
agents = {{ streams = {agents + 100} }}
cache = {{ dir = "edge-cache" }}
origin = [{{ url = "https://127.0.0.1:{listen}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
""", binaries)
    tls = ssl.create_default_context(cafile=work / "ca.pem")
    until("the edge has the services", lambda: json.loads(read(f"{edge_process.admin}/status") or "{}").get("services_total") == SERVICES)
    time.sleep(3)
    before = rss(edge_process)
    began, used = time.monotonic(), edge_process.seconds()
    if driver.say() != "open":
        sys.exit("the streams did not open")
    opened = time.monotonic() - began, edge_process.seconds() - used
    time.sleep(5)
    memory = (rss(edge_process) - before) / agents
    figures = {}

    def cost(what, action, done=lambda counts, at: True, wait=3.0):
        at, used = driver.counts(), edge_process.seconds()
        action()
        until(what, lambda: done(driver.counts(), at))
        time.sleep(wait)
        spent = edge_process.seconds() - used
        now = driver.counts()
        told = {kind: now[kind] - at.get(kind, 0) for kind in now if now[kind] != at.get(kind, 0)}
        figures[what] = spent, told

    def publish():
        new = commit(repository, head, [("100644", f"{names[0]}/app.yaml", os.urandom(8).hex().encode())])
        git(repository, "update-ref", "refs/heads/main", new)

    def edit():
        body = json.dumps({"agents": "nobody-at-all", "services": ["service-000"]}).encode()
        headers = {"Authorization": "Bearer a-token-for-operators-of-this-test", "Content-Type": "application/json"}
        url = f"https://127.0.0.1:{operators}/v1/assignments/of-nobody"
        urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), context=tls).read()

    def restart():
        nonlocal origin
        origin.stop()
        origin = Process("weir-origin", work, origin_config)
        until("the edge follows again", lambda: "weir_edge_stream_up{" in (text := read(f"{edge_process.admin}/metrics"))
              and re.search(r"weir_edge_stream_up\{.*\} 1", text))

    cost(f"{IDLE:.0f} s in which nothing happens", lambda: time.sleep(IDLE), wait=0)
    cost("one publication", publish, lambda now, at: now.get("changed", 0) - at.get("changed", 0) >= agents)
    cost("an edit of another agent's assignment", edit, wait=5)
    cost("the start of the origin", restart, wait=10)
    label = "before" if binaries else "now"
    print(f"{label}: {agents} agents, {groups} groups{', each with a scope of its own' if own else ''}, {http}, {SERVICES} services")
    print(f"    opened in {opened[0]:.1f} s, {opened[1] * 1e6 / agents:.0f} us of the edge's processor for each; memory {memory:.1f} kB for each")
    for what, (spent, told) in figures.items():
        print(f"    {what:40} {spent:6.2f} s of processor, {spent * 1e6 / agents:8.1f} us for each agent; told {told}", flush=True)
    driver.process.stdin.close()
    driver.process.wait()
    for process in [*Process.running]:
        process.stop()


def main():
    agents, groups, *rest = sys.argv[1:]
    http = "h3" if "h3" in rest else "h2"
    before = [pathlib.Path(os.environ["BEFORE"])] if "BEFORE" in os.environ else []
    for binaries in [*before, None]:
        work = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("WORK")))
        try:
            measure(work, int(agents), int(groups), http, "own" in rest, binaries)
        finally:
            for process in [*Process.running]:
                process.stop()
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
