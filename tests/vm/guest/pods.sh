# Cgroups shaped like the ones the kubelet makes (v2, systemd driver), and workloads that run in them. Sourced by guest scripts.

# pod_folder UID CONTAINER: make the cgroup of one container of a burstable pod and print its folder.
pod_folder() {
  local folder=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
  folder=$folder/kubepods-burstable-pod${1//-/_}.slice/cri-containerd-$2.scope
  mkdir -p "$folder"
  echo "$folder"
}

# in_folder FOLDER COMMAND…: run the command in that cgroup; `in_folder … &` leaves the command's own pid in $!.
in_folder() {
  echo "$BASHPID" >"$1/cgroup.procs"
  shift
  exec "$@"
}

wait_for_lines() { # FILE LINES: give up, and end the guest, when they do not come
  local tries=0
  until [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; do
    [ $((tries += 1)) -le 600 ] || { echo "$1 has not $2 lines after a minute"; exit 1; }
    sleep 0.1
  done
}
