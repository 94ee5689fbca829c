"""Folders at the top level (docs/decisions/001): what is in the tree is in the wheel, and imports from it."""

import email
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands.installed import PACKAGES
from support.tree import PACKAGE, ROOT, library_folders, library_modules, python_files, tree_files

NOT_IN_THE_WHEEL = {"docs", "examples", "scripts", "tests"}
"""Top-level folders with Python in them that are not part of the distribution."""


def wheel_path(name: str, path: Path) -> str:
    """Where the wheel must hold the module ``name``, whose file in the tree is ``path``."""
    folder = name.replace(".", "/")
    return f"{folder}/__init__.py" if path.name == "__init__.py" else f"{folder}.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what an installation of the wheel would hold."""
    target = tmp_path_factory.mktemp("wheel") / "site"
    subprocess.run([sys.executable, "scripts/artifacts/build_wheel.py", "--unpack", str(target)], cwd=ROOT, check=True)
    return target


def test_the_wheel_holds_every_module_of_the_tree_and_no_other(installed: Path) -> None:
    expected = {wheel_path(name, path) for name, path in library_modules().items()}
    assert {str(path.relative_to(installed)) for path in installed.rglob("*.py")} == expected


def test_the_wheel_says_that_it_is_typed_and_carries_its_licence(installed: Path) -> None:
    assert (installed / "octavo" / "py.typed").exists()
    (licence,) = installed.glob("octavo-*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_tells_an_index_what_it_is(installed: Path) -> None:
    (path,) = installed.glob("octavo-*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text(encoding="utf-8"))
    for field in ("Name", "Version", "Summary", "Keywords", "License-Expression", "Requires-Python"):
        assert metadata[field], field
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# Octavo\n")
    invented = [value for name in ("Project-URL", "Home-page", "Author") for value in metadata.get_all(name, [])]
    assert invented == [], "there is no such place yet; the first release brings it"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}" in classifiers


def test_the_wheel_carries_every_file_for_deployment(installed: Path) -> None:
    shipped = {path.relative_to("deploy") for path in tree_files() if path.parts[0] == "deploy"}
    folder = installed / "octavo" / "deploy"
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == shipped


def test_the_wheel_carries_every_file_of_the_console(installed: Path) -> None:
    shipped = {path.name for path in tree_files() if path.parent == Path("cli/console/page")}
    assert "index.html" in shipped
    folder = installed / "octavo" / "cli" / "console" / "page"
    assert {path.name for path in folder.iterdir()} == shipped


def test_every_module_imports_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    names = sorted(library_modules())
    program = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(installed)!r})\n"
        f"modules = [importlib.import_module(name) for name in {names!r}]\n"
        f"strangers = [m.__name__ for m in modules if not m.__file__.startswith({str(installed)!r})]\n"
        "assert not strangers, strangers\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    failure = run.stderr if run.returncode else ""
    assert failure == ""


def test_the_command_of_the_wheel_runs(installed: Path, tmp_path: Path) -> None:
    (scripts,) = installed.glob("octavo-*.dist-info/entry_points.txt")
    assert "octavo = octavo.cli.main:main" in scripts.read_text(encoding="utf-8").splitlines()
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(installed)!r})\n"
        "from octavo.cli.main import main\n"
        "sys.argv = ['octavo', '--help']\n"
        "sys.exit(main())\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "ledger" in run.stdout


def test_the_package_links_every_folder_with_code() -> None:
    folders = {path.parts[0] for path in python_files() if len(path.parts) > 1}
    assert folders - NOT_IN_THE_WHEEL == library_folders()


def test_links_are_called_like_their_folders_and_hold_no_path_of_a_machine() -> None:
    links = {path.name: path.readlink() for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()}
    assert links == {name: Path("..", "..", name) for name in library_folders() - {PACKAGE.parts[0]}}


def test_a_program_beside_the_tree_or_above_it_gets_the_whole_package(installed: Path, tmp_path: Path) -> None:
    """No folder that Python would take for `octavo`, or for a part of it, stands in the way of the real one.

    The clone is called `octavo`, as `git clone` names it; a program runs in it, and in the folder above it.
    """
    clone = tmp_path / "octavo"
    clone.mkdir()
    for name in {path.parts[0] for path in tree_files()}:
        (clone / name).symlink_to(ROOT / name)
    for package in (installed, ROOT / "src"):
        # Without `site` no other Octavo is on the path. The folder in which the program runs comes first.
        program = (
            f"import sys; sys.path += {[str(package), str(PACKAGES)]!r}\n"
            "import octavo.client.client; print(octavo.__file__)"
        )
        for folder in (clone, tmp_path):
            run = subprocess.run(
                [sys.executable, "-S", "-c", program], cwd=folder, capture_output=True, text=True, check=False
            )
            assert (run.stderr, run.stdout.strip()) == ("", str(package / "octavo" / "__init__.py"))


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in library_modules().values()}
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []
