"""The answer to a prompt: one sequence of the engine, read as thoughts, text and tool calls while it comes.

Where a model thinks and its answer is constrained (`format`), the constraint must wait until the thoughts have ended.
So there are two sequences on one lease: one without the constraint, up to the end of the thoughts, then one with it,
whose prompt is the first with the thoughts behind it. The prefix cache holds all of that, so that the second begins at
once.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rsllm.chat.parsers import OutputParser, Part
from rsllm.runner.pool import Lease, LeaseGeneration
from rsllm.server.prompts import Prompt
from rsllm.server.reading import Piece, Reading, logprobs_of, pieces_of
from rsllm.streams import Stats, Token

__all__ = ["Answer"]

_CONSTRAINTS = ("schema", "regex", "grammar")
_MAY_REPEAT = ("ignore_eos", "regex", "grammar")
# In place of the ids of tokens.
_NOTHING, _BLANK = -1, -2

REPEATS = 30
"""How often a model may say the same token again before it is taken to be stuck, as in Ollama; blanks are all the same.
Not where the request wants an answer without end (`ignore_eos`), or of a form that may want it."""


class _Repeats:
    """Counts how often the same comes in a row."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._limit: float = math.inf if any(options.get(name) for name in _MAY_REPEAT) else REPEATS
        self._last = _NOTHING
        self._count = 0

    def are_too_many(self, token: Token) -> bool:
        """With this one, which may stand for several."""
        for id in token.ids if token.strip() else (_BLANK,) * len(token.ids):
            self._count = self._count + 1 if id == self._last else 0
            self._last = id
        return self._count > self._limit


@dataclass
class _Totals:
    """Figures of all sequences of an answer together."""

    prompt: int = 0
    cached: int | None = None
    generated: int = 0
    thinking: int = 0
    prefill: int = 0
    decode: int = 0
    queue: int = 0

    def add(self, stats: Stats) -> None:
        self.generated += stats.generated_tokens
        self.prefill += stats.prefill_ns
        self.decode += stats.decode_ns
        self.queue += stats.queue_ns
        if self.cached is None:
            self.cached = stats.cached_tokens

    def metrics(self) -> dict[str, int]:
        return {
            "prompt_eval_count": self.prompt,
            "prompt_eval_duration": self.prefill,
            "eval_count": self.generated,
            "eval_duration": self.decode,
            "cached_tokens": min(self.cached or 0, self.prompt),
            "queue_duration": self.queue,
            **({"thinking_count": self.thinking} if self.thinking else {}),
        }


