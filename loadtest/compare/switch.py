#!/usr/bin/env python3
"""How long an update of one file takes an agent, from the event to `current`, beside git-sync's way, in one run.

loadtest/compare/switch.py FILES[,FILES…] FOLDER…: for each number of files, in each folder; give one for each file system. Git-sync's
way is `git fetch`, `git worktree add`, and a new symlink. A first release is compared with `tar -x` and one sync.

BIN is where the binaries are, if not target/release; BEFORE is where an older agent is, to be measured, too; ROUNDS how many updates
(5; the median is printed); BUSY=1 has another process write and sync 64 MiB again and again in the folder. Needs git."""

import os, pathlib, random, shutil, statistics, subprocess, sys, tempfile, threading, time
from signal import SIGCONT, SIGSTOP

import frames
from frames import Process, Weir, commit, git, read, until

ROUNDS = int(os.environ.get("ROUNDS", 5))


def contents(number, mark=0):
    chosen = random.Random(f"{number}/{mark}")
    lines = [f"key-{chosen.randrange(10**9)}: {chosen.randrange(10**9)}\n" for _ in range(60 + chosen.randrange(180))]
    return "".join(lines).encode()


def name(number):
    return f"team-{number // 400:03}/app-{number // 20:04}/manifest-{number:05}.yaml"


class Measured(Weir):
    """Agents whose roots are in folders of their own."""

    def seconds_to(self, digest, began):
        current = self.root / "shop/current"
        while not (current.is_symlink() and os.readlink(current).endswith(digest)):
            if time.monotonic() > began + frames.WAIT:
                sys.exit(f"waited in vain for {digest}")
            time.sleep(0.0005)
        return time.monotonic() - began

    def digest(self):
        return self.descriptor()["publication"]["digest"]


def certificate(work, name):
    """With a certificate of its own an agent gets events, and nothing waits for a poll."""
    subprocess.run([frames.BIN / "weir", "certificates", "--out", work, "--agent", name], check=True, capture_output=True)
    return f'name = "{name}"\nclient_certificate = "agent-{name}.pem"\nclient_key = "agent-{name}.key"'


def timed(*commands):
    began = time.monotonic()
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


class GitSync:
    def __init__(self, folder, repository):
        self.folder, self.clone, self.number = folder, folder / "clone", 0
        subprocess.run(["git", "clone", "-q", "--bare", repository, self.clone], check=True)

    def update(self, head):
        self.number += 1
        tree, link = self.folder / f"tree-{self.number}", self.folder / "link"
        git = ["git", "-C", self.clone]
        taken = timed(
            [*git, "fetch", "-q", "origin", "+refs/heads/*:refs/heads/*"],
            [*git, "worktree", "add", "-q", "--detach", tree, head],
            ["ln", "-s", tree, f"{link}.new"],
            ["mv", "-T", f"{link}.new", link],
        )
        old = self.folder / f"tree-{self.number - 1}"
        if old.exists():
            subprocess.run([*git, "worktree", "remove", "--force", old], check=True)
        return taken


def keep_busy(folder, is_over):
    def write():
        block = os.urandom(1 << 20)
        while not is_over.is_set():
            with open(folder / "busy", "wb") as file:
                for _ in range(64):
                    file.write(block)
                os.fsync(file.fileno())

    threading.Thread(target=write, daemon=True).start()


def measure(work, folder, count):
    repository = work / "shop.git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    head = commit(repository, None, [("100644", name(number), contents(number)) for number in range(count)])
    weir = Measured("main", work, repository, None)
    weir.push(head)
    tar = work / "first.tar"
    tar.write_bytes(git(repository, "archive", head))
    (folder / "tar").mkdir()
    first = {"tar -x, sync": timed(["tar", "-xf", tar, "-C", folder / "tar"], ["sync", "-f", folder])}
    agents = {"agent": frames.BIN} | ({"before": pathlib.Path(os.environ["BEFORE"])} if "BEFORE" in os.environ else {})
    taken = {way: [] for way in [*agents, "git-sync's way"]}
    running = {}
    for way, binaries in agents.items():
        subprocess.run(["sync", "-f", folder], check=True)
        (folder / way).mkdir()
        began = time.monotonic()
        weir.root = folder / way / "root"
        weir.start_agent(weir.root, binaries, certificate(weir.work, way))
        first[way] = weir.seconds_to(weir.digest(), began)
        until("the agent gets events", lambda: "weir_agent_event_stream_connected 1" in read(f"{weir.agent.admin}/metrics"))
        running[way] = (weir.agent, weir.root)
    peer = GitSync(folder, repository)
    peer.update(head)
    for mark in range(1, ROUNDS * len(taken) + 1):
        # Each has a commit of its own, and the machine for itself.
        way = [*taken][mark % len(taken)]
        changed = (count // 3 + mark * 17) % count
        # An agent polls once in a second at most, whatever happens.
        time.sleep(1.1)
        for agent, _ in running.values():
            agent.process.send_signal(SIGSTOP)
        head = commit(repository, head, [("100644", name(changed), contents(changed, mark))])
        weir.push(head)
        digest = weir.digest()
        subprocess.run(["sync", "-f", folder], check=True)
        if way in running:
            weir.agent, weir.root = running[way]
            began = time.monotonic()
            weir.agent.process.send_signal(SIGCONT)
            taken[way].append(weir.seconds_to(digest, began))
        else:
            taken[way].append(peer.update(head))
        for weir.agent, weir.root in running.values():
            weir.agent.process.send_signal(SIGCONT)
            weir.seconds_to(digest, time.monotonic())
            until("the agent rests", lambda: not [*(weir.root / "shop/releases").glob(".*")])
    peer_median = statistics.median(taken["git-sync's way"])
    print(f"{folder.parent.name:8} {count:>6} files  first: " + ", ".join(f"{way} {seconds:.2f} s" for way, seconds in first.items()))
    for way, seconds in taken.items():
        median = statistics.median(seconds)
        print(f"    {way:15} {median:6.3f} s, {median / peer_median:5.2f} of git-sync's way  ({min(seconds):.3f} to {max(seconds):.3f})", flush=True)
    for agent, _ in running.values():
        agent.process.send_signal(SIGCONT)
    for process in [*Process.running]:
        process.stop()


def main():
    for folder in map(pathlib.Path, sys.argv[2:]):
        for count in map(int, sys.argv[1].split(",")):
            here = pathlib.Path(tempfile.mkdtemp(dir=folder))
            work = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("WORK")))
            is_over = threading.Event()
            if os.environ.get("BUSY"):
                keep_busy(here, is_over)
            try:
                measure(work, here, count)
            finally:
                is_over.set()
                for process in [*Process.running]:
                    process.process.send_signal(SIGCONT)
                    process.stop()
                for each in (here, work):
                    shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    main()
