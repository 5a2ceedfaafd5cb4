"""Kafka to ClickHouse: samples, findings and the pipeline's own records."""