class Answer:
    """One answer. Go through `pieces` to the end; then the other members tell what came of it."""

    def __init__(self, lease: Lease, prompt: Prompt, options: dict[str, Any], reading: Reading | None) -> None:
        """`options` are the engine's, complete. Without a `reading` the text is passed on as it is."""
        self._lease = lease
        self._prompt = prompt
        self._reading = reading
        self._options = options
        if reading is not None and reading.control:
            self._options = {**options, "reveal": [[id, text] for id, text in reading.control.items()]}
        self._logprobs: list[dict[str, Any]] | None = None
        self._hidden = False
        self._is_over = False
        self._has_thought = False
        self._totals = _Totals(prompt=len(prompt.ids))
        self.ids: list[int] = []
        """The tokens of the answer, thoughts too."""
        self.reason = "stop"
        self.warnings: list[str] = []

    @property
    def metrics(self) -> dict[str, int]:
        """Counts and durations."""
        return self._totals.metrics()

    async def pieces(self) -> AsyncIterator[Piece]:
        """What the model says, as it comes."""
        reading = self._reading
        if reading is None:
            async for piece in self._plain():
                yield piece
            return
        is_constrained = any(self._options.get(name) is not None for name in _CONSTRAINTS)
        if is_constrained and reading.may_think(self._prompt.text):
            async with self._lease.keep_place(self._prompt.ids, self._options):
                async for piece in self._thoughtful(reading):
                    yield piece
            return
        parser = reading.parser(self._prompt.text)
        async for piece in self._read(self._prompt.ids, self._options, parser):
            yield piece
        self._close(parser)

    async def _thoughtful(self, reading: Reading) -> AsyncIterator[Piece]:
        """Thoughts without the constraint, then the answer with it."""
        await self._try_constraint()
        parser = reading.parser(self._prompt.text)
        thoughts = _Thoughts(self, reading, parser)
        async for piece in thoughts.pieces():
            yield piece
        begun = await thoughts.continuation()
        if begun is not None:
            parser = reading.answer_parser()
            options = self._options
            if (most := options.get("max_tokens")) is not None:
                options = {**options, "max_tokens": max(0, most - self._totals.generated)}
            async for piece in self._read([*self._prompt.ids, *begun], options, parser):
                yield piece
        self._close(parser)

    async def _try_constraint(self) -> None:
        """Let the engine refuse a constraint before anything is said, and not when the thoughts have ended."""
        trial = await self._lease.generate(self._prompt.ids[:1], {**self._options, "max_tokens": 0})
        async for _ in trial:
            pass

    async def _plain(self) -> AsyncIterator[Piece]:
        begun = time.perf_counter_ns()
        repeats = _Repeats(self._options)
        generation = await self._lease.generate(self._prompt.ids, self._options)
        async for token in generation:
            self.ids += token.ids
            logprobs = logprobs_of(token)
            if token or logprobs:
                yield Piece(str(token), logprobs=logprobs)
            if repeats.are_too_many(token):
                generation.cancel()
                self.stuck(len(self.ids), begun)
                return
        self._ended(generation)

    async def _read(self, ids: list[int], options: dict[str, Any], parser: OutputParser) -> AsyncIterator[Piece]:
        begun = time.perf_counter_ns()
        repeats = _Repeats(options)
        generation = await self._lease.generate(ids, options)
        count, is_stuck = len(self.ids), False
        async for token in generation:
            self.ids += token.ids
            parts = parser.feed(token)
            for piece in self.shown(parts, token):
                yield piece
            self.count_thinking(parser, parts, len(token.ids) if token else 0)
            if self._is_over:
                generation.cancel()
                self.add_cut(len(self.ids) - count, 0, time.perf_counter_ns() - begun)
                return
            if is_stuck := repeats.are_too_many(token):
                generation.cancel()
                break
        for piece in self.shown(parser.finish()):
            yield piece
        if self._logprobs:
            yield Piece(logprobs=self._logprobs)
        if is_stuck:
            self.stuck(len(self.ids) - count, begun)
        else:
            self._ended(generation)

    def shown(self, parts: Iterable[Part], token: Token | None = None) -> Iterable[Piece]:
        """The parts that somebody is to see; log probabilities wait for the next of them."""
        if token is not None and (logprobs := logprobs_of(token)):
            self._logprobs = [*(self._logprobs or ()), *logprobs]
        for part in parts:
            self._has_thought = self._has_thought or part.kind == "thinking"
            if part.kind == "thinking" and self._reading is not None and self._reading.hides_thoughts:
                self._hidden = self._hidden or bool(part.text.strip())
                continue
            for piece in pieces_of(part):
                if self._is_over:
                    return
                self._is_over = bool(piece.calls) and self._reading is not None and self._reading.one_call
                logprobs, self._logprobs = self._logprobs, None
                yield Piece(piece.text, piece.thinking, piece.calls, logprobs) if logprobs else piece

    def add(self, stats: Stats) -> None:
        """Count a sequence that has ended."""
        self._totals.add(stats)
        self.warnings += stats.warnings
        if stats.shifts:
            self.warnings.append(
                f"the context was full: {stats.dropped_tokens} of its older tokens were forgotten on the way"
            )
        if stats.finish_reason == "context":
            self.warnings.append(f"stopped because the context of {self._lease.info['context']} tokens is full")
        self.reason = "stop" if stats.finish_reason == "stop" else "length"

    def add_cut(self, tokens: int, prefill: int, decode: int) -> None:
        """Count a sequence that was cut short, of which the engine tells nothing."""
        self._totals.generated += tokens
        self._totals.prefill += prefill
        self._totals.decode += decode

    def stuck(self, tokens: int, begun: int) -> None:
        """The model said the same over and over: the answer is cut there."""
        self.add_cut(tokens, 0, time.perf_counter_ns() - begun)
        self.reason = "length"
        self.warnings.append(f"the answer was cut where one token had been repeated more than {REPEATS} times")

    def count_thinking(self, parser: OutputParser, parts: Iterable[Part], tokens: int) -> None:
        """Count the tokens of a piece as thoughts as long as the answer has not begun; where it begins within the
        piece, by their share of its text."""
        if not self._has_thought:
            return
        if parser.is_thinking:
            self._totals.thinking += tokens
            return
        lengths = {part.kind: 0 for part in parts}
        for part in parts:
            lengths[part.kind] += len(part.raw)
        if thinking := lengths.get("thinking"):
            self._totals.thinking += round(tokens * thinking / sum(lengths.values()))

    def _ended(self, generation: LeaseGeneration) -> None:
        if generation.stats is None:
            raise RuntimeError("a sequence that has ended has figures")
        self.add(generation.stats)

    def _close(self, parser: OutputParser) -> None:
        self.warnings += parser.warnings
        if self._hidden:
            self.warnings.append("the model thinks although `think` is false: its thoughts were left out")


