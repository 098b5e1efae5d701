"""`python -m tracelm`, and the entry point of the command `tracelm`."""

from tracelm.cli import main

if __name__ == "__main__":
    main()
