"""Takes secrets out of what is shown or handed on. Pure.

Passwords, keys and credentials have places of their own (files, environment variables, parameters of a URI). What
stands in such a place is replaced, whatever it looks like. The line of a key file is replaced wherever it stands.
"""

import re
from collections.abc import Mapping
from typing import Final

HIDDEN: Final = "<hidden>"

_SECRET_NAME: Final = re.compile(r"pass(word|wd|phrase)?|secret|token|credential|auth|key", re.IGNORECASE)
"""A name with one of these in it may hold a secret: rather one value too many is hidden than one too few."""

_USER_INFO: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s:]*):[^@\s\"']*@", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"(?P<before>[?&](?P<name>[\w.-]+)=)[^&\s\"']*")
_ASSIGNMENT: Final = re.compile(
    r"""(?P<before>(?P<name>[\w.-]+)["']?\s*[:=]\s*)(?P<value>"[^"]*"|'[^']*'|\[[^\]]*\]|[^\s,;}\"']+)"""
)
_DIGEST: Final = re.compile(r"\bdigest:[^\s:\"']+:[^\s\"',;]+")
_KEY_LINE: Final = re.compile(r"(?<![\w.@-])(?P<name>[A-Za-z0-9][\w.@-]{0,63}):[A-Za-z0-9_-]{43}(?![\w-])", re.ASCII)
"""The key of a principal: 32 bytes in base64."""
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


def redacted_uri(uri: str) -> str:
    """A URI without passwords and without the values of secret parameters."""
    uri = _USER_INFO.sub(rf"\g<scheme>\g<user>:{HIDDEN}@", uri)
    return _PARAMETER.sub(lambda found: found["before"] + HIDDEN if is_secret_name(found["name"]) else found[0], uri)


def redacted_text(text: str) -> str:
    """Text of settings or logs, in which every value with the name of a secret is replaced."""

    def assignment(found: re.Match[str]) -> str:
        if not is_secret_name(found["name"]):
            return found[0]
        quote = found["value"][0] if found["value"][0] in "\"'" else ""
        return f"{found['before']}{quote}{HIDDEN}{quote}"

    text = _PEM.sub(HIDDEN, text)
    text = _KEY_LINE.sub(rf"\g<name>:{HIDDEN}", text)
    text = _DIGEST.sub(f"digest:{HIDDEN}", text)
    return _ASSIGNMENT.sub(assignment, redacted_uri(text))


def redacted_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Octavo's own variables, without secrets. Other variables are left out altogether."""
    ours = {name: value for name, value in sorted(environment.items()) if name.startswith("OCTAVO_")}
    return {name: HIDDEN if is_secret_name(name) else redacted_uri(value) for name, value in ours.items()}


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name may be a secret. Names of files that hold secrets are none."""
    return _SECRET_NAME.search(name) is not None and not name.lower().endswith(("_file", "-file"))
