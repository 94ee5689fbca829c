"""Whether metadata are those of a ledger or of a stream is asked in a few modules only (decision 031).

All others ask a question of StoredLedger (metadata/ledger/stored.py), which both answer.
"""

import ast

from support.tree import ROOT, library_modules, syntax_tree

MODELS = {"LedgerMetadata", "StreamMetadata"}

MAY_ASK = {
    "metadata/stream/any_metadata.py": "encodes and decodes either, and gives the one that is asked for",
    "metadata/stream/known_streams.py": "remembers streams alone, which take long to decode",
    "metadata/updates/update.py": "stores a change of repair through the methods of its kind",
    "client/recover/ender.py": "recovers a ledger, or takes over a stream",
    "cli/ledger/views.py": "shows each with its own fields",
    "cli/cluster/transfer.py": "restores each through the method that creates it",
    "bookie/admin/ledger_view.py": "shows entries of a ledger, and positions of a stream",
    "pipeline/jobs/coverage.py": "cuts a ledger into pieces, or each fragment of a stream",
    "pipeline/tables/ledger_table.py": "the rows of each",
}
"""Each module that asks, and why the two are really different there."""


MAY_MAKE = {
    "metadata/ledger/model.py": "decodes what is stored",
    "client/new_ledger.py": "of a ledger that a client creates",
}
"""Each module that makes metadata of a ledger. No other does: what is written, recovered and read is a Term."""


def makes_metadata(tree: ast.Module) -> bool:
    """Whether a module makes metadata of a ledger, and not from others."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id == "LedgerMetadata" for called in calls)


def questions(tree: ast.Module) -> int:
    """How often a module looks at the class of metadata."""
    asked = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked += any(isinstance(one, ast.Name) and one.id in MODELS for one in ast.walk(node.args[1]))
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            asked += node.cls.id in MODELS
    return asked


def test_only_these_modules_ask_whether_it_is_a_ledger_or_a_stream() -> None:
    asked = {str(path): questions(syntax_tree(path)) for path in library_modules().values()}
    assert {path for path, count in asked.items() if count} == MAY_ASK.keys()
    assert sum(asked.values()) <= 12


def test_metadata_of_a_ledger_are_made_up_nowhere() -> None:
    made = {str(path) for path in library_modules().values() if makes_metadata(syntax_tree(path))}
    assert made == MAY_MAKE.keys()
    assert makes_metadata(ast.parse("def made_up():\n    return LedgerMetadata(term=1)"))
    assert not makes_metadata(ast.parse("known: LedgerMetadata = ledger_from(fields)"))


def test_repair_asks_nowhere() -> None:
    assert not [path for path in MAY_ASK if path.startswith("repair/")]
    assert all((ROOT / path).exists() for path in MAY_ASK)


def test_a_question_is_noticed() -> None:
    assert questions(ast.parse("isinstance(one, LedgerMetadata)")) == 1
    assert questions(ast.parse("not isinstance(one.value, Cookie | StreamMetadata)")) == 1
    assert questions(ast.parse("match one:\n    case LedgerMetadata():\n        pass")) == 1
    assert questions(ast.parse("isinstance(one, Cookie) and LedgerMetadata")) == 0
