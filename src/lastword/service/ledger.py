"""Ledger: answers that can still be labelled, and the state of a service's tests.

With `--state` it is in a file or a database and outlives the process. Without it, it is in memory,
and does not store the values that drift has seen, which only a restart needs. It has no text of a
request, except under `--keep-texts`: then labelled answers are never forgotten, and `labelled_rows`
returns their texts. All methods are called within an `event`.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy import Column, delete, func, insert, select

from lastword.errors import InputError
from lastword.service.database import Database, DatabaseError
from lastword.service.refusal import Refusal
from lastword.service.schema import Json, Object

_PLACE = sql.BigInteger().with_variant(sql.Integer(), "sqlite")  # the order of insertion
_TABLES = sql.MetaData()
# The answers: `kin` is the group that the labeller names, `text` the digest of the request's text,
# and `content` the request in words, which only --keep-texts keeps, with the `right` options.
GIVEN = sql.Table(
    "given",
    _TABLES,
    Column("place", _PLACE, primary_key=True),
    Column("id", sql.Text, unique=True),
    Column("labelled", sql.Boolean, default=False),
    Column("kin", sql.Text, index=True),
    Column("entry", sql.JSON),
    Column("text", sql.Text),
    Column("content", sql.JSON(none_as_null=True)),
    Column("right", sql.JSON),
    sql.Index("by_text", "text", "labelled"),
)
# The values that drift has seen.
SEEN = sql.Table(
    "seen",
    _TABLES,
    Column("place", _PLACE, primary_key=True),
    Column("statistic", sql.Text),
    Column("value", sql.Double),
)
# The state of the tests.
STATE = sql.Table(
    "state", _TABLES, Column("name", sql.Text, primary_key=True), Column("value", sql.JSON)
)
_IS_LABELLED = GIVEN.c.labelled.is_(True)
_IS_KEPT = _IS_LABELLED & GIVEN.c.content.is_not(None)


@dataclass(frozen=True)
class Entry:
    """The stored part of an answer, without text.

    Attributes:
        base: Indices of the candidates with the model's top score; empty for a probe's answer.
        shown: Indices of the candidates with the top score of the given answer.
        given: True if the certificate promises a maximum error, and did not defer the answer.
    """

    candidates: int
    base: list[int]
    shown: list[int]
    overridden: bool = False
    given: bool = False

    def judge(self, right: Sequence[int]) -> tuple[bool, bool, bool]:
        """Return whether correction broke the answer, whether it fixed it, and if it is wrong.

        Ties count against correction: the model is right if one of its top candidates is, the
        given answer only if all are.
        """
        before = any(place in right for place in self.base)
        after = all(place in right for place in self.shown)
        broken, fixed = before and not after, after and not before
        return self.overridden and broken, self.overridden and fixed, not after


class Ledger:
    """The last answers and the state of all services under one certificate.

    Raises:
        InputError: The state cannot be used, is in use, or belongs to another certificate.
    """

    def __init__(self, state: str | Path | None, certificate: str, items: int) -> None:
        # `_place` is the last row of `seen` that this service has read or written.
        self._items, self._durable, self._place = items, state is not None, 0
        database = Database(state)
        self.shared, self.event, self.close = database.shared, database.event, database.close
        self._execute = database.execute
        try:
            with self.event():
                database.create(_TABLES)
                if (owner := self.state("certificate")) in (None, certificate):
                    # The time makes SQLite write, which shows if the disk is full.
                    self.save(certificate=certificate, opened=time.time())
        except DatabaseError as error:
            raise InputError(f"cannot keep state in {database.name}: {error}") from error
        if owner not in (None, certificate):
            self.close()
            what = "keeps the state of another certificate; name another"
            raise InputError(f"{database.name} {what}")

    def knows(self, text: str) -> bool:
        """Return True if an answer to this text is remembered."""
        return bool(self._execute(select(GIVEN.c.place).where(GIVEN.c.text == text).limit(1)))

    def remember(self, name: str, entry: Entry, text: str, content: Object | None = None) -> None:
        """Store an answer, and forget one that is too old.

        `text` is the digest of the request's text, and `content` its words, under `--keep-texts`.
        """
        row = {"id": name, "entry": asdict(entry), "text": text, "content": content}
        self._execute(insert(GIVEN), row)
        last = select(func.max(GIVEN.c.place)).scalar_subquery()
        self._execute(delete(GIVEN).where(GIVEN.c.place <= last - self._items, ~_IS_KEPT))

    def see(self, values: Mapping[str, float], drift: Object) -> None:
        """Store the values that drift has seen, and `Drift.state()` after them."""
        if not (self._durable and values):
            return
        fresh = [one for one in values if drift["seen"].get(one) == 1]  # its test has started
        self._execute(delete(SEEN).where(SEEN.c.statistic.in_(fresh)))
        rows = [{"statistic": one, "value": value} for one, value in values.items()]
        self._execute(insert(SEEN), rows)
        ((self._place,),) = self._execute(select(func.max(SEEN.c.place)))
        self.save(drift=drift)

    def find(self, name: str) -> Entry:
        """Return an answer; refuse one that is unknown or forgotten, or has a label."""
        found = select(GIVEN.c.entry, GIVEN.c.labelled).where(GIVEN.c.id == name)
        if not (rows := self._execute(found)):
            what = f"no answer with this id is remembered: the last {self._items} are"
            raise Refusal("unknown_answer", f"{what}; send the label sooner")
        ((entry, labelled),) = rows
        if labelled:
            raise Refusal("repeated_feedback", "this answer has its label; the first one counts")
        return Entry(**entry)

    def first(self, name: str, group: str | None) -> bool:
        """Return True if no answer to the same text, or of this group, has a label."""
        text = select(GIVEN.c.text).where(GIVEN.c.id == name).scalar_subquery()
        same = GIVEN.c.text == text
        if group is not None:
            same |= GIVEN.c.kin == group
        return not self._execute(select(GIVEN.c.place).where(_IS_LABELLED, same).limit(1))

    def counts(self) -> dict[str, int]:
        """Count the remembered answers, their texts, and the answers with labels."""
        every, texts = func.count(GIVEN.c.place), func.count(GIVEN.c.text.distinct())
        (row,) = self._execute(select(every, texts, every.filter(_IS_LABELLED)))
        return dict(zip(("answers", "groups", "labels"), row, strict=True))

    def label(self, name: str, group: str | None, right: Sequence[int], monitors: Object) -> None:
        """Mark an answer as labelled, and save the monitors after it."""
        values = {"labelled": True, "kin": group, "right": list(right)}
        self._execute(sql.update(GIVEN).where(GIVEN.c.id == name).values(values))
        self.save(monitors=monitors)

    def save(self, **state: Json) -> None:
        """Store values as JSON, by name."""
        self._execute(delete(STATE).where(STATE.c.name.in_(state)))
        for key, value in state.items():
            self._execute(insert(STATE), {"name": key, "value": value})

    def state(self, name: str) -> Json:
        """Return a stored value, or None."""
        try:
            rows = self._execute(select(STATE.c.value).where(STATE.c.name == name))
        except ValueError as error:
            what = f"the state has no valid JSON as {name}: name another --state"
            raise InputError(what) from error
        return rows[0][0] if rows else None

    def seen(self, *, anew: bool = True) -> dict[str, list[float]]:
        """Return each statistic's values: all, or those stored since the last call."""
        values: dict[str, list[float]] = {}
        later = select(SEEN).where(SEEN.c.place > (0 if anew else self._place))
        for place, statistic, value in self._execute(later.order_by(SEEN.c.place)):
            self._place = place
            values.setdefault(statistic, []).append(value)
        return values


