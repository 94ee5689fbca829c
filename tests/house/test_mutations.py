"""The catalogue of mutations fits the source as it is (scripts/mutate.py, docs/mutations.md)."""

import re
from collections import Counter

import mutate
import pytest
from support.tree import ROOT

MUTATIONS = mutate.catalogue()


def out_of_date(mutation: mutate.Mutation) -> str:
    """Why a mutation does not fit the source; empty when it does."""
    source = (ROOT / mutation.path).read_text(encoding="utf-8")
    try:
        mutation.applied_to(source)
    except ValueError as error:
        return str(error)
    return ""


def test_mutations_apply_and_compile() -> None:
    behind = [reason for mutation in MUTATIONS if (reason := out_of_date(mutation))]
    assert not behind, "\n".join(behind)


def test_mutations_name_tests_that_exist_and_their_harm() -> None:
    for mutation in MUTATIONS:
        assert mutation.harm, mutation.name
        assert mutation.tests, mutation.name
        for test in mutation.tests:
            assert (ROOT / test.partition("::")[0]).exists(), f"{mutation.name}: {test}"


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
    assert mutation.applied_to("a + c") == "b + c"
    for source in ("a + a", "c"):
        with pytest.raises(ValueError, match="not once"):
            mutation.applied_to(source)
