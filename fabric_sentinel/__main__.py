"""`python -m fabric_sentinel` is `fabric-sentinel`."""

from fabric_sentinel.cli import main

main()
