"""Database: a SQLite file that one service has, or a Postgres database that several share.

Both take the same statements. An event (an answer, a label) is one transaction, so that a process
that is killed loses at most the one in hand.
"""

import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

PAUSE_SECONDS = 5  # between attempts to reach a database that is away, for the loop waits for each
_ATTEMPT_SECONDS = 2  # the least that libpq takes
_LOCK = int.from_bytes(b"lastword")
# In one round trip. Who holds the lock and is cut off lets go of it in the time that others wait.
_ALONE = f"""
    BEGIN;
    SET LOCAL statement_timeout = '{_ATTEMPT_SECONDS}s';
    SET LOCAL idle_in_transaction_session_timeout = '{_ATTEMPT_SECONDS}s';
    SELECT pg_advisory_xact_lock({_LOCK})
"""

_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = NORMAL",  # else each answer waits for the disk
    "foreign_keys = ON",
)


class Unkept(Exception):
    """A database does not take or give what it should; the message is the database's."""


def is_shared(state: str | Path | None) -> bool:
    """Return True for the address of a Postgres database."""
    return str(state).startswith(("postgres://", "postgresql://"))


class Database:
    """The state of one service, or of all services at a Postgres database.

    Args:
        state: Its file or address; None keeps all in memory.

    Attributes:
        shared: True if others may write there too.
        name: What it is called in messages; an address may hold a password.
        order: The column of a table whose rows stand in the order of their coming, by `rowid`.
    """

    def __init__(self, state: str | Path | None) -> None:
        self.shared = is_shared(state)
        self.name = "its database" if self.shared else str(state)
        self.order = "rowid BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE," if self.shared else ""
        self._state = ":memory:" if state is None else str(state)
        self._error: type[Exception] = sqlite3.Error
        if self.shared:
            import psycopg

            self._error = psycopg.Error
        self._connection: Any = None
        self._line: Any = None  # its socket, which another thread may shut down
        self._again = 0.0

    @contextmanager
    def event(self, *, alone: bool = True) -> Iterator[None]:
        """Run the block as one transaction; `alone` keeps other services out meanwhile.

        Raises:
            Unkept: Nothing was done.
        """
        if time.monotonic() < self._again:
            raise Unkept(f"{self.name} is away, and is tried again in {PAUSE_SECONDS} s")
        limit, alone = Timer(2 * _ATTEMPT_SECONDS, self._cut), alone and self.shared
        if alone:
            limit.start()
        try:
            self._begin(_ALONE if alone else "BEGIN")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(self._error, AttributeError):  # there may be no connection
                self._connection.execute("ROLLBACK")
            if not isinstance(error, self._error):
                raise
            if self.shared:
                self.close()
                self._again = time.monotonic() + PAUSE_SECONDS
            raise Unkept(str(error).partition("\n")[0]) from error
        finally:
            limit.cancel()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement within an event."""
        statement = statement.replace("?", "%s") if self.shared else statement
        cursor = self._connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._line is not None:
            self._line.close()

    def _begin(self, statement: str) -> None:
        if fresh := self._connection is None:
            self._connection = self._open()
        try:
            self._connection.execute(statement)
        except self._error:
            away = time.monotonic() < self._again
            if fresh or away or not self.shared or not self._connection.closed:
                raise
            self.close()  # the other side has ended it since
            self._begin(statement)

    def _cut(self) -> None:
        """End the connection to a server that does not answer."""
        self._again = time.monotonic() + PAUSE_SECONDS
        with suppress(AttributeError, OSError):  # there may be none
            self._line.shutdown(socket.SHUT_RDWR)

    def _open(self) -> Any:
        if self.shared:
            import psycopg

            opened = psycopg.connect(
                self._state,
                autocommit=True,
                connect_timeout=_ATTEMPT_SECONDS,
                tcp_user_timeout=1000 * _ATTEMPT_SECONDS,
            )
            self._line = socket.socket(fileno=os.dup(opened.fileno()))
            return opened
        connection = sqlite3.connect(
            self._state, timeout=1, isolation_level=None, check_same_thread=False
        )
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        return connection
