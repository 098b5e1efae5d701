"""Conversations as prompts, rendered with the tokenizer's chat template."""

import json

import pytest
from families import talker

from lastword import Chat, Item, Theta
from lastword.errors import ItemError
from lastword.text.items import Message
from lastword.text.tokens import encode

TALK = [
    {"role": "user", "content": "w4 w9"},
    {"role": "assistant", "content": "w5"},
    {"role": "user", "content": "w6"},
]
ANSWERS = ["w7 w8", "w10"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)


def encoded(*items: Item, chat: Chat | None = None, template: str | None = TEMPLATE):
    return encode(items, talker(template), theta=Theta(), context=None, chat=chat)


def item(messages, **more) -> Item:
    return Item.from_dict({"prompt": messages, "candidates": ANSWERS, **more})


def test_candidates_follow_the_rendered_conversation():
    (conversation,) = encoded(item(TALK))
    tokenizer = talker(TEMPLATE)
    written = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert written == "user w4 w9 assistant w5 user w6 assistant "
    for sequence, answer in zip(conversation.prompt.sequences, ANSWERS, strict=True):
        assert list(sequence) == tokenizer(written + answer, add_special_tokens=False)["input_ids"]


def test_one_user_message_equals_the_prompt_in_its_chat_template():
    (talk,) = encoded(item(TALK[2:]))
    (plain,) = encoded(Item("w6", tuple(ANSWERS)), chat=Chat())
    assert (
        talk.prompt.sequences == plain.prompt.sequences
        and talk.prompt.boundaries == plain.prompt.boundaries
    )
    texts = Item("w4 w9", tuple(ANSWERS)), item(TALK), Item("w4 w9", tuple(ANSWERS))
    alone = [encoded(text)[0].prompt.sequences for text in texts]
    assert [e.prompt.sequences for e in encoded(*texts)] == alone


def test_the_chats_system_message_precedes_a_conversation_without_one():
    messages = [{"role": "system", "content": "w20"}, *TALK]
    (expected,) = encoded(item(messages))
    assert encoded(item(TALK), chat=Chat("w20"))[0].prompt.sequences == expected.prompt.sequences
    assert (
        encoded(item(messages), chat=Chat("w21"))[0].prompt.sequences == expected.prompt.sequences
    )
    assert encoded(item(TALK))[0].prompt.sequences != expected.prompt.sequences


def test_a_conversation_that_the_template_refuses_fails_alone():
    tool = item([{"role": "tool", "content": "w5"}], id="q7")
    good, bad = encoded(item(TALK), tool)
    assert not isinstance(good, ItemError)
    assert "item q7" in str(bad) and "no tools" in str(bad) and "\n" not in str(bad)
    (without,) = encoded(item(TALK), template=None)
    assert "no chat template" in str(without)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no message"),
        (["w4"], "messages.0: .*, not 'w4'"),
        ([TALK[0], {"role": "user"}], "messages.1.content is missing"),
        ([{"role": 3, "content": "w4"}], "messages.0.role: .*, not 3"),
        ([{"role": "user", "content": [{"text": "w4"}]}], "messages.0.content: "),
        (TALK[:2], "assistant's"),
        ([TALK[0] | {"tool_calls": [1]}], "messages.0.tool_calls is an unknown"),
        ([{"role": "user", "content": "w4\0"}], "messages.0.content contains a NUL"),
    ],
)
def test_invalid_conversations_are_refused(messages, message):
    with pytest.raises(ItemError, match=message) as raised:
        item(messages, id="q7")
    assert str(raised.value).startswith("item q7: ") and "\n" not in str(raised.value)


def test_messages_are_a_list():
    for wrong in ("hello", TALK[0]):
        with pytest.raises(ItemError, match="messages: expected a list"):
            Item("", ANSWERS, messages=wrong)
    empty: list[object] = [TALK[0] | {"tool_calls": []}]  # interfaces write empty lists
    assert item(empty).messages == (Message("user", "w4 w9"),)
    with pytest.raises(ItemError, match="blind_prompt"):
        item(TALK, blind_prompt="w4")


def test_the_prompt_of_a_conversation_is_its_text():
    shown = item(TALK)
    assert shown.prompt == "user: w4 w9\nassistant: w5\nuser: w6"
    assert Item.from_dict(json.loads(json.dumps({"prompt": TALK, "candidates": ANSWERS}))) == shown
    assert hash(shown) == hash(item(TALK))
