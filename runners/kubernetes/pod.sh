#!/bin/bash
# Runs inside the pod: serves, measures, and prints the result as the end of its log.
set -euo pipefail
name=$1 port=$2
set -a
. /trial/deploy.env
set +a
VLLM_API_KEY=$(head --bytes=24 /dev/urandom | base64)   # the server asks for it, the load generator brings it
export VLLM_API_KEY OPENAI_API_KEY=$VLLM_API_KEY
vllm serve --config /trial/deploy.yaml --served-model-name "$name" --host 127.0.0.1 --port "$port" &
server=$!
until curl --silent --fail --header @<(printf 'Authorization: Bearer %s' "$VLLM_API_KEY") \
  "http://127.0.0.1:$port/v1/models" | grep --quiet --fixed-strings "\"$name\""; do
  kill -0 "$server" || exit 1
  sleep "${POLL_S:-2}"
done
mapfile -t load < /trial/load.txt
vllm "${load[@]}" --result-dir /tmp --result-filename result.json   # the last word wins
kill "$server"
wait "$server" || true
echo "--- result"
cat /tmp/result.json
