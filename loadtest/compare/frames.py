#!/usr/bin/env python3
"""What an update costs an agent that has the version before: bytes, processor time of origin, edge and agent, and their peak memory.

loadtest/compare/frames.py large REPOSITORY [HTTP…]: the repository that the example `synthetic_repository` made, beside a download of
the whole tarball, over `h2`, `h3`, or both.
loadtest/compare/frames.py sizes REPOSITORY MIB…: the first files of a real repository up to so many MiB, with frames alone and with
deltas. LIMIT is the largest tarball with deltas, if not the default.
loadtest/compare/frames.py history REPOSITORY REF COMMITS: the last commits of a branch, with frames alone and with deltas.
loadtest/compare/frames.py fleet REPOSITORY AGENTS WHOLE: what the edge sends and uses when so many agents of the repository of `large`
fetch one changed file by frames, and when so many download everything. `weir-loadtest frames` is these agents.

BIN is where the binaries are, if not target/release; WORK is a folder on the disk to measure on. Needs git."""

import json, os, pathlib, re, shutil, socket, ssl, subprocess, sys, tempfile, time, urllib.request
from signal import SIGCONT, SIGSTOP

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "target/release"))
TICKS = os.sysconf("SC_CLK_TCK")
WAIT = 1800


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def read(url, **more):
    try:
        with urllib.request.urlopen(url, timeout=10, **more) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def read_json(url, **more):
    try:
        return json.loads(read(url, **more))
    except ValueError:
        return {}


def until(what, found):
    end = time.monotonic() + WAIT
    while not (value := found()):
        if time.monotonic() > end:
            sys.exit(f"waited in vain until {what}")
        time.sleep(0.1)
    return value


