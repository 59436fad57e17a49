#!/usr/bin/env bash
# What a poll (HEAD answered 304) costs an edge, and what it costs nginx, in one run: the server on core 0, the load on
# core 1, in turn, three rounds, over HTTP/1.1, 2 and 3 with TLS 1.3. The edge twice: with `auth.mode = "open"`, and with
# `required` and a token. nginx twice: as it is, with five fields in its answer, and with the fields that the protocol asks of
# an edge besides. servers.sh says which nginx.
source "$(dirname "$0")/servers.sh"

"$release/weir" token key --out "$work/fleet.key" >/dev/null
"$release/weir" token issue --key "$work/fleet.key" --subject cluster-1 --service 'bytes-*' --id one --out "$work/token" >/dev/null
sed 's/edge-1/edge-2/; s/17443/17445/; s/17490/17491/; s/"open"/"required", keys = ["fleet.key.pub"]/; s/"edge-cache"/"edge-cache-2"/' \
    "$work/edge.toml" >"$work/required.toml"
TOKIO_WORKER_THREADS=1 taskset -c 0 "$release/weir-edge" --config "$work/required.toml" 2>"$work/required.log" & required=$!; pids+=($required)
until curl --silent --fail --cacert "$work/ca.pem" --header "Authorization: Bearer $(cat "$work/token")" --output "$work/got" \
    https://127.0.0.1:17445/v1/services/bytes-10000/tarball; do
    sleep 0.2
done
load_required() {
    load --server 127.0.0.1:17445 --pid "$required" --token-file "$work/token" --path "/v1/services/bytes-$1/tarball" "${@:2}"
}

for round in 1 2 3; do
    for http in h1 h2 h3; do
        echo "weir  $(load_weir 10000 --http $http)"
        echo "token $(load_required 10000 --http $http)"
        echo "nginx $(load_nginx 10000 --http $http)"
        echo "equal $(load_nginx_equal 10000 --http $http)"
    done
done | tee "$work/rows"
echo
awk '{ sum[$1 " " $2] += $NF; n[$1 " " $2]++ }
     END { for (v = 1; v <= 3; v++) {
               split("weir token nginx equal", who, " ")
               for (w in who) mean[who[w]] = sum[who[w] " Http" v] / n[who[w] " Http" v]
               printf "HTTP/%d  weir %.2f µs, with a token %.2f µs  nginx %.2f µs, ratio %.2f  nginx with the same fields %.2f µs, ratio %.2f\n",
                      v, mean["weir"], mean["token"], mean["nginx"], mean["weir"] / mean["nginx"], mean["equal"], mean["weir"] / mean["equal"] } }' "$work/rows"
