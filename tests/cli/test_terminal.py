"""The command line at a terminal: help, variables, tables, warnings and `doctor`."""

import json
import re
import socket
from typing import Any

import pytest
from typer.main import get_command

import lastword.cli
from lastword.cli import output
from lastword.lab.report.table import Heading, ReportTable


def commands() -> dict[str, Any]:
    app: Any = get_command(lastword.cli.app)
    return app.commands


def test_help_lists_every_command_and_every_option(run):
    words = " ".join(run("-h")[1].split())
    assert "LASTWORD_EVAL_LIMIT" in words
    titles = ["Your task", "Start", "Research", "The rest"]
    assert sorted(titles, key=words.rindex) == titles
    for name, command in commands().items():
        assert f" {name} " in words
        out = run(name, "-h")[1] if name != "lm-eval" else ""  # the harness's own help
        options = [p.opts[0] for p in command.params if p.param_type_name == "option"]
        assert all(option in out for option in options) and len(options) <= 30


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_can_be_set_by_a_variable_with_its_name(name):
    command = commands()[name]
    prefix = f"LASTWORD_{name}".upper().replace("-", "_")
    for option in (p for p in command.params if p.param_type_name == "option"):
        assert option.opts[0] == f"--{option.name.replace('_', '-')}"
        context = command.context_class(command, info_name=name, auto_envvar_prefix=prefix)
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv(f"{prefix}_{option.name.upper()}", "7")
            value = option.resolve_envvar_value(context)
        assert (value == "7") == (option.name != "trust_remote_code")


def test_a_flag_overrides_a_variable(run, monkeypatch):
    monkeypatch.setenv("LASTWORD_VERSION", "0.2.0")  # not a variable of lastword
    monkeypatch.setenv("LASTWORD_SERVE_DEADLINE", "soon")
    code, _, err = run("serve", "--model", "lastword/demo-organism")
    assert code == 2 and "--deadline" in err and "soon" in err
    assert (
        "--port"
        in run("serve", "--model", "lastword/demo-organism", "--deadline", "3", "--port", "x")[2]
    )


def test_serve_refuses_a_port_in_use_before_it_loads_a_model(run):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, _, err = run("serve", "--model", "no-such-model", "--port", str(port))
    assert code == 1 and "cannot listen" in err and "no-such-model" not in err


TABLE = ReportTable(
    "t",
    "Shares of a_model",
    (Heading("benchmark"), Heading("MC1", ".2f"), Heading("p", ".2g")),
    (("a_long_name_of_a_benchmark", 81.25, 0.012), ("b", float("nan"), 0.5)),
    ("Marked is *small*.",),
)


def test_a_table_as_json_has_numbers(capsys):
    output.show_tables([TABLE], "json")
    (table,) = json.loads(capsys.readouterr().out)
    assert table["rows"][0] == {"benchmark": "a_long_name_of_a_benchmark", "MC1": 81.25, "p": 0.012}
    assert table["rows"][1]["MC1"] is None


def test_doctor_lists_what_is_installed_and_what_is_missing(run):
    report = json.loads(run("doctor", "--json")[1])
    assert report["versions"]["lastword"] == lastword.__version__
    assert report["extras"]["try"] == []
    assert "lastword/smollm2-135m" in report["models"]
    assert report["devices"][0]["name"] == "cpu" and report["devices"][0]["free_gb"] > 0
    code, out, err = run("doctor")
    assert (code, err) == (0, "") and re.search(r"transformers +\d", out)


def test_doctor_lists_every_accelerator(run, monkeypatch):
    import torch

    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", "Card {}".format)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5_000_000_000, 9_000_000_000))
    rows = json.loads(run("doctor", "--json")[1])["devices"][1:]
    assert rows == [{"name": f"cuda:{i}", "is": f"Card {i}", "free_gb": 5.0} for i in range(2)]
