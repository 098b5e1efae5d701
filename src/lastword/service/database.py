"""Database: a SQLite file of one service, or a Postgres database that several services share.

Both get the same statements. An event (an answer, a label) is one transaction, so a killed process
loses at most the current one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import Connection, Engine, Executable, MetaData, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

# Pause between attempts to reach a database; the event loop waits for each attempt.
PAUSE_SECONDS = 5
_ATTEMPT_SECONDS = 2  # the minimum of libpq
_LOCK = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'lastword')})"
# A service that hangs while it has the lock loses it before others stop waiting.
_TIMES = ("statement_timeout", "idle_in_transaction_session_timeout")
_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = NORMAL",  # with FULL each answer would wait for the disk
)


class DatabaseError(Exception):
    """A database cannot be read or written; the message is the database's."""


class Database:
    """The state of one service, or of all services on a Postgres database.

    Without a file or an address it is in memory. Messages have its `name`: an address may contain a
    password.
    """

    def __init__(self, state: str | Path | None) -> None:
        self.shared = str(state).startswith(("postgres://", "postgresql://"))
        self.name = "its database" if self.shared else str(state)
        self._engine = _postgres(str(state)) if self.shared else _sqlite(state)
        self._connection: Connection | None = None
        self._retry_time = 0.0

    @contextmanager
    def event(self, *, alone: bool = True) -> Iterator[None]:
        """Run the block as one transaction; with `alone`, other services wait for its end.

        Raises:
            DatabaseError: The transaction failed, and nothing was changed.
        """
        if time.monotonic() < self._retry_time:
            raise DatabaseError(f"{self.name} is away, and is tried again in {PAUSE_SECONDS} s")
        try:
            with self._engine.begin() as self._connection:
                if alone and self.shared:
                    self._connection.exec_driver_sql(_LOCK)
                yield
        except SQLAlchemyError as error:
            if self.shared:
                self.close()
                self._retry_time = time.monotonic() + PAUSE_SECONDS
            reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
            raise DatabaseError(reason) from error
        finally:
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


def _postgres(address: str) -> Engine:
    limits = " ".join(f"-c {name}={_ATTEMPT_SECONDS}s" for name in _TIMES)
    return sql.create_engine(
        sql.make_url(address).set(drivername="postgresql+psycopg"),
        pool_size=1,
        pool_pre_ping=True,  # opens a connection again that the server has closed
        connect_args={
            "connect_timeout": _ATTEMPT_SECONDS,
            "tcp_user_timeout": 1000 * _ATTEMPT_SECONDS,
            "options": limits,
        },
    )


def _sqlite(state: str | Path | None) -> Engine:
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=None if state is None else str(state)),
        poolclass=StaticPool,
        connect_args={"timeout": 1, "check_same_thread": False},
    )

    def opened(connection: Any, _: Any) -> None:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", opened)
    return engine
