"""The requests of Flux and Argo CD to a registry, replayed against an edge: those that the sources of the versions below send, in
their order, with their headers, on as many connections, and with the checks that the clients make. They negotiate HTTP/2; here it is
HTTP/1.1. flux_argocd.py URL CA REPOSITORY KIND [TOKEN_FILE]. One line per sequence; the first that fails ends it with status 1.

REPOSITORY: such as `weir/shop`, with a tag that is a version. KIND: `files`, `chart` or `artifact`: manifests of the first two are
signed by `[signing] cosign`. TOKEN_FILE: of an edge that requires credentials, which open REPOSITORY.
"""

import base64
import hashlib
import http.client
import io
import json
import re
import ssl
import sys
import tarfile
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

# Where the requests were read.
FLUX = "fluxcd/source-controller v1.9.1 internal/controller/ocirepository_controller.go"
FLUX_HELM = "fluxcd/source-controller v1.9.1 internal/helm/repository/oci_chart_repository.go"
FLUX_VERIFY = "fluxcd/source-controller v1.9.1 internal/oci/cosign/cosign.go"
FLUX_COSIGN_2 = "fluxcd/source-controller v1.6.0 internal/oci/cosign/cosign.go"
ARGO = "argoproj/argo-cd v3.5.1 util/oci/client.go"
ARGO_HELM = "argoproj/argo-cd v3.5.1 util/helm/client.go, cmd.go"
GGCR = "google/go-containerregistry v0.21.6 pkg/v1/remote"
COSIGN = "sigstore/cosign v3.0.6 pkg/cosign/verify.go, pkg/oci/remote"
COSIGN_2 = "sigstore/cosign v2.5.0 pkg/cosign/verify.go, pkg/oci/remote"
HELM = "helm/helm v4.2.1, v4.2.2 pkg/registry/client.go, generic.go"
ORAS = "oras-project/oras-go v2.6.1 copy.go, registry/remote"

OCI_MANIFEST, OCI_INDEX = (f"application/vnd.oci.image.{kind}.v1+json" for kind in ("manifest", "index"))
DOCKER = "application/vnd.docker.distribution.manifest"
GGCR_ACCEPT = ",".join(
    [f"{DOCKER}.v1+json", f"{DOCKER}.v1+prettyjws", f"{DOCKER}.v2+json", OCI_MANIFEST, f"{DOCKER}.list.v2+json", OCI_INDEX]
)
ORAS_ARTIFACT = "application/vnd.oci.artifact.manifest.v1+json"
ORAS_ACCEPT = ", ".join([f"{DOCKER}.v2+json", f"{DOCKER}.list.v2+json", OCI_MANIFEST, OCI_INDEX, ORAS_ARTIFACT])
CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
# The default of `--oci-layer-media-types`.
ARGO_LAYERS = ["application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip", CHART_LAYER]
BUNDLE = "application/vnd.dev.sigstore.bundle"
GO, HELM_AGENT, FLUX_AGENT = "Go-http-client/1.1", "Helm/4.2.1", "flux/v2 go-containerregistry/v0.21.6"
FLUX_HELM_AGENT = "flux/v2/helm/v4/oras/v2"

url, ca, repository, kind = sys.argv[1:5]
token = Path(sys.argv[5]).read_text().strip() if len(sys.argv) > 5 else None
tls = ssl.create_default_context(cafile=ca)
edge = urlsplit(url).netloc
step, requests = "", 0


def require(is_so, what, answer=None):
    if not is_so:
        sys.exit(f"FAIL {step}: {what}" + (f": {answer}" if answer else ""))


class Answer:
    def __init__(self, request, response):
        self.request, self.status, self.body = request, response.status, response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.challenges = [parse_challenge(value) for value in response.headers.get_all("WWW-Authenticate", [])]

    def __str__(self):
        return f"{self.request}: {self.status} {self.headers} {self.body[:300]}"

    @property
    def digest(self):
        return "sha256:" + hashlib.sha256(self.body).hexdigest()

    def has_error(self, code):
        return any(error["code"] == code for error in json.loads(self.body)["errors"])


def parse_challenge(value):
    scheme, _, parameters = value.partition(" ")
    return scheme.lower(), dict(re.findall(r'(\w+)="([^"]*)"', parameters))


