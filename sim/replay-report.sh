#!/bin/bash
#
# replay-report.sh [calibration] [matrix] [ablations] [untuned]: the tables of
# docs/least-work.md, all of them when none is named. REPLAY is the tool,
# SEEDS those of 2 replicas; larger fleets take the first FLEET of them.

set -euo pipefail

replay=${REPLAY:-build/replay}
first=${FIRST:-7000}
count=${COUNT:-40}
fleet=${FLEET:-40}

rivals=random,least-request,prefix-cache,prefix-cache-8-1,prefix-cache-gap-4
rivals+=,cache-aware,prefill-decode,queue-batch,bounded-load,load-aware
rivals+=,weighted-sum,preble,min-ttft

four=cold,warm-skewed,hot-50,hot-90


seeds()
{
    if [ "$1" -gt 2 ]; then
        echo "$first-$((first + fleet - 1))"
    else
        echo "$first-$((first + count - 1))"
    fi
}


# P95 in s / SLO pass in %, and the best rival beside it
cell()
{
    local replicas=$1 arrivals=$2 scenario=$3

    shift 3
    "$replay" --json --replicas "$replicas" --arrivals "$arrivals" \
        --scenario "$scenario" --seeds "$(seeds "$replicas")" \
        --strategies "$rivals,least-work" "$@" \
        | jq -r --arg name "${label:-}" '
            (.results[] | select(.strategy == "least-work")) as $own
            | ([.results[] | select(.strategy != "least-work")]
               | min_by(.ttft_p95)) as $best
            | def shown: "\(.ttft_p95 * 100 | round / 100) s / \(.slo_pass
                         * 100 | round) %";
            "| \($name) \(.replicas) \(.arrivals) \(.scenario) | \($own | shown)"
            + " | \($best | shown) \($best.strategy) | \($own.ttft_p95
            / $best.ttft_p95 * 100 | round / 100) |"'
}


calibration()
{
    echo '## Calibration: fixed arrivals, 2 replicas, seeds 0-23'
    "$replay" --seeds 0-23 \
        --strategies random,least-request,prefix-cache
}


matrix()
{
    local replicas scenario

    echo "## Matrix: seeds from $first"
    echo '| cell | least-work | best rival | ratio |'
    echo '|---|---|---|---|'

    for scenario in ${four//,/ }; do
        cell 2 fixed "$scenario"
    done

    for replicas in ${REPLICAS:-2 16 64}; do
        for scenario in ${four//,/ }; do
            cell "$replicas" poisson "$scenario"
        done
    done
}


ablation()
{
    local name=$1 arrivals replicas

    shift
    printf '| %s ' "$name"

    for cell in 2:fixed 2:poisson 16:poisson; do
        replicas=${cell%:*} arrivals=${cell#*:}
        printf '| %s ' "$("$replay" --json --replicas "$replicas" \
            --arrivals "$arrivals" --scenario $four --strategies least-work \
            --seeds "$(seeds "$replicas")" "$@" \
            | jq -r '.results[0] | "\(.ttft_p95 * 100 | round / 100)/\(
                     .slo_pass * 100 | round)"' | paste -sd' ')"
    done

    echo '|'
}


ablations()
{
    echo '## Ablations: cold, warm-skewed, hot-50, hot-90, P95 s / SLO %'
    echo '| variant | 2 fixed | 2 Poisson | 16 Poisson |'
    echo '|---|---|---|---|'

    ablation 'as it is'
    ablation 'no guard' --set guard=1e6
    ablation 'guard 2, whatever the mean' --set guard_share=0
    ablation 'guard 4' --set guard=4
    ablation 'no belief' --set belief=0
    ablation 'no copies' --set copy=0
    ablation 'copies from the first request' --set copy_min=0
    ablation 'own work not weighted' --set crowd=1e30
    ablation 'queue not counted' --set queue=0
    ablation 'requests not counted' --set request=0
    ablation 'usage at the end of the stream' --usage end
    ablation 'usage with the first byte' --usage first
}


untuned()
{
    local n scenario

    echo '## What it was not tuned for, Poisson arrivals'
    echo '| cell | least-work | best rival | ratio |'
    echo '|---|---|---|---|'

    for n in 2 16; do
        for scenario in ${four//,/ }; do
            label='output sigma 0.8,' cell $n poisson $scenario \
                --output-sigma 0.8
            label='32 slots,' cell $n poisson $scenario --load 1.25 \
                --set max_num_seqs=32
            label='256 slots,' cell $n poisson $scenario --load 1.25 \
                --set max_num_seqs=256
            label='one at half speed,' cell $n poisson $scenario --slow 0:0.5
            label='cache half of demand,' cell $n poisson $scenario \
                --set kv_blocks=$((6 * n))
            label='' cell $n bursts $scenario
            label='2 routers,' cell $n poisson $scenario --routers 2
        done

        label='' cell $n poisson multi-turn
        label='small cache,' cell $n poisson multi-turn --set kv_blocks=12
        label='' cell $n poisson no-reuse
        label='h100-8b,' cell $n poisson hot-50 --profile h100-8b --load 15
        label='h100-8b,' cell $n poisson multi-turn --profile h100-8b \
            --load 15
    done
}


if [ $# = 0 ]; then
    set -- calibration matrix ablations untuned
fi

for table; do
    case $table in
    calibration|matrix|ablations|untuned) $table; echo ;;
    *) echo "replay-report.sh: no table \"$table\"" >&2; exit 2 ;;
    esac
done
