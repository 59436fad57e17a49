"""A Helm repository with the chart `podinfo`, and a registry with the artifact `acme/manifests`: upstreams.py PORT. Plain HTTP."""

import gzip
import hashlib
import http.server
import io
import json
import sys
import tarfile

port = int(sys.argv[1])
VERSIONS = ["1.1.0", "1.2.0"]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
files = {}


def archive(contents):
    """A .tgz with these files, the same for the same files."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            writer.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(tar.getvalue(), mtime=0)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def add_chart(version):
    metadata = f"apiVersion: v2\nname: podinfo\nversion: {version}\n"
    data = archive({"podinfo/Chart.yaml": metadata, "podinfo/templates/service.yaml": "kind: Service\n"})
    files[f"/charts/podinfo-{version}.tgz"] = ("application/gzip", data)
    return {"name": "podinfo", "version": version, "urls": [f"podinfo-{version}.tgz"], "digest": sha256(data)}


def add_blob(media_type, data):
    files[f"/v2/acme/manifests/blobs/sha256:{sha256(data)}"] = ("application/octet-stream", data)
    return {"mediaType": media_type, "digest": f"sha256:{sha256(data)}", "size": len(data)}


def add_artifact(version):
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": "application/vnd.acme.manifests",
        "config": add_blob("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [add_blob("application/vnd.oci.image.layer.v1.tar+gzip", archive({"service.yaml": f"# {version}\n"}))],
    }
    data = json.dumps(manifest).encode()
    for reference in (version, f"sha256:{sha256(data)}"):
        files[f"/v2/acme/manifests/manifests/{reference}"] = (MANIFEST, data)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        media_type, data = files.get(self.path.split("?")[0], (None, b'{"errors": []}'))
        self.send_response(200 if media_type else 404)
        self.send_header("Content-Type", media_type or "application/json")
        self.send_header("Content-Length", str(len(data)))
        if media_type == MANIFEST:
            self.send_header("Docker-Content-Digest", f"sha256:{sha256(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET


# JSON is YAML.
index = {"apiVersion": "v1", "entries": {"podinfo": [add_chart(version) for version in VERSIONS]}}
files["/charts/index.yaml"] = ("text/yaml", json.dumps(index).encode())
for version in VERSIONS:
    add_artifact(version)
files["/v2/acme/manifests/tags/list"] = ("application/json", json.dumps({"name": "acme/manifests", "tags": VERSIONS}).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
