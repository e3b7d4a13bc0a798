#!/bin/bash
#
# Two simulated engines behind the module, on free ports, and a conversation
# through them with the strategy switched by header.
#
# usage: scripts/demo.sh BUILD

set -euo pipefail

build=$(realpath "$1")
conf=$(dirname "$(dirname "$(realpath "$0")")")/conf/demo
work=$(mktemp -d)
chmod 755 "$work"

free_ports() {
    perl -MIO::Socket::INET -e '
        for (1 .. shift) {
            push @s, IO::Socket::INET->new(LocalAddr => "127.0.0.1",
                                           Listen => 1) or die $!;
            print $s[-1]->sockport, "\n";
        }' "$1"
}

stop() {
    for pid in "$work"/*/nginx.pid; do
        [ -f "$pid" ] && kill -QUIT "$(cat "$pid")" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap stop EXIT

mapfile -t ports < <(free_ports 3)
router=http://127.0.0.1:${ports[0]}

for name in engines router; do
    mkdir -p "$work/$name"
    sed -e "s|@BUILD@|$build|; s|@ROUTER@|${ports[0]}|" \
        -e "s|@A@|${ports[1]}|; s|@B@|${ports[2]}|" \
        "$conf/$name.conf" > "$work/$name/nginx.conf"
    nginx -p "$work/$name" -e error.log -c "$work/$name/nginx.conf"
done

say() { printf '\n== %s\n' "$*"; }

head=$(printf 'You are the support desk of a train company. %.0s' {1..90})

chat() {    # strategy, question, stream
    jq -n --arg s "$head" --arg q "$2" --argjson stream "$3" \
        '{model: "demo", max_tokens: 8, stream: $stream,
          stream_options: (if $stream then {include_usage: true} else null end),
          messages: [{role: "system", content: $s},
                     {role: "user", content: $q}]}' \
    | curl -sS -N -i -H 'content-type: application/json' \
        -H "routing-strategy: $1" --data-binary @- \
        "$router/v1/chat/completions" | tr -d '\r'
}

show_head() { grep -E '^(HTTP|target-pod:|routing-strategy:|request-id:)'; }

for port in "${ports[@]}"; do
    curl -sS -o /dev/null --retry 20 --retry-connrefused --retry-delay 0 \
        "http://127.0.0.1:$port/metrics"
done

say "a chat, streamed as the engine writes it (routing-strategy: prefix-cache)"
chat prefix-cache 'When is the next train?' true

say "the same 4 kB system prompt again: the replica that has it gets it"
for q in 'And the one after?' 'Is it late?' 'May I take a bike?'; do
    chat prefix-cache "$q" false | show_head | grep target-pod:
done

say "least-request and random look at load only, or at nothing"
for s in least-request random random random; do
    chat "$s" 'Hello?' false | show_head \
        | grep -E 'target-pod:|routing-strategy:' | paste -sd ' '
done

say "a strategy that does not exist"
chat no-such-thing 'Hello?' false | grep -E '^(HTTP|x-error|\{)'

say "what the access log says of it"
sed 's/^/  /' "$work/router/access.log"

say "$router/metrics says, among other things"
curl -sS "$router/metrics" \
    | grep -E '^aibrix_(requests_total|inflight|index_blocks|prefix_cache_routing_selection)' \
    | grep -v ' 0$' | sed 's/^/  /'

say "the live page is at $router/status, and the same as JSON says"
curl -sS "$router/status" | jq -r '.upstreams[].peers[] | "  \(.server):"
    + " \(.requests) requests, TTFT P95 \((.ttft.p95 // 0) * 1000 | round) ms,"
    + " \((.match_share // 0) * 100 | round) % of the prompts were there"'

if [ -t 0 ] && [ -t 1 ]; then
    say "running at $router until Ctrl-C"
    sleep infinity
fi
