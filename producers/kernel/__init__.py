"""What the kernel knows of RDMA and NCCL, read through BPF programs that live in bpf/."""
