"""Whatever walks all ledgers looks at streams, too, or names them as left out (rule X1).

A log is a stream unless its creator wants a chain: a job that passes streams over in silence has looked at no log.
"""

import ast
import re

import pytest
from support.tree import ROOT, dotted_name, library_modules, syntax_tree

WALKS = {"each_ledger", "either_of_each", "existing_ledgers", "list_ledgers", "metadata_of_each"}
"""The functions that give all ledgers and streams, or what was asked for of them."""

LEDGERS_ONLY = {"ledger_metadata", "metadata_of_each", "read_ledger"}
"""Those that refuse streams, or leave them out."""

COVERS = {
    "bookie/admin/ledger_view.py": "tests/bookie/admin/test_admin.py: test_streams_are_listed_and_shown_among_ledgers",
    "bookie/upkeep/garbage.py": (
        "tests/bookie/upkeep/test_garbage.py: test_entries_of_a_stream_stay_until_it_is_deleted"
    ),
    "cli/bookies.py": "tests/cli/test_forget_bookie.py: test_bookie_that_a_stream_names_is_not_forgotten",
    "cli/cluster/commands.py": "tests/cli/test_stream_commands.py: test_streams_are_counted_among_ledgers",
    "cli/cluster/transfer.py": "tests/cli/test_stream_commands.py: "
    "test_a_dump_carries_streams_and_a_restore_leaves_out_the_terms_after_it",
    "cli/ledger/commands.py": "tests/cli/test_stream_commands.py: test_streams_are_listed_among_ledgers",
    "cli/support_bundle.py": "tests/cli/test_stream_commands.py: test_a_support_bundle_counts_streams",
    "client/client.py": "tests/security/test_private_ledgers.py: test_the_segments_of_a_private_log_are_private",
    "pipeline/base/cluster.py": "tests/pipeline/source/test_streams_left_out.py: "
    "test_streams_are_left_out_of_scans_and_refused_by_name",
    "pipeline/jobs/coverage.py": "tests/pipeline/jobs/test_coverage.py: "
    "test_ended_terms_of_a_stream_are_looked_at_and_the_running_one_is_named",
    "pipeline/jobs/common.py": "tests/pipeline/jobs/test_jobs.py: "
    "test_verify_and_inventory_look_at_logs_and_name_what_has_no_end",
    "pipeline/tables/ledger_table.py": "tests/pipeline/jobs/test_jobs.py: "
    "test_verify_and_inventory_look_at_logs_and_name_what_has_no_end",
    "repair/operate/operators.py": "tests/repair/test_streams.py: test_a_bookie_that_a_stream_names_is_not_forgotten",
    "repair/base/read_metadata.py": "tests/repair/test_streams.py: test_a_bookie_that_a_stream_names_is_not_forgotten",
    "repair/base/balance_survey.py": "tests/repair/test_balance.py: "
    "test_open_ledgers_and_streams_stay_and_are_named_in_the_reason",
    "repair/doubt/refill.py": "tests/repair/test_streams.py: "
    "test_a_bookie_with_new_disks_gets_its_copies_of_streams_and_is_sure_of_settled_terms",
    "repair/audit/rounds.py": "tests/repair/test_streams.py: "
    "test_copies_of_a_stream_come_back_on_other_bookies_and_nothing_else_changes",
}
"""Module that walks ledgers -> the test that it takes streams, too."""

LEAVES_OUT = {
    "cli/bench/commands.py": ("cli/bench/commands.py", "logs that are streams are not read"),
    "pipeline/base/datasets.py": ("docs/pipeline.md", "No stream is part of a dataset"),
    "pipeline/base/log_write_store.py": ("docs/pipeline.md", "No stream holds rows on their way into a log"),
    "pipeline/source/discovery.py": ("docs/pipeline.md", "A scan of ledgers leaves streams out"),
    "pipeline/source/log_scan.py": ("docs/pipeline.md", "For a log that is a stream"),
    "pipeline/source/stream.py": ("docs/pipeline.md", "A scan of ledgers leaves streams out"),
}
"""Module that walks ledgers and leaves streams out -> a file that its users see, and the words there that say so."""

USES_LEDGERS_ONLY = {
    "cli/cluster/commands.py",
    "cli/ledger/commands.py",
    "client/client.py",
    "pipeline/base/cluster.py",
}
"""Modules in :data:`COVERS` that ask for ledgers only where the user names one, or leave streams out for others in
:data:`LEAVES_OUT`."""


def called(tree: ast.AST) -> set[str]:
    """The last names of what is called."""
    return {dotted_name(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}


def walkers() -> dict[str, set[str]]:
    """The modules that walk ledgers, with what they call; not the metadata store itself."""
    found = {str(path): called(syntax_tree(path)) for path in library_modules().values()}
    return {path: calls for path, calls in found.items() if calls & WALKS and not path.startswith("metadata/")}


def test_every_module_that_walks_ledgers_is_known_to_take_streams_or_to_name_them() -> None:
    assert set(walkers()) == {*COVERS, *LEAVES_OUT}
    assert not COVERS.keys() & LEAVES_OUT.keys()


def test_what_takes_streams_asks_for_no_ledgers_only() -> None:
    found = {path for path, calls in walkers().items() if path in COVERS and calls & LEDGERS_ONLY}
    assert found <= USES_LEDGERS_ONLY


@pytest.mark.parametrize("place", sorted(set(COVERS.values())))
def test_each_has_a_test_with_streams(place: str) -> None:
    path, _, name = place.partition(": ")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


@pytest.mark.parametrize("walker", LEAVES_OUT)
def test_users_are_told_what_is_left_out(walker: str) -> None:
    path, words = LEAVES_OUT[walker]
    text = " ".join((ROOT / path).read_text(encoding="utf-8").split())
    assert words in text


def test_a_call_is_found_however_it_is_written() -> None:
    source = "async for one in self._store.list_ledgers(after=3): pass\nprint([x async for x in each_ledger(store)])"
    assert {"each_ledger", "list_ledgers"} <= called(ast.parse(source))
