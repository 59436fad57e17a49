"""The categories Pull and Content Discovery of the OCI distribution specification, version 1.1, against an edge: each requirement on a
registry that is read only. oci_conformance.py URL CA REPOSITORY. One line per requirement; the first that is not met ends it with status 1.

REPOSITORY: such as `weir/shop`, with `latest` and at least one more tag.
"""

import hashlib
import http.client
import json
import re
import ssl
import sys
from urllib.parse import quote, urlsplit

url, ca, repository = sys.argv[1:]
tls = ssl.create_default_context(cafile=ca)
connection = http.client.HTTPSConnection(urlsplit(url).netloc, context=tls, timeout=30)
TYPES = [f"application/vnd.oci.image.{kind}.v1+json" for kind in ("manifest", "index")]
ABSENT = "sha256:" + hashlib.sha256(b"nobody has this").hexdigest()
passed = 0


def check(category, requirement, is_so, answer=None):
    global passed
    if not is_so:
        sys.exit(f"FAIL OCI 1.1, {category}: {requirement}" + (f": {answer.status} {answer.headers} {answer.body[:300]}" if answer else ""))
    passed += 1
    print(f"ok   OCI 1.1, {category}: {requirement}", flush=True)


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        self.digest = "sha256:" + hashlib.sha256(self.body).hexdigest()

    def json(self):
        return json.loads(self.body)

    def is_error(self, status, code):
        """The error has the specification's form."""
        return self.status == status and any(error["code"] == code for error in self.json()["errors"])


def ask(method, path, body=None, **headers):
    headers = {"Accept": ", ".join(TYPES)} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"/v2/{path}", body, headers)
    return Answer(connection.getresponse())


def of(kind, reference, method="GET", **headers):
    return ask(method, f"{repository}/{kind}/{reference}", **headers)


def end_points():
    check("determining support", "GET /v2/ is 200", (answer := ask("GET", "")).status == 200, answer)


def pull():
    by_tag = of("manifests", "latest")
    manifest = by_tag.json()
    check("pull", "GET of a manifest by tag is 200", by_tag.status == 200, by_tag)
    check("pull", "Docker-Content-Digest is that of the bytes", by_tag.headers.get("docker-content-digest") == by_tag.digest, by_tag)
    media_type = by_tag.headers["content-type"]
    check("pull", "Content-Type is the manifest's mediaType, without parameters", media_type == manifest["mediaType"] and ";" not in media_type, by_tag)
    by_digest = of("manifests", by_tag.digest)
    check("pull", "GET of a manifest by digest is 200, with the same bytes", (by_digest.status, by_digest.body) == (200, by_tag.body), by_digest)
    check("pull", "its Docker-Content-Digest is the digest", by_digest.headers.get("docker-content-digest") == by_tag.digest, by_digest)
    for reference in ("latest", by_tag.digest):
        head = of("manifests", reference, "HEAD")
        check("pull", f"HEAD of a manifest is 200: {reference[:12]}", head.status == 200 and not head.body, head)
        fields = head.headers.get("docker-content-digest"), head.headers.get("content-length")
        check("pull", "HEAD of a manifest has its digest and its size", fields == (by_tag.digest, str(len(by_tag.body))), head)
    for method in ("GET", "HEAD"):
        for what, reference in [("a tag", "no-such-tag"), ("a digest", ABSENT), ("the longest tag", "t" * 128)]:
            answer = of("manifests", reference, method)
            is_so = answer.status == 404 and (method == "HEAD" or answer.is_error(404, "MANIFEST_UNKNOWN"))
            check("pull", f"{method} of a manifest by {what} that is not there is 404", is_so, answer)
        answer = ask(method, "weir/no-such-service/manifests/latest")
        is_so = answer.status == 404 and (method == "HEAD" or answer.is_error(404, "NAME_UNKNOWN"))
        check("pull", f"{method} of a manifest in a repository that is not there is 404", is_so, answer)
    return by_tag.digest, [manifest["config"], *manifest["layers"]]


