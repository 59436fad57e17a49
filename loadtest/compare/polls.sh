#!/usr/bin/env bash
# What a poll (HEAD answered 304) costs an edge, and what it costs nginx, in one run: the server on core 0, the load on
# core 1, in turn, three rounds, over HTTP/1.1, 2 and 3 with TLS 1.3. nginx twice: as it is, with five fields in its answer,
# and with the fields that the protocol asks of an edge besides. servers.sh says which nginx.
source "$(dirname "$0")/servers.sh"

for round in 1 2 3; do
    for http in h1 h2 h3; do
        echo "weir  $(load_weir 10000 --http $http)"
        echo "nginx $(load_nginx 10000 --http $http)"
        echo "equal $(load_nginx_equal 10000 --http $http)"
    done
done | tee "$work/rows"
echo
awk '{ sum[$1 " " $2] += $NF; n[$1 " " $2]++ }
     END { for (v = 1; v <= 3; v++) {
               split("weir nginx equal", who, " ")
               for (w in who) mean[who[w]] = sum[who[w] " Http" v] / n[who[w] " Http" v]
               printf "HTTP/%d  weir %.2f µs  nginx %.2f µs, ratio %.2f  nginx with the same fields %.2f µs, ratio %.2f\n",
                      v, mean["weir"], mean["nginx"], mean["weir"] / mean["nginx"], mean["equal"], mean["weir"] / mean["equal"] } }' "$work/rows"
