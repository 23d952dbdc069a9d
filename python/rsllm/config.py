"""The environment, read once.

Every variable that rsllm looks at stands in `Config`, with its type and default; no other module reads the
environment. Ollama's variables keep their names and meaning, ours begin with `RSLLM_`. Values are trimmed of spaces
and of one pair of quotes, and a bad value is an error that names the variable: nothing falls back in silence.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rsllm.durations import parse_duration
from rsllm.errors import OptionError

__all__ = ["Config", "config"]

_FALSE = {"", "0", "f", "false", "no", "off"}
_KV_TYPES = ("f16", "bf16", "f32", "q8_0", "q4_0")

# Ollama's variables that change nothing here, and why. Whoever sets one is told so.
_WITHOUT_EFFECT = {
    "OLLAMA_CLOUD_BASE_URL": "no cloud is asked",
    "OLLAMA_DEBUG_LOG_REQUESTS": "what requests say is never written down",
    "OLLAMA_FLASH_ATTENTION": "attention has one form, which takes every KV type",
    "OLLAMA_GPU_OVERHEAD": "this build has no GPU backend",
    "OLLAMA_IGPU_ENABLE": "this build has no GPU backend",
    "OLLAMA_LLAMA_CPP_COMPAT": "files are read as they are",
    "OLLAMA_LLM_LIBRARY": "RSLLM_ISA chooses the instruction set",
    "OLLAMA_MAX_TRANSFER_STREAMS": "transfers choose for themselves",
    "OLLAMA_REMOTES": "no cloud is asked",
    "OLLAMA_SCHED_SPREAD": "this build has no GPU backend",
    "OLLAMA_VULKAN": "this build has no GPU backend",
}


@dataclass(frozen=True)
class Config:
    """What the environment says.

    ========================== =============================================================================
    variable                   meaning
    ========================== =============================================================================
    `RSLLM_CACHE`              folder of fetched models (default: `rsllm` under the user's cache folder)
    `OLLAMA_MODELS`            folder of the model store (default: `~/.ollama/models`)
    `OLLAMA_NOPRUNE`           leave files in the store that no model needs, at start and after a pull
    `RSLLM_REGISTRY_MIRRORS`   comma list of addresses asked before the default registry; `host=address` for another's
    `HF_ENDPOINT`              address asked before hf.co
    `RSLLM_PRIVATE_REGISTRIES` comma list of hosts, `host:port`, addresses and networks that may be private
    `RSLLM_DEBUG`              the command line shows tracebacks
    `OLLAMA_DEBUG`             1 or true: the server logs details; 2: those of its libraries as well
    `OLLAMA_EDITOR`            what Ctrl-G opens in a conversation, before `VISUAL` and `EDITOR`
    `RSLLM_ISA`                instruction set of models loaded without another choice; `rsllm doctor` lists them
    `RSLLM_RUNNER_MEMORY`      most memory that a model may take beside its weights: bytes, or `8G`, `8GiB`, `8GB`
    `RSLLM_HISTORY`            file of the interactive session's history
    `OLLAMA_NOHISTORY`         no history file
    `OLLAMA_CONTEXT_LENGTH`    the command line's context where `--num-ctx` is not given; 0 = automatic
    `OLLAMA_KV_CACHE_TYPE`     KV type (f16, bf16, f32, q8_0, q4_0) where nothing else is asked for
    `OLLAMA_GPU_OVERHEAD`      memory to leave free on each GPU, as `RSLLM_RUNNER_MEMORY`; checked, and without effect
                               as long as there is no GPU backend
    `OLLAMA_KEEP_ALIVE`        how long an unused model stays loaded: a duration or seconds; negative = for ever
    `OLLAMA_LOAD_TIMEOUT`      how long loading may show no progress; not positive = for ever
    `OLLAMA_MAX_LOADED_MODELS` models loaded at once; 0 = three for each device
    `OLLAMA_MAX_QUEUE`         requests that may wait
    `OLLAMA_NUM_PARALLEL`      requests that run at once in a model; unset or 0 = as many as memory has pages for
    `OLLAMA_HOST`              where the server listens and clients ask: `[scheme://][host][:port][/path]`
    `OLLAMA_GO_TEMPLATE`       which of two templates makes a model's prompts: true its Go template (TEMPLATE), false
                               its file's own; unset = the abler one
    `OLLAMA_ORIGINS`           comma list of browser origins that may ask, beside those of this machine
    `RSLLM_API_KEY`            key that the server asks for and the command line sends
    `RSLLM_ALLOW_PUBLIC`       the server may listen beyond this machine without a key
    `RSLLM_MAX_BODY`           most bytes of a request that is no blob (default 64 MiB), as `RSLLM_RUNNER_MEMORY`
    `RSLLM_REQUEST_TIMEOUT`    how long a request may keep a model busy, waiting included (default: for ever)
    `RSLLM_CLIENT_TIMEOUT`     how long a client may stall in its request or in reading the reply (default 1m)
    `RSLLM_SERVER`             when no server answers, commands start one that ends when idle (`auto`), one that stays
                               (`keep`), or none (`never`)
    `RSLLM_SERVER_IDLE`        how long such a server stays with nothing loaded and nothing to do (default 10m)
    `RSLLM_STATE`              folder of the log and the lock of such a server, and of the key that says what was typed
    `RSLLM_LOG_FORMAT`         lines of the server's log: `text`, for people, or `json`
    `OTEL_…`                   OpenTelemetry's own: with an endpoint or an exporter of traces the server tells requests
    `NO_COLOR`                 no colours, whatever the terminal can do
    ========================== =============================================================================
    """

    cache_dir: Path
    history_file: Path | None
    models_dir: Path
    key_path: Path
    state_dir: Path = Path()
    host: str = ""
    origins: tuple[str, ...] = ()
    api_key: str | None = None
    allow_public: bool = False
    max_body_bytes: int = 64 << 20
    request_seconds: float | None = None
    client_seconds: float = 60.0
    server: str = "auto"
    server_idle_seconds: float = 600.0
    go_template: bool | None = None
    log_format: str = "text"
    telemetry: bool = False
    no_prune: bool = False
    registry_mirrors: tuple[str, ...] = ()
    hf_endpoint: str | None = None
    private_registries: tuple[str, ...] = ()
    debug: bool = False
    log_detail: int = 0
    editor: str = ""
    isa: str | None = None
    context_length: int | None = None
    kv_type: str | None = None
    no_color: bool = False
    keep_alive_seconds: float = 300.0
    load_timeout_seconds: float | None = 300.0
    max_loaded_models: int = 0
    max_queue: int = 512
    num_parallel: int | None = None
    runner_memory_bytes: int | None = None
    gpu_overhead_bytes: int | None = None
    without_effect: tuple[str, ...] = ()
    """What to tell about variables of Ollama's that are set and change nothing here."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Parse a set of variables; raises `OptionError` naming the variable whose value makes no sense."""

        def text(name: str) -> str:
            value = environment.get(name, "").strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            return value

        cache = text("RSLLM_CACHE")
        models = text("OLLAMA_MODELS")
        history = text("RSLLM_HISTORY")
        history_file = Path(history).expanduser() if history else _user_dir(environment, "state") / "history"
        return cls(
            cache_dir=Path(cache).expanduser() if cache else _user_dir(environment, "cache"),
            models_dir=Path(models).expanduser() if models else _home(environment) / ".ollama" / "models",
            state_dir=_state(text("RSLLM_STATE"), environment),
            host=text("OLLAMA_HOST"),
            origins=_list(text("OLLAMA_ORIGINS")),
            api_key=text("RSLLM_API_KEY") or None,
            allow_public=_flag(text("RSLLM_ALLOW_PUBLIC")),
            max_body_bytes=_bytes("RSLLM_MAX_BODY", text("RSLLM_MAX_BODY")) or 64 << 20,
            request_seconds=_limit(_seconds("RSLLM_REQUEST_TIMEOUT", text("RSLLM_REQUEST_TIMEOUT"), math.inf)),
            client_seconds=_seconds("RSLLM_CLIENT_TIMEOUT", text("RSLLM_CLIENT_TIMEOUT"), 60.0) or math.inf,
            server=_choice("RSLLM_SERVER", text("RSLLM_SERVER"), ("auto", "keep", "never")),
            server_idle_seconds=_seconds("RSLLM_SERVER_IDLE", text("RSLLM_SERVER_IDLE"), 600.0),
            telemetry=_telemetry(text),
            log_format=_choice("RSLLM_LOG_FORMAT", text("RSLLM_LOG_FORMAT"), ("text", "json")),
            key_path=_home(environment) / ".ollama" / "id_ed25519",
            go_template=_flag(text("OLLAMA_GO_TEMPLATE")) if text("OLLAMA_GO_TEMPLATE") else None,
            no_prune=_flag(text("OLLAMA_NOPRUNE")),
            registry_mirrors=_list(text("RSLLM_REGISTRY_MIRRORS")),
            hf_endpoint=text("HF_ENDPOINT") or None,
            private_registries=_list(text("RSLLM_PRIVATE_REGISTRIES")),
            history_file=None if _flag(text("OLLAMA_NOHISTORY")) else history_file,
            isa=text("RSLLM_ISA").lower() or None,
            debug=_flag(text("RSLLM_DEBUG")),
            log_detail=_detail(text("OLLAMA_DEBUG")),
            editor=text("OLLAMA_EDITOR") or text("VISUAL") or text("EDITOR"),
            context_length=_count("OLLAMA_CONTEXT_LENGTH", text("OLLAMA_CONTEXT_LENGTH")),
            kv_type=_kv_type(text("OLLAMA_KV_CACHE_TYPE")),
            no_color=bool(environment.get("NO_COLOR")),
            keep_alive_seconds=_seconds("OLLAMA_KEEP_ALIVE", text("OLLAMA_KEEP_ALIVE"), 300.0),
            load_timeout_seconds=_limit(_seconds("OLLAMA_LOAD_TIMEOUT", text("OLLAMA_LOAD_TIMEOUT"), 300.0)),
            max_loaded_models=_count("OLLAMA_MAX_LOADED_MODELS", text("OLLAMA_MAX_LOADED_MODELS")) or 0,
            max_queue=_count("OLLAMA_MAX_QUEUE", text("OLLAMA_MAX_QUEUE") or "512") or 0,
            num_parallel=_count("OLLAMA_NUM_PARALLEL", text("OLLAMA_NUM_PARALLEL")),
            runner_memory_bytes=_bytes("RSLLM_RUNNER_MEMORY", text("RSLLM_RUNNER_MEMORY")),
            gpu_overhead_bytes=_bytes("OLLAMA_GPU_OVERHEAD", text("OLLAMA_GPU_OVERHEAD")),
            without_effect=tuple(
                f"{name} has no effect: {reason}" for name, reason in _WITHOUT_EFFECT.items() if text(name)
            ),
        )


@cache
def config() -> Config:
    """The configuration of this process, read from the environment at the first call."""
    return Config.from_environment(os.environ)


def _flag(value: str) -> bool:
    # Any other non-empty text counts as true: the meaning Ollama gives its own switches.
    return value.lower() not in _FALSE


def _detail(value: str) -> int:
    """0, 1 or 2: a switch, or a number."""
    more = value.isascii() and value.isdigit() and value.lstrip("0") not in ("", "1")
    return 2 if more else int(_flag(value))


def _telemetry(text: Callable[[str], str]) -> bool:
    """Whether OpenTelemetry's variables ask for traces."""
    exporter = text("OTEL_TRACES_EXPORTER").lower()
    if text("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none":
        return False
    return bool(exporter or text("OTEL_EXPORTER_OTLP_ENDPOINT") or text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _list(value: str) -> tuple[str, ...]:
    return tuple(entry for part in value.split(",") if (entry := part.strip()))


def _count(name: str, value: str) -> int | None:
    if not value:
        return None
    try:
        number = int(value)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {value!r}", name=name) from None
    if number < 0:
        raise OptionError(f"{name} must not be negative, but is {number}", name=name)
    return number or None


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """One of the words, the first where none is given."""
    if value and value.lower() not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}", name=name)
    return value.lower() or choices[0]


def _kv_type(value: str) -> str | None:
    return _choice("OLLAMA_KV_CACHE_TYPE", value, _KV_TYPES) if value else None


def _seconds(name: str, value: str, default: float) -> float:
    """A duration as Go writes it, or whole seconds; infinite where it is negative."""
    if not value:
        return default
    try:
        seconds = float(int(value)) if value.lstrip("+-").isdigit() else parse_duration(value)
    except ValueError as error:
        raise OptionError(f"{name} must be a duration such as 5m, or seconds: {error}", name=name) from None
    return seconds if seconds >= 0 else math.inf


_PREFIXES = "KMGT"


def _bytes(name: str, value: str) -> int | None:
    """A size: `8G` and `8GiB` count in powers of 1024, `8GB` in powers of 1000; a plain number is bytes."""
    if not value:
        return None
    number = value.rstrip(_PREFIXES + _PREFIXES.lower() + "iIbB")
    unit = value[len(number) :].upper()
    base = 1000 if len(unit) == 2 and unit.endswith("B") else 1024
    exponent = _PREFIXES.find(unit[:1]) + 1 if unit not in ("", "B") else 0
    known = unit in ("", "B") or (exponent > 0 and unit[1:] in ("", "B", "IB"))
    if not known or not number.strip().isascii() or not number.strip().isdigit():
        raise OptionError(f"{name} must be a number of bytes, or one with a unit such as 8G or 8GiB", name=name)
    return int(number) * base**exponent or None


def _limit(seconds: float) -> float | None:
    return seconds if 0 < seconds < math.inf else None


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())


def _state(value: str, environment: Mapping[str, str]) -> Path:
    return Path(value).expanduser() if value else _user_dir(environment, "state")


def _user_dir(environment: Mapping[str, str], kind: str) -> Path:
    """The user's folder for `cache` or `state`, by the rules of the XDG base directories and their counterparts."""
    home = _home(environment)
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "rsllm" / kind
    if sys.platform == "darwin":
        return home / "Library" / ("Caches" if kind == "cache" else "Application Support") / "rsllm"
    variable, default = {
        "cache": ("XDG_CACHE_HOME", home / ".cache"),
        "state": ("XDG_STATE_HOME", home / ".local" / "state"),
    }[kind]
    base = environment.get(variable, "")
    # The specification: a relative path is invalid and to be ignored.
    return (Path(base) if os.path.isabs(base) else default) / "rsllm"
