#!/usr/bin/env bash
# What a poll of an agent that follows 50 services costs an edge (HEAD of /v1/agents/self/services answered 304), beside a
# poll of one service (HEAD of its tarball answered 304) with the same token: the edge on core 0, the load on core 1, in
# turn, over HTTP/2 and 3. loadtest/compare/batch_poll.sh [ROUNDS [SERVICES]]; BIN is where the binaries are, if not
# target/release. Needs curl.
set -euo pipefail
rounds=${1:-5}
services=${2:-50}
bin=${BIN:-$(cd "$(dirname "$0")/../.." && pwd)/target/release}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

git init -q -b main "$work/upstream"
for service in $(seq "$services"); do
    mkdir "$work/upstream/$service"
    echo "replicas: $service" >"$work/upstream/$service/app.yaml"
done
git -C "$work/upstream" add -A
git -C "$work/upstream" -c user.name=weir -c user.email=weir@example.org commit -q -m one

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
origin=127.0.0.1:$(free_port) edge=127.0.0.1:$(free_port)
"$bin/weir" certificates --out "$work" >/dev/null
"$bin/weir" token key --out "$work/fleet.key" >/dev/null
"$bin/weir" token issue --key "$work/fleet.key" --subject cluster-1 --service 's*' --id one --out "$work/agent.token" >/dev/null
{
    cat <<TOML
name = "origin-1"
listen = "$origin"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "$work/upstream" }]
TOML
    for service in $(seq "$services"); do
        printf '[[service]]\nname = "s%s"\nrepository = "shop"\nref = "main"\nfolder = "%s"\n' "$service" "$service"
    done
} >"$work/origin.toml"
cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "$edge"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "required", keys = ["fleet.key.pub"] }
cache = { dir = "edge-cache" }
origin = [{ url = "https://$origin", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
WEIR_LOG=warn "$bin/weir-origin" --config "$work/origin.toml" & pids+=($!)
WEIR_LOG=warn TOKIO_WORKER_THREADS=1 taskset -c 0 "$bin/weir-edge" --config "$work/edge.toml" & pid=$!; pids+=($pid)

# Any pattern that matches them all is the same as an assignment of them all.
batch='/v1/agents/self/services?services=*'
rows() {
    curl -sf --cacert "$work/ca.pem" --header "Authorization: Bearer $(cat "$work/agent.token")" "https://$edge$batch" |
        grep -o '"digest"' | wc -l
}
until [ "$(rows)" = "$services" ]; do sleep 0.2; done

load() {
    taskset -c 1 "$bin/weir-loadtest" poll --ca "$work/ca.pem" --token-file "$work/agent.token" --server "$edge" --pid "$pid" "$@"
}
for _ in $(seq "$rounds"); do
    for http in h2 h3; do
        echo "single $http $(load --http $http --path /v1/services/s1/tarball)"
        echo "batch $http $(load --http $http --path "$batch")"
    done
done | tee "$work/rows"
echo
median() { awk -v kind="$1" -v http="$2" '$1 == kind && $2 == http { print $NF }' "$work/rows" | sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
for http in h2 h3; do
    awk -v http=$http -v n="$services" -v single="$(median single $http)" -v batch="$(median batch $http)" 'BEGIN {
        printf "%s  single %.2f µs, batch of %d %.2f µs: %.2f of one single poll, %.4f of %d\n",
               http, single, n, batch, batch / single, batch / single / n, n }'
done
