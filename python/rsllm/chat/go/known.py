"""Templates told by their likeness to known ones, and the strings that end answers in conversations of each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["STOP_STRINGS", "closest_template"]

_DISTANCE_LIMIT = 100


def closest_template(jinja: str, known: Sequence[tuple[str, str]]) -> str | None:
    """The name of the known Jinja text (text, name) that differs from `jinja` in the fewest characters, under 100.

    >>> closest_template("{{ a }}", [("{{ b }}", "one"), ("{% quite another %}" * 9, "two")])
    'one'
    """
    best, name = _DISTANCE_LIMIT, None
    for text, candidate in known:
        distance = _distance(jinja, text, best)
        if distance < best:
            best, name = distance, candidate
    return name


def _distance(left: str, right: str, limit: int) -> int:
    """Levenshtein's distance, or `limit` if it is not below: only a band as wide as that can matter."""
    if abs(len(left) - len(right)) >= limit:
        return limit
    infinite = limit + len(left) + len(right)
    row = {column: column for column in range(min(limit, len(right)) + 1)}
    for index, character in enumerate(left, 1):
        first, last = max(index - limit, 0), min(index + limit, len(right))
        new: dict[int, int] = {}
        for column in range(first, last + 1):
            if column == 0:
                new[0] = index
                continue
            new[column] = min(
                row.get(column, infinite) + 1,
                new.get(column - 1, infinite) + 1,
                row.get(column - 1, infinite) + (character != right[column - 1]),
            )
        if min(new.values()) >= limit:
            return limit
        row = new
    return min(row.get(len(right), infinite), limit)


STOP_STRINGS: Mapping[str, tuple[str, ...]] = {
    "alfred": ("<start_system>", "<end_message>", "<start_user>", "<start_assistant>"),
    "alpaca": ("### Instruction:", "### Response"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "chatqa": ("System:", "User:", "Assistant:", "<|begin_of_text|>"),
    "codellama-70b-instruct": ("Source:", "Destination:", "<step>"),
    "command-r": ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    "falcon-instruct": ("User:", "Assistant:"),
    "gemma-instruct": ("<start_of_turn>", "<end_of_turn>"),
    "gemma3-instruct": ("<end_of_turn>",),
    "granite-instruct": ("System:", "Question:", "Answer:"),
    "llama2-chat": ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    "llama3-instruct": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "magicoder": ("@@ Instruction", "@@ Response"),
    "mistral-instruct": ("<|im_start|>", "<|im_end|>"),
    "openchat": ("<|end_of_turn|>",),
    "phi-3": ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    "solar-instruct": ("### System:", "### User:", "### Assistant"),
    "starcoder2-instruct": ("### Instruction", "### Response", "<|endoftext|>"),
    "vicuna": ("USER:", "ASSISTANT:"),
    "zephyr": ("<|system|>", "</s>", "<|user|>", "<|assistant|>"),
}
"""The strings that end an answer, for each shape of conversation with a name."""
