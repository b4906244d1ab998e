"""Known threads of each class in the table of virtual_gpus/README.md, in about ten lines: the mistake, and its error.

Each test's name begins with the letter of its class, then come the project and the number of its issue or pull request;
the oracle is what the thread quotes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import accelerate  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from virtual_gpus import DeviceMismatchError, StreamRaceError, virtual_gpus
from virtual_gpus.faults import PartialCopy

README = Path(__file__).parents[2] / "virtual_gpus" / "README.md"


@contextmanager
def mistake(*said: str) -> Iterator[None]:
    """The block's mistake is found, and the error says all of these parts and the line in this file."""
    with pytest.raises(DeviceMismatchError) as caught:
        yield
    missing = [part for part in (*said, "test_known_threads.py:") if part not in str(caught.value)]
    assert missing == [], str(caught.value)


class Resampler(nn.Module):
    """An embedding of positions that is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.pos_embed = torch.zeros(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.proj(x)
        return hidden + self.pos_embed[: len(x)]


def test_a_vllm_42322_positions_stay_on_the_cpu() -> None:
    with virtual_gpus(2):
        resampler = Resampler().to("cuda:1")
        with mistake("cuda:1 and cpu", "self: (2, 4) float32 on cuda:1", "other: (2, 4) float32 on cpu, made at"):
            resampler(torch.zeros(2, 4, device="cuda:1"))


class Encoder(nn.Module):
    """A parameter of the encoder is added after each layer, wherever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.mid_positions = nn.Parameter(torch.zeros(2, 1, 4))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) + self.mid_positions[number]
        return x


def test_b_transformers_46869_a_device_map_leaves_mid_positions_behind() -> None:
    with virtual_gpus(2):
        places = {"": 0, "layers.0": 0, "layers.1": 1}
        encoder = accelerate.dispatch_model(Encoder(), places)
        with mistake("cuda:1 and cuda:0", "in forward", "Move `other` with .to('cuda:1')"):
            encoder(torch.zeros(2, 4))


def test_c_unsloth_9995_labels_are_on_another_gpu_than_the_last_layer() -> None:
    with virtual_gpus(2):
        hidden = torch.zeros(4, 8, device="cuda:1")
        labels = torch.tensor([-100, 3, 5, -100], device="cuda:0")
        kept = labels.ne(-100).nonzero()[:, 0]
        with mistake("got index is on cuda:0, different from other tensors on cuda:1", "wrapper_CUDA__index_select"):
            hidden.index_select(0, kept)
        with mistake("target: (4,) int64 on cuda:0"):
            functional.cross_entropy(hidden, labels)


def test_d_transformers_48409_a_hook_leaves_a_placeholder_on_meta() -> None:
    with virtual_gpus(2):
        embed = accelerate.cpu_offload(nn.Embedding(8, 4), torch.device("cuda:1"))
        embedded = embed(torch.tensor([[1, 0]], device="cuda:1"))
        assert embedded.device == torch.device("cuda:1")
        padding = torch.tensor([[[True], [False]]], device="cuda:1")
        with mistake("self: (4,) float32 on meta", "`self` has no values"):
            torch.where(padding, embed.weight[0], embedded)


def test_e_llamafactory_9560_the_reference_model_was_never_moved() -> None:
    with virtual_gpus(2):
        policy, reference = nn.Embedding(8, 4), nn.Embedding(8, 4)
        policy.to("cuda:1")
        ids = torch.tensor([[1, 2]], device="cuda:1")
        assert policy(ids).device == ids.device
        with mistake("aten::embedding", "weight: (8, 4) float32 on cpu, made at"):
            reference(ids)


class Positions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[-1], device=x.device)


def test_f_pytorch_121761_an_exported_program_keeps_the_device_that_it_was_traced_on() -> None:
    program = torch.export.export(Positions(), (torch.zeros(2, 4),)).module()
    with virtual_gpus(2):
        x = torch.zeros(2, 4, device="cuda:1")
        assert Positions()(x).device == x.device
        with pytest.raises(DeviceMismatchError, match="cuda:1 and cpu"):
            program(x)


def test_g_transformers_47942_a_copy_between_gpus_is_read_before_it_is_there() -> None:
    with virtual_gpus(2, check_streams=True):
        hidden = torch.ones(4, device="cuda:0")
        with torch.cuda.stream(torch.cuda.Stream("cuda:1")):  # type: ignore[no-untyped-call]
            moved = hidden.to("cuda:1", non_blocking=True)
        with pytest.raises(StreamRaceError, match=r"a copy that does not block .* wrote on cuda:0's default stream"):
            moved + 1


def test_h_pytorch_17364_a_file_goes_where_it_was_saved_and_not_to_the_current_device(tmp_path: Path) -> None:
    with virtual_gpus(2), torch.cuda.device(1):
        torch.save(torch.zeros(4, device="cuda:0"), tmp_path / "weights.pt")
        weights, x = torch.load(tmp_path / "weights.pt"), torch.ones(4, device="cuda")
        with mistake("self: (4,) float32 on cuda:1", "other: (4,) float32 on cuda:0"):
            x + weights


def test_i_gptqmodel_2979_one_sum_for_activations_of_all_gpus() -> None:
    with virtual_gpus(2):
        hessian = torch.zeros(4, 4, device="cuda:0")
        for device in ("cuda:0", "cuda:1"):
            activations = torch.ones(8, 4, device=device)
            product = activations.T @ activations
            if device == "cuda:0":
                hessian += product
        with mistake("aten::add_", "self: (4, 4) float32 on cuda:0", "other: (4, 4) float32 on cuda:1"):
            hessian += product


def test_b_transformers_30273_a_state_is_where_the_first_layer_is() -> None:
    with virtual_gpus(2):
        states = [torch.zeros(1, 4, 2, device="cuda:0") for _ in range(2)]  # of layers on both GPUs
        keys = torch.ones(1, 4, 2, device="cuda:1")
        kept = torch.arange(3, -1, -1, device=keys.device)
        with mistake("indices[1]: (4,) int64 on cuda:1"):
            states[1][:, kept]


def test_c_stanfordalpaca_315_the_optimizers_state_is_not_with_its_parameter() -> None:
    with virtual_gpus(2):
        layer = nn.Linear(2, 2, device="cuda:0")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.ones(1, 2, device="cuda:0")).sum().backward()
        optimizer.step()
        optimizer.state[layer.weight]["exp_avg"] = optimizer.state[layer.weight]["exp_avg"].to("cuda:1")
        with pytest.raises(DeviceMismatchError, match="of the same index must be on the same device"):
            optimizer.step()


def test_g_exllamav3_333_torch_reports_peer_access_and_copies_are_zeros() -> None:
    with virtual_gpus(2, faults=[PartialCopy(source=0, target=1, part=0.0)]):
        assert torch.cuda.can_device_access_peer(0, 1)
        hidden = torch.ones(4, device="cuda:0")
        assert hidden.to("cuda:1").tolist() == [0.0] * 4
        assert hidden.cpu().to("cuda:1").tolist() == [1.0] * 4


def test_every_row_of_the_table_has_a_test_here() -> None:
    rows = re.findall(r"^\| ([A-Z])\. .*?github\.com/([\w./-]+)\)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [letter for letter, _ in rows] == list("ABCDEFGHI")
    for letter, thread in rows:
        project, number = thread.split("/")[1].lower().replace("-", ""), thread.rpartition("/")[2]
        assert any(name.startswith(f"test_{letter.lower()}_{project}_{number}_") for name in globals()), thread
