"""`python -m lastword`, and the entry point of the command `lastword`."""

import sys

from lastword.daemon.client import WARM, hand_over, wanted


def main() -> None:
    """Run the command line: here, or in the warm process where that is asked for."""
    arguments = sys.argv[1:]
    if wanted(arguments) and (code := hand_over(arguments)) is not None:
        sys.exit(code)
    from lastword.cli import main as run

    if arguments == [WARM]:
        from lastword.daemon.server import serve

        serve(run)
    else:
        run()


if __name__ == "__main__":
    main()
