"""What `import gen` brings along, and what it leaves alone."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
state = lambda: [
    torch.get_default_dtype().__str__(), str(torch.get_default_device()), torch.get_num_threads(),
    torch.is_grad_enabled(), torch.get_rng_state().tolist(), torch.are_deterministic_algorithms_enabled(),
    torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.cuda.is_initialized(),
    torch.Tensor.to.__qualname__, torch.Tensor.item.__qualname__,
]
was = state()
import gen
print(json.dumps({"same": was == state(), "modules": sorted({m.split(".")[0] for m in set(sys.modules) - before})}))
"""


def test_importing_gen_loads_no_model_library_and_changes_no_state_of_torch() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    report = json.loads(run.stdout)
    assert report["same"]
    assert "gen" in report["modules"]
    heavy = {"transformers", "accelerate", "triton", "exllamav2", "exllamav3", "tokenizers", "typer", "huggingface_hub"}
    assert not heavy & set(report["modules"])
