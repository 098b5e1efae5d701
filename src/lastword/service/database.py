"""Database: a SQLite file of one service, or a Postgres database that several services share.

Both get the same statements. An event (an answer, a label) is one transaction, so a killed process
loses at most the current one.
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

# Pause between attempts to reach a database; the event loop waits for each attempt.
PAUSE_SECONDS = 5
_ATTEMPT_SECONDS = 2  # the minimum of libpq
_LOCK = int.from_bytes(b"lastword")
# One round trip. A service that hangs while it has the lock loses it before others stop waiting.
_ALONE = f"""
    BEGIN;
    SET LOCAL statement_timeout = '{_ATTEMPT_SECONDS}s';
    SET LOCAL idle_in_transaction_session_timeout = '{_ATTEMPT_SECONDS}s';
    SELECT pg_advisory_xact_lock({_LOCK})
"""

_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = NORMAL",  # with FULL each answer would wait for the disk
    "foreign_keys = ON",
)


class DatabaseError(Exception):
    """A database cannot be read or written; the message is the database's."""


def is_shared(state: str | Path | None) -> bool:
    """Return True for the address of a Postgres database."""
    return str(state).startswith(("postgres://", "postgresql://"))


class Database:
    """The state of one service, or of all services on a Postgres database.

    Args:
        state: The file or the address; None for memory.

    Attributes:
        shared: True if other services may write too.
        name: The name in messages: not the address, which may have a password.
        order: SQL of the column `rowid`, which has the order of insertion; SQLite has it anyway.
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
        self._socket: Any = None  # a duplicate, which the timer's thread shuts down
        self._retry_time = 0.0

    @contextmanager
    def event(self, *, alone: bool = True) -> Iterator[None]:
        """Run the block as one transaction; with `alone`, other services wait for its end.

        psycopg has no time limit for a server that hangs, so a timer shuts the socket down.

        Raises:
            DatabaseError: The transaction failed, and nothing was changed.
        """
        if time.monotonic() < self._retry_time:
            raise DatabaseError(f"{self.name} is away, and is tried again in {PAUSE_SECONDS} s")
        limit, alone = Timer(2 * _ATTEMPT_SECONDS, self._cut), alone and self.shared
        if alone:
            limit.start()
        try:
            self._begin(_ALONE if alone else "BEGIN")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(self._error, AttributeError):  # without a connection
                self._connection.execute("ROLLBACK")
            if not isinstance(error, self._error):
                raise
            if self.shared:
                self.close()
                self._retry_time = time.monotonic() + PAUSE_SECONDS
            raise DatabaseError(str(error).partition("\n")[0]) from error
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
        if self._socket is not None:
            self._socket.close()

    def _begin(self, statement: str) -> None:
        if fresh := self._connection is None:
            self._connection = self._open()
        try:
            self._connection.execute(statement)
        except self._error:
            away = time.monotonic() < self._retry_time
            if fresh or away or not self.shared or not self._connection.closed:
                raise
            self.close()  # the server ended the connection: try once more with a new one
            self._begin(statement)

    def _cut(self) -> None:
        """Shut down the connection to a server that does not answer."""
        self._retry_time = time.monotonic() + PAUSE_SECONDS
        with suppress(AttributeError, OSError):  # without a socket
            self._socket.shutdown(socket.SHUT_RDWR)

    def _open(self) -> Any:
        if self.shared:
            import psycopg

            connection: Any = psycopg.connect(
                self._state,
                autocommit=True,
                connect_timeout=_ATTEMPT_SECONDS,
                tcp_user_timeout=1000 * _ATTEMPT_SECONDS,
            )
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
            return connection
        connection = sqlite3.connect(
            self._state, timeout=1, isolation_level=None, check_same_thread=False
        )
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        return connection
