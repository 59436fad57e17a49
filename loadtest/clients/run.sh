#!/usr/bin/env bash
# Clients that others wrote, against a real origin and edge: curl (OpenSSL's QUIC, nghttp3, nghttp2), niquests (qh3),
# headless Chromium and skopeo; what the OCI distribution specification requires; and what Flux and Argo CD request, by their
# sources. One line per check; the first that fails ends it with status 1.
#
# run.sh [DIRECTORY]: where the binaries are; without it they are built. On Debian 12, as root: what is missing is
# installed (apt-get, debootstrap, pip). The clients are kept below target/clients.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
binaries=${1:-$target/debug}
clients=$(mkdir -p "$target/clients" && cd "$target/clients" && pwd)
trixie=$clients/trixie
venv=$clients/venv
SINGLE_REQUESTS=300

check() { printf 'ok   %s\n' "$*"; }
fail() { printf 'FAIL %s\n' "$*" >&2; tail -n 20 "$work"/*.log >&2 || true; exit 1; }

install() {
    local missing=()
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v chromium-headless-shell >/dev/null || missing+=(chromium-headless-shell)
    command -v openssl >/dev/null || missing+=(openssl)
    command -v skopeo >/dev/null || missing+=(skopeo)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    if ((${#missing[@]})); then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    fi >/dev/null
    if ! [ -e "$trixie/complete" ]; then
        # Debian 13 has a curl that speaks HTTP/3; Debian 12 has not.
        rm -rf "$trixie"
        debootstrap --variant=minbase --include=curl,ca-certificates trixie "$trixie" >/dev/null
        touch "$trixie/complete"
    fi
    if ! [ -e "$venv/complete" ]; then
        python3 -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet 'niquests==3.21.*'
        touch "$venv/complete"
    fi
}

# A certificate for the edge without a URI among its names: niquests refuses those.
edge_certificate() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/server.key" -subj /CN=edge \
        -out "$work/server.csr" 2>/dev/null
    openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -days 7 -out "$work/server.pem" \
        -extfile <(printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n') 2>/dev/null
}

site() {
    git init --quiet --initial-branch=main "$work/upstream"
    head -c 3000000 /dev/urandom >"$work/upstream/file"
    git -C "$work/upstream" add file
    git -C "$work/upstream" -c user.name=weir -c user.email=weir@example.org commit --quiet --message=file
    git -C "$work/upstream" tag v1.0.0
    "$binaries/weir" certificates --out "$work" >/dev/null
    edge_certificate
    "$binaries/weir-origin" keys new "$work/signing.key" >/dev/null
    python3 loadtest/clients/upstreams.py "$upstreams_port" 2>"$work/upstreams.log" & pids+=($!)
    cat >"$work/origin.toml" <<TOML
name = "origin-1"
listen = "127.0.0.1:$origin_port"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
oci = { enabled = true }
signing = { keys = ["signing.key"], cosign = true }
repository = [
    { name = "shop", url = "$work/upstream" },
    { name = "charts", kind = "helm", url = "http://127.0.0.1:$upstreams_port/charts" },
    { name = "manifests", kind = "oci", url = "oci://127.0.0.1:$upstreams_port/acme/manifests", insecure = true },
]
service = [
    { name = "shop", repository = "shop", ref = "v1.0.0" },
    { name = "podinfo", repository = "charts", chart = "podinfo" },
    { name = "manifests", repository = "manifests", ref = "semver:^1" },
]
TOML
    cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "127.0.0.1:$port"
admin_listen = "127.0.0.1:$admin_port"
tls = { certificate = "server.pem", key = "server.key" }
cache = { dir = "edge-cache" }
freshness = { fresh = "1h" }
origin = [{ url = "https://127.0.0.1:$origin_port", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
    "$binaries/weir" token key --out "$work/fleet.key" >/dev/null
    "$binaries/weir" token issue --key "$work/fleet.key" --subject cluster-1 --service '*' --out "$work/cluster-1.token" >/dev/null
    sed -e "s/$port/$closed_port/; s/$admin_port/$closed_admin_port/; s/edge-1/edge-2/; s/edge-cache/closed-cache/" \
        -e '1i auth = { mode = "required", keys = ["fleet.key.pub"] }' "$work/edge.toml" >"$work/closed.toml"
    "$binaries/weir-origin" --config "$work/origin.toml" 2>"$work/origin.log" & pids+=($!)
    "$binaries/weir-edge" --config "$work/edge.toml" 2>"$work/edge.log" & pids+=($!)
    "$binaries/weir-edge" --config "$work/closed.toml" 2>"$work/closed.log" & pids+=($!)
    curl -s --retry 60 --retry-delay 1 --retry-all-errors --max-time 90 --fail -o "$work/descriptor.json" \
        --cacert "$work/ca.pem" "$url/v1/services/shop" || fail "the edge serves the descriptor"
    curl -sS --fail --cacert "$work/ca.pem" -o "$work/tarball" "$tarball"
    digest=$(grep -o 'b3-[0-9a-f]\{64\}' "$work/descriptor.json" | head -n 1)
}

# requests PROTOCOL: how many requests of it the edge has answered.
requests() {
    curl -sS --fail "http://127.0.0.1:$admin_port/metrics" |
        awk -v p="listener=\"agents\",method=\"[A-Z]*\",protocol=\"$1\"" '/^weir_http_requests_total/ && $0 ~ p { n += $2 } END { print n + 0 }'
}

trixie_curl() { timeout 120 chroot "$trixie" "$@"; }

curl_checks() {
    local inside=/tmp/weir-clients version flag got
    mkdir -p "$trixie$inside"
    cp "$work/ca.pem" "$trixie$inside/ca.pem"
    for version in 3 2 1.1; do
        flag=--http$version
        [ "$version" = 3 ] && flag=--http3-only
        # Each in a process of its own: each on its own connection.
        got=$(trixie_curl bash -c '
            for ((i = 0; i < '$SINGLE_REQUESTS'; i++)); do
                curl '$flag' -sS --max-time 10 --cacert '$inside'/ca.pem -I -o /dev/null \
                    -H "If-None-Match: \"'"$digest"'\"" -w "%{http_code} %{http_version}\n" '"$tarball"' || echo failed
            done' | sort | uniq -c | sed 's/^ *//')
        [ "$got" = "$SINGLE_REQUESTS 304 $version" ] || fail "curl, HTTP/$version: $SINGLE_REQUESTS polls gave: $got"
        check "curl 8.14, HTTP/$version: $SINGLE_REQUESTS polls, each on its own connection, all 304"
        trixie_curl curl "$flag" -sS --max-time 30 --cacert $inside/ca.pem -o $inside/body "$tarball"
        cmp -s "$trixie$inside/body" "$work/tarball" || fail "curl, HTTP/$version: the tarball differs"
        check "curl 8.14, HTTP/$version: the tarball is whole"
        trixie_curl curl "$flag" -sS --max-time 30 --cacert $inside/ca.pem -H 'Accept-Encoding: zstd' -r 0-999999 \
            -o $inside/one "$tarball"
        trixie_curl curl "$flag" -sS --max-time 30 --cacert $inside/ca.pem -H 'Accept-Encoding: zstd' -r 1000000- \
            -o $inside/two "$tarball"
        trixie_curl curl "$flag" -sS --max-time 30 --cacert $inside/ca.pem -H 'Accept-Encoding: zstd' -o $inside/all "$tarball"
        cat "$trixie$inside/one" "$trixie$inside/two" | cmp -s - "$trixie$inside/all" || fail "curl, HTTP/$version: ranges"
        check "curl 8.14, HTTP/$version: two ranges make the whole"
    done
}