class Transport:
    """The `http.Transport` of Go: GET has `Accept-Encoding: gzip`, unless compression is disabled."""

    def __init__(self, agent, keep_alive=True, compression=True):
        self.agent, self.keep_alive, self.compression, self.connection = agent, keep_alive, compression, None

    def send(self, method, target, headers=None, body=None):
        global requests
        requests += 1
        target = urlsplit(urljoin(url, target))
        require((target.scheme, target.netloc) == ("https", edge), f"{method} {target.geturl()} leads to another server")
        headers = {"User-Agent": self.agent} | {name: value for name, value in (headers or {}).items() if value}
        if self.compression and method != "HEAD":
            headers["Accept-Encoding"] = "gzip"
        if not self.keep_alive:
            headers["Connection"], self.connection = "close", None
        if body is not None:
            headers["Content-Length"] = str(len(body))
        self.connection = self.connection or http.client.HTTPSConnection(edge, context=tls, timeout=30)
        path = target._replace(scheme="", netloc="").geturl()
        self.connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            self.connection.putheader(name, value)
        self.connection.endheaders(body)
        answer = Answer(f"{method} {path}", self.connection.getresponse())
        # Go decompresses such a body, and then does not know its length.
        require("content-encoding" not in answer.headers, "the body is encoded", answer)
        return answer


def basic(secret):
    return "Basic " + base64.b64encode(f"weir:{secret}".encode()).decode()


def bearer(transport, parameters, scopes, secret):
    """Both libraries request a token like this, and need no more of it than that it is there."""
    query = urlencode({"scope": scopes, "service": parameters["service"]}, doseq=True)
    answer = transport.send("GET", f"{parameters['realm']}?{query}", {"Authorization": secret and basic(secret)})
    require(answer.status == 200, "a token for the password", answer)
    return "Bearer " + json.loads(answer.body)["token"]


def links(answer):
    return re.match(r"<([^>]*)>", answer.headers["link"])[1] if "link" in answer.headers else None


def check_blob(answer, descriptor):
    """Both compare the length with the descriptor, and the bytes with the digest. oras compares `Docker-Content-Digest` with it."""
    length = int(answer.headers["content-length"])
    require(answer.status == 200 and length == descriptor["size"], "a blob of the size of its descriptor", answer)
    digests = answer.digest, answer.headers.get("docker-content-digest")
    require(digests == (descriptor["digest"],) * 2, "a blob with its digest", answer)
    return answer.body


class Remote:
    """A call of `pkg/v1/remote` in go-containerregistry: it requests `/v2/` and authenticates, then sends credentials with each request,
    by the first challenge that it knows. What it returned goes on with them."""

    def __init__(self, transport, secret=token, schemes=("basic", "bearer")):
        self.transport, self.authorization = transport, None
        ping = transport.send("GET", "/v2/")
        require(ping.status in (200, 401), "GET /v2/ is 200 or 401", ping)
        require((ping.status == 401) == bool(token), "GET /v2/ is 401 if credentials are required", ping)
        if ping.status == 401:
            scheme, parameters = next(challenge for challenge in ping.challenges if challenge[0] in schemes)
            if scheme == "bearer":
                self.authorization = bearer(transport, parameters, [f"repository:{repository}:pull"], secret)
            elif secret:
                self.authorization = basic(secret)

    def send(self, method, path, accept=None, of=repository):
        return self.transport.send(method, f"/v2/{of}/{path}", {"Accept": accept, "Authorization": self.authorization})

    def head(self, tag):
        answer = self.send("HEAD", f"manifests/{tag}", GGCR_ACCEPT)
        fields = answer.headers.get("content-type"), answer.headers.get("content-length")
        require(answer.status == 200 and all(fields), "HEAD has the type and the length", answer)
        require(re.fullmatch("sha256:[0-9a-f]{64}", answer.headers.get("docker-content-digest", "")), "HEAD has the digest", answer)
        return answer.headers["docker-content-digest"]

    def get(self, reference, accept=GGCR_ACCEPT):
        answer = self.send("GET", f"manifests/{reference}", accept)
        require(answer.status == 200, "GET of a manifest", answer)
        require(":" not in reference or answer.digest == reference, "a manifest with its digest", answer)
        manifest = json.loads(answer.body)
        require(answer.headers["content-type"] == manifest["mediaType"] == OCI_MANIFEST, "the type of an OCI manifest", answer)
        return manifest

    def blob(self, descriptor):
        return check_blob(self.send("GET", f"blobs/{descriptor['digest']}"), descriptor)

    def tags(self):
        tags, page = [], f"/v2/{repository}/tags/list?n=1000"
        while page:
            answer = self.transport.send("GET", page, {"Authorization": self.authorization})
            require(answer.status == 200, "the tags", answer)
            tags, page = tags + json.loads(answer.body)["tags"], links(answer)
        return tags

    def referrers(self, digest):
        answer = self.send("GET", f"referrers/{digest}", OCI_INDEX)
        require((answer.status, answer.headers["content-type"]) == (200, OCI_INDEX), "the referrers are an index", answer)
        return json.loads(answer.body)["manifests"]


