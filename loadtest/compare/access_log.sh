#!/usr/bin/env bash
# What the access log costs a poll (HEAD of a tarball answered 304) at an edge: edges with `access` off, errors, all, and all
# within the default limit of lines, on core 0, the load on core 1, in turn, over HTTP/1.1, 2 and 3.
# loadtest/compare/access_log.sh [ROUNDS]; BIN is where the binaries are, if not target/release. With BEFORE, a folder with the
# weir-edge of another version, that one too. Needs curl.
set -euo pipefail
rounds=${1:-5}
bin=${BIN:-$(cd "$(dirname "$0")/../.." && pwd)/target/release}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

git init -q -b main "$work/upstream"
echo "replicas: 1" >"$work/upstream/app.yaml"
git -C "$work/upstream" add -A
git -C "$work/upstream" -c user.name=weir -c user.email=weir@example.org commit -q -m one
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
origin=127.0.0.1:$(free_port)
"$bin/weir" certificates --out "$work" >/dev/null
cat >"$work/origin.toml" <<TOML
name = "origin-1"
listen = "$origin"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "$work/upstream" }]
service = [{ name = "shop", repository = "shop" }]
TOML
WEIR_LOG=warn "$bin/weir-origin" --config "$work/origin.toml" & pids+=($!)

declare -A edges processes
path=/v1/services/shop/tarball
start() {
    edges[$1]=127.0.0.1:$(free_port)
    cat >"$work/$1.toml" <<TOML
name = "edge-1"
listen = "${edges[$1]}"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "open" }
cache = { dir = "cache-$1" }
freshness = { fresh = "1h" }
$3
origin = [{ url = "https://$origin", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
    TOKIO_WORKER_THREADS=1 taskset -c 0 "$2/weir-edge" --config "$work/$1.toml" 2>"$work/$1.log" & processes[$1]=$!; pids+=($!)
    until curl -sf --cacert "$work/ca.pem" --output /dev/null "https://${edges[$1]}$path"; do sleep 0.2; done
}
kinds=(off errors all limited)
start off "$bin" 'log = { access = "off" }'
start errors "$bin" 'log = { access = "errors" }'
start all "$bin" 'log = { access = "all", access_lines = 100000000 }'
start limited "$bin" 'log = { access = "all" }'
if [ -n "${BEFORE:-}" ]; then kinds=(before "${kinds[@]}"); start before "$BEFORE" ''; fi

for _ in $(seq "$rounds"); do
    for http in h1 h2 h3; do
        for kind in "${kinds[@]}"; do
            echo "$kind $http $(taskset -c 1 "$bin/weir-loadtest" poll --ca "$work/ca.pem" --server "${edges[$kind]}" \
                --pid "${processes[$kind]}" --http $http --path "$path")"
            : >"$work/$kind.log"
        done
    done
done | tee "$work/rows"
echo
median() { awk -v kind="$1" -v http="$2" '$1 == kind && $2 == http { print $NF }' "$work/rows" | sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
for http in h1 h2 h3; do
    off=$(median off $http)
    for kind in "${kinds[@]}"; do
        awk -v http=$http -v kind="$kind" -v off="$off" -v it="$(median "$kind" $http)" \
            'BEGIN { printf "%s %-7s %.2f µs, %.2f of off\n", http, kind, it, it / off }'
    done
done
