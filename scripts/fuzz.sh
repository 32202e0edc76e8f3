#!/usr/bin/env bash
# Fuzzes the parsers (docs/fuzzing.md): scripts/fuzz.sh [SECONDS [NAME...]]. Each target runs for SECONDS (30), two at a time
# where there are two cores. An input that breaks one is kept in build/fuzz/crashes/, and the status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
shift || true
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" _fuzz.cc)"); done
fi
if [[ ! $seconds =~ ^[0-9]+$ ]]; then
  echo "usage: scripts/fuzz.sh [SECONDS [NAME...]]" >&2
  exit 2
fi
for name in "${targets[@]}"; do
  [[ -e tests/fuzz/${name}_fuzz.cc ]] || { echo "no such target: $name" >&2; exit 2; }
done

crashes=build/fuzz/crashes
mkdir -p "$crashes"
log=$(mktemp)
cmake --preset fuzz >"$log" 2>&1 && cmake --build build/fuzz --target "${targets[@]/#/fuzz_}" >>"$log" 2>&1 ||
  { cat "$log"; rm -f "$log"; exit 1; }
rm -f "$log"

scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)  # in memory where that can be
set -m  # each worker is a process group, so that its runs end with the script
trap 'for job in $(jobs -p); do kill -- -"$job" 2>/dev/null || true; done; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# The last number that libFuzzer printed after a label.
last() { grep -aoE "$2 *[0-9]+" "$1" | grep -oE '[0-9]+$' | tail -1 || true; }

fuzz() {
  local name=$1 log=$scratch/$1.log state=ok
  local options=(-max_total_time="$seconds" -max_len=16384 -rss_limit_mb=1024 -timeout=30 -print_final_stats=1
    -artifact_prefix="$crashes/$name-")
  [[ -e tests/fuzz/$name.dict ]] && options+=(-dict="tests/fuzz/$name.dict")
  mkdir -p "$scratch/$name/found" "$scratch/$name/tmp"
  ulimit -s 1024  # so that a recursion without a limit shows
  TMPDIR=$scratch/$name/tmp UBSAN_OPTIONS=print_stacktrace=1 "build/fuzz/fuzz_$name" "${options[@]}" \
    "$scratch/$name/found" "tests/data/corpus/$name" >"$log" 2>&1 || state=failed
  printf '%-12s %9s runs %7s/s  %6s edges  %s\n' "$name" "$(last "$log" stat::number_of_executed_units:)" \
    "$(last "$log" stat::average_exec_per_sec:)" "$(last "$log" cov:)" "$state"
  [[ $state == ok ]] && return
  local input
  input=$(grep -aoE "$crashes/$name-[a-z]+-[0-9a-f]+" "$log" | tail -1 || true)
  {
    grep -aE 'broken invariant|runtime error|ERROR: |terminate called|what\(\)|^ +#[0-9]+ .* in megalith' "$log" | head -12
    [[ -n $input ]] && echo "again: build/fuzz/fuzz_$name $input"
  } | sed 's/^/    /'
  return 1
}

# Every `workers`-th target, from the one given on.
work() {
  local i failed=0
  for ((i = $1; i < ${#targets[@]}; i += workers)); do fuzz "${targets[i]}" || failed=1; done
  return $failed
}

workers=$(($(nproc) > 1 ? 2 : 1))
running=()
for ((worker = 0; worker < workers; ++worker)); do
  work $worker &
  running+=($!)
done
failed=0
for process in "${running[@]}"; do wait -f "$process" || failed=1; done
exit $failed
