#!/usr/bin/env python3
"""What an update of a large service costs an agent that has the version before, beside a download of the whole tarball: bytes,
processor time of agent and edge, and time until the release is in force. The service is the repository that the example
`synthetic_repository` made (50,000 files, 416 MB). Commits change one file, 1 % and 10 % of the files in neighbouring folders,
and 1 % spread over all.

loadtest/compare/frames.py REPOSITORY [http]: `h2`, `h3`, or both. BIN is where the binaries are, if not target/release. Needs
git."""

import json, os, pathlib, shutil, socket, subprocess, sys, tempfile, time, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "target/release"))
TICKS = os.sysconf("SC_CLK_TCK")
WAIT = 1800


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def read(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return {}


def until(what, found):
    end = time.monotonic() + WAIT
    while not (value := found()):
        if time.monotonic() > end:
            sys.exit(f"waited in vain until {what}")
        time.sleep(0.02)
    return value


class Process:
    def __init__(self, name, work, admin):
        self.admin = admin
        environment = os.environ | {"WEIR_LOG": "warn"}
        command = [BIN / name, "--config", work / f"{name}.toml"]
        self.process = subprocess.Popen(command, env=environment, cwd=work)

    def seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self):
        self.process.terminate()
        self.process.wait()


def git(repository, *arguments, **more):
    identity = {f"GIT_{who}_{what}": "weir@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        ["git", "-C", repository, *arguments], check=True, capture_output=True, text=True, env=os.environ | identity, **more
    ).stdout.strip()


def commit(repository, parent, files, mark):
    """A commit on `parent` in which each of `files` has another line."""
    lines = [f"commit refs/heads/measured\ncommitter weir <weir@example.org> {int(time.time())} +0000\ndata 0\nfrom {parent}\n"]
    blobs = git(repository, "cat-file", "--batch=\n\x01%(objectname)", input="".join(f"{parent}:{name}\n" for _, name in files))
    texts = [blob.split("\n", 1)[1] for blob in ("\n" + blobs).split("\n\x01")[1:]]
    for (mode, name), text in zip(files, texts, strict=True):
        text += f"\n{mark}\n"
        lines.append(f"M {mode} inline {name}\ndata {len(text.encode())}\n{text}\n")
    git(repository, "fast-import", "--quiet", "--force", input="".join(lines))
    return git(repository, "rev-parse", "measured")


def main():
    source, versions = sys.argv[1], sys.argv[2:] or ["h2", "h3"]
    work = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("WORK")))
    running = []
    try:
        measure(source, versions, work, running)
    finally:
        for process in running:
            process.stop()
        shutil.rmtree(work, ignore_errors=True)


def measure(source, versions, work, running):
    repository = work / "shop.git"
    subprocess.run(["git", "clone", "-q", "--bare", "--single-branch", "--branch=main", source, repository], check=True)
    subprocess.run([BIN / "weir", "certificates", "--out", work], check=True, stdout=subprocess.DEVNULL)
    listen, origin_admin, edge_listen, edge_admin = (free_port() for _ in range(4))
    (work / "weir-origin.toml").write_text(f"""
name = "origin-1"
listen = "127.0.0.1:{listen}"
admin_listen = "127.0.0.1:{origin_admin}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
repository = [{{ name = "shop", url = "{repository}", poll_interval = "1s" }}]
service = [{{ name = "shop", repository = "shop", ref = "main", folder = "" }}]
""")
    (work / "weir-edge.toml").write_text(f"""
name = "edge-1"
listen = "127.0.0.1:{edge_listen}"
admin_listen = "127.0.0.1:{edge_admin}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "open" }}
cache = {{ dir = "edge-cache" }}
push = {{ prefetch_within = "0s" }}
origin = [{{ url = "https://127.0.0.1:{listen}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
""")
    running.append(Process("weir-origin", work, origin_admin))
    edge = Process("weir-edge", work, edge_admin)
    running.append(edge)
    # A descriptor that the edge has: what it shows has the commit.
    at_edge = lambda: read(edge_admin, "/v1/explain?service=shop").get("commit")
    head = git(repository, "rev-parse", "main")
    names = git(repository, "ls-tree", "-r", "main").splitlines()
    names = [(line.split()[0], line.split("\t", 1)[1]) for line in names]
    names = [(mode, name) for mode, name in names if "/" in name]
    print(f"{len(names)} files", flush=True)

    def start_agent(http):
        # Each has a folder of its own: to delete one takes minutes on a busy disk.
        admin = free_port()
        (work / "weir-agent.toml").write_text(f"""
edges = ["https://127.0.0.1:{edge_listen}"]
ca = "ca.pem"
root = "root-{admin}"
http = "{http}"
spread = "0s"
admin_listen = "127.0.0.1:{admin}"
service = [{{ name = "shop" }}]
""")
        agent = Process("weir-agent", work, admin)
        running.append(agent)
        return agent

    def released(agent, commit):
        def is_in_force():
            service = read(agent.admin, "/status").get("services", {}).get("shop", {})
            return service if (service.get("release") or {}).get("commit") == commit else None

        return until(f"{commit} is in force", is_in_force)

    def report(what, agent, edge_before, agent_before, began, service):
        transfer = service["transfer"]
        print(
            f"{what}: {transfer['kind']}, {transfer['received_bytes']:,} bytes of a tarball of {transfer['tarball_bytes']:,}; "
            f"agent {agent.seconds() - agent_before:.2f} s, edge {edge.seconds() - edge_before:.2f} s of processor time, "
            f"in force after {time.monotonic() - began:.2f} s",
            flush=True,
        )

    # The edge has the whole body before anything is measured.
    agent = start_agent(versions[0])
    until("the edge has the service", lambda: at_edge() == head)
    released(agent, head)
    agent.stop()
    running.remove(agent)
    mark = 0
    for http in versions:
        edge_before, began = edge.seconds(), time.monotonic()
        agent = start_agent(http)
        service = released(agent, head)
        report(f"{http}, whole", agent, edge_before, 0, began, service)
        for what, files in [
            ("one file", names[len(names) // 2 :][:1]),
            ("1 % of the files, in neighbouring folders", names[20_000:][: len(names) // 100]),
            ("10 % of the files, in neighbouring folders", names[30_000:][: len(names) // 10]),
            ("1 % of the files, spread", names[7::100]),
        ]:
            mark += 1
            head = commit(repository, head, files, mark)
            edge_before, agent_before = edge.seconds(), agent.seconds()
            git(repository, "update-ref", "refs/heads/main", head)
            until("the edge has the commit", lambda: at_edge() == head)
            began = time.monotonic()
            service = released(agent, head)
            report(f"{http}, {what}", agent, edge_before, agent_before, began, service)
        agent.stop()
        running.remove(agent)


if __name__ == "__main__":
    main()
