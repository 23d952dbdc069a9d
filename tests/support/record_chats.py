"""Records how transformers renders every chat template: `python -m tests.support.record_chats TEMPLATES_FOLDER`.

Run it in an environment of its own that has transformers (5.24 recorded what is there now), and look at the
difference. The folder is what `tests.support.assets.templates_dir()` returns.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from pathlib import Path

from tests.support.conversations import CONVERSATIONS, GOLDEN, NOW, OPTIONS, SPECIAL_TOKENS, render_all


class _FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _FixedClock:
        return cls(NOW.year, NOW.month, NOW.day, NOW.hour)


def _render(source: str, conversation: str) -> str | None:
    from transformers.utils import chat_template_utils as utils  # type: ignore[import-not-found]

    utils.datetime = _FixedClock
    messages, tools = CONVERSATIONS[conversation]
    options = OPTIONS.get(conversation, {})
    try:
        # What `apply_chat_template` calls, with what it makes of the messages.
        [text], _ = utils.render_jinja_template(
            [utils._normalize_chat_messages(messages)],
            tools=tools,
            chat_template=source,
            add_generation_prompt=options.get("add_generation_prompt", True),
            **SPECIAL_TOKENS,
            **options.get("variables", {}),
        )
    except Exception:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    recorded = render_all(Path(sys.argv[1]), _render)
    GOLDEN.write_text(json.dumps(recorded, indent=0) + "\n")
    print(f"{len(recorded)} renderings, {sum(digest is None for digest in recorded.values())} of them refused")
