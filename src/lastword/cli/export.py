"""`lastword export`: writes a model and its questions as a decision model of transformers."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options
from lastword.cli.output import printable


def export(
    folder: Annotated[Path, typer.Argument(help="New folder for the decision model.")],
    model: opt.Model,
    questions: Annotated[
        Path,
        typer.Option(
            help="Questions file: one choice, predicate and score at most, with options of one "
            "token each."
        ),
    ],
    template: opt.Template = None,
    *,
    loading: opt.Loading,
) -> None:
    """Write a folder that transformers' pipeline("decision") loads, with the same answers."""
    from lastword.decide.questions_file import read_questions
    from lastword.integrations.decision_model import export_decision_model

    questionnaire = read_questions(questions)
    decider = load_decider(load_options(model, loading))
    export_decision_model(decider.tracer, questionnaire, folder, template=template)
    typer.echo(printable(f'{folder}: pipeline("decision", {str(folder)!r}) loads it'))
