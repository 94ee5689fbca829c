"""Examples in docstrings, played as in ``python -m asyncio``: ``await`` works at the prompt.

An example begins with what its class needs: ``client`` is connected to a cluster of three bookies, ``log`` has three
entries, ``writer`` leads a new log, and so on (tests/docs/test_examples.py). Each docstring is played in a cluster
without other logs and ledgers.
"""

import ast
import contextlib
import doctest
import inspect
import io
import sys
import traceback
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import octavo

_CHECK = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_in(docstring: str) -> list[doctest.Example]:
    """The statements of a docstring's examples, with what each prints."""
    return doctest.DocTestParser().get_examples(inspect.cleandoc(docstring))


def names_called(examples: list[doctest.Example]) -> set[str]:
    """The names of methods and functions that the examples call, also as contexts and iterations."""
    calls = (node for example in examples for node in ast.walk(ast.parse(example.source)) if isinstance(node, ast.Call))
    return {
        call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
        for call in calls
        if isinstance(call.func, ast.Attribute | ast.Name)
    }


def public_objects() -> Iterator[tuple[str, Any]]:
    """What ``octavo`` promises: its names, and the public members of its classes that are its own."""
    for name in octavo.__all__:
        value = getattr(octavo, name)
        if inspect.ismodule(value) or isinstance(value, str):
            continue
        yield name, value
        if inspect.isclass(value):
            for member in dir(value):
                own = any(member in vars(base) for base in value.__mro__ if base.__module__.startswith("octavo."))
                if own and not member.startswith("_"):
                    yield f"{name}.{member}", inspect.getattr_static(value, member)


async def play(examples: list[doctest.Example], names: dict[str, Any]) -> list[str]:
    """Run the statements one after another. What was printed differently, in words."""
    wrong = []
    for example in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            await _run(example, names)
        if not doctest.OutputChecker().check_output(example.want, printed.getvalue(), _CHECK):
            wrong.append(f"{example.source}printed {printed.getvalue()!r}, not {example.want!r}")
    return wrong


async def _run(example: doctest.Example, names: dict[str, Any]) -> None:
    code: CodeType = compile(example.source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    shown, sys.displayhook = sys.displayhook, _display
    try:
        result = FunctionType(code, names)()
        if inspect.iscoroutine(result):
            await result
    except Exception as error:
        sys.stdout.writelines(["Traceback (most recent call last):\n", *traceback.format_exception_only(error)])
    finally:
        sys.displayhook = shown


def _display(value: object) -> None:
    if value is not None:
        sys.stdout.write(f"{value!r}\n")
