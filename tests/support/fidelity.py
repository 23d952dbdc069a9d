"""How far an engine's logits lie from the exact model's, over one teacher-forced text.

The exact model is the F32 twin run by the reference engine with F32 KV (`twin.py`). Two numbers decide: the mean
Kullback-Leibler divergence from the exact distribution, in nats, and the largest margin (exact top logit minus the
second) at which the engine prefers another token. The bounds, by the kind of arithmetic:

  (a) the twin itself                       mean KL < 1e-6,  same top token where the margin exceeds 0.01
  (b) the real file, prefill                mean KL < 5e-4,  same top token where the margin exceeds 0.1
  (c) the real file, decode (int8)          mean KL < 1.15 times the reference engine's own,  … where it exceeds 0.6

Perplexity over the same text stays within 0.5 % of the twin's for (a) and (b). The text is prose, code, Chinese,
Cyrillic and emoji in equal shares of tokens.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from rsllm._core import Engine
from tests.support import assets
from tests.support.reference import Reference
from tests.support.twin import f32_twin

TEXTS = Path(__file__).parents[1] / "fixtures" / "fidelity"
KINDS = ("prose", "code", "chinese", "cyrillic", "emoji")
ROWS_AT_ONCE = 64

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Bound:
    """What a path must keep: mean KL in nats, margin above which the top token must agree, relative perplexity."""

    mean_kl: float
    margin: float
    perplexity: float | None


TWIN_BOUND = Bound(1e-6, 0.01, 0.005)
PREFILL_BOUND = Bound(5e-4, 0.1, 0.005)
DECODE_MARGIN = 0.6
DECODE_FACTOR = 1.15


@dataclass(frozen=True)
class Fidelity:
    """One engine's distance from the exact model over one text."""

    positions: int
    mean_kl: float
    max_kl: float
    worst_margin: float  # largest exact margin among positions with another top token; 0 when there are none
    top_differs: int
    perplexity: float
    exact_perplexity: float

    def misses(self, bound: Bound) -> list[str]:
        """What breaks the bound, in words; empty when it holds."""
        found = []
        if not self.mean_kl < bound.mean_kl:
            found.append(f"mean KL {self.mean_kl:.3g}, bound {bound.mean_kl:.3g}")
        if not self.worst_margin <= bound.margin:
            found.append(f"another top token at a margin of {self.worst_margin:.3g}, bound {bound.margin:.3g}")
        if bound.perplexity is not None and not abs(self.perplexity_change) < bound.perplexity:
            found.append(f"perplexity changes by {self.perplexity_change:+.3%}, bound {bound.perplexity:.1%}")
        return found

    @property
    def perplexity_change(self) -> float:
        """Relative to the exact model's perplexity."""
        return self.perplexity / self.exact_perplexity - 1


@dataclass(frozen=True)
class Yardstick:
    """The logits of one text: exact, and the reference engine's own on the real file."""

    model: Path
    twin: Path
    ids: list[int]
    exact: Logits
    own: Logits

    @functools.cached_property
    def reference(self) -> Fidelity:
        """The reference engine's own distance on the real file, decoding."""
        return compare(self.exact, self.own, self.ids)

    def head(self, positions: int) -> Yardstick:
        """The same for the first positions alone."""
        return Yardstick(self.model, self.twin, self.ids[:positions], self.exact[:positions], self.own[:positions])

    def measure(
        self, isa: str, phase: Literal["prefill", "decode"], *, of: Literal["twin", "file"] = "file"
    ) -> Fidelity:
        """rsllm's distance on one instruction set. The twin runs with F32 KV, the file with the default, F16."""
        path, kv_type = (self.twin, "f32") if of == "twin" else (self.model, "f16")
        return compare(self.exact, rsllm_logits(path, self.ids, isa=isa, phase=phase, kv_type=kv_type), self.ids)

    @property
    def decode_bound(self) -> Bound:
        """Bound (c), which is relative to the reference engine's own noise in this run."""
        return Bound(DECODE_FACTOR * self.reference.mean_kl, DECODE_MARGIN, None)


