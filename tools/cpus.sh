#!/usr/bin/env bash
# Recompute what notebooks print as CPUs with other instruction sets and cores would.
#
#   tools/cpus.sh PYTHON NOTEBOOK-OR-FOLDER ...
#
# CPU names one of the settings below; left out, all of them follow each other.
#
# A setting of instructions only takes some away: a machine without AVX-512 leaves `avx512`
# out. What other CPUs would do to a training, `nudged` does on any: each backward pass
# begins with a gradient that is a few units off in its last place.
set -uo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
declare -A settings=(
  [plain]="ATEN_CPU_CAPABILITY=default"
  [avx2]="ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma"
  [sse4]="OPENBLAS_CORETYPE=Nehalem NPY_DISABLE_CPU_FEATURES=X86_V3 ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES=+sse4.2"
  [avx512]="ATEN_CPU_CAPABILITY=avx512 OPENBLAS_CORETYPE=SkylakeX OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2"
  [threads]="OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4 OPENBLAS_CORETYPE=Zen"
  [nudged]="NORMBOOK_NUDGE=3"
)
names=${CPU:-plain avx2 sse4 avx512 threads nudged}
for name in $names; do
  if [ -z "${settings[$name]:-}" ]; then
    echo "cpus: there is no setting '$name'; give CPU one of plain, avx2, sse4, avx512, threads and nudged" >&2
    exit 2
  fi
done
export PYTHONPATH=$PWD/tools/nudge${PYTHONPATH:+:$PYTHONPATH}
failed=0
for name in $names; do
  printf '\n== %s: %s\n' "$name" "${settings[$name]}"
  if [ "$name" = avx512 ] && ! grep -qw avx512f /proc/cpuinfo; then
    echo "avx512 left out: this CPU does not have it"
    continue
  fi
  env ${settings[$name]} "$python" -m pytest -q --nbval -n "${JOBS:-2}" --dist loadfile \
    -p no:cacheprovider --no-header "$@" || failed=1
done
exit $failed
