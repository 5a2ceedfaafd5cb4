# Two Soft-RoCE devices whose packets really cross a veth pair, in one namespace. Sourced by guest scripts.
#
# Policy routing makes each address leave through its own end: the kernel would otherwise deliver v0 -> v1 locally, and a
# single rxe talking to itself never moves the netdev's counters.

fabric_up() {
  modprobe rdma_rxe
  modprobe mlx5_ib 2>/dev/null || echo "mlx5_ib cannot be loaded here"
  ip link set lo up
  ip link add v0 type veth peer name v1
  local end
  for end in 0 1; do
    sysctl -qw "net.ipv4.conf.v$end.rp_filter=0" "net.ipv4.conf.v$end.accept_local=1"
    ip addr add "10.9.0.$((end + 1))/24" dev "v$end"
    ip link set "v$end" mtu 4200 up  # room for RDMA's largest packet, 4096 bytes and its headers
    # All that arrives is handled on one CPU: a veth delivers on the CPU that sends, and when the sender moves, packets
    # overtake each other, which reliable connections answer with resends and timeouts of a second.
    echo 1 >"/sys/class/net/v$end/queues/rx-0/rps_cpus"
  done
  sysctl -qw net.ipv4.conf.all.rp_filter=0
  ip rule add pref 10 iif v0 lookup local
  ip rule add pref 11 iif v1 lookup local
  ip rule add pref 20 to 10.9.0.2 lookup 102
  ip rule add pref 21 to 10.9.0.1 lookup 101
  ip rule add pref 500 lookup local
  ip rule del pref 0
  ip route replace 10.9.0.2 dev v0 src 10.9.0.1 table 102
  ip route replace 10.9.0.1 dev v1 src 10.9.0.2 table 101
  rdma link add rxe0 type rxe netdev v0
  rdma link add rxe1 type rxe netdev v1
  # Every page that these workloads register is pinned.
  ulimit -l unlimited
}

# The shared bottleneck: what leaves v0 waits in one queue of 16 MB.
fabric_limit() {
  tc qdisc replace dev v0 root tbf rate "$1" burst 64k limit 16m
}

fabric_free() {
  tc qdisc del dev v0 root 2>/dev/null || true
}

# Resends and timeouts so far: none are expected.
fabric_trouble() {
  (cd /sys/class/infiniband && grep -H . rxe*/ports/1/hw_counters/{out_of_seq_request,completer_retry_err,rcvd_seq_err,duplicate_request})
}

# The way to the host, whose loopback answers at 10.0.2.2. By hand: DHCP fails in two boots of three.
host_up() {
  local nic path
  for path in /sys/class/net/*; do
    [ -e "$path/device" ] && nic=$(basename "$path")
  done
  ip link set "$nic" up
  ip addr replace 10.0.2.15/24 dev "$nic"
  ip route replace default via 10.0.2.2
}
