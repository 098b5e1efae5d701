"""A process that stays warm between commands: imports and the last model are there already.

    client    finds or starts it and hands a command over, imports nothing heavy
    server    runs one command after another as a new process would
    warm      the tracer of the last command, while its files are what they were

`LASTWORD_DAEMON=auto` asks for it. It is the same user's, of the same code and libraries'
variables, and ends itself after fifteen idle minutes.
"""
