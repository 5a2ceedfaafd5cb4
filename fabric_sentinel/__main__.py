"""`python -m fabric_sentinel` is `fabric-sentinel`."""

from fabric_sentinel.children import bind_to_parent
from fabric_sentinel.cli import main

bind_to_parent()
main()
