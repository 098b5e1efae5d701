"""Method, section 2, rule by rule, on tokenizers trained here."""

from dataclasses import replace
from datetime import date
from functools import cache
from os.path import commonprefix
from typing import Any

import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from lastword.errors import InputError, ItemError
from lastword.rule.theta import Theta, TokensTheta
from lastword.text.chat import Chat, chat_prompt, describe_chat, require_settled
from lastword.text.items import Item
from lastword.text.tokens import EncodedItem, encode, encode_passages

CORPUS = [
    "the capital of france is paris",
    "understand the standing order",
    "the sun is a star",
] * 9
CHAT = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:\n{% if enable_thinking | default(true) %}"
    "<think>{% endif %}{% endif %}"
)


@cache
def _trained(kind: str) -> str:
    """Return the JSON of a tokenizer with a few hundred pieces."""
    special = ["<unk>", "<s>", "</s>"]
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def make(kind: str = "bpe", template: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer: `template` adds special tokens to a text, `special` names them."""
    tokenizer = Tokenizer.from_str(_trained(kind))
    if template is not None:
        ids = [(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=ids
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def bos() -> PreTrainedTokenizerFast:
    return make(template="<s> $A", bos_token="<s>", eos_token="</s>")


def plain(tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def one(item: Item, tokenizer, join="text", context=None, **options) -> EncodedItem:
    theta = Theta(tokens=TokensTheta(join=join))
    (result,) = encode([item], tokenizer, theta=theta, context=context, **options)
    if isinstance(result, ItemError):
        raise result
    return result


def answer_tokens(encoded: EncodedItem, i: int = 0) -> tuple[int, ...]:
    return encoded.prompt.sequences[i][encoded.prompt.boundaries[i] :]


# Joining and splitting


def test_a_candidate_that_shortens_the_prompt_has_at_least_one_token():
    class Normalising(PreTrainedTokenizerFast):
        """A backspace removes a word: the ids of the whole text are a prefix of the prompt's."""

        def __call__(self, texts, **_):
            words = {"one two three": [1, 2, 3], "one two three back": [1, 2]}
            return {"input_ids": [words.get(t, [1, 2, 3, 4]) for t in texts]}

    encoded = one(
        Item("one two three", ("back", "four")),
        Normalising(tokenizer_object=make().backend_tokenizer),
    )
    assert encoded.prompt.boundaries == (1, 3)
    assert encoded.prompt.boundary_moved


WORDS = ["the", " ", "under", "stand", "sun", "\n", "is", "a"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)


@settings(max_examples=150)
@given(
    TEXT,
    st.lists(TEXT.filter(str.strip), min_size=1, max_size=4, unique=True),
    st.sampled_from(["", " ", "\n"]),
    st.sampled_from(["text", "ids"]),
    st.sampled_from(["bpe", "unigram"]),
    st.sampled_from(["<s> $A", "<s> $A </s>"]),
    st.sampled_from([None, 3, 6, 12]),
)
def test_encoding_agrees_with_the_reference(
    prompt, candidates, separator, join, kind, template, context
):
    tokenizer = make(kind, template=template, bos_token="<s>", eos_token="</s>")
    item = Item(prompt, tuple(candidates), separator=separator)
    theta = Theta(tokens=TokensTheta(join=join))
    (full,) = encode([item], tokenizer, theta=theta, context=None)
    if isinstance(full, ItemError):  # different texts may have the same tokens
        assert "same tokens" in str(full) or "no token" in str(full)
        return
    split = [reference.tokenise(tokenizer, prompt, c, separator, join) for c in candidates]
    assert list(zip(map(list, full.prompt.sequences), full.prompt.boundaries, strict=True)) == split
    assert full.prompt.boundary_moved == (
        min(full.prompt.boundaries) < len(plain(tokenizer, prompt.rstrip())) + 1
    )
    excess = 0 if context is None else max(len(ids) - 1 for ids, _ in split) - context
    (whole,) = encode([item], tokenizer, theta=theta, context=context)
    assert isinstance(whole, ItemError) == (excess > 0)
    (cut,) = encode([item], tokenizer, theta=theta, context=context, overflow="truncate")
    if isinstance(cut, ItemError):
        assert excess >= full.prompt.prompt_tokens and "does not fit" in str(cut)
        return
    assert cut.prompt.truncated == max(excess, 0)
    assert cut.prompt.candidate_tokens == full.prompt.candidate_tokens
    assert cut.prompt.sequences == tuple(
        (s[0], *s[1 + cut.prompt.truncated :]) for s in full.prompt.sequences
    )
    backwards = Item(prompt, tuple(candidates[::-1]), separator=separator)
    (reverse,) = encode([backwards], tokenizer, theta=theta, context=None)
    assert reverse.prompt.branches == full.prompt.branches[::-1]


# Special tokens


def with_both() -> PreTrainedTokenizerFast:
    return make(bos_token="<s>", eos_token="</s>")  # which it does not add


def with_eos() -> PreTrainedTokenizerFast:
    return make(eos_token="</s>")


SUN = ("a star", "paris")


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "separator", "candidates", "first"),
    [
        (bos, "<s>the sun is", " ", SUN, None),  # no second one
        (ByT5Tokenizer, "a", " ", ("b", "cd"), None),  # it appends EOS
        (ByT5Tokenizer, "", " ", ("b", "cd"), "eos_token_id"),
        (with_eos, "", " ", SUN, "eos_token_id"),
        (with_both, "", " ", SUN, "bos_token_id"),
        (with_both, "the", " ", SUN, None),
        (with_eos, "under", "", ("stand", "paris"), "eos_token_id"),  # one token of both
    ],
)
def test_special_tokens_in_front(tokenizer, prompt, separator, candidates, first):
    own = tokenizer()
    encoded = one(Item(prompt, candidates, separator=separator), own).prompt
    start = () if first is None else (getattr(own, first),)
    expected = tuple(start + plain(own, prompt + separator + text) for text in candidates)
    assert encoded.sequences == expected
    head = start + plain(own, prompt)
    assert encoded.boundaries == tuple(len(commonprefix([head, s])) for s in expected)
    assert encoded.boundary_moved == (prompt == "under")


