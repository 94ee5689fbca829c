"""Options of a client: the keywords that type checkers know are those that there are."""

import re
from dataclasses import fields
from typing import get_type_hints

import pytest
from octavo.client.options import ClientOptions, ConnectOptions
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT
from support.tree import ROOT

import octavo


def test_type_checkers_know_every_option_with_its_type() -> None:
    options = {field.name: field.type for field in fields(ClientOptions)}
    assert get_type_hints(ConnectOptions) == options
    assert ConnectOptions.__required_keys__ == frozenset()


def test_an_unknown_option_is_refused_with_the_name_that_was_meant() -> None:
    # mypy finds it, too: it complains about the comment if there is nothing to ignore.
    with pytest.raises(octavo.InvalidArgumentError, match="unknown option 'windw_entries'; did you mean 'window_ent"):
        octavo.connect("memory://x", windw_entries=5)  # type: ignore[call-arg]
    with pytest.raises(octavo.InvalidArgumentError, match=r"unknown option 'zzz'; the options are add_quorum_timeout"):
        ClientOptions.from_keywords({"zzz": 1})


def test_locks_of_clients_last_as_long_as_those_of_bookies_unless_asked() -> None:
    assert ClientOptions().lease_seconds == LEASE_SECONDS_DEFAULT


def test_the_page_on_logs_has_every_option_of_logs_with_its_default() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", (ROOT / "docs" / "logs.md").read_text("utf-8"), re.MULTILINE))
    options = ClientOptions()
    assert shown == {
        field.name: str(getattr(options, field.name))
        for field in fields(ClientOptions)
        if field.name.startswith(("log_", "cursor_", "lease_"))
    }
