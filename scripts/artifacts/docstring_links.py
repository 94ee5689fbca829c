"""Names in docstrings become links and code of Markdown, for the page about Python on the site.

Public docstrings are read in terminals, too, so they name things in code: ``Log``, ``Log.lead()``, ``close()``. Others
use roles (``:class:`Log```). A name that is public leads to its place on the page; any other one becomes code.
"""

import re
from typing import Any

import griffe

import octavo

INTERNAL = "Used only inside this package"

LIGHT_DATACLASS = "octavo.protocol.light_dataclass.dataclass"

_ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc):`~?([\w.]+)`")

_CODE = re.compile(r"``([A-Z]\w*(?:\.\w+)*|\w+(?:\.\w+)*(?=\(\)))(?:\(\))?``")
"""A class, a member of one, or something that is called."""


def places() -> dict[str, str]:
    """Every public name, and the place that the page has for it."""
    return {name: f"{octavo._HOMES.get(name, 'octavo.protocol.errors')}.{name}" for name in octavo.__all__}


def has_place(member: Any) -> bool:
    """Whether the page shows a member: those without a docstring are left out."""
    return member is not None and not member.is_alias and member.docstring is not None


class DocstringLinks(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def __init__(self) -> None:
        self._places = places()

    def on_package(self, *, pkg: Any, **_named: Any) -> None:
        """Called once a package has been read."""
        self._rewrite(pkg)

    def _rewrite(self, obj: Any) -> None:
        if obj.docstring is not None:
            owner = obj if obj.is_class else obj.parent
            text = _ROLE.sub(lambda role: self._link(role[1], owner) or f"`{role[1]}`", obj.docstring.value)
            obj.docstring.value = _CODE.sub(lambda code: self._link(code[1], owner) or code[0], text)
        for member in obj.members.values():
            if not member.is_alias:
                self._rewrite(member)

    def on_module_members(self, *, mod: Any, **_named: Any) -> None:
        """Called once all members of a module have been read: parameters are shown of standard dataclasses only."""
        found = mod.members.get("dataclass")
        if found is not None and found.is_alias and found.target_path == LIGHT_DATACLASS:
            mod.members["dataclass"] = griffe.Alias("dataclass", "dataclasses.dataclass", parent=mod)
            mod.imports["dataclass"] = "dataclasses.dataclass"

    def on_class_members(self, *, cls: Any, **_named: Any) -> None:
        """Called once all members of a class have been read: those for other modules of Octavo are not for users."""
        for name, member in list(cls.members.items()):
            if not member.is_alias and member.docstring is not None and INTERNAL in member.docstring.value:
                cls.del_member(name)

    def _link(self, target: str, owner: Any) -> str | None:
        """A link to the place of ``target``, as it is named in a docstring of ``owner``; None if it has none."""
        # `octavo.client.log.log.Log.lead` is the public `Log.lead`, if that is where the name lives.
        for public, home in self._places.items():
            if target == home or target.startswith(f"{home}."):
                target = public + target.removeprefix(home)
        name, _, member = target.partition(".")
        if name in self._places:
            place = self._places[name]
            return f"[`{target}`][{place}.{member}]" if member else f"[`{target}`][{place}]"
        if owner is not None and owner.is_class and owner.name in self._places and has_place(owner.members.get(target)):
            return f"[`{target}`][{owner.path}.{target}]"
        return None
