#!/bin/bash
# The node's side of the whole line: the real agent, churning pods, then the scenes.
# whole_line.sh REPOSITORY OUT NCCL BROKER PYTHON (of the environment that holds the agent)
set -u
ulimit -c 0
repository=$1
out=$2
nccl=$3
broker=$4
python=$5
here=$(dirname "$(realpath "$0")")
. "$here/fabric.sh"
. "$here/pods.sh"
. "$here/scenes.sh"

host_up
fabric_up
flags=/run/fabric-lab
mkdir -p "$out" "$flags"
cd /run || exit 1

export FABRIC_SENTINEL_CLUSTER=lab FABRIC_SENTINEL_KAFKA__BOOTSTRAP=$broker FABRIC_SENTINEL_LOG_FORMAT=json
export FABRIC_SENTINEL_CONFIG=/run/agent.toml
# Emulated, one flush takes over a tick's time whatever it holds: of 20 ticks it costs one, of 5 it would cost one too.
printf '[agent]\nnode = "node-a"\nflush_ticks = 20\nnccl_libraries = ["%s"]\n' "$nccl" >"$FABRIC_SENTINEL_CONFIG"
echo "$(date +%T) the guest is up"
PYTHONPATH=$repository nice -n -10 "$python" -m fabric_sentinel agent >"$out/agent" 2>&1 &
agent=$!
tries=0
until (exec 3<>/dev/tcp/127.0.0.1/9466) 2>/dev/null; do # its metrics are served once its probes are attached
  kill -0 "$agent" && [ $((tries += 1)) -le 1200 ] || { tail -20 "$out/agent"; exit 1; }
  sleep 0.1
done
echo "$(date +%T) the agent samples"
echo "{\"scene\": \"agent\", \"start_s\": 0, \"end_s\": $(date +%s.%N)}" >"$out/scenes"
sleep 2

# Two pods whose objects come and go: one ends tidily, one is killed with everything open.
churn=(/usr/bin/python3 "$here/churn.py")
c=$(pod_folder 33333333-cccc-4ccc-8ccc-333333333333 "$(printf 'c%.0s' {1..64})")
d=$(pod_folder 44444444-dddd-4ddd-8ddd-444444444444 "$(printf 'd%.0s' {1..64})")
in_folder "$c" "${churn[@]}" --qps 16 --mrs 12 --rounds 10 --until "$flags/end" --end clean >"$out/truth-c" 2>>"$out/churn.log" &
tidy=$!
in_folder "$d" "${churn[@]}" --device rxe1 --qps 40 --mrs 5 --rounds 3 --until "$flags/end" --end kill >"$out/truth-d" 2>>"$out/churn.log" &
killed=$!
wait_for_lines "$out/truth-c" 1
wait_for_lines "$out/truth-d" 1
echo "{\"scene\": \"churn\", \"start_s\": $(date +%s.%N), \"end_s\": $(($(date +%s) + 3))}" >>"$out/scenes"
sleep 3
touch "$flags/end"
wait "$tidy" "$killed"

run_scenes "$nccl"
kill -TERM "$agent"
wait "$agent"