class Process:
    running = []

    def __init__(self, name, work, text, binaries=None):
        self.admin = f"http://127.0.0.1:{(port := free_port())}"
        config = work / f"{name}.toml"
        config.write_text(f'admin_listen = "127.0.0.1:{port}"\n{text}')
        self.process = subprocess.Popen([(binaries or BIN) / name, "--config", config], env=os.environ | {"WEIR_LOG": "error"}, cwd=work)
        self.running.append(self)

    def file(self, name):
        return pathlib.Path(f"/proc/{self.process.pid}/{name}")

    def seconds(self):
        fields = self.file("stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def start_measuring(self):
        self.before = self.seconds()
        self.file("clear_refs").write_text("5")

    def measured(self):
        peak = int(re.search(r"VmHWM:\s+(\d+)", self.file("status").read_text())[1])
        return self.seconds() - self.before, peak / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.running.remove(self)


def git(repository, *arguments, **more):
    identity = {f"GIT_{who}_{what}": "weir@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        ["git", "-C", repository, *arguments], check=True, capture_output=True, env=os.environ | identity, **more
    ).stdout


def rev(repository, name):
    return git(repository, "rev-parse", name).decode().strip()


def files(repository, ref):
    lines = git(repository, "ls-tree", "-r", "-l", "-z", ref).decode().split("\0")[:-1]
    found = [line.split("\t", 1)[0].split() + line.split("\t", 1)[1:] for line in lines]
    return [(mode, blob, int(size), name) for mode, kind, blob, size, name in found if mode.startswith("100")]


def commit(repository, parent, changes):
    """A commit on `parent`, if there is one, with files of these modes, names, and blobs or bytes."""
    out = [f"commit refs/heads/measured\ncommitter weir <weir@example.org> {int(time.time())} +0000\ndata 0\n".encode()]
    out += [f"from {parent}\n".encode()] if parent else [b"deleteall\n"]
    for mode, name, contents in changes:
        is_blob = isinstance(contents, str)
        out.append(f"M {mode} {contents if is_blob else 'inline'} {json.dumps(name)}\n".encode())
        out += [] if is_blob else [f"data {len(contents)}\n".encode(), contents, b"\n"]
    git(repository, "fast-import", "--quiet", "--force", input=b"".join(out))
    head = rev(repository, "measured")
    git(repository, "update-ref", "-d", "refs/heads/measured")
    return head


def changed(repository, parent, chosen, mark):
    """A commit in which each of the files has another line."""
    bytes_of = lambda name: git(repository, "cat-file", "blob", f"{parent}:{name}")
    return commit(repository, parent, [(mode, name, bytes_of(name) + f"\n{mark}\n".encode()) for mode, _, _, name in chosen])


class Weir:
    """An origin, an edge and agents of one service: a branch of its own of the repository."""

    def __init__(self, name, work, repository, max_delta, http="h2"):
        self.name, self.work, self.repository, self.max_delta, self.http = name, work / name, repository, max_delta, http
        self.work.mkdir()
        subprocess.run([BIN / "weir", "certificates", "--out", self.work], check=True, stdout=subprocess.DEVNULL)
        listen, self.listen = free_port(), free_port()
        limits = "" if max_delta is None else f'limits = {{ max_delta_tarball = "{max_delta}" }}'
        self.origin = Process("weir-origin", self.work, f"""
name = "origin-1"
listen = "127.0.0.1:{listen}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
repository = [{{ name = "shop", url = "{repository}", poll_interval = "1s" }}]
service = [{{ name = "shop", repository = "shop", ref = "{name}", folder = "" }}]
{limits}
""")
        self.edge = Process("weir-edge", self.work, f"""
name = "edge-1"
listen = "127.0.0.1:{self.listen}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "open", client_ca = "ca.pem" }}
cache = {{ dir = "edge-cache" }}
push = {{ prefetch_within = "0s" }}
origin = [{{ url = "https://127.0.0.1:{listen}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
""")
        self.tls = ssl.create_default_context(cafile=self.work / "ca.pem")
        self.deltas_before = 0
        self.agent = None

    def start_agent(self, root=None, binaries=None, more='poll_interval = "1s"'):
        # Each has a folder of its own: to delete one takes minutes on a busy disk.
        self.agent = Process("weir-agent", self.work, f"""
edges = ["https://127.0.0.1:{self.listen}"]
ca = "ca.pem"
root = "{root or f"root-{free_port()}"}"
http = "{self.http}"
spread = "0s"
service = [{{ name = "shop" }}]
{more}
""", binaries)

    def descriptor(self):
        return read_json(f"https://127.0.0.1:{self.listen}/v1/services/shop", context=self.tls)

    def deltas(self):
        text = read(f"{self.origin.admin}/metrics")
        counts = re.findall(r'weir_origin_deltas_total\{result="(\w+)"\} (\d+)', text)
        return sum(int(number) for _, number in counts), sum(int(number) for result, number in counts if result == "made")

    def push(self, head, bases=0):
        """Until the edge has the commit, and deltas against so many versions if any can be made."""
        git(self.repository, "update-ref", f"refs/heads/{self.name}", head)
        until(f"the edge has {head}", lambda: self.descriptor().get("publication", {}).get("commit") == head)
        if self.max_delta != "0B" and bases:
            all_, made = self.deltas_before
            until("deltas were made", lambda: self.deltas()[0] >= all_ + bases)
            # They are counted when they are published.
            want = self.deltas()[1] - made
            of = lambda: sum(one["encoding"] == "dcz" for one in self.descriptor()["representations"])
            until("the edge has the deltas", lambda: of() >= want)
        self.deltas_before = self.deltas()

    def released(self, head):
        def is_in_force():
            service = read_json(f"{self.agent.admin}/status").get("services", {}).get("shop", {})
            return service if (service.get("release") or {}).get("commit") == head else None

        return until(f"{head} is in force", is_in_force)

    def update(self, what, head, bases=0):
        """An update of the agent, which sleeps until the edge has everything."""
        processes = [self.origin, self.edge, self.agent]
        self.agent.process.send_signal(SIGSTOP)
        for process in processes:
            process.start_measuring()
        self.push(head, bases)
        self.agent.process.send_signal(SIGCONT)
        began = time.monotonic()
        self.report(what, self.released(head), processes, began)

    def report(self, what, service, processes, began):
        transfer = service["transfer"]
        body = next(one["size"] for one in self.descriptor()["representations"] if one["encoding"] == "zstd")
        figures = [process.measured() for process in processes]
        print(
            f"{what:42} {self.name:7} {transfer['kind']:6} {transfer['received_bytes']:>12,} of {body:>12,} ({transfer['tarball_bytes']:>12,})"
            + "  CPU s " + " ".join(f"{seconds:6.2f}" for seconds, _ in figures)
            + "  peak MiB " + " ".join(f"{peak:6.0f}" for _, peak in figures)
            + f"  wall {time.monotonic() - began:.2f} s",
            flush=True,
        )


def changes(all_, large):
    """Which files change, beside their description."""
    count, mid = len(all_), len(all_) // 2
    yield "one file", all_[mid:][:1]
    yield "1 % of the files, neighbours", all_[int(count * 0.4) :][: count // 100]
    yield "10 % of the files, neighbours", all_[int(count * 0.6) :][: count // 10]
    yield "1 % of the files, spread", all_[7::100]
    if not large:
        yield "10 % of the files, spread", all_[3::10]


def clone(source, work):
    """A repository with the objects of another one, and without its branches."""
    repository = work / "shop.git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    objects = git(source, "rev-parse", "--path-format=absolute", "--git-path", "objects").decode()
    (repository / "objects/info/alternates").write_text(objects)
    return repository


def large(work, source, *https):
    repository = clone(source, work)
    head = rev(source, "main")
    all_ = [file for file in files(repository, head) if "/" in file[3]]
    print(f"{len(all_)} files", flush=True)
    git(repository, "update-ref", "refs/heads/frames", head)
    weir = Weir("frames", work, repository, "0B")
    weir.start_agent()
    # The edge has the whole body before anything is measured.
    weir.released(head)
    mark = 0
    for weir.http in https or ["h2", "h3"]:
        weir.agent.stop()
        weir.start_agent()
        weir.agent.before, began = 0, time.monotonic()
        for process in (weir.origin, weir.edge):
            process.start_measuring()
        weir.report(f"{weir.http}, whole", weir.released(head), [weir.origin, weir.edge, weir.agent], began)
        for what, chosen in changes(all_, large=True):
            mark += 1
            head = changed(repository, head, chosen, mark)
            weir.update(f"{weir.http}, {what}", head)


def pair(work, repository, head):
    """With frames alone, and with deltas too."""
    both = [Weir("frames", work, repository, "0B"), Weir("deltas", work, repository, os.environ.get("LIMIT"))]
    for weir in both:
        git(repository, "update-ref", f"refs/heads/{weir.name}", head)
        weir.push(head)
        weir.start_agent()
        weir.released(head)
    return both


def sizes(work, source, *mebibytes):
    for limit in map(float, mebibytes):
        folder = work / f"{limit}"
        folder.mkdir()
        repository, taken, total = clone(source, folder), [], 1024
        for file in files(source, "HEAD"):
            total += 512 + (file[2] + 511) // 512 * 512
            if total > limit * 2**20:
                break
            taken.append(file)
        head = commit(repository, None, [(mode, name, blob) for mode, blob, _, name in taken])
        print(f"{limit} MiB: {len(taken)} files", flush=True)
        both = pair(folder, repository, head)
        steps = [("before", taken[mark :][:1]) for mark in range(3)] + list(changes(taken, large=False))
        for mark, (what, chosen) in enumerate(steps):
            head = changed(repository, head, chosen or taken[:1], mark)
            for weir in both:
                weir.update(what, head, min(mark + 1, 3))
        for process in [*Process.running]:
            process.stop()


def history(work, source, ref, count):
    repository = clone(source, work)
    heads = git(source, "log", "--first-parent", f"-{int(count) + 1}", "--format=%H", ref).decode().split()[::-1]
    whats = [git(source, "diff", "--shortstat", f"{head}^1", head).decode().strip().replace(" changed", "") for head in heads]
    # The same trees without the history before them, which takes long to clone.
    chain = []
    for head in heads:
        parents = [word for parent in chain[-1:] for word in ("-p", parent)]
        chain.append(git(repository, "commit-tree", f"{head}^{{tree}}", *parents, "-m", head).decode().strip())
    both = pair(work, repository, chain[0])
    for number, (head, what) in enumerate(zip(chain[1:], whats[1:]), 1):
        for weir in both:
            weir.update(re.sub(r"(insertions?|deletions?)\(([+-])\)", r"\2", what)[:42], head, min(number, 3))


def fleet(work, source, agents, wholes):
    repository = clone(source, work)
    head = rev(source, "main")
    weir = Weir("frames", work, repository, "0B")
    weir.push(head)
    weir.start_agent()
    weir.released(head)
    one = files(repository, head)[20_000:][:1]
    sent = lambda: sum(map(float, re.findall(r"weir_edge_sent_bytes_total{.*} (.*)", read(f"{weir.edge.admin}/metrics"))))
    before, head = sent(), changed(repository, head, one, "for a real agent")
    weir.update("one real agent", head)
    print(f"the edge sent it {sent() - before:,.0f} bytes of bodies", flush=True)
    weir.agent.stop()
    for what, count, at_once in [("by frames", agents, 64), ("whole", wholes, 8)]:
        old = None if what == "whole" else weir.descriptor()["publication"]["digest"]
        command = [BIN / "weir-loadtest", "frames", "--edge", f"https://127.0.0.1:{weir.listen}", "--ca", weir.work / "ca.pem"]
        command += ["--agents", str(count), "--at-once", str(at_once)] + (["--old", old] if old else [])
        driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        driver.stdout.readline()
        head = changed(repository, head, one, what)
        weir.push(head)
        weir.edge.start_measuring()
        before, began = sent(), time.monotonic()
        driver.communicate(b"\n")
        if driver.returncode:
            sys.exit("the driver failed")
        (seconds, peak), bodies = weir.edge.measured(), sent() - before
        print(
            f"{count} agents, {what}: the edge sent {bodies:,.0f} bytes of bodies, {seconds:.2f} s of processor time, "
            f"peak {peak:.0f} MiB, {time.monotonic() - began:.1f} s",
            flush=True,
        )


def main():
    work = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("WORK")))
    try:
        {"large": large, "sizes": sizes, "history": history, "fleet": fleet}[sys.argv[1]](work, *sys.argv[2:])
    finally:
        for process in [*Process.running]:
            process.process.send_signal(SIGCONT)
            process.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
