#!/bin/bash
# Submits one job and waits for it. However this ends, the job ends with it.
# Exit status: 0 measured; 75 Slurm or the site failed (partitune books the candidate as lost and tries once more);
# anything else: the candidate failed, and the log says why.
set -euo pipefail
nodes=$1 gpus=$2 script=$3
shift 3
result=${*: -1}
folder=$(dirname "$result")
name=$(basename "$folder")      # of this trial alone: what bears it in the queue is ours
ours=(--user="$(id -un)" --name="$name")
read -ra pauses <<< "${RETRY_PAUSES_S:-2 4 8 16 32}"
site_failed=75
submitted="" child="" beats=0

# Runs a command of Slurm, and again when it fails. In the background, so that a signal is answered at once; out of
# reach of signals, so that what is on its way to the cluster is known when it is to be taken back.
retried() {
  local pause
  for pause in "${pauses[@]}" ""; do
    echo $((beats += 1)) > "$result.awaited"    # job.sh ends when this stands still
    timeout --kill-after=5 30 bash -c 'trap "" INT TERM; exec "$@"' shielded "$@" &
    child=$!
    wait "$child" && return 0
    echo "measure.sh: $1 failed${pause:+; again in $pause s}" >&2
    [ -n "$pause" ] || return 1
    sleep "$pause" &
    wait $!
  done
}
list_jobs() {
  retried squeue --noheader "${ours[@]}" --format=%i > "$folder/queue"
}

# Cancels by name: a job may have been accepted although sbatch failed, or was ended before it said so.
end() {
  local status=$? look
  trap '' INT TERM
  [ -n "$submitted" ] || exit "$status"
  wait "$child" || true
  for look in 1 2 3; do
    if retried scancel "${ours[@]}" && sleep "$look" && list_jobs && [ ! -s "$folder/queue" ]; then
      exit "$status"
    fi
  done
  echo "measure.sh: a job may still run; end it with: scancel ${ours[*]}" >&2
  exit $site_failed
}
trap end EXIT
trap 'exit 143' INT TERM

submitted=yes
retried sbatch --parsable --job-name="$name" --nodes="$nodes" --ntasks-per-node=1 --gpus-per-node="$gpus" --exclusive \
  --no-requeue --time=04:00:00 --output="$folder/job.log" "$script" "$@" > "$folder/job.id" || exit $site_failed
job=$(tail -n 1 "$folder/job.id")
job=${job%%;*}
while list_jobs || exit $site_failed; [ -s "$folder/queue" ]; do
  for other in $(grep --line-regexp --invert-match --fixed-strings "$job" "$folder/queue"); do
    retried scancel "$other" || exit $site_failed       # of an sbatch that failed after its job was accepted
  done
  sleep "${POLL_S:-2}" &
  wait $!
done
submitted=""

cat "$folder/job.log" || true
for look in 1 2 3 4 5; do       # a shared file system may show it late
  [ ! -s "$result.status" ] || break
  sleep "$look" &
  wait $!
done
status=$(cat "$result.status" 2> /dev/null || echo none)
case $status in none | 143) ;; *) exit "$status" ;; esac
state=$(scontrol --oneliner show job "$job" 2>&1 | grep --only-matching 'JobState=[A-Z_]*' || true)
echo "measure.sh: job $job did not end by itself: ${state:-Slurm does not know it any more}" >&2
case ${state#JobState=} in TIMEOUT | DEADLINE | OUT_OF_MEMORY | FAILED) exit 1 ;; *) exit $site_failed ;; esac
