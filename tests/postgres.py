"""A Postgres server of the test's own, from Debian's binaries; it keeps nothing."""

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
    """A server that can be ended and started again where it was."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        # It refuses to run as root.
        self._as: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
        self._folder, self._process = folder, None
        if self._as:
            shutil.chown(folder, "nobody")
        self._run("initdb", "--auth=trust", "--username=me", "--encoding=UTF8", "--no-sync")

    def _run(self, program: str, *options: str) -> None:
        command = [FOLDERS[-1] / program, "--pgdata", self._folder, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **self._as)

    def start(self) -> None:
        told = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "start", "--wait", "--log", str(self._folder / "log"), "-o", told)

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
    """A server that runs until the block ends."""
    folder = Path(mkdtemp(dir="/tmp"))  # one that others than we may enter
    try:
        server = Postgres(folder)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)
