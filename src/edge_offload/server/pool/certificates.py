"""Certificates of a pool whose members are several machines: one authority, and one certificate for each machine.

The authority's key is in the folder that operators copy to their machines along with the token: whoever has it is one
of them. Made with ``cryptography``.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib
import shlex
import socket
from typing import Any, Set

from edge_offload import requirements
from edge_offload.errors import BadInput, Unsupported

FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def prepare_certificates(folder: pathlib.Path, head: bool) -> None:
    """Make missing files for TLS between machines; a certificate of another machine is replaced.

    Args:
        folder: with the token.
        head: True if the authority may be made here.

    Raises:
        BadInput: there is no authority, or others can read its key.
        Unsupported: no ``cryptography``.
    """
    authority = folder / "ca.key"
    if not authority.exists():
        if (folder / "tls.crt").exists() and (folder / "tls.key").exists() and (folder / "ca.crt").exists():
            return  # certificates of the operators' own
        if not head:
            raise BadInput(
                f"{folder} holds no certificates, without which the token would travel in the clear",
                remedy="begin the head with --host ADDRESS, and copy its folder here",
            )
        _make_authority(folder)
    if authority.stat().st_mode & 0o077:
        raise BadInput(f"others can read {authority}", remedy=f"chmod 600 {shlex.quote(str(authority))}")
    if not _is_valid(folder):
        _make_certificate(folder)
    _check_clock(folder)


def list_addresses() -> Set[str]:
    """Return all addresses of this machine."""
    import psutil

    result = {address.address.split("%")[0] for interfaces in psutil.net_if_addrs().values() for address in interfaces
             if address.family in (socket.AF_INET, socket.AF_INET6)}  # fmt: skip
    return result | {"127.0.0.1"}


def _is_valid(folder: pathlib.Path) -> bool:
    x509 = _import_x509()
    try:
        certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        covered = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    utc = datetime.timezone.utc
    end = getattr(certificate, "not_valid_after_utc", None) or certificate.not_valid_after.replace(tzinfo=utc)
    remaining = end - datetime.datetime.now(utc)
    return (folder / "tls.key").exists() and covered >= list_addresses() and remaining.days >= 30


def _check_clock(folder: pathlib.Path) -> None:
    """Check the authority's certificate against this machine's clock.

    Raises:
        BadInput: it is not valid now.
    """
    x509, utc = _import_x509(), datetime.timezone.utc
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    begin, end = (
        getattr(authority, f"{name}_utc", None) or getattr(authority, name).replace(tzinfo=utc)
        for name in ("not_valid_before", "not_valid_after")
    )
    now = datetime.datetime.now(utc)
    if not begin <= now <= end:
        raise BadInput(
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and the pool's certificates hold from "
            f"{begin:%Y-%m-%d} to {end:%Y-%m-%d}",
            remedy="set the clock (NTP); if it is right, delete ca.key and ca.crt on the head, and begin the pool anew",
        )


def _make_authority(folder: pathlib.Path) -> None:
    x509 = _import_x509()
    key = _make_key()
    name = _make_name("edge_offload pool")
    builder = _make_builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _write_private(folder, "ca.key", _encode_key(key))
    _write_private(folder, "ca.crt", _sign_certificate(builder, key))


def _make_certificate(folder: pathlib.Path) -> None:
    x509 = _import_x509()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = _make_key()
    names = [x509.DNSName("localhost"), x509.DNSName(socket.gethostname())]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(list_addresses())]
    subject = _make_name(socket.gethostname()[:64])
    builder = _make_builder(subject, authority.subject, key).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )
    _write_private(folder, "tls.key", _encode_key(key))
    _write_private(folder, "tls.crt", _sign_certificate(builder, signer))


def _import_x509() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise Unsupported(
            f"several machines need certificates, and there is no cryptography: {requirements.install('pool')}"
        ) from error
    return x509


def _make_name(text: str) -> Any:
    x509 = _import_x509()
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _make_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _make_builder(subject: Any, issuer: Any, key: Any) -> Any:
    x509 = _import_x509()
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks are apart
        .not_valid_after(now + datetime.timedelta(days=3650))
    )


def _sign_certificate(builder: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _encode_key(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _write_private(folder: pathlib.Path, name: str, data: bytes) -> None:
    handle = os.open(folder / f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    (folder / f"{name}.new").replace(folder / name)
