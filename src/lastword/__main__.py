"""`python -m lastword`, and the entry point of the command `lastword`."""

from lastword.cli import main

if __name__ == "__main__":
    main()
