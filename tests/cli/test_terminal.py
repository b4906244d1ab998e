"""Prompts of the command line: from arguments, a file or stdin, in the encodings that real files have."""

import io
import sys
from pathlib import Path

import pytest

import gen
from gen.cli.terminal import read_prompts

Capture = pytest.CaptureFixture[str]


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"One\nday\n", "One\nday"),
        (b"One\nday\r\n", "One\nday"),
        (b"One\n\n", "One\n"),
        (b"One", "One"),
        (b"", ""),
        ("Über \u2028".encode(), "Über \u2028"),
        (b"\xef\xbb\xbfOne\n", "One"),
    ],
)
def test_stdin_is_one_prompt_without_its_last_line_end(data: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, data)
    [given] = read_prompts(None, None)
    assert (given.text, given.where) == (text, "stdin")


def test_a_file_has_a_prompt_a_line_and_blank_ones_are_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("One\r\n\n  Two\u2028\x0cthree\x85 \n \t\nFour\rFive".encode())
    given = read_prompts(None, path)
    assert [one.text for one in given] == ["One", "  Two\u2028\x0cthree\x85 ", "Four", "Five"]
    assert [one.where for one in given] == [f"{path}, line {number}" for number in (1, 3, 5, 6)]
    assert capsys.readouterr() == ("", f"gen: {path}: left out blank lines: 2, 4\n")
    path.write_text("One\n" + "\n" * 9)
    read_prompts(None, path)
    assert capsys.readouterr().err.endswith("left out blank lines: 2, 3, 4, 5, 6 and 4 more\n")
    path.write_text("One\nTwo\n")  # it ends with its last line
    assert (len(read_prompts(None, path)), capsys.readouterr()) == (2, ("", ""))


def test_a_file_may_be_called_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stdin").write_text("One\n")
    stdin(monkeypatch, b"Two\n")
    assert [one.text for one in read_prompts(None, Path("stdin"))] == ["One"]


@pytest.mark.parametrize(
    ("data", "line", "byte"),
    [(b"One\r\nTw\xff\n", 2, "ff"), (b"\xef\xbb\xbf\n\n\xed\xa0\x80", 3, "ed"), (b"a\rb\rc\xc3", 3, "c3")],
)
def test_bytes_that_are_no_utf8_are_named_with_their_line(
    data: bytes, line: int, byte: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(data)
    for file, name in ((path, str(path)), (Path("-"), "stdin"), (None, "stdin")):
        stdin(monkeypatch, data)
        with pytest.raises(gen.ArgumentError, match=f"{name}, line {line}: byte 0x{byte} is not valid UTF-8"):
            read_prompts(None, file)


def test_prompts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n \n")
    with pytest.raises(gen.ArgumentError, match="blank has no prompts; write one on each line"):
        read_prompts(None, tmp_path / "blank")
    with pytest.raises(gen.ArgumentError, match=r"cannot read the prompts: .*Is a directory"):
        read_prompts(None, tmp_path)
    with pytest.raises(gen.ArgumentError, match="prompt 2 is not valid UTF-8, from character 3 on"):
        read_prompts(["One", "Tw\udcff"], None)  # Python's form of the byte 0xff in an argument
    with pytest.raises(gen.ArgumentError, match="as arguments or with --file, not both"):
        read_prompts(["One"], tmp_path)
