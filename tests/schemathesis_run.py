"""Requests made up from the description of the routes: `python -m tests.schemathesis_run [--examples 5000]`.

Schemathesis, in an environment of its own that is made on first use, sends what the description allows and what it
forbids to a server whose runners run no model. No answer may be a failure of the server (status 500 and above), and
each must be one that the description knows.

Random names of models would end nearly every request at once, so the copy of the description that it works from names
models that are there; and options that have a model loaded anew have few values, so that it is not all waiting.

Prints what schemathesis has to say, and ends with its status.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.assets import cache_dir
from tests.support.fake_server import fake_server

VERSION = "4.32.5"
MODELS: dict[str, dict[str, Any]] = {"tiny": {"pieces": 3}}
NAMES = {"enum": ["tiny", "tiny:latest", "nosuch"]}
# The model that answers is not to be written over.
MADE = {"enum": ["made", "made:other", "somebody/made", "a b"]}
SHOWN = {"enum": [*NAMES["enum"], *MADE["enum"]]}
ASK_A_MODEL = (
    "Generate", "Chat", "Embed", "OldEmbed", "OpenAIChat", "OpenAICompletion", "OpenAIEmbed", "OpenAIResponse",
    "Message", "MessageCount",
)  # fmt: skip
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def environment() -> Path:
    """The program `st` of the pinned version, installed if it is not there."""
    place = cache_dir() / f"schemathesis-{VERSION}-py{sys.version_info[0]}{sys.version_info[1]}"
    stamp = place.with_suffix(".complete")
    if not stamp.exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", f"schemathesis=={VERSION}"], check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(VERSION)
    return place / "bin" / "st"


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The description with names of models that are there."""
    schemas = document["components"]["schemas"]
    for name in ASK_A_MODEL:
        schemas[name]["properties"]["model"] = NAMES
        if "keep_alive" in schemas[name]["properties"]:
            schemas[name]["properties"]["keep_alive"] = {"enum": [60, "5m", -1]}
    schemas["Show"]["properties"]["model"] = schemas["Show"]["properties"]["name"] = SHOWN
    schemas["Copy"]["properties"]["source"] = NAMES
    schemas["Copy"]["properties"]["destination"] = MADE
    schemas["Create"]["properties"]["from"] = NAMES
    schemas["Create"]["properties"]["model"] = schemas["Create"]["properties"]["name"] = MADE
    schemas["Options"]["properties"]["num_ctx"] = {"enum": [0, 2048, 4096]}
    schemas["Options"]["properties"]["num_thread"] = {"enum": [0, 1]}
    return document


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.schemathesis_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--examples", type=int, default=5000, help="of all operations together, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="random ones alone, without the systematic ones")
    parser.add_argument("--checks", default=CHECKS)
    options = parser.parse_args()
    program = environment()
    with (
        tempfile.TemporaryDirectory() as name,
        fake_server(Path(name), MODELS, environment={"RSLLM_MAX_BODY": "1M"}) as (process, port),
    ):
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/openapi.json") as reply:
            document = narrowed(json.load(reply))
        file = Path(name) / "openapi.json"
        file.write_text(json.dumps(document))
        bodies = sum("requestBody" in method for path in document["paths"].values() for method in path.values())
        command = [str(program), "run", str(file), "--url", url, "--checks", options.checks]
        command += ["--phases", "fuzzing" if options.short else "examples,coverage,fuzzing"]
        command += ["--max-examples", str(-(-options.examples // bodies))]
        command += ["--seed", str(options.seed), "--continue-on-failure", "--request-timeout", "30"]
        command += ["--suppress-health-check", "all"]
        done = subprocess.run(command, cwd=name, stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"})
        alive = process.poll() is None
        log = (Path(name) / "server.log").read_text()
    if not alive or done.returncode:
        print(log[-20_000:], file=sys.stderr)
    return done.returncode if alive else 1


if __name__ == "__main__":
    raise SystemExit(main())