class _Thoughts:
    """The sequence before a constrained answer: free, and cut where the thoughts end."""

    def __init__(self, answer: Answer, reading: Reading, parser: OutputParser) -> None:
        self._answer = answer
        self._reading = reading
        self._parser = parser
        self._lease = answer._lease
        self._prompt = answer._prompt
        self._end = reading.choice.end_of_thoughts
        # A control token is no text to the engine, so that it cannot stop there.
        self._end_ids = {id for id, text in reading.control.items() if text == self._end}
        self._has_thought = False
        self._texts: list[str] = []
        self._stats: Stats | None = None
        self._is_stuck = False

    async def pieces(self) -> AsyncIterator[Piece]:
        """The thoughts."""
        answer = self._answer
        options = {**answer._options, **dict.fromkeys(_CONSTRAINTS)}
        if not self._end_ids:
            options["stop"] = [*options["stop"], self._end]
        begun = first = time.perf_counter_ns()
        repeats = _Repeats(options)
        generation = await self._lease.generate(self._prompt.ids, options)
        async for token in generation:
            if not answer.ids:
                first = time.perf_counter_ns()
            answer.ids += token.ids
            parts = self._parser.feed(token)
            for piece in answer.shown(self._thinking(parts), token):
                yield piece
            answer.count_thinking(self._parser, parts, len(token.ids) if token else 0)
            self._is_stuck = repeats.are_too_many(token)
            if self._is_stuck or not self._parser.is_thinking:
                generation.cancel()
                break
        if self._is_stuck:
            answer.stuck(len(answer.ids), begun)
            for piece in answer.shown(self._thinking(self._parser.finish())):
                yield piece
            return
        # What was generated behind the thoughts, to the end perhaps, does not count.
        self._stats = generation.stats if self._parser.is_thinking else None
        if self._stats is None:
            answer.ids = self._cut_ids()
            answer.add_cut(len(answer.ids), first - begun, time.perf_counter_ns() - first)
            return
        answer.add(self._stats)
        for piece in answer.shown(self._thinking(self._parser.finish())):
            yield piece

    async def continuation(self) -> list[int] | None:
        """The tokens between the prompt and the constrained answer; `None` where there is room for none, or something
        else than the end of the thoughts has ended the answer."""
        stats, ids = self._stats, self._answer.ids
        if self._is_stuck:
            return None
        if stats is not None and (stats.finish_reason != "stop" or stats.stop_text not in (None, self._end)):
            return None
        if self._has_thought and stats is not None:
            if stats.stop_text is None:  # the model wanted to end without an answer
                ids = [*ids, *await self._lease.tokenize([(self._end, True)])]
            elif not (await self._lease.detokenize(ids)).rstrip().endswith(self._end):
                # The last token holds more than the tag, which the model would take for the beginning of its answer.
                ids = await self._lease.tokenize(self._parts())
        if not self._has_thought:
            ids, self._answer._logprobs = [], None
        head = self._reading.choice.head_of_answer(after_thoughts=self._has_thought)
        if head:
            ids = [*ids, *await self._lease.tokenize([(head, True)])]
        if len(self._prompt.ids) + len(ids) >= int(self._lease.info["context"]):
            self._answer.reason = "length"
            self._answer.warnings.append("the thoughts have filled the context: there is no room for the answer")
            return None
        self._answer.ids = ids
        return ids

    def _thinking(self, parts: Iterable[Part]) -> list[Part]:
        """The thoughts among the parts; an answer that begins too early comes again."""
        for part in parts:
            if part.kind == "thinking" or (part.kind == "markup" and part.raw.strip()):
                self._has_thought = True
        found = [part for part in parts if part.kind == "thinking"]
        self._texts += [part.raw for part in found]
        return found

    def _parts(self) -> list[tuple[str, bool]]:
        """The thoughts and their tags as parts of a prompt."""
        tags = self._reading.choice.thinking
        opened = tags is None or self._prompt.text.rstrip().endswith(tags.open)
        before = [] if opened or tags is None else [(tags.open, True)]
        return [*before, ("".join(self._texts), False), (self._end, True)]

    def _cut_ids(self) -> list[int]:
        """The tokens up to the end of the thoughts; none where the model began to answer at once."""
        ids = self._answer.ids
        end = next((index + 1 for index, id in enumerate(ids) if id in self._end_ids), 0)
        return ids[:end] if self._has_thought else []
