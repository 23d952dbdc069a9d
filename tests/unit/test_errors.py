"""The tree of exceptions is the one in the docstring."""

from __future__ import annotations

import pickle

import pytest

from rsllm import errors


def test_every_class_is_drawn_in_the_docstring_and_under_the_root() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__
        assert issubclass(getattr(errors, name), errors.RsllmError)


def test_options_and_context_are_value_errors_too() -> None:
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.ContextLengthError, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        errors.GgufError("m", file="f", field="x", expected="1", found="2", hint="h"),
        errors.ContextLengthError("m", prompt_tokens=5, context=4),
        errors.OptionError("m", name="n"),
        errors.TemplateError("m", line=3),
    ],
)
def test_errors_keep_their_attributes_across_a_pickle(error: errors.RsllmError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert copy.__dict__ == error.__dict__
    assert str(copy) == "m"
