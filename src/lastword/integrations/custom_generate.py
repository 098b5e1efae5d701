"""A repository for transformers' `generate(..., custom_generate=...)`: our ways of decoding.

What stands in it imports lastword and adds nothing (`generation.decoding.custom_generate`).
"""

from importlib.resources import files
from pathlib import Path

from lastword import __version__
from lastword.errors import InputError
from lastword.files.writing import open_whole

GENERATE = '''"""Decoding by TRACE's rule, by DoLa or by SLED; the card has the options."""

from lastword.generation.decoding import custom_generate as generate  # noqa: F401
'''


def write(out: Path) -> list[Path]:
    """Write the repository: its code, what that needs, and its card.

    Args:
        out: The repository's folder, which may be there already.

    Raises:
        InputError: It cannot be written.
    """
    contents = {
        "custom_generate/generate.py": GENERATE,
        # In the words that transformers compares: a name and one bound.
        "custom_generate/requirements.txt": f"lastword>={__version__}\n",
        "README.md": (files("lastword.integrations") / "assets" / "custom_generate.md").read_text(
            encoding="utf-8"
        ),
    }
    try:
        (out / "custom_generate").mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            with open_whole(out / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from error
    return [out / name for name in contents]
