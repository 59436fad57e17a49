#!/usr/bin/env bash
# What a fetch (GET of the stored form) of 10 kB, 1 MB and 50 MB costs an edge, and what it costs nginx, in one run: the
# server on core 0, the load on core 1, in turn, three rounds, with TLS 1.3. The files are in the page cache of both.
# Over the versions of HTTP that are named; over h1 h2 h3 when none is. servers.sh says which nginx.
versions=("${@:-h1 h2 h3}")
set --
source "$(dirname "$0")/servers.sh"

# Connections and requests under way on each, by size.
declare -A shape=([10000]="4 16" [1000000]="2 4" [50000000]="1 1")
for round in 1 2 3; do
    for http in ${versions[*]}; do
        for size in 10000 1000000 50000000; do
            read -r connections streams <<<"${shape[$size]}"
            how=(--fetch --http "$http" --connections "$connections" --streams "$streams" --duration 1s)
            echo "weir  $size $(load_weir $size "${how[@]}")"
            echo "nginx $size $(load_nginx $size "${how[@]}")"
        done
    done
done | tee "$work/rows"
echo
awk '{ sum[$3 " " $2 " " $1] += $NF; n[$3 " " $2 " " $1]++ }
     END { for (key in sum) if (sub(/ weir$/, "", key)) { w = sum[key " weir"] / n[key " weir"]; x = sum[key " nginx"] / n[key " nginx"];
           split(key, part, " ");
           printf "%s %8d bytes  weir %.0f µs/MB  nginx %.0f µs/MB  ratio %.2f\n", part[1], part[2], w, x, w / x } }' "$work/rows" | sort