def blobs(descriptors):
    for blob in descriptors:
        digest, size = blob["digest"], blob["size"]
        whole = of("blobs", digest)
        check("pull", f"GET of a blob of {size} bytes is 200", whole.status == 200, whole)
        is_so = (whole.digest, len(whole.body), whole.headers.get("docker-content-digest")) == (digest, size, digest)
        check("pull", "it has the bytes of its digest, and Docker-Content-Digest", is_so, None)
        head = of("blobs", digest, "HEAD")
        fields = head.status, head.headers.get("docker-content-digest"), head.headers.get("content-length"), head.body
        check("pull", "HEAD of a blob is 200, with its digest and its size", fields == (200, digest, str(size), b""), head)
        for text, first, end in [("0-0", 0, 1), (f"1-{size}", 1, size), (f"-{size - 1}", 1, size), (f"{size // 2}-", size // 2, size)]:
            part = of("blobs", digest, Range=f"bytes={text}")
            fields = part.status, part.headers.get("content-range"), part.body == whole.body[first:end]
            check("pull", f"Range: bytes={text} is 206", fields == (206, f"bytes {first}-{end - 1}/{size}", True), part)
        answer = of("blobs", digest, Range=f"bytes={size}-")
        check("pull", "a range beyond the end is 416", answer.status == 416, answer)
    for method in ("GET", "HEAD"):
        answer = of("blobs", ABSENT, method)
        is_so = answer.status == 404 and (method == "HEAD" or answer.is_error(404, "BLOB_UNKNOWN"))
        check("pull", f"{method} of a blob that is not there is 404", is_so, answer)
    answer = of("blobs", "sha256:00")
    check("pull", "a malformed digest is refused", answer.is_error(400, "DIGEST_INVALID"), answer)


def tags():
    discovery = "content discovery"
    answer = of("tags", "list")
    check(discovery, "GET of the tags is 200", answer.status == 200, answer)
    listed = answer.json()
    check(discovery, "it is JSON with the name and the tags", listed["name"] == repository and "latest" in listed["tags"], answer)
    check(discovery, "the tags are sorted", listed["tags"] == sorted(listed["tags"]) and len(listed["tags"]) > 1, answer)
    for tag in listed["tags"]:
        check(discovery, f"HEAD of the manifest of a listed tag is 200: {tag}", (answer := of("manifests", tag, "HEAD")).status == 200, answer)
    pages, path = [], f"{repository}/tags/list?n=1"
    while path:
        answer = ask("GET", path)
        pages += answer.json()["tags"]
        check(discovery, "n=1 gives one tag", len(answer.json()["tags"]) == 1, answer)
        link = answer.headers.get("link")
        next_page = re.fullmatch(r'<([^>]*)>; ?rel="next"', link) if link else None
        check(discovery, "Link, if it is there, has rel=next", link is None or next_page, answer)
        path = next_page and urlsplit(next_page[1])._replace(scheme="", netloc="").geturl().removeprefix("/v2/")
    check(discovery, "all pages together are the list", pages == listed["tags"])
    answer = of("tags", "list?n=0")
    check(discovery, "n=0 gives an empty list without Link", answer.json()["tags"] == [] and "link" not in answer.headers, answer)
    answer = of("tags", f"list?n=100&last={quote(pages[0])}")
    check(discovery, "last leaves out what comes before", answer.json()["tags"] == pages[1:], answer)
    check(discovery, "the tags of a repository that is not there are 404", (answer := ask("GET", "weir/no-such-service/tags/list")).status == 404, answer)


def referrers(manifest):
    discovery = "content discovery"
    for what, digest in [("a manifest", manifest), ("a manifest that is not there", ABSENT)]:
        answer = of("referrers", digest)
        check(discovery, f"GET of the referrers of {what} is 200", answer.status == 200, answer)
        index = answer.json()
        is_so = index["schemaVersion"] == 2 and index["mediaType"] == TYPES[1] == answer.headers["content-type"]
        check(discovery, "it is an image index, and its Content-Type says so", is_so and isinstance(index["manifests"], list), answer)
    for one in of("referrers", manifest).json()["manifests"]:
        found = of("manifests", one["digest"])
        same = (found.status, found.digest, found.headers["content-type"]) == (200, one["digest"], one["mediaType"])
        wanted = found.json().get("artifactType") or found.json()["config"]["mediaType"]
        check(discovery, f"a referrer is pulled by its digest: {wanted}", same and found.json()["subject"]["digest"] == manifest, found)
        is_so = one["artifactType"] == wanted and one.get("annotations", {}) == found.json().get("annotations", {})
        check(discovery, "its descriptor has the artifactType and the annotations of the manifest", is_so, found)
    answer = of("referrers", f"{manifest}?artifactType={quote('application/of-nothing')}")
    is_so = answer.status == 200 and answer.json()["manifests"] == []
    check(discovery, "artifactType without a match is an empty list", is_so, answer)
    applied = answer.headers.get("oci-filters-applied")
    check(discovery, "OCI-Filters-Applied says that the filter was applied", applied == "artifactType", answer)
    answer = of("referrers", "sha256:00")
    check(discovery, "the referrers of a malformed digest are 400", answer.status == 400, answer)


def refusals(manifest):
    for method, path in [
        ("POST", f"{repository}/blobs/uploads/"),
        ("POST", f"{repository}/blobs/uploads/?mount={manifest}&from=weir/other"),
        ("PUT", f"{repository}/manifests/latest"),
        ("DELETE", f"{repository}/manifests/latest"),
        ("DELETE", f"{repository}/manifests/{manifest}"),
        ("DELETE", f"{repository}/blobs/{manifest}"),
    ]:
        answer = ask(method, path, b"")
        check("read only", f"{method} of {path.split('?')[0].split(':')[0]} is 405 UNSUPPORTED", answer.is_error(405, "UNSUPPORTED"), answer)


end_points()
manifest, descriptors = pull()
blobs(descriptors)
tags()
referrers(manifest)
refusals(manifest)
check("all", f"{passed} requirements are met", True)
