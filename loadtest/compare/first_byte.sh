#!/usr/bin/env bash
# How long the first byte of a tarball that an edge does not hold takes through the edge, beside the origin's own first byte
# and the transfer of one frame from it: medians over 30 tarballs of 8 MB, each fetched once through the edge, in one run,
# over HTTP/2 and TLS 1.3 on loopback, with connections that are there. Nothing is pinned to a core. A tarball begins with a
# small frame, so the origin is asked for two: the first, and the second, which has about 1 MiB, as most have. "One frame" is
# the second; the ratio to the first is printed as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --quiet -p weir -p weir-origin -p weir-edge
release=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT
numbers=$(seq 1 30)

"$release/weir" certificates --out "$work" >/dev/null
git init --quiet --initial-branch=main "$work/upstream"
for number in $numbers; do
    mkdir "$work/upstream/$number"
    # Bytes that do not compress.
    head -c 8000000 /dev/urandom >"$work/upstream/$number/file"
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
$(for number in $numbers; do echo "    { name = \"tarball-$number\", repository = \"shop\", folder = \"$number\" },"; done)
]
TOML
# Nothing is fetched before it is asked for.
cat >"$work/edge.toml" <<TOML
name = "edge-1"
listen = "127.0.0.1:17443"
tls = { certificate = "edge.pem", key = "edge.key" }
auth = { mode = "open" }
cache = { dir = "edge-cache" }
push = { prefetch_within = "0s" }
origin = [{ url = "https://127.0.0.1:17400", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
TOML
"$release/weir-origin" --config "$work/origin.toml" 2>"$work/origin.log" & pids+=($!)
"$release/weir-edge" --config "$work/edge.toml" 2>"$work/edge.log" & pids+=($!)

edge=https://127.0.0.1:17443 origin=https://127.0.0.1:17400
# The time to the first byte and from there to the end, in µs, without that of the connection.
ask() {
    curl --silent --fail --http2 --cacert "$work/ca.pem" --output /dev/null \
        --write-out '%{time_pretransfer} %{time_starttransfer} %{time_total}\n' "$@" |
        awk '{ printf "%d %d\n", ($2 - $1) * 1e6, ($3 - $2) * 1e6 }'
}
ask_origin() { ask --cert "$work/edge-client.pem" --key "$work/edge-client.key" "$@"; }
for number in $numbers; do
    until curl --silent --fail --head --cacert "$work/ca.pem" --header 'Accept-Encoding: zstd' --output /dev/null \
        "$edge/v1/services/tarball-$number/tarball"; do
        sleep 0.2
    done
done
for number in $numbers; do
    descriptor=$(curl --silent --fail --cacert "$work/ca.pem" "$edge/v1/services/tarball-$number")
    manifest=$(sed 's/.*"representations"//; s/.*"digest": *"\(b3-[0-9a-f]*\)".*/\1/' <<<"$descriptor")
    read -r through rest <<<"$(ask --header 'Accept-Encoding: zstd' "$edge/v1/services/tarball-$number/tarball")"
    # The digests and sizes of the first two frames.
    read -r first size second second_size _ <<<"$(curl --silent --fail --cacert "$work/ca.pem" \
        --cert "$work/edge-client.pem" --key "$work/edge-client.key" "$origin/v1/objects/shop/$manifest" |
        sed 's/{"digest":"\(b3-[0-9a-f]*\)","size":\([0-9]*\)[^}]*}/ \1 \2 /g; s/^[^ ]*//; s/ , / /g')"
    read -r own_first transfer_first <<<"$(ask_origin "$origin/v1/objects/shop/$first")"
    read -r own transfer <<<"$(ask_origin "$origin/v1/objects/shop/$second")"
    read -r again _ <<<"$(ask --header 'Accept-Encoding: zstd' "$edge/v1/services/tarball-$number/tarball")"
    echo "$through $own $transfer $own_first $transfer_first $((through + rest)) $again $size $second_size"
done >"$work/rows"
median() { cut -d ' ' -f "$1" "$work/rows" | sort -n | awk '{ row[NR] = $1 } END { printf "%d", (row[int((NR + 1) / 2)] + row[int(NR / 2) + 1]) / 2 }'; }
show() { printf '%-48s %7.0f %s\n' "$1" "$2" "$3"; }
show "first byte of a miss through the edge" "$(median 1)" µs
show "its last byte" "$(median 6)" µs
show "first byte of a hit of the edge" "$(median 7)" µs
show "first frame" "$(($(median 8) / 1024))" KiB
show "  first byte of the origin itself" "$(median 4)" µs
show "  its transfer" "$(median 5)" µs
show "second frame, of the usual size" "$(($(median 9) / 1024))" KiB
show "  first byte of the origin itself" "$(median 2)" µs
show "  its transfer" "$(median 3)" µs
awk -v through="$(median 1)" -v own="$(median 2)" -v transfer="$(median 3)" \
    -v own_first="$(median 4)" -v transfer_first="$(median 5)" 'BEGIN {
    printf "a miss beside the origin and a frame of the usual size %4.2f\n", through / (own + transfer)
    printf "a miss beside the origin and its own first frame       %4.2f\n", through / (own_first + transfer_first) }'
