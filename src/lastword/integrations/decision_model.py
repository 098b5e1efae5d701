"""Export as a decision model for `pipeline("decision")` of transformers 5.23.

That pipeline reads one token per option. For questions with such options, the prompt and options
are those of lastword, so that both give the same probabilities.
"""

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from lastword.decide.decision_prompt import DecisionPrompt, decision_config, request_of
from lastword.decide.item import item_of
from lastword.decide.questionnaire import Questionnaire, prepare
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.text.question import Question, Single

_KINDS = {"noul": "predicate", "choice": "choice", "score": "score"}
_SAMPLE = "Which parcel arrived?\n  {% a %}"  # Jinja inside a text must have no effect


def export_decision_model(
    tracer: Tracer,
    questions: Mapping[str, Question] | Questionnaire,
    folder: str | Path,
    *,
    template: str | None = None,
) -> None:
    """Write a model with its questions as a folder for `pipeline("decision")`.

    Raises:
        InputError: The folder is not empty, the tracer has a chat template, two questions are of
            one type, an option has several tokens, or transformers is older than 5.23.
    """
    make, folder = decision_config(), Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: name a new folder")
    if tracer.chat is not None:
        raise InputError("a decision model is written without a chat template")
    ready = prepare(questions, template)
    kinds = _by_kind(ready.questions)
    labels = {kind: _labels(tracer, one, ready) for kind, one in kinds.items()}
    config = make(labels=labels, chat_template=_template(tracer, ready, kinds))
    prompt = DecisionPrompt(config, deepcopy(tracer.tokenizer))
    for question in kinds.values():
        (item,) = tracer.encode([item_of(_SAMPLE, question, ready.template)])
        if isinstance(item, ItemError):
            raise item
        if prompt.encode(_SAMPLE, question).prompt.sequences != item.prompt.sequences:
            name = ready.template.name
            raise InputError(f"the template {name} gives another prompt in transformers")
    tracer.backbone.model.save_pretrained(folder)
    prompt.tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)


def _by_kind(questions: Mapping[str, Question]) -> dict[str, Single]:
    kinds: dict[str, Single] = {}
    for name, question in questions.items():
        if not isinstance(question, Single):
            raise InputError(f"question {name!r} has several answers: ask a predicate per option")
        kind = request_of(question)["type"]
        if kind in kinds:
            raise InputError(
                f"question {name!r} is the second {_KINDS[kind]}: export it separately"
            )
        kinds[kind] = question
    return kinds


def _labels(tracer: Tracer, question: Single, ready: Questionnaire) -> list[str]:
    """Return the text of each option after the prompt, which must be one token."""
    item = item_of(_SAMPLE, question, ready.template)
    glue = item.prompt[len(item.prompt.rstrip()) :] or item.separator
    labels = [glue + candidate for candidate in item.candidates]
    tokens = tracer.tokenizer(labels, add_special_tokens=False)["input_ids"]
    for option, ids in zip(item.candidates, tokens, strict=True):
        if len(ids) != 1:
            raise InputError(
                f"the option {option!r} has {len(ids)} tokens, and transformers reads one: "
                "choose a shorter word"
            )
    return labels


def _template(tracer: Tracer, ready: Questionnaire, kinds: Mapping[str, Single]) -> str:
    """Return lastword's template as a chat template of transformers."""
    # transformers removes blanks around blocks, unless they begin and end with a plus sign.
    expected = {kind: request_of(question)["criteria"] for kind, question in kinds.items()}
    orders = {kind: [*criteria] for kind, criteria in expected.items() if kind != "noul"}
    text = re.sub(r"(?<![-+])%\}", "+%}", re.sub(r"\{%(?![-+])", "{%+", ready.template.text))
    ids, bos = tracer.tokenizer(["a"])["input_ids"][0], tracer.tokenizer.bos_token_id
    prefix = "bos_token ~" if bos is not None and [*ids[:1]] == [bos] else ""
    return _FRAME % (json.dumps(orders), json.dumps(_KINDS), text.removesuffix("\n"), prefix)


# Labels and options are matched by place, so other options or another order are refused. A percent
# sign is doubled, because `%` fills in the values.
_FRAME = """\
{%%- set orders, kinds = %s, %s -%%}
{%%- set given = question.options if question.type == "choice" else question.descriptions -%%}
{%%- if question.type not in kinds or given != orders.get(question.type, given) -%%}
{{- raise_exception("expected the options " ~ orders.get(question.type)) -}}
{%%- endif -%%}
{%%- set kind, ns = kinds[question.type], namespace(options=[]) -%%}
{%%- for option in question.options -%%}
{%%- set about = question.descriptions[loop.index0] -%%}
{%%- set word = "yes" if option == "true" else "no" -%%}
{%%- set text = {"choice": option, "score": about}.get(kind, word) -%%}
{%%- set description = none if kind == "score" else about -%%}
{%%- set ns.options = ns.options + [{"text": text, "description": description}] -%%}
{%%- endfor -%%}
{%%- set input = state if state is string else state|tojson(indent=1) -%%}
{%%- set instructions, options = question.instructions or "", ns.options -%%}
{%%- set prompt %%}%s{%% endset -%%}
{{- %s prompt.rstrip() -}}
"""