class Oras:
    """A repository of oras-go with its `auth.Client`: each request is sent without credentials first, and again by the first challenge.
    With a cache the scheme and the credentials of the request before are sent at once."""

    def __init__(self, transport, secret=token, cache=False):
        self.transport, self.secret, self.cache, self.authorization = transport, secret, cache, None

    def send(self, method, path, accept=None, body=None):
        headers = {"Accept": accept, "Authorization": self.authorization}
        answer = self.transport.send(method, path, headers, body)
        if answer.status != 401 or self.authorization or not self.secret:
            return answer
        scheme, parameters = answer.challenges[0]
        if scheme == "basic":
            headers["Authorization"] = basic(self.secret)
        else:
            headers["Authorization"] = bearer(self.transport, parameters, [parameters["scope"]], self.secret)
        self.authorization = headers["Authorization"] if self.cache else None
        return self.transport.send(method, path, headers, body)

    def ping(self):
        require((answer := self.send("GET", "/v2/")).status == 200, "GET /v2/ is 200", answer)

    def manifest(self, method, reference, accept=ORAS_ACCEPT):
        """`None`: it is not there. With HEAD the body of what is returned is empty."""
        answer = self.send(method, f"/v2/{repository}/manifests/{reference}", accept)
        if answer.status == 404:
            return None
        digest = answer.headers.get("docker-content-digest", "")
        is_so = answer.status == 200 and answer.headers.get("content-type") == OCI_MANIFEST and "content-length" in answer.headers
        require(is_so, f"{method} of a manifest has its type and its length", answer)
        require(re.fullmatch("sha256:[0-9a-f]{64}", digest), "Docker-Content-Digest", answer)
        require(":" not in reference or digest == reference, "the digest that was requested", answer)
        require(method == "HEAD" or answer.digest == digest, "a manifest with its digest", answer)
        return answer

    def resolve(self, reference):
        found = self.manifest("HEAD", reference)
        return found and found.headers["docker-content-digest"]

    def tags(self):
        tags, page = [], f"/v2/{repository}/tags/list"
        while page:
            require((answer := self.send("GET", page)).status == 200, "the tags", answer)
            tags, page = tags + json.loads(answer.body)["tags"], links(answer)
        return tags

    def copy(self, reference, types=None):
        """The manifest, and its blobs of these types. It requests each digest once."""
        manifest = json.loads(self.manifest("GET", reference).body)
        wanted = [it for it in [manifest["config"], *manifest["layers"]] if types is None or it["mediaType"] in types]
        blobs = {}
        for it in wanted:
            if it["digest"] not in blobs:
                blobs[it["digest"]] = check_blob(self.send("GET", f"/v2/{repository}/blobs/{it['digest']}"), it)
        return manifest, blobs


def sequence(name, *sources):
    """Runs what follows it at once."""

    def run(replay):
        global step, requests
        step, requests = name, 0
        replay()
        print(f"ok   {name}: {requests} request{'s' * (requests != 1)} ({'; '.join(sources)})", flush=True)

    return run


