"""What producers, streams and sinks agree on: schemas, topics, words."""
