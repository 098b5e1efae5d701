"""Generated parts of the documentation: the commands of `lastword`."""

import re
from collections.abc import Iterator
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the list of commands into the page that asks for it."""
    if "<!-- commands -->" not in markdown:
        return markdown
    return markdown.replace("<!-- commands -->", "\n".join(_commands()))


def _commands() -> Iterator[str]:
    """Yield Markdown: every command with its help and a table of its options."""
    from typer.main import get_command

    from lastword.cli import app

    group: Any = get_command(app)
    for name, command in sorted(group.commands.items()):
        yield from (f"### lastword {name}", "", _plain(command.help), "")
        yield from ("| option | meaning |", "|---|---|")
        for each in command.params:
            if each.name != "help":
                names = ", ".join(f"`{name}`" for name in each.opts) if each.opts else each.name
                yield f"| {names} | {_plain(getattr(each, 'help', None))} |"
        yield ""


def _plain(text: str | None) -> str:
    """Return a help text on one line, safe in a cell of a table."""
    return re.sub(r"\s+", " ", (text or "").replace("|", "\\|")).strip()
