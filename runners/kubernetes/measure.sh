#!/bin/bash
# Runs one Job and takes the result from its log. However this ends, the Job ends with it.
# Exit status: 0 measured; 75 the cluster failed (partitune books the candidate as lost and tries once more); anything
# else: the candidate failed, and the log says why.
set -euo pipefail
folder=$1 gpus=$2 version=$3 env_file=$4 config=$5 load_file=$6 name=$7 port=$8 result=$9
read -ra pauses <<< "${RETRY_PAUSES_S:-2 4 8 16 32}"
site_failed=75
created="" child=""

# Runs kubectl, and again when it fails. In the background, so that a signal is answered at once; out of reach of
# signals, so that what is on its way to the cluster is known when it is to be taken back.
retried() {
  local pause
  for pause in "${pauses[@]}" ""; do
    (trap '' INT TERM; exec kubectl --request-timeout=30s "$@") &
    child=$!
    wait "$child" && return 0
    echo "measure.sh: kubectl $1 failed${pause:+; again in $pause s}" >&2
    [ -n "$pause" ] || return 1
    sleep "$pause" &
    wait $!
  done
}
end() {
  local status=$?
  trap '' INT TERM
  [ -n "$created" ] || exit "$status"
  wait "$child" || true
  if ! retried delete job,configmap "$name" --ignore-not-found --wait=true --timeout=60s >&2; then
    echo "measure.sh: a Job may still run; end it with: kubectl delete job,configmap $name" >&2
    exit $site_failed
  fi
  exit "$status"
}
trap end EXIT
trap 'exit 143' INT TERM

kubectl create configmap "$name" --from-file=deploy.env="$env_file" --from-file=deploy.yaml="$config" \
  --from-file=load.txt="$load_file" --from-file=pod.sh="$folder/pod.sh" --dry-run=client --output=yaml > "$result.configmap"
sed -e "s/NAME/$name/g" -e "s/GPUS/$gpus/g" -e "s/PORT/$port/g" -e "s/VERSION/$version/g" "$folder/job.yaml" > "$result.job"
created=yes
retried apply -f "$result.configmap" >&2 || exit $site_failed
retried apply -f "$result.job" >&2 || exit $site_failed

state_of_job() { retried get job "$name" --output=jsonpath='{.status.succeeded}/{.status.failed}' > "$result.state"; }
while state_of_job || exit $site_failed; [ "$(cat "$result.state")" = / ]; do
  sleep "${POLL_S:-5}" &
  wait $!
done
state=$(cat "$result.state")
retried logs "job/$name" > "$result.log" || exit $site_failed
cat "$result.log"
if [ "${state%%/*}" = 1 ]; then
  sed '1,/^--- result$/d' "$result.log" > "$result"
  exit 0
fi
# A pod that was evicted, preempted or lost with its node says so; any other ended by itself.
retried get pods --selector=job-name="$name" > "$result.pods" \
  --output=jsonpath='{.items[*].status.conditions[?(@.type=="DisruptionTarget")].reason}' || exit $site_failed
[ ! -s "$result.pods" ] || { echo "measure.sh: the pod was taken: $(cat "$result.pods")" >&2; exit $site_failed; }
exit 1
