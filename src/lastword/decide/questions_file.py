"""Questions by name in a file: YAML or JSON."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lastword.errors import InputError, one_line
from lastword.files.strict_json import from_json
from lastword.files.writing import write_text
from lastword.text.question import Question, question_from, question_to

_BOOL, _DATE = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"


def read_questions(path: str | Path) -> dict[str, Question]:
    """Return the questions of a file, in its order.

    In YAML only `true` and `false` are booleans: `yes`, `no`, `on` and `off` stay texts.
    """
    value = _read(Path(path))
    try:
        return questions_from(value)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def named_probes(path: str | Path) -> list[Path]:
    """Return the probe files that a questions file refers to, relative to its folder."""
    value = _read(Path(path))
    questions = value.values() if isinstance(value, Mapping) else []
    names = [value.get("probe") for value in questions if isinstance(value, Mapping)]
    if bad := [name for name in names if not isinstance(name, str | None)]:
        raise InputError(f"{path}: a probe is the name of a file, not {type(bad[0]).__name__}")
    return [Path(path).parent / name for name in dict.fromkeys(names) if name is not None]


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.lower() == ".json"
        return from_json(text) if is_json else yaml.load(text, Loader=_Loader)  # noqa: S506 - safe
    except OSError as error:
        fault = f"cannot read the questions: {error.strerror or error}"
    except UnicodeDecodeError:
        fault = "cannot read the questions: it is not UTF-8"
    except yaml.YAMLError as error:
        fault = f"not valid YAML: {one_line(error)}"
    except (ValueError, RecursionError) as error:
        fault = one_line(error)
    raise InputError(f"{path}: {fault}")


def write_questions(
    path: str | Path, questions: Mapping[str, Question], probes: Mapping[str, str] = {}
) -> None:
    """Write questions as YAML, or as JSON to a `.json` file; `probes` are files in its folder."""
    value = {
        name: question_to(question) | ({"probe": probes[name]} if name in probes else {})
        for name, question in questions.items()
    }
    if Path(path).suffix.lower() == ".json":
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    else:
        text = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=100)
    write_text(Path(path), text)


def questions_from(value: Any) -> dict[str, Question]:
    """Return the questions in a JSON object, by name."""
    if not isinstance(value, Mapping) or not value:
        what = "and there is none" if isinstance(value, Mapping) else f"not {type(value).__name__}"
        raise InputError(f"expected an object of questions by name, {what}")
    questions = {}
    for name, content in value.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a question's name is a text, not {name!r}: quote it")
        if isinstance(content, Mapping):  # `probe` names a file and is not part of the question
            content = {key: part for key, part in content.items() if key != "probe"}
        questions[name] = question_from(content, name)
    return questions


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's safe loader, which reads `yes` and dates as texts, and refuses equal keys."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _DATE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(twice := [key for key in keys if keys.count(key) > 1]):
            raise ValueError(f"the key {twice[0]!r:.40} occurs twice in an object")
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(_BOOL, re.compile(r"true|false"), list("tf"))
