"""The tests of fabric-sentinel."""
