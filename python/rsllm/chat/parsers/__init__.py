"""What a model puts out, as thoughts, answer and tool calls: pure functions of text, chosen by the model's template.

`choose_parser(template, tools)` tells the notation; `.start(…)` makes a parser for one reply. Parsers are incremental:
a text cut into any pieces gives the same parts, and every character ends in exactly one of them. What cannot be read as
a call is content, with a warning.
"""

from __future__ import annotations

from rsllm.chat.parsers.choose import OutputParser, ParserChoice, choose_parser
from rsllm.chat.parsers.parts import Part, ToolCall, merged

__all__ = ["OutputParser", "ParserChoice", "Part", "ToolCall", "choose_parser", "merged"]