# Errors


def word_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "sun": 1, "star": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def without_unknown() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, [])))


@pytest.mark.parametrize("join", ["text", "ids"])
@pytest.mark.parametrize(
    ("tokenizer", "prompt", "candidates", "message"),
    [
        (bos, "the sun is", ("a star", "paris", "a star"), "item 1: candidates 0 and 2"),
        (word_level, "sun", ("star", "x", "y"), "item 1: candidates 1 and 2"),
        (without_unknown, "a", ("b", "?"), "item 1: candidate 1 has no token"),
        (make, "", ("a star", "paris"), "item 1: the prompt has no token and the tokenizer no BOS"),
    ],
)
def test_an_item_without_tokens_that_differ_fails_alone(
    tokenizer, prompt, candidates, message, join
):
    items = [Item(prompt or "the", candidates[:1]), Item(prompt, candidates)]
    theta = Theta(tokens=TokensTheta(join=join))
    good, bad = encode(items, tokenizer(), theta=theta, context=None)
    assert isinstance(good, EncodedItem) and str(bad).startswith(message)


# Context


def test_truncation_without_bos_keeps_a_prompt_token():
    item = Item("the capital of", ("paris", "star"))
    tokenizer = make(eos_token="</s>")
    longest = max(one(item, tokenizer).prompt.candidate_tokens)
    cut = one(item, tokenizer, context=longest, overflow="truncate")
    whole = one(item, tokenizer).prompt.sequences[0]
    assert cut.prompt.sequences[0] == whole[cut.prompt.truncated :]
    assert cut.prompt.boundaries == (1, 1)


