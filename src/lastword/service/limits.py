"""Limits: what a request may ask for, before its texts are tokenised and after.

The limits that an operator sets are in `Settings`; `lastword serve --help` lists them.
"""

from collections.abc import Sequence

from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.text.question import Single

MOST_ENTRIES = 2**16  # of one list in a body
MOST_QUESTIONS = 1000  # of one request
# A request with questions may have as many characters and tokens as this number of items.
REQUEST_ITEMS = 4
# Characters that take a tokenizer a tenth of a second; longer texts have a thread of their own.
LONG = 2**15
# A request with more questions than this waits in the lane of batches.
FEW_QUESTIONS = 8
# Option tokens per pass: the readout holds a row of the head for each, and other orders wait.
TARGETS = 512
CPU_TOKENS = 1024  # tokens per pass on a CPU, because all other requests wait for it


def characters(item: Item) -> int:
    """Count an item's characters: its prompts once per candidate, and the candidates."""
    free = sum(len(prompt) for prompt in item.content_free)
    before = len(item.prompt) + len(item.separator) + len(item.blind_prompt or "") + free
    return sum(before + len(candidate) for candidate in item.candidates)


def require_small(item: Item, settings: Settings) -> None:
    """Refuse an item of too many candidates or characters, before it is tokenised."""
    if (count := len(item.candidates)) > settings.candidates:
        what = f"the item has {count} candidates, the service takes {settings.candidates}"
        raise Refusal("too_many_candidates", what)
    if (size := characters(item)) > settings.characters:
        what = f"{size} characters, the prompt counted with every candidate"
        raise Refusal("too_many_characters", f"{what}: the service takes {settings.characters}")


def require_few_characters(text: str, questions: Sequence[Single], settings: Settings) -> None:
    """Refuse too many questions or characters, before any prompt is written."""
    if len(questions) > MOST_QUESTIONS:
        what = f"there are {len(questions)} questions, a request takes {MOST_QUESTIONS}"
        raise Refusal("invalid_body", f"{what}: send them in parts")
    count, limit = 0, REQUEST_ITEMS * settings.characters
    for question in questions:
        described = sum(len(option.description or "") for option in question.options)
        frame = len(text) + len(question.instructions) + described
        count += sum(frame + len(option.text) for option in question.options) or 2 * frame
    if count > limit:
        what = f"{count} characters, the input counted with every option of every question"
        more = f"a request takes {limit}; send it in parts"
        raise Refusal("too_many_characters", f"{what}: {more}")
