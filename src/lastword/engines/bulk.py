"""Decides many texts with Ray Data, from Parquet to Parquet, with one model per actor.

Ray Data reads, distributes, writes and resumes after a restart. A checkpoint next to the output has
the ids that are done. A text that cannot be read becomes a row with its error.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import ray
from ray.data.exceptions import ExecutionTimeoutError
from ray.data.expressions import col
from ray.exceptions import RayError

from lastword.decide.answer import ERROR, Answers, columns_of, row_of
from lastword.decide.options import DecideOptions
from lastword.decide.questionnaire import prepare
from lastword.engines.ray import Cluster, connected, hide_gpus, last_line
from lastword.errors import InputError, RecordError, TraceError, reason
from lastword.files.rows import id_column
from lastword.files.strict_json import to_json
from lastword.probes import Probe
from lastword.text.question import Choice, Multi, Predicate, Question, Score, question_to

if TYPE_CHECKING:
    from lastword.decide.decider import Decider

_TEXTS = ("input", "text")  # default names of the column of texts
BLOCK = 1024  # texts per output file, the unit of resuming
TOGETHER = 256  # texts per call of an actor


@dataclass(frozen=True)
class Bulk:
    """The questions about every text, and the decider that answers them."""

    load: "Callable[[], Decider]"
    questions: dict[str, Question]
    template: str | None
    by: str

    @property
    def digest(self) -> str:
        """A digest of the questions and of `by`."""
        parts = {name: question_to(q) for name, q in self.questions.items()}
        template = self.template and prepare(self.questions, self.template, chat=True).template.text
        return hashlib.sha256(to_json([parts, template, self.by]).encode()).hexdigest()[:12]

    def schema(self, name: str, id: pa.DataType) -> pa.Schema:
        """Return the schema of the output."""
        kinds = {Predicate: pa.bool_(), Score: pa.float64()}
        fields = [(name, id)]
        for key, question in self.questions.items():
            kind = kinds.get(type(question), pa.string())
            types = (kind, pa.float64(), pa.float64(), pa.bool_())
            fields += zip(columns_of([key]), types, strict=True)
        return pa.schema([*fields, (ERROR, pa.string())])


def prepare_bulk(
    load: "Callable[[DecideOptions], Decider]",
    model: DecideOptions,
    questions: dict[str, Question],
    template: str | None = None,
) -> Bulk:
    """Return the questions for a model that other processes load; its probes are read here."""
    probes = [p if isinstance(p, Probe) else Probe.read(p) for p in model.probes]
    certificate: Any = model.certificate
    promise = None if certificate is None else certificate.to_dict()
    by = [model.label, model.correction, promise, [probe.digest for probe in probes], model.novelty]
    return Bulk(partial(load, replace(model, probes=probes)), questions, template, to_json(by))


class Actor:
    """An actor: one copy of the model, which answers questions about tables of texts."""

    def __init__(self, bulk: Bulk, text: str, id: str) -> None:
        hide_gpus()
        self._decider, self._bulk, self._text, self._id = bulk.load(), bulk, text, id
        self._ready = self._decider.prepare(bulk.questions, template=bulk.template)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the answers about each row, by its id."""
        names = rows[self._id]
        texts: list[Any] = [
            None if isinstance(text, str) and not text.strip() else text
            for text in rows[self._text].to_pylist()
        ]
        answers = self._decider.decide_many(texts, self._ready, on_error="return")
        pairs = zip(names.to_pylist(), map(_row, answers), strict=True)
        schema = self._bulk.schema(self._id, names.type)
        return pa.Table.from_pylist([{self._id: name} | row for name, row in pairs], schema)


def _row(answers: Answers | TraceError) -> dict[str, Any]:
    if isinstance(answers, TraceError):
        return {ERROR: reason(answers)}
    row = row_of(answers)
    for name, answer in answers.items():
        if isinstance(answer.question, Choice | Multi) and row[name] is not None:
            row[name] = str(row[name])
    return row


def decide_files(
    bulk: Bulk,
    source: str,
    output: str,
    cluster: Cluster,
    *,
    text: str | None = None,
    id: str | None = None,
) -> tuple[int, int]:
    """Decide the texts of Parquet files, or the ones that an earlier run did not finish.

    Returns the number of texts, and the number of those that could not be read.
    """
    beside = f"{output.rstrip('/')}.checkpoint"
    _require_same(output, beside, bulk.digest)
    # By default, Ray starts 32 processes for each table, to read the footers of its files.
    os.environ.setdefault("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", "1")
    with connected(cluster):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = sys.stderr.isatty()
        columns = ray.data.read_parquet(source).schema().names
        text = _one_of(columns, text, *_TEXTS, option="--text-column")
        rest = [name for name in columns if name != text]
        id = _one_of(columns, id, id_column(rest), option="--id-column")
        context.checkpoint_config = {
            "id_column": id,
            "checkpoint_path": f"{beside}/{bulk.digest}",
            "delete_checkpoint_on_success": False,
        }
        blocks = ray.data.read_parquet(source, columns=[id, text]).repartition(
            target_num_rows_per_block=BLOCK
        )
        try:
            blocks.map_batches(
                Actor,
                fn_constructor_args=(bulk, text, id),
                batch_size=TOGETHER,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=cluster.workers),
                num_cpus=cluster.cpus_per_worker,
                num_gpus=cluster.gpus_per_worker,
            ).write_parquet(output)
        except (RayError, ExecutionTimeoutError) as error:
            raise RecordError(
                f"Ray stopped: {last_line(error)}; run the same command again to continue"
            ) from error
        finally:
            context.checkpoint_config = None  # the context is the whole process's
        rows = ray.data.read_parquet(output, columns=[ERROR])
        bad = rows.filter(expr=col(ERROR).is_not_null())
        return int(rows.count()), int(bad.count())


def _require_same(output: str, beside: str, digest: str) -> None:
    """Refuse the output of other questions, whose checkpoint is `beside` it."""
    try:
        storage, folder = pyarrow.fs.FileSystem.from_uri(beside)
        done = storage.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    except (OSError, pa.ArrowInvalid) as error:
        raise RecordError(f"cannot reach {beside}: {error}") from error
    if done and [entry.base_name for entry in done] != [digest]:
        raise InputError(
            f"{output} has answers to other questions, or of another model: give another --out, "
            f"or remove it with {beside}"
        )


def _one_of(columns: Sequence[str], *names: str | None, option: str) -> str:
    """Return the column that the user named, or the first default name that exists."""
    named = names[:1] if names[0] is not None else names
    if (column := next((name for name in named if name in columns), None)) is None:
        raise InputError(f"{option} has to name one of the columns {', '.join(columns)}")
    return column
