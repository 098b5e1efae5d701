#!/bin/sh
# Check lastword on a GPU in under eight minutes and print the table of docs/speed.md.
# Stages: every family in float32 and bfloat16, packed against plain, a probe against an answer; then
# the rest of gpu.py while there is time. `sh experiments/gpu.sh --small` runs tiny models on the CPU.
# A second run continues where the first one stopped.
set -eu
cd "$(dirname "$0")/.."
exec timeout 480 "${PYTHON:-python}" experiments/gpu.py --minutes 7 "$@"
