"""Where an option stands in a command's help: every option of every command, in panels.

`--help` shows at most `MOST` of them: where a command has more, those that few people need stand
under `--help-all`.
"""

from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

MOST = 25

# By the parameter's name; `command.name` where commands mean different things by one.
PANELS = {
    "Decisions": "serve.questions serve.template serve.probes serve.correction serve.certificate "
    "serve.chat serve.unlike serve.system",
    "Model": "model alias revision gguf device dtype head_dtype attention "
    "layout quantize device_map batch_tokens prefix_cache blind_cache allow_bin "
    "trust_remote_code accept_terms",
    "Items": "prompt blind_prompt messages candidate input skip_invalid separator chat system "
    "overflow benchmark data columns column id questions text template limit seed blind tidy "
    "unlabelled budget "
    "label choices describe instructions",
    "Rule": "method methods correction theta invariant certificate probes unlike",
    "Promise": "promise alpha delta sets gain right break_costs looks look error by certify.items "
    "calibrate",
    "Run": "shard record states max_failures engine address workers gpus_per_worker "
    "cpus_per_worker vllm_python tensor_parallel vllm_options rounds against whole tried",
    "Service": "host port token shadow explorer log_prompts batch_items requests client_header",
    "Limits": "deadline_seconds body_bytes flight_bytes entries batch_limit candidates characters "
    "tokens connections header_bytes header_seconds",
    "Labels": "label_token on_alarm state keep_texts feedback_items feedback_seconds",
    "Output": "out output as_json format full page show_prompt list_ bench item against_paper",
}
_OTHERS = "Options"  # what click adds itself
RARE = frozenset(
    (
        "alias revision head_dtype attention layout device_map batch_tokens prefix_cache "
        "blind_cache allow_bin trust_remote_code accept_terms theta invariant overflow system "
        "address workers gpus_per_worker cpus_per_worker vllm_python tensor_parallel vllm_options "
        "max_failures unlike body_bytes flight_bytes entries batch_items "
        "batch_limit candidates characters connections header_bytes header_seconds client_header "
        "feedback_items "
        "feedback_seconds keep_texts log_prompts sets states unlabelled"
    ).split()
)
_WHOLE = "lastword.help_all"


def panel(command: str | None, option: str | None) -> str:
    """Return the title under which a command's option stands."""
    titles = {name: title for title, names in PANELS.items() for name in names.split()}
    return titles.get(f"{command}.{option}") or titles.get(str(option), _OTHERS)


class Panelled(TyperCommand):
    """A command whose help has its options in panels."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters and the options that show its help."""
        own = super().get_params(ctx)
        if len(own) <= MOST:
            return own
        told = f"Show all {len(own) + 1} options and exit."
        flags: Any = {"is_flag": True, "is_eager": True, "expose_value": False, "default": False}
        return [
            *own,
            TyperOption(param_decls=["--help-all"], help=told, callback=_show_all, **flags),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then a section a panel; of a single panel only the options."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        panels |= {title: [] for title in (*PANELS, _OTHERS)}
        parameters = self.get_params(ctx)
        few = len(parameters) > MOST and not ctx.meta.get(_WHOLE)
        for parameter in parameters:
            if few and parameter.name in RARE:
                continue
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            option = parameter.param_type_name == "option"
            panels[panel(self.name, parameter.name) if option else "Arguments"].append(record)
        for title, records in _few_as_one(panels).items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _show_all(ctx: Any, option: Any, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_WHOLE] = True
        typer.echo(ctx.get_help())
        ctx.exit()


def _few_as_one(panels: dict[str, list[tuple[str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """Return a single panel of options and what click adds, under one title."""
    filled = [title for title in PANELS if panels[title]]
    if len(filled) > 1:
        return panels
    options = [record for title in (*filled, _OTHERS) for record in panels[title]]
    return {"Arguments": panels["Arguments"], _OTHERS: options}
