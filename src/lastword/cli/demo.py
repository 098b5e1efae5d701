"""`lastword demo`: shows the demo of the embedded model."""

import typer

from lastword.cli import options as opt
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json


def demo(json: opt.Json = False) -> None:
    """Show a corrected answer, a broken one, and the certificate that allows only the first."""
    with waiting("answering 450 questions"):
        from rich.console import Console

        from lastword.decide.tracer import Tracer
        from lastword.lab.demo import answer, items, story, text_of

        tracer = Tracer.demo("organism")
        tale = story(tracer, answer(tracer, items()))
    if json:
        typer.echo(to_json(tale.to_dict()))
    else:
        Console().print(text_of(tale))
