#!/bin/sh
# Looks for seeds on which the test of whole hosts fails (crates/hosts/host/tests/whole): fresh seeds for the given number of steps
# in all, default 1,000,000. Seeds that fail are added to the file of kept seeds, which every run of the test begins with.
# Exit status: 0 if no seed failed.
set -eu
steps=${1:-1000000}
each=${BURST_STEPS:-40000}
cd "$(dirname "$0")/../.."
kept=crates/hosts/host/tests/whole/kept-seeds
first=${BURST_FIRST_SEED:-$(date +%s%N)}
# Optimised, with all assertions.
export CARGO_PROFILE_QUICK_DEBUG_ASSERTIONS=true CARGO_PROFILE_QUICK_OVERFLOW_CHECKS=true
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
BURST_FIRST_SEED=$first BURST_SEEDS=$(((steps + each - 1) / each)) BURST_STEPS=$each \
    cargo test --profile "${PROFILE:-quick}" -p burst-host --test whole -- --nocapture >"$log" 2>&1 || status=$?
grep -E '^seed [0-9]+ failed' "$log" | while read -r _ seed _ _ _ step why; do
    printf '%s %s # step %s %s\n' "$seed" "$each" "$step" "$why" >>"$kept"
done
grep -E '^(seed [0-9]+ failed|repeat it|all seeds)' "$log" || tail -n 20 "$log"
exit "$status"
