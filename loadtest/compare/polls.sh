#!/usr/bin/env bash
# What a poll (HEAD answered 304) costs an edge, and what it costs nginx, in one run: the server on core 0, the load on
# core 1, in turn, three rounds, over HTTP/1.1, 2 and 3 with TLS 1.3. servers.sh says which nginx.
source "$(dirname "$0")/servers.sh"

for round in 1 2 3; do
    for http in h1 h2 h3; do
        echo "weir  $(load_weir 10000 --http $http)"
        echo "nginx $(load_nginx 10000 --http $http)"
    done
done | tee "$work/rows"
echo
awk '{ sum[$1 " " $2] += $NF; n[$1 " " $2]++ }
     END { for (v = 1; v <= 3; v++) { w = sum["weir Http" v] / n["weir Http" v]; x = sum["nginx Http" v] / n["nginx Http" v];
           printf "HTTP/%d  weir %.2f µs  nginx %.2f µs  ratio %.2f\n", v, w, x, w / x } }' "$work/rows"
