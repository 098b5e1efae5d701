"""`python -m lastword`, and the entry point of the command `lastword`."""

import atexit
import gc

_YOUNG = 10_000  # objects made since the last search, 700 by default; imports leave half a million


def main() -> None:
    """Run the command line."""
    _spare_what_stays()
    from lastword.cli import main as run
    from lastword.files.system import write_utf8

    write_utf8()
    run()


def _spare_what_stays() -> None:
    """Search for garbage less often, and not at the end: what libraries make stays till then."""
    gc.set_threshold(_YOUNG)
    atexit.register(gc.freeze)


if __name__ == "__main__":
    main()
