"""Each of gen's own adapters offers what it means to: a name that differs would turn a feature off, and nobody see it.

mypy compares names and types, the tests what the loop finds.
"""

import gen
from gen.models.base import Checked, KeepsRows, MayPartRows, ProbedWide, SameBits, TellsAtOnce, Versioned
from gen.models.exllama.exllamav2_model import Exllamav2Model
from gen.models.exllama.exllamav3_model import Exllamav3Model
from gen.models.exported.program import ExportedModel
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model
from tests.models.exported.programs import exported


def told_to_mypy(
    one: TransformersModel, two: ExportedModel, three: Exllamav2Model, four: Exllamav3Model
) -> tuple[list[KeepsRows], ProbedWide, TellsAtOnce, MayPartRows, SameBits, list[Checked], list[Versioned]]:
    return [one, two, three, four], one, one, one, one, [one], [one]


def test_the_loop_finds_what_adapters_offer() -> None:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    for protocol in (KeepsRows, ProbedWide, TellsAtOnce, MayPartRows, SameBits, Checked, Versioned):
        assert isinstance(model, protocol)
    program = gen.from_exported(exported(), byte_tokenizer(), device="cpu")
    assert isinstance(program, KeepsRows) and not isinstance(program, ProbedWide | SameBits)