# A page that fetches and polls while it is loaded; what came of it is its text.
chromium_page() {
    cat <<HTML
<!doctype html><body><script>
const ask = (method, headers) => {
    const request = new XMLHttpRequest();
    request.open(method, "https://edge.test:$port/v1/services/shop/tarball", false);
    request.overrideMimeType("text/plain; charset=x-user-defined");
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.send();
    return request;
};
const whole = ask("GET", {}).responseText;
// The browser's own cache asks whether what it holds is still current.
const same = ask("GET", { "Cache-Control": "max-age=0" }).responseText === whole;
let unchanged = 0;
for (let n = 0; n < $SINGLE_REQUESTS; n++) unchanged += ask("HEAD", { "If-None-Match": '"$digest"' }).status === 304;
document.body.textContent = ["came of it:", whole.length, same, unchanged].join(" ");
</script></body>
HTML
}

chromium() {
    timeout 120 chromium-headless-shell --no-sandbox --disable-gpu --user-data-dir="$work/chromium" \
        --host-resolver-rules="MAP edge.test 127.0.0.1" --origin-to-force-quic-on="edge.test:$port" \
        --ignore-certificate-errors-spki-list="$pin" "$@" 2>"$work/chromium.log"
}

chromium_checks() {
    local pin before page version size
    version="$(chromium-headless-shell --version 2>/dev/null | cut -d' ' -f1-2 || true), HTTP/3"
    pin=$(openssl x509 -in "$work/server.pem" -pubkey -noout | openssl pkey -pubin -outform der |
        openssl dgst -sha256 -binary | base64)
    before="$(requests h1) $(requests h2)" h3_before=$(requests h3)
    page=$(chromium --dump-dom "https://edge.test:$port/v1/services/shop") || fail "chromium ended with an error"
    [[ $page == *"$digest"* ]] || fail "chromium shows: ${page:0:300}"
    check "$version: the descriptor"
    chromium_page >"$work/page.html"
    # Its page is from elsewhere, and so may read nothing of the edge's without this.
    page=$(chromium --disable-web-security --dump-dom "file://$work/page.html") ||
        fail "chromium ended with an error"
    size=$(stat -c %s "$work/tarball")
    [[ $page == *"came of it: $size true $SINGLE_REQUESTS"* ]] || fail "chromium: $page"
    check "$version: the tarball, twice, and $SINGLE_REQUESTS polls, all 304"
    [ "$before" = "$(requests h1) $(requests h2)" ] && (($(requests h3) >= h3_before + SINGLE_REQUESTS)) ||
        fail "chromium did not come over HTTP/3"
    check "$version: nothing came over another version"
}

