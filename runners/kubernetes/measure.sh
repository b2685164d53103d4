#!/bin/bash
# Runs one Job and takes the result from its log. However this ends, the Job ends with it.
set -euo pipefail
folder=$1 nodes=$2 gpus=$3 env_file=$4 config=$5 load_file=$6 name=$7 port=$8 result=$9
if [ "$nodes" != 1 ]; then
  echo "this example serves from one pod, and the search space stands on $nodes nodes" >&2
  exit 1
fi

trap 'kubectl delete job,configmap "$name" --ignore-not-found --wait=true >&2' EXIT
trap 'exit 143' INT TERM
kubectl create configmap "$name" --from-file=deploy.env="$env_file" --from-file=deploy.yaml="$config" \
  --from-file=load.txt="$load_file" --from-file=pod.sh="$folder/pod.sh" >&2
sed -e "s/NAME/$name/g" -e "s/GPUS/$gpus/g" -e "s/PORT/$port/g" "$folder/job.yaml" | kubectl apply -f - >&2

while state=$(kubectl get job "$name" --output=jsonpath='{.status.succeeded}/{.status.failed}'); [ "$state" = / ]; do
  sleep 5 &
  wait $!
done
kubectl logs "job/$name" | tee "$result.log"
sed '1,/^--- result$/d' "$result.log" > "$result"
[ "${state%%/*}" = 1 ]
