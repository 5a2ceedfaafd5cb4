#!/bin/bash
# Do the sampled deltas add up to what the kernel counted? ports.sh REPOSITORY PYTHON OUT
set -u
repository=$1
python=$2
out=$3
. "$repository/tests/vm/guest/fabric.sh"
mkdir -p "$out"
stop=/run/ports-stop
sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
fabric_up

wait_for_lines() { # COUNT: give up, and end the guest, when they do not come
  local tries=0
  until [ -e "$out/flushes" ] && [ "$(wc -l <"$out/flushes")" -ge "$1" ]; do
    [ $((tries += 1)) -le 1200 ] || { echo "no $1 flushes after two minutes"; cat "$out/sample.log"; exit 1; }
    sleep 0.1
  done
}
more_flushes() { wait_for_lines $(($(wc -l <"$out/flushes") + $1)); }

counters() {
  local file
  for file in /sys/class/net/v0/statistics/{tx_bytes,rx_bytes,tx_packets} /sys/class/net/v0/carrier_changes \
    /sys/class/infiniband/rxe0/ports/1/hw_counters/{sent_pkts,rcvd_pkts,link_downed}; do
    echo "$(basename "$file") $(cat "$file")"
  done
}

counters >"$out/before"
PYTHONPATH=$repository PYTHONDONTWRITEBYTECODE=1 "$python" "$repository/tests/producers/ports/guest/sample.py" \
  "$out/flushes" "$stop" >"$out/sample.log" 2>&1 &
sampler=$!
wait_for_lines 2

ib_write_bw -d rxe1 -x 1 -s 65536 -n 300 >"$out/server.log" 2>&1 &
server=$!
sleep 3
ib_write_bw -d rxe0 -x 1 -s 65536 -n 300 10.9.0.2 >"$out/client.log" 2>&1 || { cat "$out/client.log"; exit 1; }
wait "$server"
more_flushes 2
ip link set v0 down
more_flushes 3
ip link set v0 up
more_flushes 3
# A port that is unplugged and comes back: its counters begin anew.
rdma link del rxe1
more_flushes 14
rdma link add rxe1 type rxe netdev v1
more_flushes 14
touch "$stop"
wait "$sampler" || { cat "$out/sample.log"; exit 1; }
counters >"$out/after"
