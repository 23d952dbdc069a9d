"""A disk that is full or read-only: a clear error, nothing half-written, and all works again once it is not.

Whoever may mount gets a file system of two megabytes for it; everybody gets a limit on the size of files, which the
kernel enforces as well. A line at the end of the run says which of them ran.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rsllm.errors import StoreFullError
from rsllm.store import files
from rsllm.store.check import check
from rsllm.store.name import ModelName
from rsllm.store.store import Store
from tests.support.stores import add_model, blobs, names

ROOT = Path(__file__).parents[2]

ADD = """
    import errno, resource, sys
    from pathlib import Path
    from rsllm.errors import StoreFullError
    from rsllm.store.check import check
    from rsllm.store.store import Store
    from tests.support.stores import add_model, blobs, names

    store = Store(Path(sys.argv[1]))
    add_model(store, "small", b"w")
    before = blobs(store)
    {limit}
    try:
        add_model(store, "large", bytes(4_000_000))
    except StoreFullError as error:
        assert str(error).startswith("cannot add a blob: "), error
        assert str(store.root) in str(error), error
        assert "rsllm prune" in error.hint
        print(errno.errorcode[error.__cause__.errno])
    else:
        raise SystemExit("it was written")
    assert blobs(store) == before, blobs(store)
    assert names(store) == ["small:latest"]
    assert check(store) == []
"""


READ = """
    import sys
    from pathlib import Path
    from rsllm.errors import ReadOnlyStoreError
    from rsllm.store.check import check
    from rsllm.store.digest import Digest
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store
    from tests.support.stores import add_model, names

    store = Store(Path(sys.argv[1]))
    assert names(store) == ["small:latest"]
    assert store.find(ModelName.parse("SMALL")).weights.read_bytes() == b"w"
    assert store.has_blob(Digest.of(b"w"), 1)
    assert check(store) == []
    assert "read-only" in store.start(no_prune=False).skipped
    assert store.prune(dry_run=True).blobs == ()
    delete = lambda: store.delete(ModelName.parse("small"))
    for change in (delete, lambda: store.add_blob([b"x"]), lambda: add_model(store, "n")):
        try:
            change()
        except ReadOnlyStoreError as error:
            assert "the file system is read-only" in str(error), error
            assert str(store.root) in str(error), error
        else:
            raise SystemExit("it was changed")
    print("refused")
"""


def run(script: str, *arguments: str, prefix: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def can_mount() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


def test_a_file_larger_than_the_limit(tmp_path: Path, say: Callable[[str], None]) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"
    assert run(ADD.format(limit=limit), str(tmp_path / "models")) == "EFBIG"
    say("ran: a limit on the size of files (EFBIG)")
    store = Store(tmp_path / "models")
    add_model(store, "large", bytes(4_000_000))
    assert check(store) == []


def test_a_file_system_without_room(tmp_path: Path, say: Callable[[str], None]) -> None:
    """In a mount namespace of its own, so that nothing else sees the file system and nothing is left of it."""
    if not can_mount():
        say("ran: nothing; this user may not mount, so only the limit on the size of files is tested (EFBIG)")
        return
    mount = 'mount -t tmpfs -o size=2m tmpfs "$1" && shift && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", mount, "sh", str(tmp_path))
    assert run(ADD.format(limit=""), str(tmp_path / "models"), prefix=prefix) == "ENOSPC"
    say("ran: a file system of two megabytes (ENOSPC)")


def test_a_file_system_for_reading_only(tmp_path: Path, say: Callable[[str], None]) -> None:
    """What the kernel says of such a file system is also said to `root`; for other users see `test_store.py`."""
    add_model(Store(tmp_path / "models"), "small", b"w")
    if not can_mount():
        say("ran: nothing; this user may not mount, so only the made-up refusals of test_store.py are tested")
        return
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", mount, "sh", str(tmp_path))
    assert run(READ, str(tmp_path / "models"), prefix=prefix) == "refused"
    say("ran: a file system mounted for reading only (EROFS)")


def test_a_manifest_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="this machine has no limits on files")
    store = Store(tmp_path / "models")
    before = add_model(store, "m", b"1")
    after = add_model(store, "n", b"2")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StoreFullError, match="cannot write a manifest"):
            store.write_manifest(ModelName.parse("m"), after.raw)
        with pytest.raises(StoreFullError, match="cannot write a manifest"):
            store.copy(ModelName.parse("m"), ModelName.parse("o"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.find(ModelName.parse("m")).manifest.raw == before.raw
    assert names(store) == ["m:latest", "n:latest"]
    assert list(store.layout.manifests.rglob(".*")) == []


def test_a_file_that_cannot_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "models")
    source = tmp_path / "m.gguf"
    source.write_bytes(bytes(1000))
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 999}))
    with pytest.raises(StoreFullError, match="1,000 bytes are needed and 999 are free"):
        store.add_blob(source)
    assert blobs(store) == set()
    assert names(store) == []
