#!/usr/bin/env bash
# On a GPU machine without network: builds for its architecture, checks, then times. Prints a short
# table last and writes JSON lines to the folder that is its first argument.
#   bench/gpu.sh OUT [check|sanitize|time|extra|scatter|all] [options of bench/blend.py]
# check: the numeric suite. sanitize: tests/native/blend_paths.cu under compute-sanitizer. time:
# bench/blend.py. extra: bench/scenarios.py, poses.py and soak.py. scatter: bench/scatter.cu. all, the
# default: everything.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bench/gpu.sh OUT [check|sanitize|time|extra|scatter|all] [options of bench/blend.py]} what=${2:-all}
shift $(($# < 2 ? $# : 2))
site=$(mktemp -d) status=0
JAXREC_CUDA_ARCHS=90 python3 -m pip install -q --no-build-isolation --no-deps --no-index --target "$site" . || exit 1
export PYTHONPATH=$site:${PYTHONPATH:-}

bench() {  # script and its options: JSON lines, seconds, and what went wrong
  local name begin=$SECONDS
  name=$(basename "$1" .py)
  if ! python3 "$@" >>"$out/bench.jsonl" 2>"$out/$name.err"; then
    status=1
    echo "$name failed:" && tail -5 "$out/$name.err"
  fi
  echo "$name: $((SECONDS - begin)) s"
}

if [[ $what == check || $what == all ]]; then
  check=$(mktemp -d)
  cp -r tests "$check/tests"  # away from the sources, which would hide the installed package
  (cd "$check" && XLA_PYTHON_CLIENT_PREALLOCATE=false python3 -m pytest -v -p no:xdist -o addopts= -W ignore --maxfail=12 -p no:cacheprovider \
    tests/test_goldens.py tests/test_blend.py tests/test_blend_limits.py tests/test_blend_properties.py \
    tests/test_blend_transforms.py tests/test_motion.py tests/test_gpu.py -k "${CHECK:-not double_precision}" --jaxtyping-packages=jaxrec,beartype.beartype 2>&1) >"$out/check.txt" || status=1
  grep -E "^(FAILED|ERROR|E   )|passed|failed" "$out/check.txt" | cut -c1-200 | tail -60
fi
kernels=(ffi/cuda/{bounds,order,lists,prepare,forward,backward,moving,nearest,sums}.cu)
compile() {  # flags as in ffi/CMakeLists.txt
  nvcc -arch=sm_90 -std=c++17 -O3 --threads 0 -prec-sqrt=false -prec-div=false -ftz=true -Iffi "$@"
}
if [[ $what == sanitize || $what == all ]]; then
  compile -lineinfo tests/native/blend_paths.cu "${kernels[@]}" -o "$site/paths" || status=1
  for tool in memcheck racecheck initcheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 "$site/paths" >"$out/$tool.txt" 2>&1 || status=1
    echo "$tool: $(tail -1 "$out/$tool.txt")"
  done
fi
[[ $what == check || $what == sanitize ]] || rm -f "$out/bench.jsonl"
if [[ $what == time || $what == all ]]; then
  bench bench/blend.py --kind all --gpu "$@"
fi
if [[ $what == extra || $what == all ]]; then
  bench bench/scenarios.py
  bench bench/poses.py
  bench bench/soak.py
fi
if [[ $what == scatter || $what == all ]]; then
  # Vectors of floats are added by one instruction from 9.0 on.
  compile -DJAXREC_BENCH_VECTOR=1 bench/scatter.cu "${kernels[@]}" -o "$site/scatter" &&
    "$site/scatter" >>"$out/bench.jsonl" || status=1
fi
[[ $what == check || $what == sanitize ]] || python3 bench/table.py "$out/bench.jsonl"
exit $status
