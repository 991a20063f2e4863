#!/usr/bin/env bash
# On a GPU machine without network: builds for its architecture, checks, then times. Prints a short
# table last and writes JSON lines to the folder that is its argument.
#   bench/gpu.sh OUT [check|time|all]
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bench/gpu.sh OUT [check|time|all]} what=${2:-all}
site=$(mktemp -d)
JAXREC_CUDA_ARCHS=90 python3 -m pip install -q --no-build-isolation --no-deps --no-index --target "$site" . || exit 1
export PYTHONPATH=$site:${PYTHONPATH:-} XLA_PYTHON_CLIENT_PREALLOCATE=false
if [ "$what" != time ]; then
  check=$(mktemp -d)
  cp -r tests "$check/tests"  # away from the sources, which would hide the installed package
  (cd "$check" && python3 -m pytest -v -p no:xdist -o addopts= -W ignore --maxfail=12 -p no:cacheprovider \
    tests/test_goldens.py tests/test_blend.py tests/test_blend_limits.py tests/test_blend_properties.py \
    tests/test_blend_transforms.py -k "${CHECK:-not double_precision}" --jaxtyping-packages=jaxrec,beartype.beartype 2>&1) >"$out/check.txt"
  grep -E "^(FAILED|ERROR|E   )|passed|failed" "$out/check.txt" | cut -c1-200 | tail -60
fi
if [ "$what" != check ]; then
  for kind in softmax alpha; do
    python3 bench/blend.py --kind $kind --gpu >>"$out/bench.jsonl" 2>"$out/bench.err" || tail -5 "$out/bench.err"
  done
  python3 - "$out/bench.jsonl" <<'P'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    print(f"{r['kind']:8} {r['case']:6} {r['pass']:15} {r['ms']:9.3f} ms")
P
fi