def test_a_blind_prompt_is_encoded_and_truncated_by_itself():
    item = Item("the", ("a star", "paris"), blind_prompt="the capital of france is a star and the ")
    encoded, without = one(item, bos()), one(replace(item, blind_prompt=None), bos())
    assert encoded.blind == one(Item(item.blind_prompt, item.candidates), bos()).prompt
    assert without.blind is None and without.prompt == encoded.prompt
    context = max(map(len, without.prompt.sequences))
    with pytest.raises(ItemError, match="context"):
        one(item, bos(), context=context)
    cut = one(item, bos(), context=context, overflow="truncate")
    assert max(map(len, cut.blind.sequences)) - 1 == context
    assert cut.prompt.truncated == 0


# Chat templates


def test_the_rendered_chat_template_is_the_prompt():
    tokenizer = bos()
    tokenizer.chat_template = CHAT
    item = Item("the sun is?\n", ("a star", "paris"), blind_prompt="?")
    encoded = one(item, tokenizer, chat=Chat(system="be brief"))
    prompt = "<s>system: be brief\n<s>user: the sun is?\n\n<s>assistant:\n"  # thinking is off
    assert encoded.prompt.sequences[0] == plain(tokenizer, prompt + "a star")
    assert tokenizer.decode(answer_tokens(encoded)) == "a star"
    blind = "<s>system: be brief\n<s>user: ?\n<s>assistant:\nparis"
    assert encoded.blind.sequences[1] == plain(tokenizer, blind)


def test_one_call_tokenizes_all_distinct_texts():
    calls: list[list[str]] = []

    class Counting(PreTrainedTokenizerFast):
        def __call__(self, texts, **options):
            calls.append(texts)
            return super().__call__(texts, **options)

    items = [Item("the sun is", ("a star", f"paris {i}")) for i in range(20)]
    tokenizer = Counting(tokenizer_object=bos().backend_tokenizer, bos_token="<s>")
    encode(items, tokenizer, theta=Theta(), context=None)
    texts, probe = calls  # the probe shows the special tokens
    assert len(probe) == 1 and len(texts) == len({*texts}) == 22
    assert encode([], bos(), theta=Theta(), context=8) == []


def test_control_tokens_in_a_literal_item_are_plain_text():
    tokenizer = bos()
    item = Item("the </s> sun", ("is <s>", "star"), literal=True, blind_prompt="is")
    encoded = one(item, tokenizer)
    control = set(tokenizer.all_special_ids)
    assert encoded.prompt.sequences[0][0] == tokenizer.bos_token_id  # added by the tokenizer
    sequences = (*encoded.prompt.sequences, *encoded.blind.sequences)
    assert not any(control & {*sequence[1:]} for sequence in sequences)
    assert tokenizer.decode(encoded.prompt.sequences[0][1:]) == "the < /s> sun is < s>"
    assert control & set(one(replace(item, literal=False), tokenizer).prompt.sequences[0][1:])
    tame = Item("the sun", ("star", "sun"), blind_prompt="is")
    literal = one(replace(tame, literal=True), tokenizer)
    assert replace(literal, item=tame) == one(tame, tokenizer)


@pytest.mark.parametrize("join", ["text", "ids"])
def test_a_chat_template_adds_its_control_tokens_around_a_literal_text(join):
    tokenizer = bos()
    tokenizer.chat_template = CHAT
    item = Item("the <s>assistant: sun", ("star", "</s>"), literal=True)
    encoded = one(item, tokenizer, join, chat=Chat("be <s>"))
    tame = one(replace(item, prompt="the sun"), tokenizer, join, chat=Chat("be <s>"))
    start = tokenizer.convert_tokens_to_ids("<s>")
    for sequence, other in zip(encoded.prompt.sequences, tame.prompt.sequences, strict=True):
        assert sequence.count(start) == other.count(start) == 4  # three turns, system text
    assert tokenizer.decode(answer_tokens(encoded, 1)) == "< /s>"
    assert tokenizer.convert_tokens_to_ids("</s>") not in answer_tokens(encoded, 1)


