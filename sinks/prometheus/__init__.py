"""Kafka to Prometheus: what is slow now, who did it, and how the pipeline does."""
