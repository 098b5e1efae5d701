"""A temporary Postgres server for the tests, from Debian's package."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from served import free_port

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """A server that can be stopped and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        # It refuses to run as root.
        self._as: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
        self._folder, self._process = folder, None
        if self._as:
            shutil.chown(folder, "nobody")
        self._run("initdb", "--auth=trust", "--username=me", "--encoding=UTF8", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [FOLDERS[-1] / program, "--pgdata", self._folder, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **self._as)

    def start(self) -> None:
        options = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "start", "--wait", "--log", str(self._folder / "log"), "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate")

    def address(self, database: str = "postgres") -> str:
        return f"postgresql://me:secret@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server until the block ends."""
    folder = Path(mkdtemp(dir="/tmp"))  # a folder that other users may enter
    try:
        server = Postgres(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)
