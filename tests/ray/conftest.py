"""These tests need Ray, which has an environment of its own: `make ray` makes it, and runs them."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]
