#!/bin/bash
# Runs inside the job, on its first node: vLLM on every node, then the load generator here.
set -euo pipefail
env_file=$1 config=$2 load_file=$3 name=$4 port=$5 result=$6

# Ends the job when nobody waits for it any more: measure.sh may have been killed.
watch() {
  local pause beat
  trap 'kill "$pause"; exit' TERM
  while beat=$(cat "$result.awaited"); do
    sleep "${AWAITED_S:-600}" &
    pause=$!
    wait "$pause"
    [ "$(cat "$result.awaited")" != "$beat" ] || break
  done
  echo "job.sh: nobody waits for this job any more" >&2
  kill -TERM $$
}
watch &
watcher=$!
trap 'echo $? > "$result.status"; kill "$watcher" $(jobs -p) 2> /dev/null' EXIT
trap 'exit 143' TERM

set -a                      # srun gives every node this environment, the partition among it
. "$env_file"
set +a
unset VLLM_HOST_IP RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
VLLM_API_KEY=$(head --bytes=24 /dev/urandom | base64)   # the server asks for it, the load generator brings it
export VLLM_API_KEY OPENAI_API_KEY=$VLLM_API_KEY

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
serve=(vllm serve --config "$config" --served-model-name "$name" --distributed-executor-backend mp)
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  serve+=(--nnodes "$SLURM_JOB_NUM_NODES" --master-addr "$head" --master-port $((port + 1)))
fi
# The first node serves, and only to itself: the load generator runs there. SLURM_NODEID is known only in the step.
srun --kill-on-bad-exit=1 bash -c '
  port=$1; shift
  if [ "$SLURM_NODEID" = 0 ]; then set -- "$@" --host 127.0.0.1 --port "$port"; else set -- "$@" --headless; fi
  if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then set -- "$@" --node-rank "$SLURM_NODEID"; fi
  exec "$@"' node "$port" "${serve[@]}" &
server=$!

# The key comes by a pipe: the words of a process can be read by everybody on the node.
until curl --silent --fail --header @<(printf 'Authorization: Bearer %s' "$VLLM_API_KEY") \
  "http://127.0.0.1:$port/v1/models" | grep --quiet --fixed-strings "\"$name\""; do
  kill -0 "$server" || exit 1
  sleep "${POLL_S:-2}"
done
mapfile -t load < "$load_file"
vllm "${load[@]}" &
wait $!
kill "$server"
wait "$server" || true
