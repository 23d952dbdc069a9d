"""Adds up the closing lines of cargo test and pytest in a log: `python -m tests.support.count LOG`.

Prints `total: N passed, N failed, N skipped` and ends with 1 when nothing ran or something failed. Before that, how
many of these are cases of which client.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
PYTEST = re.compile(r"^=+ (.*\b(?:passed|failed|error).*) in [\d.]+s.* =+$", re.MULTILINE)
CLIENT = re.compile(r"^client (\S+ \S+): (.*)$", re.MULTILINE)


def count(log: str) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of every suite in the log."""
    passed, failed, skipped = (sum(int(run[i]) for run in CARGO.findall(log)) for i in range(3))
    for line in PYTEST.findall(log):
        words = {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) (\w+)", line)}
        passed += words.get("passed", 0)
        failed += words.get("failed", 0) + words.get("error", 0)
        skipped += words.get("skipped", 0)
    return passed, failed, skipped


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(errors="replace")
    for client, cases in CLIENT.findall(text):
        print(f"client {client}: {cases}")
    n_passed, n_failed, n_skipped = count(text)
    print(f"total: {n_passed} passed, {n_failed} failed, {n_skipped} skipped")
    raise SystemExit(n_failed > 0 or n_passed == 0)
