"""`lastword ask`: a question without candidates; the model's own answers are corrected among."""

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.groups import Group, options_of
from lastword.cli.model import Model, load_tracer
from lastword.cli.output import printable, show
from lastword.cli.progress import waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.generation.sampling import Sampling

if TYPE_CHECKING:
    from lastword.generation.ask import Asked
    from lastword.rule.theta import Theta


# What only the command line has: ranges, and a longer name.
_ANNOTATIONS = {
    "k": Annotated[int, typer.Option("-k", "--samples", min=1)],
    "temperature": Annotated[float, typer.Option(min=0)],
    "seed": Annotated[int, typer.Option(min=0)],
    "max_new_tokens": Annotated[int, typer.Option(min=1)],
}


def ask(
    model: Model,
    question: Annotated[str, "The question.", typer.Argument(show_default=False)],
    sampling: Annotated[Sampling, Group(Sampling, options_of(Sampling, _ANNOTATIONS))],
    template: Annotated[
        str | None, "Text around {question}. [default: Question: {question} Answer:]"
    ] = None,
    as_json: Annotated[bool, "Print everything as JSON."] = False,
) -> None:
    """Sample answers to a question, and correct among them (our extension)."""
    from lastword.model import ranks

    if ranks.count() > 1:
        raise InputError("a model that several processes share draws no answers: run it in one")
    tracer = load_tracer(model)
    with waiting("asking"):
        from lastword.generation.ask import ask as ask_model

        outcome = ask_model(tracer, question, sampling, template=template)
    if as_json:
        typer.echo(to_json(outcome.to_dict()))
    else:
        _show(outcome, tracer.theta)


def _show(outcome: "Asked", theta: "Theta") -> None:
    from lastword.records.explanation import explain
    from lastword.records.portrait import portrait
    from lastword.records.table import terminal_table

    names = [printable(text) for text in outcome.decision.candidates]
    names[0] += " (greedy)" if outcome.greedy else ""
    columns = {"answer": names, "sampled": outcome.counts}
    typer.echo(printable(outcome.answer))
    show(terminal_table(portrait(outcome.decision), columns))
    typer.echo(printable(explain(outcome.decision, theta)))
