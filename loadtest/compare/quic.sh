#!/usr/bin/env bash
# What the buffers of UDP sockets do to downloads over HTTP/3: packets that the edge lost, its processor time and the rate, for
# bodies of 1 MB and 50 MB, with Linux's default buffers and with those that edge and agent ask for, beside nginx with the same
# client. Two rounds of each. Sets net.core.rmem_max and wmem_max, so it needs root; servers.sh says which nginx.
set -euo pipefail
declare -A before
for key in rmem_max wmem_max; do before[$key]=$(sysctl -n net.core.$key); done
trap 'for key in rmem_max wmem_max; do sysctl -qw net.core.$key=${before[$key]}; done' EXIT

measure() (
    source "$(dirname "$0")/servers.sh"
    packets() { curl -s http://127.0.0.1:17490/metrics | awk -v name="weir_quic_packets_$1_total" 'index($1, name) == 1 { sum += $2 } END { print sum + 0 }'; }
    for size in 1000000 50000000; do
        read -r connections streams <<<"$([ $size = 1000000 ] && echo 2 4 || echo 1 1)"
        how=(--fetch --http h3 --connections "$connections" --streams "$streams" --duration 3s)
        sent=$(packets sent) lost=$(packets lost)
        row=$(load_weir $size "${how[@]}")
        # The packets of a connection count when it ends.
        until now=$(packets sent) && [ "$now" != "$sent" ]; do sleep 0.2; done
        sleep 1
        echo "$1 $size weir sent $(($(packets sent) - sent)) lost $(($(packets lost) - lost)) $row"
        echo "$1 $size nginx $(load_nginx $size "${how[@]}")"
    done
)
for round in 1 2; do
    # Linux doubles what a program asks for: half of its default is its default.
    sysctl -qw net.core.rmem_max=106496 net.core.wmem_max=106496
    measure default
    sysctl -qw net.core.rmem_max=4194304 net.core.wmem_max=4194304
    measure asked
done
