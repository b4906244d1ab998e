"""Empty: pytest finds the plugin of virtual-gpus by itself."""

import warnings

warnings.warn(
    "gen.testing.plugin is empty: pytest finds the plugin of virtual-gpus by itself, so leave it out of -p.",
    DeprecationWarning,
    stacklevel=2,
)
