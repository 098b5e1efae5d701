"""The errors that a caller may meet, all under one root.

    TraceError
    ├── InputError            the text, file or option that came in
    │   ├── CertificateError  a certificate that says nothing, or speaks of something else
    │   ├── ItemError         one item: names it, and the candidate where there is one
    │   │   └── UntrainedError    it has a token that the model has no embedding for
    │   └── ThetaError        a constant or switch of Theta
    ├── ModelError            the model or checkpoint
    │   ├── UnsupportedModelError   the check at load failed, or nothing to read was found
    │   ├── TooLargeError     it takes more memory than its device has
    │   ├── CheckpointError   its files are missing, damaged, out of reach or in no known form
    │   ├── InvariantError    I(M) is undefined for it, or cannot be read from its form of weights
    │   └── NonFiniteError    logits that are NaN or infinite: names the depth
    ├── RecordError           a run folder, shard or record
    │   └── RunLockedError    another process writes to the same run
    └── MissingPackageError   a package that an extra installs (a `ModuleNotFoundError` too)

A `TraceError` is one line that says what was expected, what came and what to do; the command line
prints it and exits with 1.
"""

# The extra that installs each package, by the name under which it is imported.
EXTRAS = {
    "accelerate": "large",
    "anyio": "mcp",
    "bitsandbytes": "quant",
    "datasets": "lab",
    "fastapi": "serve",
    "filelock": "try",
    "gguf": "gguf",
    "granian": "serve",
    "huggingface_hub": "model",
    "lm_eval": "lab",
    "matplotlib": "lab",
    "mcp": "mcp",
    "narwhals": "model",
    "pandas": "try",
    "peft": "large",
    "prometheus_client": "serve",
    "psycopg": "postgres",
    "pyarrow": "try",
    "ray": "ray",
    "safetensors": "model",
    "sklearn": "model",
    "sqlalchemy": "serve",
    "threadpoolctl": "model",
    "tokenizers": "model",
    "torch": "model",
    "tqdm": "lab",
    "transformers": "model",
    "yaml": "model",
}


class TraceError(Exception):
    """Root of every error that lastword raises on purpose."""


class InputError(TraceError):
    """Bad text, file or option."""


class CertificateError(InputError):
    """A certificate that cannot be read, or that is for another model, Theta or template."""


class ItemError(InputError):
    """One item that cannot be answered.

    Args:
        reason: What is wrong and what to do.
        item: The item's id, or its index in the input, where known.
        place: Its place in a file, such as `line 3`, if it is not the id.
    """

    def __init__(self, reason: str, item: str | None = None, place: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.item, self.place = reason, item, place

    @property
    def where(self) -> str:
        """The place and the id, where known: `line 3: item q7`."""
        if self.place is None or self.item is None:
            return self.place or self.item or ""
        return f"{self.place}: item {self.item}"

    def __str__(self) -> str:
        """Prefix the reason with the item where one is known."""
        return f"item {self.where}: {self.reason}" if self.where else self.reason


class UntrainedError(ItemError):
    """An item with a token that the tokenizer has and the model does not."""


class ThetaError(InputError):
    """A constant or switch that Theta does not know or does not accept."""


class ModelError(TraceError):
    """A model or checkpoint that cannot be used."""


class UnsupportedModelError(ModelError):
    """A model whose states cannot be read or whose readout failed the check at load."""


class TooLargeError(ModelError):
    """A model that takes more memory than its device has free."""


class CheckpointError(ModelError):
    """Files of a checkpoint that are missing, damaged, out of reach or in no known form."""


class InvariantError(ModelError):
    """I(M) is undefined for this model, or cannot be read from the form of its weights."""


class NonFiniteError(ModelError):
    """Logits that are NaN or infinite; `depth` says where they were read.

    Args:
        depth: The depth (0 is the input of block 0) whose logits are not finite.
    """

    def __init__(self, depth: int) -> None:
        super().__init__(
            f"logits at depth {depth} are not finite: the model's weights or its dtype overflow; "
            "check the checkpoint or load it with dtype float32"
        )
        self.depth = depth

    def __reduce__(self) -> tuple[type["NonFiniteError"], tuple[int]]:
        """Travel between processes as the depth, of which the message is made."""
        return type(self), (self.depth,)


class RecordError(TraceError):
    """A run folder, shard or record that cannot be used."""


class RunLockedError(RecordError):
    """Another process is writing to the same run."""


class MissingPackageError(TraceError, ModuleNotFoundError):
    """A package that is not installed; the message names the extra that installs it."""


def missing_package(error: ModuleNotFoundError, command: str = "") -> MissingPackageError | None:
    """Return the error for a package that an extra installs, or None for any other module.

    Args:
        error: As Python raised it.
        command: The command that was run; an extra of its name includes the packages of a model.
    """
    name = error.name or ""
    extra = EXTRAS.get(name.partition(".")[0])
    if extra is None:
        return None
    if extra == "model" and command in EXTRAS.values():
        extra = command
    return MissingPackageError(f'{name} is not installed: pip install "lastword[{extra}]"')


def one_line(error: object) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split())


def reason(error: TraceError) -> str:
    """Return what is wrong, without the name of the item that it is about."""
    return error.reason if isinstance(error, ItemError) else str(error)
