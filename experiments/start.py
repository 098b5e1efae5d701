"""CPU seconds and memory of a cold `decide`, part by part, in the order in which they happen.

    OMP_NUM_THREADS=1 python experiments/start.py lastword/smollm2-135m

Imports are counted where they are first needed: transformers' are those that each of its models
needs. Memory is the process's after the part, in megabytes: resident, and of it what is not mapped
from files. The last row adds what a service imports.
"""

import argparse
from importlib import import_module
from time import process_time
from typing import Any

import psutil


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    model = parser.parse_args().model
    process, last = psutil.Process(), process_time()
    print("   CPU s  resident  of it not mapped")

    def part(name: str) -> None:
        nonlocal last
        seconds, memory = process_time() - last, process.memory_info()
        resident, private = memory.rss / 1e6, (memory.rss - memory.shared) / 1e6
        print(f"{seconds:8.2f}{resident:10.0f}{private:18.0f}  {name}", flush=True)
        last = process_time()

    for package, module in (
        ("torch", "torch"),
        ("transformers", "transformers.modeling_utils"),
        ("lastword", "lastword.decide.decider"),
    ):
        import_module(module)
        part(f"import {package}")

    from lastword import Choice, Decider

    backend: Any = import_module("lastword.model.backend")
    loading: Any = import_module("lastword.model.loading")
    load, check = loading.load, backend.check_once

    def loaded(*arguments: Any) -> Any:
        result = load(*arguments)
        part("load weights and tokenizer")
        return result

    def checked(*arguments: Any) -> Any:
        part("lay out the head")
        result = check(*arguments)
        part("check at load")
        return result

    loading.load, backend.check_once = loaded, checked
    decider = Decider.from_pretrained(model)
    part("the rest of loading")
    question = {"team": Choice("Which team?", ["billing", "returns"])}
    for name in ("first decision", "second decision"):
        decider.decide(f"My parcel has not come: {name}.", question)
        part(name)
    import_module("lastword.service.server")
    import_module("lastword.service.app")
    part("import the service")


if __name__ == "__main__":
    main()
