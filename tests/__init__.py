"""The Python test suite: a package, so that helpers import the same way from pytest and from scripts."""
