"""niquests against an edge, over HTTP/3 alone: niquests_checks.py URL CA DIGEST TARBALL. One line per check.

TARBALL: a file with the bytes that it must be given.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import niquests

url, ca, digest, tarball_file = sys.argv[1:]
tarball = f"{url}/v1/services/shop/tarball"
address = urlsplit(url)


def check(what, is_so):
    if not is_so:
        sys.exit(f"FAIL niquests: {what}")
    print(f"ok   niquests {niquests.__version__}, HTTP/3: {what}", flush=True)


def is_http3(answer):
    return answer.http_version == 30


with niquests.Session() as session:
    session.verify = ca
    session.trust_env = False
    # What Alt-Svc would have told it.
    session.quic_cache_layer.add_domain(address.hostname, address.port)
    coding = {"Accept-Encoding": "zstd"}

    def ask(method, **headers):
        answer = session.request(method, tarball, headers={**coding, **headers}, timeout=10)
        if not is_http3(answer):
            sys.exit(f"FAIL niquests: an answer came over version {answer.http_version}")
        return answer

    head = ask("HEAD")
    check("HEAD", head.status_code == 200 and head.headers["weir-digest"] == digest)
    etag = head.headers["etag"]
    polls = [ask("HEAD", **{"If-None-Match": etag}) for _ in range(100)]
    check("100 polls on one connection, all 304", all(poll.status_code == 304 and not poll.content for poll in polls))

    whole = session.request("GET", tarball, headers={"Accept-Encoding": "identity"}, timeout=30)
    check("GET of all of it, byte for byte", is_http3(whole) and whole.content == Path(tarball_file).read_bytes())

    # niquests decodes what is coded: the length is looked at, not the bytes.
    part = ask("HEAD", Range="bytes=0-9")
    check("HEAD takes no notice of a range", part.status_code == 200)
    answer = session.request("GET", tarball, headers={**coding, "Range": "bytes=4-7"}, timeout=10, stream=True)
    check(
        "a range",
        answer.status_code == 206
        and answer.headers["content-range"] == f"bytes 4-7/{head.headers['content-length']}"
        and answer.headers["content-length"] == "4",
    )
    answer.close()
    beyond = ask("GET", Range=f"bytes={head.headers['content-length']}-")
    check("a range beyond the end is 416", beyond.status_code == 416)

for number in range(300):
    with niquests.Session() as session:
        session.verify = ca
        session.trust_env = False
        session.quic_cache_layer.add_domain(address.hostname, address.port)
        answer = session.head(tarball, headers={**coding, "If-None-Match": etag}, timeout=10)
        if answer.status_code != 304 or not is_http3(answer):
            sys.exit(f"FAIL niquests: connection {number} got {answer.status_code} over {answer.http_version}")
check("300 polls, each on its own connection, all 304", True)