def labelled_rows(state: str) -> tuple[list[dict[str, str]], int]:
    """Return the labels in a state as rows for `lastword try`, and the number of those left out.

    Answers with several right options are left out. No service may have a file open.

    Raises:
        InputError: The file does not exist, is in use, or is not a state.
    """
    database = Database(state)
    if not database.shared and not Path(state).is_file():
        raise InputError(f"no state in {state}: expected that of `lastword serve --state`")
    columns = GIVEN.c.id, GIVEN.c.content, GIVEN.c.right, GIVEN.c.kin
    try:
        labels = database.execute(select(*columns).where(_IS_KEPT).order_by(GIVEN.c.place))
    except DatabaseError as error:
        what = "" if database.shared else "; stop the service first"
        raise InputError(f"cannot read labels in {database.name}: {error}{what}") from error
    finally:
        database.close()
    rows = [_row(*label) for label in labels if len(label.right) == 1]
    return rows, len(labels) - len(rows)


def _row(name: str, content: Object, right: Sequence[int], group: str | None) -> dict[str, str]:
    return {
        "id": name,
        "text": content["text"],
        "label": content["choices"][right[0]],
        "choices": json.dumps(content["choices"], ensure_ascii=False),
        "instructions": content["instructions"],
        "group": group or "",
    }
