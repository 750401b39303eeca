#!/bin/sh
# Runs the engine's tests on this machine's GPU and writes what came of it to gpu-tests.log, in the folder that it is started from.
#
# usage: run.sh [--sanitize]
#
# `make gpu-tests` puts it beside the test programs and their fixtures. With --sanitize, tests of the tiny models run again under NVIDIA's compute-sanitizer: memcheck
# and racecheck. They come after the plain run, which leaves compiled kernels in the cache, so that no compiler is watched. Exits 1 if anything failed.

here=$(cd "$(dirname "$0")" && pwd)
log=$PWD/gpu-tests.log
failed=
# Training with adapters in the tower, of all weights and with narrow weights and moments; reading prompts and generating.
tiny="training::cuda::the_same_seed_gives_the_same_bits reference::cuda::logits_loss_and_every_gradient reference::cuda::training_all_weights_of_a_padded_model
packing::cuda::narrow_moments_train generation::cuda::a_cache_changes_nothing"
# racecheck follows every access to shared memory and is a hundred times slower: one step of training, a few tokens, and the kernels for large heads.
races="garden-model/training::cuda::a_step_changes_every_adapter garden-device/devices::cuda::attention_with_large_heads garden-device/devices::cuda::attention_over_a_cache
garden-device/devices::cuda::norms garden-device/devices::cuda::losses garden-device/devices::cuda::updates_with_8_bits"

export GARDEN_TESTDATA="$here/testdata"

case "$1" in
"" | --sanitize) ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

say() { echo "$@" | tee -a "$log"; }

# Runs a command, shows and keeps what it tells, and notes whether it failed.
try() {
    name=$1
    shift
    say "== $name"
    { "$@" 2>&1; echo $? >"$log.code"; } | tee -a "$log"
    code=$(cat "$log.code")
    rm -f "$log.code"
    [ "$code" = 0 ] || { failed="$failed, $name"; say "failed with $code: $name"; }
}

# Runs one test under a tool of the sanitizer. Errors of API calls are not counted: asking the driver for a kernel's parameters ends with one, and all others are ours to report.
check() {
    tool=$1 program=$2 test=$3
    # A name that no test has would pass as well.
    "$here/$program" --list 2>/dev/null | grep -qx "$test: test" || { say "error: no test is called $test"; failed="$failed, $test"; }
    try "$tool $test" timeout 180 "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 "$here/$program" --exact "$test" --test-threads 1 --show-output
}

: >"$log"
say "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
say "build: $(cat "$here/build.txt")"
say "system: $(uname -srm)"
if ! nvidia-smi -L >/dev/null 2>&1; then
    say "error: nvidia-smi finds no GPU on this machine"
    exit 2
fi
say "card, driver, memory: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)"
say "CUDA of the driver: $(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)"
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
[ -z "$nvcc" ] || say "CUDA toolkit: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"

# One at a time where a test looks at what a device records: the driver may give up a recording while another thread uses the card. Those of models run side by side.
for program in "$here"/garden-*; do
    threads=$(nproc)
    [ "$(basename "$program")" = garden-device ] && threads=1
    try "$(basename "$program")" "$program" cuda:: --show-output --test-threads "$threads"
done

if [ "$1" = --sanitize ]; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$sanitizer" ]; then
        say "error: compute-sanitizer is not installed; it comes with the CUDA toolkit"
        failed="$failed, compute-sanitizer"
    else
        for test in $tiny; do check memcheck garden-model "$test"; done
        for test in $races; do check racecheck "${test%%/*}" "${test#*/}"; done
    fi
fi

grep '^== \|^test result: \|ERROR SUMMARY\|RACECHECK SUMMARY' "$log" >"$log.short"
grep -o 'skipped: .*' "$log" | sort -u >>"$log.short"
say "== result"
say "$(cat "$log.short")"
# Where the GPU cannot be used its tests skip themselves, which is no success here. What else is missing names its test.
if grep '^skipped: ' "$log.short" | grep -qv 'cuda::'; then
    failed="$failed, tests that could not use the GPU"
fi
rm -f "$log.short"
if [ -n "$failed" ]; then
    say "FAILED: ${failed#, }"
    exit 1
fi
say "all passed"