def each(content: str) -> str:
    return "{% for m in messages %}{{ " + content + " }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        (each("m.content }} {{ m.content"), None, "writes a text 2 times"),
        (each("m.content[:40]"), None, "leaves a text out or changes it"),
        (each("m.content[-60:]"), None, "leaves a text out or changes it"),
        (each("m.content | e"), None, "leaves a text out or changes it"),
        (each("m.content.split('</think>')[-1]"), None, "leaves a text out or changes it"),
        (each("m.content[0].text"), None, "leaves a text out or changes it"),
        ("{{ messages[-1].content }}", "Be brief.", "leaves the system message out"),
        (CHAT.replace("</s>", "").replace("<s>", "\ud800"), None, "lone surrogate"),
    ],
)
def test_a_template_must_write_each_text_exactly_once(template, system, message):
    tokenizer = make()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=message) as refused:
        require_settled(tokenizer, Chat(system))
    assert "\n" not in str(refused.value)


def test_an_item_fails_if_the_template_changes_its_text():
    tokenizer = make()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content[:2000] }}{% endfor %}"
    require_settled(tokenizer, Chat())
    long = "the sun is " * 300 + "?"
    items: list[dict[str, Any]] = [
        {"prompt": text, "candidates": SUN}
        for text in ("the sun is ", long, [{"role": "user", "content": long}])
    ]
    options: dict[str, Any] = {"context": None, "chat": Chat()}
    whole, *cut = encode([*map(Item.from_dict, items)], tokenizer, theta=Theta(), **options)
    cut += encode_passages([long], None, tokenizer, **options)
    assert not isinstance(whole, ItemError)
    fault = ": the model's chat template changes a user's text"
    assert [str(error).partition(fault)[:2] for error in cut] == [
        (name, fault) for name in ("item 1", "item 2", "item 0")
    ]


def test_the_date_is_the_chats_or_todays_and_is_recorded():
    tokenizer = make()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y %H:%M') }} {{ messages[-1].content }}"
    chat = Chat(date="2031-01-02")
    assert chat_prompt("Where?", tokenizer, chat) == "02 Jan 2031 00:00 Where?"
    assert describe_chat(tokenizer, chat)["date"] == "2031-01-02"
    assert describe_chat(tokenizer, Chat())["date"] == date.today().isoformat()
    tokenizer.chat_template = CHAT
    assert "date" not in describe_chat(tokenizer, chat)
    with pytest.raises(InputError, match="2026-01-31"):
        Chat(date="02 Jan")


def test_dropout_is_disabled_and_tokens_beyond_the_vocabulary_fail_their_item():
    tokenizer = bos()
    tokenizer.backend_tokenizer.model.dropout = 0.5
    text = "understand the standing order"
    assert len({plain(tokenizer, text) for _ in range(20)}) > 1
    require_settled(tokenizer)
    assert len({plain(tokenizer, text) for _ in range(20)}) == 1
    tokenizer.add_tokens(["parcel"])
    beyond = tokenizer.convert_tokens_to_ids("parcel")
    items = [Item(f"my {word} is late", ("yes", "no")) for word in ("letter", "parcel", "sun")]
    options = {"theta": Theta(), "context": None, "vocabulary": beyond}
    encoded = encode(items, tokenizer, **options)
    assert [isinstance(item, ItemError) for item in encoded] == [False, True, False]
    assert f"token {beyond}" in str(encoded[1]) and "item 1" in str(encoded[1])
    passages = encode_passages(
        [i.prompt for i in items], None, tokenizer, context=None, vocabulary=beyond
    )
    assert [isinstance(passage, ItemError) for passage in passages] == [False, True, False]
