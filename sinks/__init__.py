"""Kafka to stores and people."""
