#!/bin/bash
# Submits one job and waits for it. However this ends, the job ends with it.
set -euo pipefail
nodes=$1 gpus=$2 script=$3
shift 3
result=${*: -1}
folder=$(dirname "$result")

job=$(sbatch --parsable --job-name="$(basename "$folder")" --nodes="$nodes" --ntasks-per-node=1 \
  --gpus-per-node="$gpus" --exclusive --time=04:00:00 --output="$folder/job.log" "$script" "$@")
job=${job%%;*}
trap 'scancel "$job"' EXIT
trap 'exit 143' INT TERM

while [ -n "$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null)" ]; do
  sleep 2 &
  wait $!
done
trap - EXIT
cat "$folder/job.log"
[ "$(cat "$result.status" 2>/dev/null)" = 0 ]
