"""The demo's tokenizer: word pieces trained on the texts of the invented world."""

import string
from typing import TYPE_CHECKING

from lastword.benchmarks.world import texts
from lastword.demo.recipe import VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SPECIAL = {"unk": "[UNK]", "bos": "[BOS]", "eos": "[EOS]", "pad": "[PAD]"}


def train_tokenizer() -> "PreTrainedTokenizerFast":
    """Pieces of words over both phases' texts; every printable ASCII character has a piece.

    A text starts with [BOS]; punctuation stands alone and decoding gives the text back. Pieces are
    marked where a word starts: the mark for a piece that goes on is numbered in hash order by the
    trainer, and two trainings would differ.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIAL["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL.values()),
        initial_alphabet=list(string.ascii_letters + string.digits + string.punctuation + "\n\t"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", tokenizer.token_to_id("[BOS]"))]
    )
    names = {f"{name}_token": token for name, token in _SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)


def _lines() -> list[str]:
    return [
        text
        for phase in (1, 2)
        for templates in texts(phase)
        for answers in templates
        for text, _ in answers
    ]
