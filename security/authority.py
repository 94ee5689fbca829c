"""A certificate authority for a small cluster: its certificate, and those of bookies and clients. What ``octavo tls``
runs; needs the extra ``tls`` (the package cryptography).

Keys are of the curve P-256, which every TLS library speaks. A certificate carries its names in the subject's
alternative names alone; the common name is for people.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from octavo.protocol.errors import InvalidArgumentError
from octavo.security.names import names_of

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # pragma: no cover - the tests' environment has it
    raise InvalidArgumentError(
        "making certificates needs the package cryptography: pip install 'cryptography>=43'"
    ) from error

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
"""The longest time that common tools accept for a certificate of a server."""

_BEFORE = timedelta(hours=1)
"""A certificate is valid a little earlier than it is made: clocks of hosts differ."""


class Pair(NamedTuple):
    """A certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, *, now: datetime | None = None, days: float = AUTHORITY_DAYS) -> Pair:
    """An authority that signs its own certificate."""
    moment = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key, moment, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Pair,
    name: str,
    *,
    hosts: Sequence[str] = (),
    uris: Sequence[str] = (),
    now: datetime | None = None,
    days: float = CERTIFICATE_DAYS,
) -> Pair:
    """A certificate of the authority for these host names, addresses and URIs, with a new key.

    Raises :class:`InvalidArgumentError` for an authority or a host that cannot be used.
    """
    moment = now or datetime.now(UTC)
    try:
        signer = serialization.load_pem_private_key(authority.key, password=None)
        issuer = x509.load_pem_x509_certificate(authority.certificate)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"the authority's certificate or key cannot be used: {error}") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise InvalidArgumentError("the authority's key is not one of an elliptic curve, as `octavo tls init` makes it")
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris]
    builder = (
        _builder(_name(name), issuer.subject, key, moment, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            # Bookies connect to one another with their own certificates.
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def names_in(certificate: bytes) -> tuple[str, ...]:
    """The names of ours in a certificate in PEM, as :func:`octavo.security.names.names_of` tells it.

    Raises :class:`InvalidArgumentError` for bytes that are no certificate.
    """
    try:
        extensions = x509.load_pem_x509_certificate(certificate).extensions
    except ValueError as error:
        raise InvalidArgumentError(f"it is not a certificate: {error}") from error
    try:
        uris = extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.UniformResourceIdentifier
        )
    except x509.ExtensionNotFound:
        return ()
    return names_of({"subjectAltName": [("URI", uri) for uri in uris]})


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, moment: datetime, days: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _BEFORE)
        .not_valid_after(moment + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidArgumentError(f"{host!r} is not a host name or an address") from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
