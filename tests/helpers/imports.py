"""What imports of gen load and change, seen in a new process, which takes its steps for all tests that ask."""

import json
import subprocess
import sys
from functools import cache
from typing import Any

_PROGRAM = """
import json, sys
import torch
report = {}
before = set(sys.modules)
loaded = lambda: sorted({name.split(".")[0] for name in set(sys.modules) - before})
state = lambda: [
    torch.get_default_dtype().__str__(), str(torch.get_default_device()), torch.get_num_threads(),
    torch.is_grad_enabled(), torch.get_rng_state().tolist(), torch.are_deterministic_algorithms_enabled(),
    torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.cuda.is_initialized(),
    torch.Tensor.to.__qualname__, torch.Tensor.item.__qualname__,
]
was = state()
import gen
report["gen"] = {"same": was == state(), "modules": loaded()}
gen.generate
compiling = [name for name in sys.modules if name.startswith("gen.constraints.schema")]
gen.regex
report["generate"] = {"modules": loaded(), "compiling": compiling}
import transformers
owners = {"torch": torch, "Tensor": torch.Tensor, "cuda": torch.cuda, "functional": torch.nn.functional}
members = {name: dict(vars(owner)) for name, owner in owners.items()}
had = "virtual_gpus" in sys.modules
import virtual_gpus; virtual_gpus.virtual_gpus
changed = [
    f"{name}.{key}" for name, old in members.items() for key in old if vars(owners[name]).get(key) is not old[key]
]
report["testing"] = {"new": not had and "virtual_gpus" in sys.modules, "changed": changed}
print(json.dumps(report))
"""


@cache
def imports() -> Any:
    """What each import did, by its name: of gen after torch, then of two functions, then of virtual_gpus."""
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)
