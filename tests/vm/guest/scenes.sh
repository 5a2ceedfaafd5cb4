# A victim and an aggressor on a shared bottleneck: two doses that hurt, two controls that do not. Sourced by guest scripts.
#
# Every queue pair that sends keeps 64 packets in v0's queue, so the dose is the number of queue pairs: the victim's
# 128 KB, all in flight at once, take 52 ms alone and about 52 * (1 + 2 * dose) ms behind them. With 400 ms of computing
# per step that costs it about 32 % of its speed at dose 2 and 48 % at dose 4 (README.md).
# The emulated CPUs are not what is tested: 20 Mbit/s is a small part of what they can send, the flood is paced at 5
# MB/s (twice the limit, so that its queue is always full), and it sleeps between looks. Without the limit the flood
# then costs the victim nothing; an unpaced one that polls costs 5 to 15 %, for want of CPU.

LIMIT=20mbit
DOSES=(2 4)
HARMLESS=4
LEAD_S=${LEAD_S:-45}
FLOOD_S=${FLOOD_S:-22}
GAP_S=${GAP_S:-18}
SLOW_MS=250
VICTIM=(--bytes $((128 * 1024)) --message $((32 * 1024)) --depth 4 --compute-ms 400)
FLOOD_BYTES_PER_SECOND=5000000

VICTIM_UID=11111111-aaaa-4aaa-8aaa-111111111111
AGGRESSOR_UID=22222222-bbbb-4bbb-8bbb-222222222222
VICTIM_CONTAINER=$(printf 'a%.0s' {1..64})
AGGRESSOR_CONTAINER=$(printf 'b%.0s' {1..64})

# scene NAME COMMAND…: run a command and note when it began and ended in OUT/scenes.
scene() {
  local name=$1 start_s
  shift
  start_s=$(date +%s.%N)
  "$@"
  echo "{\"scene\": \"$name\", \"start_s\": $start_s, \"end_s\": $(date +%s.%N)}" >>"$out/scenes"
}

# flood QUEUE_PAIRS: the aggressor's pod writes for FLOOD_S seconds, 64 KB messages, 16 in flight each.
flood() {
  (in_folder "$aggressor" timeout $((FLOOD_S + 60)) nice -n 5 /usr/bin/python3 "$here/flood.py" \
    --queue-pairs "$1" --seconds "$FLOOD_S" --bytes-per-second "$FLOOD_BYTES_PER_SECOND" >>"$out/flood" 2>&1) ||
    { tail -3 "$out/flood"; exit 1; }
}

# run_scenes NCCL: all of it; the victim's log is OUT/victim.
run_scenes() {
  victim=$(pod_folder "$VICTIM_UID" "$VICTIM_CONTAINER")
  aggressor=$(pod_folder "$AGGRESSOR_UID" "$AGGRESSOR_CONTAINER")
  local slow=/run/fabric-lab/slow
  mkdir -p /run/fabric-lab
  fabric_limit "$LIMIT"
  in_folder "$victim" nice -n -10 /usr/bin/python3 "$here/victim.py" --nccl "$1" "${VICTIM[@]}" \
    --slow-while "$slow" --slow-ms "$SLOW_MS" >"$out/victim" 2>"$out/victim-errors" &
  local job=$! dose
  scene lead sleep "$LEAD_S"
  for dose in "${DOSES[@]}"; do
    scene "dose-$dose" flood "$dose"
    scene gap sleep "$GAP_S"
  done
  fabric_free
  scene free sleep "$GAP_S"
  scene harmless flood "$HARMLESS"
  scene gap sleep "$GAP_S"
  touch "$slow"
  scene slow flood "$HARMLESS"
  rm -f "$slow"
  scene gap sleep "$GAP_S"
  kill -TERM "$job"
  wait "$job"
}
