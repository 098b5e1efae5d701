"""Database: a SQLite file of one service, or a Postgres database that several services share.

Both get the same statements. An event (an answer, a label) is one transaction, so a killed process
loses at most the current one.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

from sqlalchemy import URL, Connection, Executable, MetaData, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

# Pause between attempts to reach a database; the event loop waits for each attempt.
PAUSE_SECONDS = 5
_ATTEMPT_SECONDS = 2  # the minimum of libpq
_LOCK = int.from_bytes(b"lastword")
# A service that hangs while it has the lock loses it before others stop waiting.
_TIMES = ("statement_timeout", "idle_in_transaction_session_timeout")
_ALONE = (
    "SELECT " + ", ".join(f"set_config('{t}', '{_ATTEMPT_SECONDS}s', true)" for t in _TIMES),
    f"SELECT pg_advisory_xact_lock({_LOCK})",
)
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
    """

    def __init__(self, state: str | Path | None) -> None:
        self.shared = is_shared(state)
        self.name = "its database" if self.shared else str(state)
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None  # a duplicate, which a timer shuts down
        self._retry_time = 0.0
        if self.shared:
            self._engine = create_engine(
                make_url(str(state)).set(drivername="postgresql+psycopg"),
                pool_size=1,
                pool_pre_ping=True,  # opens a connection again that the server has closed
                connect_args={
                    "connect_timeout": _ATTEMPT_SECONDS,
                    "tcp_user_timeout": 1000 * _ATTEMPT_SECONDS,
                },
            )
        else:
            self._engine = create_engine(
                URL.create("sqlite", database=None if state is None else str(state)),
                poolclass=StaticPool,
                connect_args={"timeout": 1, "check_same_thread": False, "isolation_level": None},
            )
            event.listen(self._engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
        event.listen(self._engine, "connect", self._opened)

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
            with self._engine.begin() as self._connection:
                for statement in _ALONE if alone else ():
                    self._connection.exec_driver_sql(statement)
                yield
        except SQLAlchemyError as error:
            if self.shared:
                self.close()
                self._retry_time = time.monotonic() + PAUSE_SECONDS
            reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
            raise DatabaseError(reason) from error
        finally:
            limit.cancel()
            self._connection = None

    def execute(self, statement: Executable, values: Any = None) -> Sequence[Any]:
        """Return the rows of a statement, by default in the current event."""
        if self._connection is None:
            with self.event(alone=False):
                return self.execute(statement, values)
        result = self._connection.execute(statement, values)
        return result.all() if result.returns_rows else ()

    def create(self, tables: MetaData) -> None:
        """Create the tables that do not exist, in the current event."""
        assert self._connection is not None
        tables.create_all(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()
        if self._socket is not None:
            self._socket.close()

    def _opened(self, connection: Any, _: Any) -> None:
        if self.shared:
            if self._socket is not None:
                self._socket.close()
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
            return
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    def _cut(self) -> None:
        """Shut down the connection to a server that does not answer."""
        self._retry_time = time.monotonic() + PAUSE_SECONDS
        with suppress(AttributeError, OSError):  # without a socket
            self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
