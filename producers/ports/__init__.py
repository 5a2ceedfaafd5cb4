"""Port counters of every RDMA device, read ten times a second from sysfs, netdev statistics and ethtool."""
