#!/bin/bash
# Runs UMDK's own programs, unmodified, on this liburma.so.0 between two network namespaces, and compiles tests/layout.c against
# UMDK's headers. Needs root. Prints one line for each run; exits with 1 if one fails.
# usage: tests/umdk.sh UMDK_SOURCE UMDK_BUILD LIBURMA_SO      (UMDK is built with -DBUILD_ALL=disable -DBUILD_URMA=enable -DBUILD_UDMA=disable)
set -u
source=$1 build=$2 library=$3
here=$(dirname "$0")
work=$(mktemp -d)
a=urma-a-$$ b=urma-b-$$
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT

gcc -fsyntax-only -I "$source/src/urma/lib/urma/core/include" "$here/layout.c" || exit 1
echo "layout: sizes and offsets are UMDK's"

ln -s "$(realpath "$library")" "$work/liburma.so.0"
ln -s "$(realpath "$build/urma/common/liburma_common.so.0")" "$work/liburma_common.so.0"
ip netns add $a && ip netns add $b || exit 1
ip link add ua$$ netns $a type veth peer name ub$$ netns $b
for side in "$a ua$$ 1" "$b ub$$ 2"; do
    read -r name link last <<<"$side"
    ip -n "$name" addr add "10.77.0.$last/24" dev "$link"
    ip -n "$name" addr add "fd77::$last/64" dev "$link" nodad
    ip -n "$name" link set lo up
    ip -n "$name" link set "$link" up
done

failed=0
within() { LD_LIBRARY_PATH=$work timeout 30 ip netns exec "$@"; }
perftest() {
    local program=$build/urma/tools/urma_perftest/urma_perftest
    within $a "$program" "$@" -d burst0 >"$work/server" 2>&1 &
    local server=$!
    sleep 0.5
    within $b "$program" "$@" -d burst0 -S 10.77.0.1 >"$work/client" 2>&1
    local code=$?
    wait $server || code=$?
    printf '%-60s %s\n' "urma_perftest $*" "$([ $code = 0 ] && tail -n 1 "$work/client" || echo "FAILED ($code)")"
    [ $code = 0 ] || failed=1
}
sample() {
    (sleep 6; echo q) | within $a "$build/urma/examples/urma_sample" -d burst0 "$@" >"$work/server" 2>&1 &
    sleep 2
    within $b "$build/urma/examples/urma_sample" -d burst0 -i 10.77.0.1 "$@" >"$work/client" 2>&1
    local code=$?
    wait
    printf '%-60s %s\n' "urma_sample $*" "$([ $code = 0 ] && grep -a 'Response received' "$work/client" || echo "FAILED ($code)")"
    [ $code = 0 ] || failed=1
}

for mode in 0 1; do
    for test in send_lat write_lat read_lat; do perftest $test -p $mode -n 200 -s 64; done
    for test in send_bw write_bw read_bw; do perftest $test -p $mode -n 300 -s 4096; done
    for test in atomic_lat atomic_bw; do perftest $test -p $mode -A faa -n 200; done
    for order in 1 2 3; do perftest write_bw -p $mode --order_type $order -n 300 -s 4096; done
done
perftest send_lat -p 2 -n 200 -s 512
perftest send_bw -p 2 -n 200 -s 512
for options in "-b" "-b -f" "-J 4" "-l 8 -Q 8" "-Q 8" "-B" "-K 1" "--enable_imm" "--eid_idx 1"; do
    # shellcheck disable=SC2086  # several options
    perftest write_bw $options -n 512 -s 4096
done
perftest send_lat -e -n 200 -s 64
perftest send_bw -e -n 200 -s 64
perftest write_lat -I 32 -n 200 -s 32
perftest atomic_bw -A cas -J 4 -n 200
perftest read_lat -a -n 50
perftest write_bw -n 20 -s 16777215
sample
sample -m 1
sample -e
exit $failed
