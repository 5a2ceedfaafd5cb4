"""The detector: records in, findings out, nothing else."""
