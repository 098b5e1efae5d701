"""`lastword serve`: serves one model over HTTP."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options, with_answers
from lastword.cli.options import at_least, read_pairs
from lastword.cli.progress import waiting

_service = partial(typer.Option, rich_help_panel="Service")
_labels = partial(typer.Option, rich_help_panel="Labels")


def serve(
    *,
    model: opt.Model,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="Questions file. Its questions are prepared at start; /v1/models lists them."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--no-strict",
            help="Refuse a question that is almost, but not exactly, a served one, if a probe or "
            "a certificate is served; otherwise it is answered with a warning.",
        ),
    ] = True,
    template: opt.Template = None,
    answers: opt.Answers,
    host: Annotated[
        str, _service(help="Address to listen on; other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, _service(min=0, max=65535, help="Port; 0 takes a free one, which the log names.")
    ] = 8000,
    token: Annotated[
        str | None,
        _service(
            envvar="LASTWORD_TOKEN",
            help="Bearer token that clients send; better in LASTWORD_TOKEN.",
        ),
    ] = None,
    explorer: Annotated[bool, _service("--explorer", help="Show the explorer at /.")] = False,
    shadow: Annotated[
        bool,
        _service(
            "--shadow", help="Return the model's answers, and log what correction would change."
        ),
    ] = False,
    log_prompts: Annotated[
        bool, _service("--log-prompts", help="Log prompts and candidates.")
    ] = False,
    client_header: Annotated[
        str | None,
        _service(
            help="Header in which the proxy names its client, so that clients take turns. The "
            "proxy must overwrite it. By default each connection is a client."
        ),
    ] = None,
    deadline: Annotated[
        float,
        _service(help="Time limit per request in seconds, counted from its first byte."),
    ] = 30.0,
    limits: Annotated[
        list[str] | None,
        _service(
            metavar="KEY=VALUE",
            help="Further limits (docs/service.md), such as requests=256, batch_items=64 or "
            "body_bytes=1048576. Repeatable.",
        ),
    ] = None,
    label_token: Annotated[
        str | None,
        _labels(
            envvar="LASTWORD_LABEL_TOKEN",
            help="Separate token for /v1/feedback, so that clients who ask cannot label.",
        ),
    ] = None,
    on_alarm: Annotated[
        Literal["log", "shadow"],
        _labels(help="Response to an alarm of the monitor: a log line, or --shadow from then on."),
    ] = "log",
    state: Annotated[
        str | None,
        _labels(
            metavar="FILE|ADDRESS",
            help="File that stores the monitor and the answers across restarts, or the "
            "postgresql:// address of a database that several services share.",
        ),
    ] = None,
    keep_texts: Annotated[
        bool,
        _labels("--keep-texts", help="Keep texts and options in --state, for `lastword labels`."),
    ] = False,
    loading: opt.Loading,
) -> None:
    """Answer questions over HTTP: decisions, chat and corrections (/docs lists all routes)."""
    from lastword.service.settings import COUNTS, Settings

    # The keys of --limits are fields of `Settings`.
    readers: dict[str, Any] = {name: at_least(1) for name in COUNTS}
    readers |= {"header_seconds": float, "feedback_seconds": float}
    settings = Settings(
        host=host,
        port=port,
        token=token,
        label_token=label_token,
        shadow=shadow,
        deadline_seconds=deadline,
        client_header=client_header,
        on_alarm=on_alarm,
        state=state,
        keep_texts=keep_texts,
        explorer=explorer,
        log_prompts=log_prompts,
        questions=questions,
        strict=strict,
        template=template,
        **read_pairs("--limits", limits, readers),
    )
    options = load_options(model, loading)
    options = with_answers(options, answers, [] if questions is None else [questions])
    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.log import Log
        from lastword.service.server import free_address, run
    free_address(host, port)  # raises for a port in use before a model is loaded
    log = Log(prompts=log_prompts)
    log.event("loading", model=options.label)
    run(create_app(load_decider(options), settings, log))
