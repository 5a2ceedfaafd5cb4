"""Kernel and Kubernetes API to Kafka: the node agent and the pod watcher."""
