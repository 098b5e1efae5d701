"""Template: how the fields of a benchmark's example become a prompt, by name and version."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lastword.errors import InputError

AS_IT_STANDS = "{{ prompt }}"


@dataclass(frozen=True)
class Template:
    """A named, versioned Jinja text; every run records all three.

    Attributes:
        name: `benchmark/variant`, or `user/stem` for a user's file.
        version: Changes whenever the text does.
        text: Jinja source over the fields of an example; one newline at its end is dropped.
    """

    name: str
    version: str
    text: str

    @property
    def variant(self) -> str:
        """The name without its benchmark: `own6` of `truthfulqa/own6`."""
        return self.name.split("/", 1)[1]

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, fields: Mapping[str, Any]) -> str:
        """Return the prompt for one example.

        Args:
            fields: Text, or what holds text, by name. The template may be a stranger's: it runs
                in Jinja's sandbox and sees nothing else.

        Raises:
            InputError: The text is no Jinja, names a field that the example lacks, or does what
                the sandbox forbids.
        """
        from jinja2 import TemplateError

        try:
            return str(_compiled(self.text).render(fields))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            names = ", ".join(fields)
            raise InputError(
                f"template {self.name} does not render: {error}; its fields are {names}"
            ) from error

    @classmethod
    def from_file(cls, path: Path) -> "Template":
        """Return a user's template; its version is the digest of its text.

        Raises:
            InputError: The file cannot be read as UTF-8 text.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the template {path}: {error}") from error
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(name=f"user/{path.stem}", version=digest[:12], text=text)

    def to_dict(self) -> dict[str, str]:
        """As a run records it."""
        return {
            "name": self.name,
            "version": self.version,
            "sha256": self.sha256,
            "text": self.text,
        }


def template_name(template: Mapping[str, str]) -> str:
    """Return a template's name, version and digest of its text, from its `to_dict`."""
    return f"{template['name']} {template['version']} ({template['sha256'][:12]})"


@lru_cache(maxsize=32)
def _compiled(text: str) -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Prompts are plain text: nothing is escaped. Where people see them, the page escapes.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    return environment.from_string(text)
