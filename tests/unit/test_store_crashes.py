"""A process that dies at any moment leaves a sound store: tried before every single change it makes to the disk."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A child is forked for each moment; the audit hook of the interpreter sees what it is about to do, and ends it there.
DRIVER = """
    import os, sys
    from pathlib import Path
    from rsllm.store.check import check
    from rsllm.store.name import ModelName
    from rsllm.store.store import Store
    from tests.support.stores import add_model, blobs, names

    CHANGES = {{"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.utime", "os.truncate"}}
    a, b, c = (ModelName.parse(name) for name in ("a", "me/b", "c"))

    def die_before(moment, root):
        seen = 0
        def hook(event, arguments):
            nonlocal seen
            if event in CHANGES and str(arguments[0]).startswith(root):
                seen += 1
                if seen > moment:
                    os._exit(9)
        sys.addaudithook(hook)

    moment = 0
    while True:
        root = Path(sys.argv[1]) / str(moment)
        store = Store(root)
        add_model(store, "a", b"one", system=b"shared")
        add_model(store, "me/b", b"two", system=b"shared")
        store.add_blob([b"lost"])
        before = names(store)
        child = os.fork()
        if child == 0:
            die_before(moment, str(root))
            {work}
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9), code
        assert check(store) == [], (moment, check(store))
        assert names(store) in (before, {after}), (moment, names(store))
        {work}
        assert names(store) == {after}, (moment, names(store))
        pruned = store.prune(dry_run=False, older_than_seconds=0)
        assert pruned.skipped is None
        needed = {{layer.digest.file_name for entry in store.names() for layer in entry.manifest.all_layers}}
        assert blobs(store) == needed, (moment, blobs(store) ^ needed)
        assert check(store) == []
        left = [path for path in root.rglob("*") if path.is_file() and path.parent.name in ("manifests", "adding")]
        assert left == [], left
        if code == 0:
            print(moment)
            break
        moment += 1
"""


@pytest.mark.parametrize(
    ("work", "after"),
    [
        ('add_model(store, "c", b"new", system=b"shared")', '["a:latest", "c:latest", "me/b:latest"]'),
        ('add_model(store, "a", b"new")', '["a:latest", "me/b:latest"]'),
        ("store.copy(a, c)", '["a:latest", "c:latest", "me/b:latest"]'),
        ("b.full in [n.name.full for n in store.names()] and store.delete(b)", '["a:latest"]'),
        ("store.prune(dry_run=False, older_than_seconds=0)", '["a:latest", "me/b:latest"]'),
    ],
    ids=["create", "overwrite", "copy", "delete", "prune"],
)
def test_a_process_that_dies_leaves_a_sound_store(tmp_path: Path, work: str, after: str) -> None:
    script = textwrap.dedent(DRIVER).format(work=work, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    print(f"died at {done.stdout.strip()} moments")
    assert int(done.stdout) >= 3
