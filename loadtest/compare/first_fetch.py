#!/usr/bin/env python3
"""What a first fetch costs an origin: processor time, wall time and the highest memory of it and its git children, beside
`git clone --bare` (a real repository) or `git index-pack` (a pack that was made to be expensive).

    loadtest/compare/first_fetch.py REPOSITORY ORIGIN [ORIGIN…]

REPOSITORY is a bare repository, for example of the example `synthetic_repository`. Each ORIGIN is a `weir-origin`; each
fetches into an empty data directory. Memory is the anonymous memory of all processes together, read every 10 ms: the
pack itself is mapped, and is not counted."""

import hashlib
import http.server
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib

MIB = 1 << 20
HZ = os.sysconf("SC_CLK_TCK")
ENVIRONMENT = dict(os.environ, GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# Packs

def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def header(kind, size):
    first, size = kind << 4 | size & 15, size >> 4
    return bytes([first | 0x80]) + varint(size) if size else bytes([first])


def distance(number):
    out = [number & 0x7F]
    while number := number >> 7:
        number -= 1
        out.insert(0, number & 0x7F | 0x80)
    return bytes(out)


def copy_and_add(length, added):
    """A delta: all of a base of `length` bytes, below 16 MiB, and `added`."""
    return varint(length) + varint(length + len(added)) + b"\xf0" + struct.pack("<I", length)[:3] + bytes([len(added)]) + added


def pack_of(entries):
    """`entries` are (contents or delta, index of the base or None)."""
    pack, offsets = bytearray(b"PACK" + struct.pack(">II", 2, len(entries))), []
    for contents, base in entries:
        offsets.append(len(pack))
        pack += header(3, len(contents)) if base is None else header(6, len(contents)) + distance(len(pack) - offsets[base])
        pack += zlib.compress(contents, 9)
    return bytes(pack) + hashlib.sha1(pack).digest()


def nested(levels, size):
    """Each level has three deltas against the middle one of the level above: depth first, one object of each is held."""
    entries, base, length = [(bytes(size), None)], 0, size
    for level in range(levels):
        for sibling in range(3):
            entries.append((copy_and_add(length, bytes([level % 256, sibling])), base))
        base, length = len(entries) - 2, length + 2
    return pack_of(entries)


def wide(deltas, size):
    """All deltas rest on one object."""
    return pack_of([(bytes(size), None)] + [(copy_and_add(size, struct.pack("<I", each)), 0) for each in range(deltas)])


def small(objects):
    return pack_of([(b"%d" % each, None) for each in range(objects)])


PACKS = {
    "250 levels of 1 MiB": lambda: nested(250, MIB),
    "40 levels of 15 MiB": lambda: nested(40, 15 * MIB),
    "2,000 deltas on 1 MiB": lambda: wide(2000, MIB),
    "500,000 small objects": lambda: small(500_000),
}


# An upstream that sends such a pack

def line(text):
    return b"%04x" % (len(text) + 4) + text


def upstream(pack, port):
    answers = {
        "advertisement": line(b"# service=git-upload-pack\n") + b"0000" + b"".join(
            map(line, [b"version 2\n", b"agent=git/test\n", b"ls-refs=unborn\n", b"fetch=shallow\n", b"object-format=sha1\n"])) + b"0000",
        "pack": line(b"packfile\n") + b"".join(
            line(b"\x01" + pack[at:at + 65000]) for at in range(0, len(pack), 65000)) + b"0000",
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, kind, body):
            self.send_response(200)
            self.send_header("Content-Type", f"application/x-git-upload-pack-{kind}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.reply("advertisement", answers["advertisement"])

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            listed = line(b"%s refs/heads/main\n" % self.server.tip) + b"0000"
            self.reply("result", listed if b"command=ls-refs" in body else answers["pack"])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.tip = tip_of(pack)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def tip_of(pack):
    """The name of the first object, which is stored in full."""
    at = 12
    while pack[at] & 0x80:
        at += 1
    contents = zlib.decompressobj().decompress(pack[at + 1:])
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest().encode()


# Measuring

def family(pid):
    """`pid` and all below it."""
    found, at = [pid], 0
    while at < len(found):
        try:
            tasks = os.listdir(f"/proc/{found[at]}/task")
            for task in tasks:
                with open(f"/proc/{found[at]}/task/{task}/children") as children:
                    found += map(int, children.read().split())
        except OSError:
            pass
        at += 1
    return found


def anonymous(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return int(re.search(r"RssAnon:\s+(\d+)", status.read()).group(1)) * 1024
    except (OSError, AttributeError):
        return 0


def ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return sum(map(int, stat.read().rsplit(") ", 1)[1].split()[11:15]))


def watch(pid, until):
    peak = 0
    while not until():
        peak = max(peak, sum(map(anonymous, family(pid))))
        time.sleep(0.01)
    return peak


def report(name, cpu, wall, peak, how):
    print(f"  {name:32} {cpu:7.2f} s of processor time {wall:7.2f} s  {peak / MIB:7.0f} MiB  {how}", flush=True)


def run_git(name, arguments, **options):
    start = time.monotonic()
    before = os.times()
    child = subprocess.Popen(["git", *arguments], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    peak = watch(child.pid, lambda: child.poll() is not None)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    report(name, cpu, time.monotonic() - start, peak, "done" if child.returncode == 0 else f"exit {child.returncode}")


def run_origin(origin, url, work):
    admin = free_port()
    with open(f"{work}/origin.toml", "w") as config:
        config.write(f"""
name = "origin-1"
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:{admin}"
data_dir = "data"
[tls]
certificate = "origin.pem"
key = "origin.key"
client_ca = "ca.pem"
[[repository]]
name = "r"
url = "{url}"
""")
    start = time.monotonic()
    log = open(f"{work}/log", "w")
    child = subprocess.Popen([origin, "--config", f"{work}/origin.toml"], stdout=log, stderr=log, env=dict(ENVIRONMENT, WEIR_LOG="warn"))

    def result():
        if child.poll() is not None:
            raise SystemExit(open(f"{work}/log").read())
        try:
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=5).read().decode()
        except OSError:
            return None
        found = re.search(r'^weir_origin_polls_total\{.*result="(\w+)".*\} [1-9]', metrics, re.M)
        return found and found.group(1)

    found = []
    last = [0.0]

    def ended():
        if time.monotonic() - last[0] < 0.1:
            return False
        last[0] = time.monotonic()
        found[:] = [result()]
        return found[0] is not None

    peak = watch(child.pid, ended)
    wall, cpu = time.monotonic() - start, ticks(child.pid) / HZ
    child.send_signal(signal.SIGKILL)
    child.wait()
    text = open(f"{work}/log").read()
    why = re.search(r'(?:error|reason)[=:] ?"?(.{0,120})', text)
    report(os.path.basename(origin), cpu, wall, peak, found[0] + (f": {why.group(1)}" if why and found[0] != "changed" else ""))


def main():
    repository, *origins = sys.argv[1:]
    origins = [os.path.abspath(origin) for origin in origins]
    weir = os.environ.get("WEIR", "target/debug/weir")

    def each(url):
        for origin in origins:
            with tempfile.TemporaryDirectory() as work:
                subprocess.run([weir, "certificates", "--out", work], check=True, stdout=subprocess.DEVNULL)
                run_origin(origin, url, work)

    print("a first clone")
    port = free_port()
    daemon = subprocess.Popen(["git", "daemon", "--export-all", f"--base-path={os.path.dirname(os.path.abspath(repository))}",
                               "--listen=127.0.0.1", f"--port={port}"], env=ENVIRONMENT, start_new_session=True,
                              stderr=subprocess.DEVNULL)
    try:
        url = f"git://127.0.0.1:{port}/{os.path.basename(os.path.abspath(repository))}"
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        for _ in range(2):
            with tempfile.TemporaryDirectory() as work:
                run_git("git clone --bare", ["clone", "--bare", "--quiet", url, f"{work}/clone"])
            each(url)
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)  # `git daemon` is a program that `git` started.
        daemon.wait()
    for name, make in PACKS.items():
        pack = make()
        print(f"{name}: {len(pack):,} bytes")
        with tempfile.TemporaryDirectory() as work:
            subprocess.run(["git", "init", "--quiet", "--bare", work], check=True, env=ENVIRONMENT)
            with open(f"{work}/pack", "wb") as file:
                file.write(pack)
            with open(f"{work}/pack") as file:
                run_git("git index-pack", ["-C", work, "index-pack", "--stdin"], stdin=file)
        port = free_port()
        server = upstream(pack, port)
        each(f"http://127.0.0.1:{port}/x")
        server.shutdown()


main()
