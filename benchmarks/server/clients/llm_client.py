"""What people do with the command `llm`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.server.clients.running import run_all

MODEL = "- model_id: gen\n  model_name: demo\n  api_base: {url}/v1\n"


def ask(url: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text(MODEL.format(url=url), encoding="utf-8")
        known = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "-m", "llm", "-m", "gen", "-o", "max_tokens", "8", *options, "hi"]
        return subprocess.run(command, env=known, check=True, capture_output=True, text=True).stdout.strip()


def stream(url: str) -> str:
    return ask(url)


def whole(url: str) -> str:
    return ask(url, "--no-stream")


if __name__ == "__main__":
    run_all("llm")
