#!/usr/bin/env bash
# What a tarball of the synthetic repository (50,000 files, 416 MB) costs, beside `git archive | zstd -3` on the same
# repository, in one run: wall and processor time of a build from nothing, and of one after a commit that changes a file;
# frames are stored as files, with fsync and without.
# loadtest/compare/tarballs.sh [REPOSITORY [ROUNDS]]; the repository is made when it is not there (about a minute).
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v zstd >/dev/null || { echo "zstd is missing: apt-get install zstd" >&2; exit 1; }
cargo build --release --quiet -p weir-origin --example build_tarballs
target=${CARGO_TARGET_DIR:-target}
build=$target/release/examples/build_tarballs
repository=${1:-$target/tmp/synthetic.git}
if [ ! -d "$repository/objects" ]; then
    cargo run --quiet -p weir-loadtest --example synthetic_repository -- "$repository"
fi
# Beside the repository, because a folder for temporary files may be in memory, where fsync costs nothing.
out=$(mktemp -d "$(dirname "$repository")/frames.XXXXXX")
trap 'rm -rf "$out"' EXIT
TIMEFORMAT='wall %R s, user %U s, system %S s'
# Once unmeasured, so that all are served from the page cache.
git -C "$repository" archive main | zstd -3 -q -c >"$out/body.zst"
echo "one zstd frame: $(stat -c %s "$out/body.zst") bytes"
for round in $(seq 1 "${2:-3}"); do
    echo "round $round"
    echo -n "git archive | zstd -3: "
    time { git -C "$repository" archive main | zstd -3 -q -c >"$out/body.zst"; }
    for fsync in "" --no-fsync; do
        # The third commit leaves all but the attributes at the top as it was.
        "$build" --threads 2 --dir "$out" $fsync "$repository" main one-file attributes
    done
done
