#!/bin/bash
# All scenes with the RDMA probes alone. interference.sh REPOSITORY OUT NCCL
set -u
repository=$1
out=$2
here=$(dirname "$(realpath "$0")")
. "$here/fabric.sh"
. "$here/pods.sh"
. "$here/scenes.sh"

fabric_up
mkdir -p "$out" /run/fabric-lab
/usr/bin/python3 "$here/observe.py" "$repository" "$out/samples" /run/fabric-lab/stop 10 >"$out/observe.log" 2>&1 &
observer=$!
wait_for_lines "$out/samples" 2
run_scenes "$3"
touch /run/fabric-lab/stop
wait "$observer"
