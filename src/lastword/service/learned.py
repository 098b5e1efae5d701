"""The running means of a correction that learns, stored in SQLite for a restart."""

import json
from pathlib import Path

from lastword.decide.decider import Decider
from lastword.errors import InputError
from lastword.methods.correction import Learning
from lastword.service.database import Database, DatabaseError, is_shared
from lastword.service.log import Log
from lastword.service.settings import Settings

_TABLE = "CREATE TABLE IF NOT EXISTS learned (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
_SAVE = "INSERT OR REPLACE INTO learned VALUES (?, ?)"  # also moves the row to the end
_OWNER = ""  # the row of the owner; other rows have the name of a label set


class Learned:
    """The file of a learning correction, which continues from it. It has no text of a request.

    Raises:
        InputError: The file cannot be used, is in use, or belongs to another model or correction.
    """

    def __init__(self, correction: Learning, path: str | Path, owner: str, log: Log) -> None:
        self._correction, self._log = correction, log
        self._database = Database(path)
        self.close = self._database.close
        try:
            with self._database.event():
                self._database.execute(_TABLE)
                values = dict(self._database.execute("SELECT * FROM learned ORDER BY rowid"))
                if values.pop(_OWNER, owner) != owner:
                    raise InputError(
                        f"{path} keeps what was learned with another correction, model, Theta or "
                        "chat template: start with those, or name a new file (--state FILE), in "
                        "which it learns from the beginning"
                    )
                self._database.execute(_SAVE, (_OWNER, owner))
        except DatabaseError as error:
            raise InputError(f"cannot keep what is learned in {path}: {error}") from error
        correction.restore({name: json.loads(value) for name, value in values.items()})

    def keep(self) -> None:
        """Save the changes since the last call; if the disk fails, log it and go on."""
        try:
            with self._database.event():
                for name, value in self._correction.changes().items():
                    self._database.execute("DELETE FROM learned WHERE name = ?", (name,))
                    if value is not None:
                        self._database.execute(_SAVE, (name, json.dumps(value)))
        except DatabaseError as error:
            self._log.failure(error, at="state", reason=str(error))


def learned(decider: Decider, settings: Settings, log: Log) -> Learned | None:
    """Return the file of a correction that learns; None for another correction or without a file.

    Raises:
        InputError: As `Learned`, or the state is a database, which other services share.
    """
    if not isinstance(decider.correction, Learning):
        return None
    name = decider.correction.name
    what = "answers depend on the requests before them; a certificate freezes the mean"
    log.event("learning", correction=name, kept=settings.state is not None, told=what)
    if settings.state is None:
        return None
    if is_shared(settings.state):
        raise InputError(f"what {name} learns is kept in a file of each service: --state FILE")
    owner = f"{name} on {decider.subject.digest}"
    return Learned(decider.correction, settings.state, owner, log)
