"""Which paths in a prompt are files to be sent, and what they must be."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from rsllm.cli import media
from rsllm.errors import OptionError

PNG = b"\x89PNG\r\n\x1a\n..."
CONTENTS = {
    "a.png": PNG,
    "b c.JPG": b"\xff\xd8\xff...",
    "d(1).webp": b"RIFF\0\0\0\0WEBP",
    "e.wav": b"RIFF\0\0\0\0WAVE",
    "f.mp3": b"ID3\4",
    "text.png": b"not an image",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("what is ./a.png?", ["a.png"]),
        ("compare ./a.png and ./b\\ c.JPG", ["a.png", "b c.JPG"]),
        ("'./b c.JPG' and './a.png'", ["b c.JPG", "a.png"]),
        ("./d\\(1\\).webp ./d\\(1\\).webp", ["d(1).webp"]),
        ("~/a.png", ["a.png"]),
        ("{folder}/a.png", ["a.png"]),
        ("listen to ./e.wav, ./f.mp3", ["e.wav", "f.mp3"]),
        ("a.png is no path, nor is /no/such.png", []),
        ("./a.pngs ./a.png.bak", []),
        ("it's ./a.png, isn't it?", ["a.png"]),
        ("", []),
    ],
)
def test_what_is_found(folder: Path, text: str, names: list[str]) -> None:
    assert [file.path.name for file in media.found(text.format(folder=folder))] == names


def test_what_is_sent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "what is ./a.png, and ./e.wav?"
    rest, encoded = media.attached(text, media.found(text), ["completion", "vision", "audio"])
    assert rest == "what is , and ?"
    assert [base64.b64decode(one) for one in encoded] == [CONTENTS["a.png"], CONTENTS["e.wav"]]
    assert capsys.readouterr().err == "Added image 'a.png'\nAdded audio 'e.wav'\n"


@pytest.mark.parametrize(
    ("text", "able", "message"),
    [
        ("./a.png", ["completion", "audio"], "the model cannot look at images: a.png"),
        ("./e.wav", ["vision"], "the model cannot listen to sounds: e.wav"),
        ("./text.png", ["vision"], "invalid file type: text.png is neither"),
    ],
)
def test_what_is_not(folder: Path, text: str, able: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        media.attached(text, media.found(text), able)


def test_a_file_that_is_too_large(folder: Path) -> None:
    with (folder / "a.png").open("ab") as file:
        file.truncate(100 * 2**20 + 1)
    with pytest.raises(OptionError, match=r"file size exceeds maximum limit \(100MB\)"):
        media.attached("./a.png", media.found("./a.png"), ["vision"])


def test_long_texts_take_no_time(folder: Path) -> None:
    assert media.found("'" * 200_000 + "/" * 200_000 + ".png") == []
