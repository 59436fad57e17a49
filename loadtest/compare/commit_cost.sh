#!/usr/bin/env bash
# What a commit costs behind Git: what the origin writes and makes durable, what an edge receives of it, and what that
# writes. One commit touches one file, a second one touches none. loadtest/compare/commit_cost.sh [SERVICES]: a repository
# with a folder for each of 1,000 services. loadtest/compare/commit_cost.sh DIR: the repository that the example
# `synthetic_repository` made, as one service. BIN is where the binaries are, if not target/release. Needs curl, strace, ss.
# The temporary folder must be on a disk: the kernel does not count what is written to memory.
set -euo pipefail
what=${1:-1000}
bin=${BIN:-$(cd "$(dirname "$0")/../.." && pwd)/target/release}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_{AUTHOR,COMMITTER}_NAME=weir GIT_{AUTHOR,COMMITTER}_EMAIL=weir@example.org

# `next` holds the commit that changes one file, on its branch `one-file`.
if [ -d "$what" ]; then
    next=$(realpath "$what") folders=("") services=1
else
    next=$work/next services=$what
    git init -q -b main "$next"
    for folder in $(seq "$services"); do
        mkdir -p "$next/$folder"
        echo 1 >"$next/$folder/version"
        seq -f "service-$folder: %g" 100 >"$next/$folder/app.yaml"
    done
    git -C "$next" add -A
    git -C "$next" commit -q -m one
    git -C "$next" checkout -q -b one-file
    echo 2 >"$next/1/version"
    git -C "$next" commit -q -a -m two
    mapfile -t folders < <(seq "$services")
fi
git clone -q --bare --single-branch --branch=main "$next" "$work/shop.git"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
listen=$(free_port) origin_admin=$(free_port) edge_listen=$(free_port) edge_admin=$(free_port)
"$bin/weir" certificates --out "$work" >/dev/null
{
    cat <<TOML
name = "origin-1"
listen = "127.0.0.1:$listen"
admin_listen = "127.0.0.1:$origin_admin"
data_dir = "origin-data"
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "$work/shop.git", poll_interval = "1s" }]
TOML
    for folder in "${folders[@]}"; do
        printf '[[service]]\nname = "s%s"\nrepository = "shop"\nref = "main"\nfolder = "%s"\n' "$folder" "$folder"
    done
} >"$work/origin.toml"
cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "127.0.0.1:$edge_listen"
admin_listen = "127.0.0.1:$edge_admin"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "open" }
cache = { dir = "edge-cache" }
freshness = { fresh = "1h" }
push = { prefetch_within = "0s" }
origin = [{ url = "https://127.0.0.1:$listen", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
WEIR_LOG=warn "$bin/weir-origin" --config "$work/origin.toml" & origin=$!; pids+=($origin)
WEIR_LOG=warn "$bin/weir-edge" --config "$work/edge.toml" & edge=$!; pids+=($edge)

service=https://127.0.0.1:$edge_listen/v1/services/s${folders[0]}
ask() { curl -sf --cacert "$work/ca.pem" --header 'Accept-Encoding: zstd' "$@"; }
knows() { ask "$service" | grep -q "\"seen\":{\"revision_id\":\"[a-z0-9]*:$1"; }
# Names and values.
counted() {
    for admin in $origin_admin $edge_admin; do curl -sf "http://127.0.0.1:$admin/metrics"; done |
        grep -E '^weir_(origin_(publications|record_writes|object_written_bytes)|edge_events)_total' | grep -v heartbeat
}
published() { counted | awk '/publications/ { sum += $2 } END { print sum + 0 }'; }
# Of a process and its children, in whole pages.
written() { awk '/^write_bytes/ { print $2 }' "/proc/$1/io"; }
received() { ss -tinH dst "127.0.0.1:$listen" | grep -o 'bytes_received:[0-9]*' | awk -F: '{ sum += $2 } END { print sum + 0 }'; }
# Waits until neither has written anything for 3 s: edges write behind, by a second at the most.
quiet() {
    local now before='' since=$SECONDS
    while [ $((SECONDS - since)) -lt 4 ]; do
        now="$(written $origin) $(written $edge)"
        [ "$now" = "$before" ] || since=$SECONDS
        before=$now
        sleep 0.2
    done
}
# measure TITLE COMMIT: puts a commit on `main`, has its service fetched, and says what became different.
measure() {
    quiet
    strace -f -e trace=fsync,fdatasync,syncfs,sync_file_range -o "$work/syncs" -p "$origin" 2>"$work/strace" & local tracer=$!
    until [ -s "$work/strace" ]; do sleep 0.1; done
    local at_origin at_edge got
    at_origin=$(written $origin) at_edge=$(written $edge) got=$(received)
    counted >"$work/before"
    git -C "$work/shop.git" update-ref refs/heads/main "$2"
    until knows "$2"; do sleep 0.2; done
    ask --output /dev/null "$service/tarball"
    quiet
    kill -INT $tracer; wait $tracer || true
    echo "$1:"
    echo "  origin: $(($(written $origin) - at_origin)) bytes written, $(grep -c sync "$work/syncs" || true) calls of fsync"
    echo "  edge: $(($(received) - got)) bytes received, $(($(written $edge) - at_edge)) bytes written"
    counted | awk 'NR == FNR { before[$1] = $2; next } $2 > before[$1] { print "  " $1 " +" $2 - before[$1] }' "$work/before" -
}

until [ "$(published)" -ge "$services" ]; do sleep 1; done
until ask --output "$work/body" "$service/tarball"; do sleep 0.2; done
echo "the service that is touched: $(stat -c %s "$work/body") bytes of zstd"
git -C "$work/shop.git" fetch -q "$next" one-file
commit=$(git -C "$work/shop.git" rev-parse FETCH_HEAD)
measure "a commit that touches one file" "$commit"
measure "a commit that touches none" "$(git -C "$work/shop.git" commit-tree "$commit^{tree}" -p "$commit" -m 'the same')"
