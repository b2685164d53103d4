#!/bin/bash
# Runs inside the job, on its first node: vLLM on every node, then the load generator here.
set -euo pipefail
env_file=$1 config=$2 load_file=$3 name=$4 port=$5 result=$6
trap 'echo $? > "$result.status"' EXIT

set -a                      # srun gives every node this environment, the partition among it
. "$env_file"
set +a
unset VLLM_HOST_IP VLLM_API_KEY RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
serve=(vllm serve --config "$config" --served-model-name "$name" --distributed-executor-backend mp)
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  serve+=(--nnodes "$SLURM_JOB_NUM_NODES" --master-addr "$head" --master-port $((port + 1)))
fi
# The first node serves, the others are headless; SLURM_NODEID is known only there.
srun --kill-on-bad-exit=1 bash -c '
  port=$1; shift
  if [ "$SLURM_NODEID" = 0 ]; then set -- "$@" --host 0.0.0.0 --port "$port"; else set -- "$@" --headless; fi
  if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then set -- "$@" --node-rank "$SLURM_NODEID"; fi
  exec "$@"' node "$port" "${serve[@]}" &
server=$!

until curl --silent --fail "http://127.0.0.1:$port/v1/models" | grep --quiet --fixed-strings "\"$name\""; do
  kill -0 "$server" || exit 1
  sleep 2
done
mapfile -t load < "$load_file"
vllm "${load[@]}"
kill "$server"
wait "$server" || true
