"""The answers to DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics."""

from contextlib import AsyncExitStack
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.service.needs import check_topic
from octavo.gateway.service.tried import tried
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.settings import Change, Shown, shown
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of

_TOPIC: Final = 2
_BROKER: Final = 4

_FROM_TOPIC: Final = 1
_FROM_DEFAULT: Final = 5
"""Where a setting comes from."""


_TEXT: Final = 2
_NUMBER: Final = 5
"""Kinds of values."""


class SettingsService:
    """See the module."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def describe(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to DescribeConfigs."""
        asked = decode_request(request.api, request.version, request.body)
        results = [self._described(request, one) for one in asked.resources]
        return answered(request, {"throttle_time": 0, "results": results})

    def _described(self, request: Request, asked: Any) -> Answer:
        code: Code = Code.NONE
        text: str | None = None
        settings: list[Shown] = []
        try:
            settings = self._shown(request, asked)
        except RefusedError as error:
            code, text = error.code, error.text
        names = field_of(asked, "configuration_keys", None)
        return {
            "error_code": code,
            "error_message": text,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "configs": [_setting(one) for one in settings if names is None or one.name in names],
        }

    def _shown(self, request: Request, asked: Any) -> list[Shown]:
        if asked.resource_type == _BROKER:
            request.gate.check_everything(request.api.name)
            return []
        if asked.resource_type != _TOPIC:
            raise RefusedError(Code.INVALID_REQUEST, "only topics and gateways have settings")
        check_topic(request, asked.resource_name)
        topic = self._catalogue.find(asked.resource_name)
        if topic is None:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.resource_name!r}")
        return shown(topic.settings, ack_quorum=topic.ack_quorum)

    async def alter(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to AlterConfigs: settings that are not named get their defaults."""
        return await self._alter(request, anew=True)

    async def alter_some(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to IncrementalAlterConfigs."""
        return await self._alter(request, anew=False)

    async def _alter(self, request: Request, *, anew: bool) -> Pieces:
        asked = decode_request(request.api, request.version, request.body)
        responses = []
        for one in asked.resources:
            code, text = await tried(self._change(request, one, anew=anew, validate_only=asked.validate_only))
            responses.append(
                {
                    "error_code": code,
                    "error_message": text,
                    "resource_type": one.resource_type,
                    "resource_name": one.resource_name,
                }
            )
        return answered(request, {"throttle_time": 0, "responses": responses})

    async def _change(self, request: Request, asked: Any, *, anew: bool, validate_only: bool) -> None:
        if asked.resource_type != _TOPIC:
            raise RefusedError(Code.INVALID_REQUEST, "only settings of topics can be changed")
        check_topic(request, asked.resource_name)
        changes = [(one.name, _change_of(one), one.value) for one in asked.configs]
        await self._catalogue.alter(asked.resource_name, changes, anew=anew, validate_only=validate_only)
        if not validate_only:
            request.gate.done("alter_topic", topic=asked.resource_name)


def _change_of(asked: Any) -> Change:
    operation = field_of(asked, "config_operation", Change.SET.value)
    try:
        return Change(operation)
    except ValueError as error:
        raise RefusedError(Code.INVALID_REQUEST, f"the operation {operation} is not known") from error


def _setting(one: Shown) -> Answer:
    return {
        "name": one.name,
        "value": one.value,
        "read_only": not one.can_change,
        "config_source": _FROM_DEFAULT if one.is_default else _FROM_TOPIC,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": _NUMBER if one.is_number else _TEXT,
        "documentation": None,
    }