def highest(tags):
    """The tag of the highest version, as a range that accepts all finds it. Those of commits are none."""
    versions = [(tuple(map(int, found.groups())), tag) for tag in tags if (found := re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", tag))]
    require(versions, f"a tag is a version: {tags}")
    return max(versions)[1]


def check_files(archive):
    """They unpack it. A chart has one folder at its root."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        names = tar.getnames()
    require(names, "the layer has files")
    require(kind != "chart" or len({name.split("/")[0] for name in names}) == 1, f"a chart is a folder: {names}")


def flux(secret=token):
    """The calls of a reconciliation, on one new connection."""
    return partial(Remote, Transport(FLUX_AGENT), secret)


def flux_layer(remote, manifest):
    """By media type where the object has a selector, else the first one."""
    layers = [layer for layer in manifest["layers"] if kind != "chart" or layer["mediaType"] == CHART_LAYER]
    check_files(remote.blob(layers[0]))


def flux_pull(call, digest):
    image = call()
    flux_layer(image, image.get(digest))


latest = None


@sequence("Flux, OCIRepository with `tag: latest`: the first time", FLUX, GGCR)
def _():
    global latest
    call = flux()
    latest = call().head("latest")
    flux_pull(call, latest)


@sequence("Flux, OCIRepository with `tag: latest`: nothing changed", FLUX, GGCR)
def _():
    require(flux()().head("latest") == latest, "the digest of before")


@sequence("Flux, OCIRepository with `semver`", FLUX, GGCR)
def _():
    call = flux()
    digest = call().head(highest(call().tags()))
    require(digest == latest, "the highest version is in force")
    flux_pull(call, digest)


@sequence("Flux, OCIRepository with `digest`", FLUX, GGCR)
def _():
    flux_pull(flux(), latest)


def bundles(call, digest):
    """Those of the referrers with one layer that is a bundle; the others are fetched, and left."""
    found = []
    for referrer in call().referrers(digest):
        image = call()
        layers = image.get(referrer["digest"])["layers"]
        if len(layers) == 1 and layers[0]["mediaType"].startswith(BUNDLE):
            found.append(json.loads(image.blob(layers[0])))
    return found


def verify(call, reference):
    """Bundles; without any, the signatures at the tag. What signs them is not checked here."""
    digest = reference if ":" in reference else latest
    if digest is not reference:
        require(call().get(reference) is not None, "the digest of the tag")
    if found := bundles(call, digest):
        require(kind != "artifact" and len(bundles(call, digest)) == len(found), "bundles are there")
        statement = json.loads(base64.b64decode(found[0]["dsseEnvelope"]["payload"]))
        require(f"sha256:{statement['subject'][0]['digest']['sha256']}" == digest, f"a bundle is of the manifest: {statement}")
        return
    require(kind == "artifact", "bundles are there")
    answer = call().send("GET", f"manifests/{digest.replace(':', '-')}.sig", GGCR_ACCEPT)
    require(answer.status == 404 and answer.has_error("MANIFEST_UNKNOWN"), "no signatures are at the tag", answer)


@sequence("Flux, OCIRepository with `verify`, provider cosign with a key", FLUX_VERIFY, COSIGN, GGCR)
def _():
    verify(flux(), latest)


if kind != "artifact":

    @sequence("Flux, the same with cosign 2: signatures at the tag", FLUX_COSIGN_2, COSIGN_2, GGCR)
    def _():
        image = flux()()
        for layer in image.get(f"{latest.replace(':', '-')}.sig")["layers"]:
            payload = json.loads(image.blob(layer))
            require(payload["critical"]["image"]["docker-manifest-digest"] == latest, f"the payload is of the manifest: {payload}")
            require("dev.cosignproject.cosign/signature" in layer["annotations"], "a signature")


@sequence("Flux, OCIRepository: what is refused", FLUX, GGCR)
def _():
    """HEAD has no body, so it tries GET, and the condition `Ready` has the error."""
    call = flux()
    for method in ("HEAD", "GET"):
        answer = call().send(method, "manifests/latest", GGCR_ACCEPT, of="weir/no-such-service")
        is_so = answer.status == 404 and (method == "HEAD" or answer.has_error("NAME_UNKNOWN"))
        require(is_so, f"{method} of a repository that is not there", answer)
    for secret in (None, "not.a.token") if token else ():
        call = flux(secret)
        for method in ("HEAD", "GET"):
            answer = call().send(method, "manifests/latest", GGCR_ACCEPT)
            is_so = answer.status == 401 and (method == "HEAD" or answer.has_error("UNAUTHORIZED"))
            require(is_so, f"{method} with the password {secret}", answer)


if token:

    @sequence("go-containerregistry where only Bearer is offered: the token service", GGCR)
    def _():
        remote = Remote(Transport(FLUX_AGENT), schemes=("bearer",))
        require(remote.head("latest") == latest, "the digest of before")


if kind == "chart":

    @sequence("Flux, HelmRepository of type oci, HelmChart with a range", FLUX_HELM, HELM, ORAS)
    def _():
        oras = Oras(Transport(FLUX_HELM_AGENT))
        version = highest(oras.tags())
        manifest, blobs = oras.copy(version, [CHART_CONFIG, CHART_LAYER])
        config = json.loads(blobs[manifest["config"]["digest"]])
        require(config["version"].replace("+", "_") == version, f"the chart is of the version: {config}")
        check_files(next(blobs[layer["digest"]] for layer in manifest["layers"] if layer["mediaType"] == CHART_LAYER))

    @sequence("Flux, HelmChart with `verify`, provider cosign with a key", FLUX_HELM, FLUX_VERIFY, COSIGN, GGCR)
    def _():
        call = flux()
        verify(call, highest(call().tags()))

    @sequence("Argo CD, a source of type helm with `enableOCI`: a range, login and pull", ARGO_HELM, HELM, ORAS)
    def _():
        version = highest(Oras(Transport(GO, keep_alive=False)).tags())
        if token:
            # Processes of `helm`, which has a cache. Only to a token service would it send POST.
            Oras(Transport(HELM_AGENT, compression=False), cache=True).ping()
        pull = Oras(Transport(HELM_AGENT, compression=False), cache=True)
        manifest, blobs = pull.copy(version, [CHART_CONFIG, CHART_LAYER])
        check_files(next(blobs[layer["digest"]] for layer in manifest["layers"] if layer["mediaType"] == CHART_LAYER))


def argo():
    """A connection for each request."""
    return Oras(Transport(GO, keep_alive=False))


@sequence("Argo CD, a source of type oci: the repository is tested", ARGO, ORAS)
def _():
    argo().ping()


def argo_manifest(oras, digest):
    """It resolves the digest that it has, and fetches it by the type of that."""
    require(oras.resolve(digest) == digest, "the digest resolves to itself")
    return json.loads(oras.manifest("GET", digest, OCI_MANIFEST).body)


@sequence("Argo CD, a source of type oci, revision `latest`: the first time", ARGO, ORAS)
def _():
    oras = argo()
    require(oras.resolve("latest") == latest, "the digest that Flux has")
    manifest = argo_manifest(oras, latest)
    is_chart = manifest["config"]["mediaType"] == CHART_CONFIG
    content = [it for it in manifest["layers"] if re.search(r"tar([+.]gzip)?$", it["mediaType"])]
    content = [it for it in content if not is_chart or it["mediaType"] == CHART_LAYER]
    require(len(content) == 1 and content[0]["mediaType"] in ARGO_LAYERS, f"one layer of content, of an allowed type: {manifest}")
    _, blobs = oras.copy(latest)
    check_files(blobs[content[0]["digest"]])
    # The details of the revision, for its page.
    argo_manifest(oras, latest)


@sequence("Argo CD, a source of type oci, revision `latest`: nothing changed", ARGO, ORAS)
def _():
    require(argo().resolve("latest") == latest, "the digest of before")


@sequence("Argo CD, a source of type oci, a range as revision", ARGO, ORAS)
def _():
    oras = argo()
    # It takes the range for a tag first.
    require(oras.resolve("1.x") is None, "no tag is named as the range")
    require(oras.resolve(highest(oras.tags())) == latest, "the highest version is in force")


@sequence("Argo CD, a source of type oci: what is refused", ARGO, ORAS)
def _():
    oras = argo()
    answer = oras.send("HEAD", "/v2/weir/no-such-service/manifests/latest", ORAS_ACCEPT)
    require(answer.status == 404, "HEAD of a repository that is not there", answer)
    if token:
        oras.secret = "not.a.token"
        answer = oras.send("HEAD", f"/v2/{repository}/manifests/latest", ORAS_ACCEPT)
        require(answer.status == 401, "HEAD with a wrong password", answer)
