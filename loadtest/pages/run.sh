#!/usr/bin/env bash
# The pages in a real browser, with a real origin, edges and an agent behind them. One line per check; the first that fails
# ends it with status 1. Screenshots are left in target/pages.
#
# run.sh [DIRECTORY [DOCS]]: where the binaries are; without it they are built. With DOCS (docs/how-to) the screenshots of the
# documentation are taken anew. On Debian 12, as root: what is missing is installed (apt-get, npm).
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
binaries=${1:-$target/debug}
folder=$(mkdir -p "$target/pages" && cd "$target/pages" && pwd)

missing=()
command -v chromium-headless-shell >/dev/null || missing+=(chromium-headless-shell)
command -v npm >/dev/null || missing+=(nodejs npm)
if ((${#missing[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
packages=('puppeteer-core@^25' 'axe-core@^4.14')
if [ "$(cat "$folder/complete" 2>/dev/null)" != "${packages[*]}" ]; then
    echo '{"private": true}' >"$folder/package.json"
    npm install --prefix "$folder" --no-audit --no-fund --no-save --silent "${packages[@]}"
    echo "${packages[*]}" >"$folder/complete"
fi
[ $# -gt 0 ] || cargo build --locked -p weir -p weir-origin -p weir-edge -p weir-agent

# Modules are found from the folder of the program.
cp loadtest/pages/*.mjs "$folder"
timeout 300 node "$folder/pages.mjs" "$(cd "$binaries" && pwd)" "$folder" ${2:+"$(cd "$2" && pwd)"}
