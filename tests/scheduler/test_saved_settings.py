"""The settings that a checkpoint holds are the same in another process, for any allocator of a user."""

import functools
from dataclasses import dataclass

import pytest

from apportion import Allocator, Plan, Uniform
from apportion.scheduler.saved_settings import check_same_settings, settings_of


class Client:
    """An object whose repr is Python's own, with its address."""

    def ask(self, prompt):
        return 4


def count(prompt, most):
    return most


@dataclass(frozen=True)
class Asking(Allocator):
    client: object

    name = "asking"

    def plan(self, batch):
        return Plan(4 - batch.asked)


class Plain(Allocator):
    name = "plain"

    def plan(self, batch):
        return Plan(4 - batch.asked)


@pytest.mark.parametrize(
    "make",
    [
        Client,
        lambda: Client().ask,
        lambda: functools.partial(Client().ask, 3),
        lambda: [Client()],
        lambda: count,
        lambda: Asking,
    ],
)
def test_an_object_is_known_without_its_address(make):
    kept = [make() for _ in range(2)]  # both live, so that their addresses differ
    first, second = ({"settings": settings_of({"allocator": Asking(each)})} for each in kept)
    check_same_settings(first["settings"], second["settings"])
    assert first == second


def test_another_object_is_refused():
    partials = [settings_of({"allocator": Asking(functools.partial(count, most=most))}) for most in (3, 4)]
    with pytest.raises(ValueError, match=r"allocator.client must be .*most=3.*, got .*most=4"):
        check_same_settings(*partials)


def test_an_allocator_that_is_no_dataclass_has_its_name_alone():
    assert settings_of({"allocator": Plain(), "baseline": None}) == {"allocator": "plain"}
    with pytest.raises(ValueError, match=r"allocator must be 'plain', as in the run .*, got 'uniform'"):
        check_same_settings(settings_of({"allocator": Plain()}), settings_of({"allocator": Uniform()}))