# An artifact is copied by tag; and as a mirror of a registry that nobody can reach, by its digest.
skopeo_checks() {
    local version manifest
    version=$(skopeo --version | sed 's/ version//')
    mkdir "$work/certs"
    cp "$work/ca.pem" "$work/certs/ca.crt"
    skopeo inspect --raw --cert-dir "$work/certs" "docker://localhost:$port/weir/shop:v1.0.0" >"$work/manifest.json" ||
        fail "skopeo inspect"
    manifest=sha256:$(sha256sum <"$work/manifest.json" | cut -d' ' -f1)
    skopeo --insecure-policy copy --quiet --src-cert-dir "$work/certs" "docker://localhost:$port/weir/shop:latest" "dir:$work/copied" ||
        fail "skopeo copy"
    cmp -s "$work/copied/manifest.json" "$work/manifest.json" || fail "skopeo: the copied manifest differs"
    check "$version: an artifact by tag"
    cat >"$work/registries.conf" <<TOML
[[registry]]
location = "registry.invalid/acme/shop"
[[registry.mirror]]
location = "localhost:$port/weir/shop"
TOML
    skopeo --insecure-policy --registries-conf "$work/registries.conf" copy --quiet --src-cert-dir "$work/certs" \
        "docker://registry.invalid/acme/shop@$manifest" "dir:$work/mirrored" || fail "skopeo copy from the mirror"
    diff -r "$work/copied" "$work/mirrored" || fail "skopeo: what the mirror has differs"
    check "$version: an artifact by its digest, from the mirror of a repository"
}

# replay SERVICE KIND URL [TOKEN_FILE]
replay() {
    local credentials=()
    (($# < 4)) || credentials=(-u "weir:$(cat "$4")")
    curl -s --retry 60 --retry-delay 1 --retry-all-errors --max-time 90 --fail -o /dev/null --cacert "$work/ca.pem" \
        "${credentials[@]}" "$3/v2/weir/$1/manifests/latest" || fail "the edge serves the manifest of $1"
    timeout 120 python3 loadtest/clients/flux_argocd.py "$3" "$work/ca.pem" "weir/$1" "$2" "${@:4}" || fail "flux_argocd.py"
    check "Flux and Argo CD: weir/$1 ($2) at an edge $( (($# < 4)) && echo that is open || echo that requires tokens)"
}

begun=$SECONDS
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
# Below those of outgoing connections.
port=$((20000 + $$ % 2000 * 6)) origin_port=$((port + 1)) admin_port=$((port + 2))
closed_port=$((port + 3)) closed_admin_port=$((port + 4)) upstreams_port=$((port + 5))
url=https://localhost:$port
tarball=$url/v1/services/shop/tarball
(($#)) || cargo build --quiet --locked -p weir -p weir-origin -p weir-edge
install
site
timeout 120 python3 loadtest/clients/oci_conformance.py "$url" "$work/ca.pem" weir/shop || fail "oci_conformance.py"
for service in "shop files" "podinfo chart" "manifests artifact"; do
    read -r name kind <<<"$service"
    replay "$name" "$kind" "$url"
    replay "$name" "$kind" "https://localhost:$closed_port" "$work/cluster-1.token"
done
skopeo_checks
curl_checks
timeout 240 "$venv/bin/python" loadtest/clients/niquests_checks.py "$url" "$work/ca.pem" "$digest" "$work/tarball" || fail "niquests"
chromium_checks
check "all of it took $((SECONDS - begun)) s"
