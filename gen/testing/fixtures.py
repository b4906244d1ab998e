"""Empty: gen_virtual_gpus and gen_no_host_sync are there wherever virtual-gpus is installed."""

import warnings

warnings.warn(
    "gen.testing.fixtures is empty: pytest finds the fixtures of virtual-gpus by itself, so leave it out of "
    "pytest_plugins.",
    DeprecationWarning,
    stacklevel=2,
)
