"""gen inside of Outlines is refused without Outlines 0.0.46; with it, `benchmarks.outlines.suite` tests it."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest

import gen
from gen.integrations import outlines


def test_another_version_is_refused_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = set(sys.modules)
    monkeypatch.setattr(outlines, "version", lambda name: "1.3.3")
    with pytest.raises(gen.ArgumentError, match=r"patch\(\) is for Outlines 0.0.46, there is 1.3.3; install it with"):
        outlines.patch()

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(outlines, "version", missing)
    with pytest.raises(gen.ArgumentError, match=r"patch\(\) is for Outlines 0.0.46, there is none"):
        outlines.patch()
    assert not any(name.partition(".")[0] == "outlines" for name in sys.modules.keys() - loaded)
    outlines.unpatch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_pos_emb": 2.0}, "exl2 by gen takes no scale_pos_emb, got 2.0"),
        ({"gpu_split": "auto"}, "gpu_split must be gigabytes for each GPU, as '10,20', got 'auto'"),
        ({"cache_8bit": True, "cache_q4": True}, "give cache_8bit or cache_q4, not both"),
    ],
)
def test_what_exl2_by_gen_does_not_take_is_refused(options: dict[str, object], message: str) -> None:
    from gen.integrations.outlines_exl2 import exl2

    with pytest.raises(gen.ArgumentError, match=message):
        exl2("model", "cuda:1", **options)  # type: ignore[arg-type]
