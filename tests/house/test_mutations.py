"""The catalogue of mutations fits the source as it is (scripts/mutate.py, docs/mutations.md)."""

import re
from collections import Counter

import mutate
import pytest

MUTATIONS = mutate.catalogue()


def test_mutations_have_names_of_their_own() -> None:
    repeated = [name for name, count in Counter(mutation.name for mutation in MUTATIONS).items() if count > 1]
    assert repeated == []
    assert [mutation.name for mutation in MUTATIONS if not re.fullmatch(r"[a-z0-9-]+", mutation.name)] == []


def test_mutations_are_many_and_spread() -> None:
    by_folder = Counter(mutation.path.partition("/")[0] for mutation in MUTATIONS)
    assert len(MUTATIONS) >= 150
    assert {folder for folder, count in by_folder.items() if count >= 20} >= {
        "bookie",
        "client",
        "metadata",
        "protocol",
    }


def test_what_is_argued_is_in_the_catalogue() -> None:
    assert mutate.argued() - {mutation.name for mutation in MUTATIONS} == set()


def test_a_mutation_whose_text_is_not_there_once_is_refused() -> None:
    mutation = mutate.Mutation("twice", "x.py", "a", "b", ("tests/x.py",), "harm")
    assert mutation.applied_to("a c") == "b c"
    for source in ("a a", "c"):
        with pytest.raises(ValueError, match="not once"):
            mutation.applied_to(source)
