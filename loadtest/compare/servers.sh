# Sourced by the comparisons: starts an origin, an edge on core 0 and an nginx on core 0 that serve the same bytes with the
# same certificates, and stops them at the end. Sets `load`, and the processes `edge` and `worker`.
#
# NGINX_COMMAND is a command that runs an nginx with HTTP/3 (1.25 or later), NGINX_ROOT the root directory it sees: on Debian 12,
#   debootstrap --variant=minbase --include=nginx trixie /srv/trixie
#   NGINX_COMMAND='chroot /srv/trixie nginx' NGINX_ROOT=/srv/trixie loadtest/compare/polls.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --profile dist --quiet -p weir -p weir-origin -p weir-edge -p weir-loadtest
release=${CARGO_TARGET_DIR:-target}/dist
nginx=${NGINX_COMMAND:-nginx}
root=${NGINX_ROOT:-}
work=$(mktemp -d)
site=$(mktemp -d "$root/tmp/weir-nginx.XXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work" "$site"' EXIT

"$release/weir" certificates --out "$work" >/dev/null
git init --quiet --initial-branch=main "$work/upstream"
# Bytes that do not compress: what is stored of them, and sent, is about as large.
for size in 10000 1000000 50000000; do
    mkdir "$work/upstream/$size"
    head -c $size /dev/urandom >"$work/upstream/$size/file"
done
git -C "$work/upstream" add .
git -C "$work/upstream" -c user.name=weir -c user.email=weir@example.org commit --quiet --message=files
cat >"$work/origin.toml" <<TOML
name = "origin-1"
listen = "127.0.0.1:17400"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "$work/upstream" }]
service = [
    { name = "bytes-10000", repository = "shop", folder = "10000" },
    { name = "bytes-1000000", repository = "shop", folder = "1000000" },
    { name = "bytes-50000000", repository = "shop", folder = "50000000" },
]
TOML
cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "127.0.0.1:17443"
admin_listen = "127.0.0.1:17490"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "open" }
cache = { dir = "edge-cache" }
freshness = { fresh = "1h" }
origin = [{ url = "https://127.0.0.1:17400", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
cp "$work/edge.pem" "$work/edge.key" "$site"
for size in 10000 1000000 50000000; do cp "$work/upstream/$size/file" "$site/$size"; done
inside=${site#"$root"}
cat >"$site/nginx.conf" <<CONF
worker_processes 1; worker_cpu_affinity 01; daemon off; pid $inside/pid; error_log $inside/error.log;
events { worker_connections 4096; }
http {
    access_log off; keepalive_requests 100000000; keepalive_timeout 300s; open_file_cache max=100;
    ssl_certificate $inside/edge.pem; ssl_certificate_key $inside/edge.key; ssl_protocols TLSv1.3;
    root $inside; http2 on; quic_gso on;
    # As it is, and with the fields that the protocol asks of an edge besides nginx's own.
    server { listen 127.0.0.1:18443 ssl; listen 127.0.0.1:18443 quic; }
    server {
        listen 127.0.0.1:18444 ssl; listen 127.0.0.1:18444 quic;
        add_header weir-digest b3-3cf6ac63b8a77ccca0ab08cebc155cb2a78d61585694ead5dec136feb386b2bf;
        add_header weir-generation 1795268547633;
        add_header weir-commit 1072ea43c5c8a2e594c749b64c75eb82176b9def;
        add_header weir-revision sha1:1072ea43c5c8a2e594c749b64c75eb82176b9def;
        add_header content-location /v1/services/bytes-10000/tarballs/b3-3cf6ac63b8a77ccca0ab08cebc155cb2a78d61585694ead5dec136feb386b2bf;
        add_header vary "Accept-Encoding, Available-Dictionary";
        add_header cache-control "max-age=3600, stale-while-revalidate=60, stale-if-error=31536000";
        add_header age 0;
        add_header cache-status "edge-1; hit";
        add_header alt-svc 'h3=":17443"; ma=86400';
    }
}
CONF
chmod -R a+rX "$site"

"$release/weir-origin" --config "$work/origin.toml" 2>"$work/origin.log" & pids+=($!)
TOKIO_WORKER_THREADS=1 taskset -c 0 "$release/weir-edge" --config "$work/edge.toml" 2>"$work/edge.log" & edge=$!; pids+=($edge)
$nginx -c "$inside/nginx.conf" & pids+=($!)
for size in 10000 1000000 50000000; do
    weir_url=https://127.0.0.1:17443/v1/services/bytes-$size/tarball
    until curl --silent --fail --cacert "$work/ca.pem" --header 'Accept-Encoding: zstd' --output "$work/got" "$weir_url"; do
        sleep 0.2
    done
done
until [ -s "$site/pid" ]; do sleep 0.2; done
worker=$(pgrep -P "$(cat "$site/pid")" | head -1)

load() { taskset -c 1 "$release/weir-loadtest" poll --ca "$work/ca.pem" "$@"; }
load_weir() { load --server 127.0.0.1:17443 --pid "$edge" --path "/v1/services/bytes-$1/tarball" "${@:2}"; }
load_nginx() { load --server 127.0.0.1:18443 --pid "$worker" --path "/$1" "${@:2}"; }
load_nginx_equal() { load --server 127.0.0.1:18444 --pid "$worker" --path "/$1" "${@:2}"; }
