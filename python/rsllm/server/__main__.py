"""`python -m rsllm.server`: the server as commands start it for themselves.

It is `rsllm serve` without the command line, whose options take a tenth of a second to import. Its one argument is a
JSON object of `serve`'s arguments.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rsllm.errors import RsllmError


def main() -> int:
    """Serve until told to end; 1 where that cannot be, with the reason on standard error."""
    from rsllm.server.main import serve

    asked = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    try:
        serve(
            idle_seconds=asked.get("idle_seconds"),
            log_file=Path(asked["log_file"]) if "log_file" in asked else None,
            warm=bool(asked.get("warm")),
        )
    except RsllmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
