"""Builds one offline HTML file with its style, data and scripts.

Texts from models and benchmarks are untrusted and never become markup: templates escape them, data
blocks are base64, and scripts only set text. The content security policy allows only the scripts in
the file, and no requests.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lastword.records.marks import LOOKS
from lastword.version import __version__

ASSETS = Path(__file__).parent / "assets"  # shared by every page


def document(
    template: str,
    scripts: Sequence[str],
    blocks: Mapping[str, Any],
    *,
    assets: Path,
    **shown: Any,
) -> str:
    """Return the file as one text.

    Args:
        template: Name of a template that extends `document.html.j2`.
        scripts: Names of the scripts, in their order.
        blocks: Data for the scripts by name, already compressed.
        assets: Folder of the template and of the scripts that only this page has.
        shown: Variables of the template.
    """
    files = FileSystemLoader([assets, ASSETS])
    environment = Environment(
        loader=files,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    sources = [files.get_source(environment, name)[0] for name in ("page.css", *scripts)]
    script = "(() => {\n'use strict';\n" + "\n".join(sources[1:]) + "})();"
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template(template).render(
        version=__version__,
        script_hashes=Markup(f"'sha256-{base64.b64encode(digest).decode()}'"),
        css=Markup(sources[0]),
        palette=Markup(palette()),
        blobs=blocks,
        script=Markup(script),
        **shown,
    )


def palette() -> str:
    """Return the roles' colours as CSS, for light and dark mode."""
    light, dark = (
        " ".join(f"--{role}: {getattr(look, ground)};" for role, look in LOOKS.items())
        for ground in ("light", "dark")
    )
    night = f"@media (prefers-color-scheme: dark) {{\n:root:not(.paper) {{ {dark} }}\n}}"
    return f":root {{ {light} }}\n{night}\n"


def coded(text: str) -> Markup:
    """Return a text as markup, with the parts between backticks as code."""
    pieces = enumerate(map(escape, text.split("`")))
    return Markup("".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in pieces))


def compress(value: Any) -> str:
    """Return a value's JSON as gzip in base64; equal values give equal texts."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
