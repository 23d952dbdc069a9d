"""The conversation, with scripted lines in place of a terminal (`test_repl_terminal` has one)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rsllm
from rsllm.cli.repl import Repl
from rsllm.cli.sessions import LocalSession
from rsllm.cli.settings import Settings
from tests.cli.conftest import reader_of
from tests.unit.fake_core import WHOLE

Talk = Callable[..., str]


@pytest.fixture
def talk(core: Any, model_file: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Talk]:
    """Runs a conversation of the given lines (exceptions are raised in their place); returns what was printed."""
    with rsllm.Model(model_file) as model:

        def run(*lines: str | BaseException, **options: Any) -> str:
            settings = Settings(system=options.pop("system", None), raw=options.pop("raw", False))
            Repl(LocalSession(model, settings), read=reader_of(lines), **options).run()
            captured = capsys.readouterr()
            return captured.out + captured.err

        yield run


def prompts(core: Any) -> list[str]:
    return [core.text_of(prompt) for prompt in core.behaviour.engines[0].prompts]


def test_a_conversation_keeps_its_history(talk: Talk, core: Any) -> None:
    output = talk("hi", "", "more")
    assert output.count(WHOLE) == 2
    assert prompts(core)[1].count("<|im_start|>") == 4


def test_quotes_hold_a_message_of_several_lines(talk: Talk, core: Any) -> None:
    talk('"""one', "two", 'three"""', '"""short"""')
    assert "<|im_start|>user\none\ntwo\nthree<|im_end|>" in prompts(core)[0]
    assert "<|im_start|>user\nshort<|im_end|>" in prompts(core)[1]


@pytest.mark.parametrize("line", ["/bye", "/exit"])
def test_leaving(talk: Talk, core: Any, line: str) -> None:
    talk(line, "never sent")
    assert prompts(core) == []


def test_clear_forgets_all_but_the_system_message(talk: Talk, core: Any) -> None:
    output = talk("hi", "/clear", "again", system="Be nice.")
    assert "Cleared session context" in output
    assert prompts(core)[1] == prompts(core)[0].replace("hi", "again")


def test_parameters(talk: Talk, core: Any) -> None:
    output = talk(
        "/set parameter temperature 0",
        "/set parameter num_predict 2",
        "/set parameter stop x",
        "/set parameter temprature 1",
        "/set parameter top_p 7",
        "/set parameter num_ctx 9",
        "/set parameter seed",
        "/show parameters",
        "hi",
    )
    assert "Set parameter 'temperature' to '0'" in output
    assert "did you mean 'temperature'" in output
    assert "Couldn't set parameter: \"option top_p must be a number from 0 to 1" in output
    assert "--num-ctx" in output
    assert "* temperature" in output
    options = core.behaviour.engines[0].options[0]
    assert (options["temperature"], options["max_tokens"], options["stop"]) == (0.0, 2, ["x"])


def test_system_messages(talk: Talk, core: Any) -> None:
    output = talk("/show system", "/set system One.", '/set system """Two', 'lines."""', "/show system", "hi")
    assert "No system message was specified" in output
    assert "Two\nlines." in output
    assert prompts(core)[0].startswith("<|im_start|>system\nTwo\nlines.<|im_end|>")


def test_verbose_and_quiet(talk: Talk) -> None:
    output = talk("/set verbose", "hi", "/set quiet", "hi")
    assert output.count("\neval rate:") == 1


def test_show(talk: Talk) -> None:
    output = talk("/show info", "/show template", "/show license", "/show nothing", "/show")
    assert "architecture" in output
    assert "<|im_start|>" in output
    assert "No license was specified" in output
    assert "Unknown command '/show nothing'" in output


@pytest.mark.parametrize("line", ["/?", "/help", "/? set", "/? show", "/? shortcuts"])
def test_help(talk: Talk, line: str) -> None:
    assert "/" in talk(line) or "Ctrl" in talk(line)


def test_an_unknown_command_is_not_sent_to_the_model(talk: Talk, core: Any) -> None:
    output = talk("/sett", "/set other")
    assert "Unknown command '/sett'. Type /? for help" in output
    assert "Unknown command '/set other'" in output
    assert prompts(core) == []


def test_ctrl_c_at_the_prompt_says_how_to_leave(talk: Talk) -> None:
    output = talk(KeyboardInterrupt(), "hi")
    assert "Use Ctrl + d or /bye to exit." in output
    assert WHOLE in output


def test_an_error_keeps_the_session(talk: Talk) -> None:
    output = talk("x" * 300, "hi")
    assert "Error: the prompt is too long" in output
    assert WHOLE in output


def test_raw_sends_what_was_typed(talk: Talk, core: Any) -> None:
    talk("hi", "/set system x", raw=True)
    assert prompts(core) == ["hi"]
