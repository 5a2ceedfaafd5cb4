#!/bin/bash
# Do the probes count as the workloads do? counts.sh REPOSITORY OUT: samples and truths go to OUT as JSON.
set -u
ulimit -c 0
repository=$1
out=$2
here=$(dirname "$(realpath "$0")")
. "$here/fabric.sh"
. "$here/pods.sh"

fabric_up
flags=/run/fabric-lab
mkdir -p "$out" "$flags"
/usr/bin/python3 "$here/observe.py" "$repository" "$out/samples" "$flags/stop" 10 >"$out/observe.log" 2>&1 &
observer=$!
wait_for_lines "$out/samples" 2

ids() { printf "$1%.0s" {1..64}; }
a=$(pod_folder 11111111-aaaa-4aaa-8aaa-111111111111 "$(ids a)")
b=$(pod_folder 22222222-bbbb-4bbb-8bbb-222222222222 "$(ids b)")
churn=(/usr/bin/python3 "$here/churn.py")

# Two pods at once, with churn; one on each device.
in_folder "$a" "${churn[@]}" --qps 16 --mrs 12 --rounds 20 --until "$flags/end" --end clean >"$out/truth-clean" 2>>"$out/churn.log" &
in_folder "$b" "${churn[@]}" --device rxe1 --qps 64 --mrs 3 --extra-cqs 2 --rounds 5 --until "$flags/end" --end clean >"$out/truth-clean-b" 2>>"$out/churn.log" &
# Two more in the same pod: one is killed, one exits without destroying anything.
in_folder "$b" "${churn[@]}" --qps 5 --mrs 7 --rounds 3 --until "$flags/end" --end kill >"$out/truth-kill" 2>>"$out/churn.log" &
in_folder "$a" "${churn[@]}" --qps 9 --mrs 4 --rounds 1 --until "$flags/end" --end exit >"$out/truth-exit" 2>>"$out/churn.log" &
for truth in clean clean-b kill exit; do wait_for_lines "$out/truth-$truth" 1; done
# Short-lived: gone before anybody could read /proc.
for i in 1 2 3; do
  (in_folder "$a" "${churn[@]}" --qps 3 --mrs 2 --rounds 2 --end exit >"$out/truth-short-$i" 2>>"$out/churn.log")
done
sleep 0.5
date +%s.%N >"$out/all-live-at"
rdma -j resource show qp >"$out/rdma-qp"
rdma -j resource show mr >"$out/rdma-mr"
sleep 0.5
touch "$flags/end"
wait $(jobs -p | grep -vx "$observer")

# Bytes: ib_write_bw moves a known payload between two processes in two pods.
read_bytes() { cat /sys/class/net/v0/statistics/tx_bytes /sys/class/net/v0/statistics/tx_packets | tr '\n' ' '; }
read_bytes >"$out/wire-before"
size=65536
messages=200
in_folder "$b" timeout 60 ib_write_bw -d rxe1 -x 1 -q 2 -s $size -n $messages -t 16 -u 18 --report_gbits >"$out/bw-server" 2>&1 &
server=$!
sleep 1.5
(in_folder "$a" timeout 60 ib_write_bw -d rxe0 -x 1 -q 2 -s $size -n $messages -t 16 -u 18 --report_gbits 10.9.0.2 >"$out/bw-client" 2>&1)
wait "$server"
read_bytes >"$out/wire-after"
sleep 0.5
touch "$flags/stop"
wait "$observer"
