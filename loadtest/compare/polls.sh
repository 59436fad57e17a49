#!/usr/bin/env bash
# What a poll (HEAD answered 304) costs an edge, and what it costs nginx, in one run: the server on core 0, the load on
# core 1, in turn, three rounds, over HTTP/1.1, 2 and 3 with TLS 1.3.
#
# NGINX_COMMAND is a command that runs an nginx with HTTP/3 (1.25 or later), NGINX_ROOT the root directory it sees: on Debian 12,
#   debootstrap --variant=minbase --include=nginx trixie /srv/trixie
#   NGINX_COMMAND='chroot /srv/trixie nginx' NGINX_ROOT=/srv/trixie loadtest/compare/polls.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --quiet -p weir -p weir-origin -p weir-edge -p weir-loadtest
release=${CARGO_TARGET_DIR:-target}/release
nginx=${NGINX_COMMAND:-nginx}
root=${NGINX_ROOT:-}
work=$(mktemp -d)
site=$(mktemp -d "$root/tmp/weir-nginx.XXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work" "$site"' EXIT

"$release/weir" certificates --out "$work" >/dev/null
git init --quiet --initial-branch=main "$work/upstream"
head -c 10000 /dev/urandom >"$work/upstream/file"
git -C "$work/upstream" add file
git -C "$work/upstream" -c user.name=weir -c user.email=weir@example.org commit --quiet --message=file
cat >"$work/origin.toml" <<TOML
name = "origin-1"
listen = "127.0.0.1:17400"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "$work/upstream" }]
service = [{ name = "shop", repository = "shop" }]
TOML
cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "127.0.0.1:17443"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "open" }
cache = { dir = "edge-cache" }
freshness = { fresh = "1h" }
origin = [{ url = "https://127.0.0.1:17400", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
cp "$work/edge.pem" "$work/edge.key" "$work/upstream/file" "$site"
inside=${site#"$root"}
cat >"$site/nginx.conf" <<CONF
worker_processes 1; worker_cpu_affinity 01; daemon off; pid $inside/pid; error_log $inside/error.log;
events { worker_connections 4096; }
http {
    access_log off; keepalive_requests 100000000; keepalive_timeout 300s; open_file_cache max=100;
    server {
        listen 127.0.0.1:18443 ssl; listen 127.0.0.1:18443 quic; http2 on; quic_gso on;
        ssl_certificate $inside/edge.pem; ssl_certificate_key $inside/edge.key; ssl_protocols TLSv1.3;
        root $inside;
    }
}
CONF
chmod -R a+rX "$site"

"$release/weir-origin" --config "$work/origin.toml" 2>"$work/origin.log" & pids+=($!)
TOKIO_WORKER_THREADS=1 taskset -c 0 "$release/weir-edge" --config "$work/edge.toml" 2>"$work/edge.log" & edge=$!; pids+=($edge)
$nginx -c "$inside/nginx.conf" & pids+=($!)
weir_url=https://127.0.0.1:17443/v1/services/shop/tarball
until curl --silent --fail --cacert "$work/ca.pem" --head "$weir_url" >/dev/null; do sleep 0.2; done
until [ -s "$site/pid" ]; do sleep 0.2; done
worker=$(pgrep -P "$(cat "$site/pid")" | head -1)

load() { taskset -c 1 "$release/weir-loadtest" --ca "$work/ca.pem" "$@"; }
for round in 1 2 3; do
    for http in h1 h2 h3; do
        echo "weir  $(load --http $http --server 127.0.0.1:17443 --path /v1/services/shop/tarball --pid "$edge")"
        echo "nginx $(load --http $http --server 127.0.0.1:18443 --path /file --pid "$worker")"
    done
done | tee "$work/rows"
echo
awk '{ sum[$1 " " $2] += $NF; n[$1 " " $2]++ }
     END { for (v = 1; v <= 3; v++) { w = sum["weir Http" v] / n["weir Http" v]; x = sum["nginx Http" v] / n["nginx Http" v];
           printf "HTTP/%d  weir %.2f µs  nginx %.2f µs  ratio %.2f\n", v, w, x, w / x } }' "$work/rows"
