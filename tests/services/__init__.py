"""Tests on real services, and the fixtures that start them without Docker."""
