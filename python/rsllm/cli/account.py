"""`rsllm signin` and `rsllm signout`: the key by which a registry knows this user.

There is no session: every request to a registry that asks who it is is signed with the key in `~/.ollama`, which Ollama
uses too. Signing in means that an account at ollama.com knows that key, and that is done there.
"""

from __future__ import annotations

import base64
import platform
from urllib.parse import quote

import click

from rsllm.config import config

__all__ = ["signin", "signout"]

_SITE = "https://ollama.com"


@click.command("signin")
def signin() -> None:
    """Show the address at which an account of ollama.com takes this user's key, which is made where there is none.

    A server that runs as another user, such as a system service, has a key of its own.

    \b
    Examples:
      rsllm signin
    """
    from rsllm.registry.keys import load_or_create

    key = load_or_create(config().key_path)
    line = base64.urlsafe_b64encode(f"ssh-ed25519 {key.public}".encode()).decode().rstrip("=")
    click.echo("To sign in, open this address in a browser, with the account that is to own what you push:\n")
    click.echo(f"    {_SITE}/connect?name={quote(platform.node())}&key={line}\n")
    click.echo(f"The key is {config().key_path}.")


@click.command("signout")
def signout() -> None:
    """Say where an account of ollama.com forgets this user's key.

    \b
    Examples:
      rsllm signout
    """
    click.echo(f"Remove this machine's key at {_SITE}/settings/keys.")
    click.echo(f"The key itself is {config().key_path}; without it a new one is made when it is needed.")
