"""The authentication of one connection by SASL, message by message. Pure: nonces are arguments.

========  ===========================  ==========================================================  =========
state     message                      what follows                                                then
========  ===========================  ==========================================================  =========
BEGUN     SaslHandshake                the mechanism is chosen                                     CHOSEN
CHOSEN    SaslAuthenticate, PLAIN      the name and the key are compared                           DONE
CHOSEN    SaslAuthenticate, SCRAM      the server's nonce and the salt                             ASKED
ASKED     SaslAuthenticate             the proof is compared; the server's signature               DONE
any       what is not in its turn      ILLEGAL_SASL_STATE                                          OVER
any       what does not fit            SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM      OVER
========  ===========================  ==========================================================  =========

After OVER the connection must be closed. Names that do not exist, wrong keys, and principals that are disabled take the
same steps and get the same text. PLAIN gives the key itself to the server, so it is offered over TLS only.
"""

import hmac
from enum import Enum
from typing import Final, NamedTuple, Protocol

from octavo.gateway.access.scram import (
    ClientFirst,
    MalformedScramError,
    read_first,
    read_last,
    signed_bytes,
    write_first,
    write_last,
)
from octavo.gateway.codes import Code, RefusedError
from octavo.protocol.errors import InvalidArgumentError
from octavo.security.salted_keys import MECHANISM as SCRAM
from octavo.security.salted_keys import SaltedVerifier, is_proof, server_signature
from octavo.security.scram import Key, Verifier, verifier_of

PLAIN: Final = "PLAIN"

_PLAIN_BYTES_MAX: Final = 1024

WRONG_KEY: Final = (
    "the name or the key is wrong, or the principal is disabled (keys from before gateways had access control are for "
    "PLAIN over TLS only; `octavo access key NAME` makes a new one)"
)
"""The one text for all of these: a client must not learn which names exist."""


class SaslState(Enum):
    """See the module."""

    BEGUN = "begun"
    CHOSEN = "chosen"
    ASKED = "asked"
    DONE = "done"
    OVER = "over"


class Known(NamedTuple):
    """The verifiers of a name. One that does not exist has them, too, and no key fits."""

    is_principal: bool
    """Whether it can be authenticated."""
    verifier: Verifier
    salted: SaltedVerifier


class Finder(Protocol):
    """Looks principals up."""

    def known(self, name: str) -> Known:
        """The verifiers of a name, whether it exists or not."""


class SaslExchange:
    """See the module."""

    def __init__(self, finder: Finder, *, over_tls: bool) -> None:
        self._finder = finder
        self.mechanisms: tuple[str, ...] = (SCRAM, PLAIN) if over_tls else (SCRAM,)
        """Those that are offered."""
        self._over_tls = over_tls
        self.state = SaslState.BEGUN
        self.mechanism: str | None = None
        """The one that the client has chosen."""
        self.asked_name = ""
        """As which the client wants to authenticate, as far as it has said so."""
        self.name: str | None = None
        """The principal, once it is authenticated."""
        self._first: tuple[ClientFirst, bytes, str] | None = None

    def choose(self, mechanism: str) -> None:
        """SaslHandshake.

        Raises:
            RefusedError: The exchange is over.
        """
        if self.state is not SaslState.BEGUN:
            raise self._over(Code.ILLEGAL_SASL_STATE, "SaslHandshake comes once, and first")
        if mechanism not in self.mechanisms:
            reason = "PLAIN shows the key, and is for TLS only" if mechanism == PLAIN else "the mechanism is not known"
            raise self._over(Code.UNSUPPORTED_SASL_MECHANISM, reason)
        self.mechanism = mechanism
        self.state = SaslState.CHOSEN

    def received(self, message: bytes, nonce: str) -> bytes:
        """SaslAuthenticate: the answer to a message; ``nonce`` is fresh.

        Raises:
            RefusedError: The exchange is over.
        """
        if self.state is SaslState.CHOSEN and self.mechanism == PLAIN:
            return self._plain(message)
        if self.state is SaslState.CHOSEN:
            return self._scram_first(message, nonce)
        if self.state is SaslState.ASKED:
            return self._scram_last(message)
        raise self._over(Code.ILLEGAL_SASL_STATE, "SaslHandshake comes before SaslAuthenticate, and once")

    def _plain(self, message: bytes) -> bytes:
        """RFC 4616: the name as which to act, the name, the password, with zero bytes between them."""
        parts = message.split(b"\0") if len(message) <= _PLAIN_BYTES_MAX else []
        try:
            act_as, name, password = (part.decode() for part in parts)
        except ValueError:  # also not UTF-8
            raise self._failed("a message of PLAIN has a name and a password") from None
        self.asked_name = name
        if act_as not in {"", name}:
            raise self._failed("a client can act as the principal only whose key it has")
        found = self._finder.known(name)
        try:
            offered = verifier_of(Key.from_text(f"{name}:{password}").secret)
        except InvalidArgumentError:
            raise self._failed(WRONG_KEY) from None
        fits = hmac.compare_digest(offered.stored_key, found.verifier.stored_key)
        if not fits or not found.is_principal:
            raise self._failed(WRONG_KEY)
        self._done(name)
        return b""

    def _scram_first(self, message: bytes, nonce: str) -> bytes:
        try:
            first = read_first(message)
        except MalformedScramError as error:
            raise self._failed(str(error)) from None
        self.asked_name = first.name
        salted = self._finder.known(first.name).salted
        answer = write_first(first.nonce + nonce, salted.salt, salted.rounds)
        self._first = first, answer, nonce
        self.state = SaslState.ASKED
        return answer

    def _scram_last(self, message: bytes) -> bytes:
        assert self._first is not None, "the state is asked"
        first, server_first, nonce = self._first
        try:
            last = read_last(message)
        except MalformedScramError as error:
            raise self._failed(str(error)) from None
        found = self._finder.known(first.name)
        signed = signed_bytes(first, server_first, last)
        fits = is_proof(found.salted, signed, last.proof)
        # As Kafka's servers do: older versions of librdkafka put their own nonce there twice. What the server chose for
        # this exchange is signed all the same.
        if last.beginning != first.beginning.encode() or not last.nonce.endswith(nonce):
            raise self._failed("the last message does not belong to the first one")
        if not fits or not found.is_principal:
            raise self._failed(WRONG_KEY)
        self._done(first.name)
        return write_last(server_signature(found.salted, signed))

    def _done(self, name: str) -> None:
        self.name = name
        self.state = SaslState.DONE

    def _failed(self, text: str) -> RefusedError:
        return self._over(Code.SASL_AUTHENTICATION_FAILED, text)

    def _over(self, code: Code, text: str) -> RefusedError:
        self.state = SaslState.OVER
        return RefusedError(code, text)
