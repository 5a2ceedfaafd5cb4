"""Kafka to Kafka: one Faust app around one pure core."""