@contextlib.contextmanager
def yardstick(model: Path, positions: int, *, context: int = 2048) -> Iterator[Yardstick]:
    """Runs the reference engine on the twin and on the real file. The exact logits stay on disk meanwhile."""
    twin = f32_twin(model)
    with tempfile.TemporaryDirectory(prefix=".logits-", dir=assets.cache_dir()) as folder:
        with Reference(twin, kv_type="f32", context=context) as engine:
            ids = mixed_text(engine, positions)
            exact = engine.logits(ids, out=Path(folder) / "exact.npy")
        with Reference(model, context=context) as engine:
            # One by one, as tokens are generated: the phase that bound (c) compares.
            own = engine.logits(ids, prompt=1, out=Path(folder) / "own.npy")
        yield Yardstick(model, twin, ids, exact, own)
        del exact, own
        gc.collect()


def mixed_text(engine: Reference, positions: int) -> list[int]:
    """`positions` ids: what the vocabulary puts first, then equal shares of each kind of text."""
    ids = engine.tokenize("", add_special=True)
    share = -(-(positions - len(ids)) // len(KINDS))
    for kind in KINDS:
        text = engine.tokenize((TEXTS / f"{kind}.txt").read_text(encoding="utf-8"))
        if len(text) < share:
            raise ValueError(f"{kind}.txt has {len(text)} tokens, {share} are wanted")
        ids += text[:share]
    return ids[:positions]


def rsllm_logits(
    path: Path, ids: Sequence[int], *, isa: str, phase: Literal["prefill", "decode"], kv_type: str = "f16"
) -> Logits:
    """rsllm's logits `[n, vocab]` for the ids, all from prefill, or all but the first from the decode path."""
    engine = Engine(str(path), isa=isa, kv_type=kv_type, context=max(len(ids), 256))
    try:
        data = engine.logits(list(ids)) if phase == "prefill" else engine.decode_logits(list(ids), prompt=1)
        return np.frombuffer(data, dtype=np.float32).reshape(len(ids), -1)
    finally:
        engine.close()


def compare(exact: Logits, got: Logits, ids: Sequence[int]) -> Fidelity:
    """The distance of `got` from `exact`, both `[n, vocab]`, where `ids[i + 1]` follows row i."""
    if exact.shape != got.shape:
        raise ValueError(f"logits of shape {got.shape}, expected {exact.shape}")
    divergence: list[npt.NDArray[np.float64]] = []
    worst, differs = 0.0, 0
    loss, exact_loss = 0.0, 0.0
    for start in range(0, len(exact), ROWS_AT_ONCE):
        p, q = exact[start : start + ROWS_AT_ONCE], got[start : start + ROWS_AT_ONCE]
        if not np.isfinite(q).all():
            raise ValueError(f"logits that are not finite near position {start}")
        log_p, log_q = _log_softmax(p), _log_softmax(q)
        divergence.append((np.exp(log_p) * (log_p - log_q)).sum(axis=1))
        second, best = np.partition(p, -2, axis=1)[:, -2:].T
        other = p.argmax(axis=1) != q.argmax(axis=1)
        differs += int(other.sum())
        worst = max(worst, float((best - second)[other].max(initial=0.0)))
        following = np.asarray(ids[start + 1 : start + 1 + len(p)], dtype=np.intp)
        rows = np.arange(len(following))
        loss -= float(log_q[rows, following].sum())
        exact_loss -= float(log_p[rows, following].sum())
    kl = np.concatenate(divergence)
    n = max(len(exact) - 1, 1)
    return Fidelity(
        positions=len(exact),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        worst_margin=worst,
        top_differs=differs,
        perplexity=float(np.exp(loss / n)),
        exact_perplexity=float(np.exp(exact_loss / n)),
    )


def _log_softmax(rows: Logits) -> npt.NDArray[np.float64]:
    shifted = rows.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
