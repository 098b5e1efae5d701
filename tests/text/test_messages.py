"""Conversations as prompts, rendered with the tokenizer's chat template."""

import json

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


def branches(*items: Item, chat: Chat | None = None):
    return [one.prompt.branches for one in encoded(*items, chat=chat)]


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
    plain = Item("w6", tuple(ANSWERS))
    assert branches(item(TALK[2:])) == branches(plain, chat=Chat())
    mixed = plain, item(TALK), plain
    assert branches(*mixed) == [branches(one)[0] for one in mixed]


def test_the_chats_system_message_precedes_a_conversation_without_one():
    messages = [{"role": "system", "content": "w20"}, *TALK]
    expected = branches(item(messages))
    assert branches(item(TALK), chat=Chat("w20")) == expected
    assert branches(item(messages), chat=Chat("w21")) == expected
    assert branches(item(TALK)) != expected


def test_a_conversation_that_the_template_refuses_fails_alone():
    tool = item([{"role": "tool", "content": "w5"}], id="q7")
    good, bad = encoded(item(TALK), tool)
    assert not isinstance(good, ItemError)
    assert "item q7" in str(bad) and "no tools" in str(bad) and "\n" not in str(bad)
    (without,) = encoded(item(TALK), template=None)
    assert "no chat template" in str(without)


def test_the_prompt_of_a_conversation_is_its_text():
    shown = item(TALK)
    assert shown.prompt == "user: w4 w9\nassistant: w5\nuser: w6"
    assert Item.from_dict(json.loads(json.dumps({"prompt": TALK, "candidates": ANSWERS}))) == shown
    assert hash(shown) == hash(item(TALK))
    empty: list[object] = [TALK[0] | {"tool_calls": []}]  # interfaces write empty lists
    assert item(empty).messages == (Message("user", "w4 w9"),)
