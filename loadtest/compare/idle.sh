#!/usr/bin/env bash
# What repositories cost an origin when nothing happens in them: its private memory, and the processor time of a poll that
# finds nothing new, beside `git ls-remote`. loadtest/compare/idle.sh [REPOSITORIES] [SECONDS] [git|https]; WEIR_ORIGIN names
# another binary than target/dist/weir-origin. The upstreams are on this machine, behind `git daemon` or an https server that
# keeps connections, whose time is not counted.
set -euo pipefail
repositories=${1:-1000}
seconds=${2:-60}
scheme=${3:-git}
root=$(cd "$(dirname "$0")/../.." && pwd)
origin=${WEIR_ORIGIN:-$root/target/dist/weir-origin}
weir=${WEIR:-$root/target/debug/weir}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q -b main "$work/first"
for file in $(seq 20); do mkdir -p "$work/first/deploy/$file"; echo "replicas: $file" >"$work/first/deploy/$file/app.yaml"; done
git -C "$work/first" add -A
git -C "$work/first" -c user.name=a -c user.email=a@b commit -q -m first
mkdir "$work/upstreams"
git clone -q --bare "$work/first" "$work/upstreams/1.git"
for number in $(seq 2 "$repositories"); do cp -al "$work/upstreams/1.git" "$work/upstreams/$number.git"; done

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
git_port=$(free_port) admin=$(free_port)
"$weir" certificates --out "$work" >/dev/null
case $scheme in
git) git daemon --base-path="$work/upstreams" --export-all --listen=127.0.0.1 --port="$git_port" --max-connections=64 & ;;
https) python3 "$root/loadtest/compare/https_upstream.py" "$work/upstreams" "$work/origin.pem" "$work/origin.key" "$git_port" & ;;
esac
pids+=($!)
until (exec 3<>"/dev/tcp/127.0.0.1/$git_port") 2>/dev/null; do sleep 0.1; done
{
    cat <<TOML
name = "origin-1"
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:$admin"
data_dir = "data"
[limits]
requests_per_minute_per_host = 6000
[tls]
certificate = "origin.pem"
key = "origin.key"
client_ca = "ca.pem"
TOML
    for number in $(seq "$repositories"); do
        printf '[[repository]]\nname = "r%d"\nurl = "%s://127.0.0.1:%d/%d.git"\npoll_interval = "30s"\n' \
            "$number" "$scheme" "$git_port" "$number"
        if [ "$scheme" = https ]; then printf 'ca = "ca.pem"\n'; fi
        printf '[[service]]\nname = "s%d"\nrepository = "r%d"\nref = "main"\nfolder = "deploy"\n' "$number" "$number"
    done
} >"$work/origin.toml"
WEIR_LOG=warn "$origin" --config "$work/origin.toml" &
pid=$!
pids+=("$pid")

metric() { curl -sf "http://127.0.0.1:$admin/metrics" | awk -v series="$1" 'index($0, series) == 1 { sum += $NF } END { print sum + 0 }'; }
polls() { curl -sf "http://127.0.0.1:$admin/metrics" | awk '/^weir_origin_polls_total.*unchanged/ { sum += $NF } END { print sum + 0 }'; }
ticks() { awk '{ sub(/^.*\) /, ""); print $12 + $13 }' "/proc/$pid/stat"; }
# What is written to, and besides it what is the program's own file, of which many processes would share one copy.
private() { awk '/^Private_Dirty/ { kb += $2 } END { printf "%.1f", kb / 1024 }' "/proc/$pid/smaps_rollup"; }
mapped() { awk '/^Private_Clean/ { kb += $2 } END { printf "%.1f", kb / 1024 }' "/proc/$pid/smaps_rollup"; }

until [ "$(metric weir_origin_publications_total)" = "$repositories" ]; do sleep 1; done
# Each of them was polled once more, so that nothing of the first time is left to be done.
until [ "$(polls)" -ge "$repositories" ]; do sleep 1; done
polls_before=$(polls) ticks_before=$(ticks)
sleep "$seconds"
polls_after=$(polls) ticks_after=$(ticks)
echo "$repositories repositories: private memory $(private) MB (and $(mapped) MB of the program, mapped), $(ls "/proc/$pid/fd" | wc -l) open files, $(wc -l <"/proc/$pid/maps") maps"
awk -v polls=$((polls_after - polls_before)) -v ticks=$((ticks_after - ticks_before)) -v hz="$(getconf CLK_TCK)" \
    'BEGIN { printf "an unchanged poll: %.2f ms of processor time (%d polls)\n", 1000 * ticks / hz / polls, polls }'
GIT_SSL_CAINFO=$work/ca.pem python3 - "$scheme://127.0.0.1:$git_port/1.git" <<'PYTHON'
import resource, subprocess, sys
for _ in range(50):
    subprocess.run(["git", "ls-remote", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"git ls-remote: {(used.ru_utime + used.ru_stime) * 20:.1f} ms of processor time")
PYTHON
