"""Settings that every test needs: no network, no GPU surprises, one thread."""

import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
