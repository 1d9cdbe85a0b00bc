"""TLS of the page and of the data server, and how nodes know each other.

A node makes a certificate of its own, or is given the files of one. Other nodes name the fingerprint of its
public key (`data_tls_sha256`), and then nothing else counts: not who signed it, nor for which name, nor until
when. A renewed certificate has the same key, and so the same fingerprint.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import Runtime
from ringrift.settings import Settings

FOLDER = "tls"  # in the data folder
_MAKER = "ringrift.tls.certificate"
_NEEDED = "cryptography"
_SEQUENCE, _VERSION = 0x30, 0xA0
_BEFORE_THE_KEY = 5  # serial number, algorithm, issuer, validity, subject


class WrongCertificate(Unavailable):
    """Whoever answers does not have the key that the pin names: another machine, or somebody in between."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For a server; `ConfigError` if the files are not what they should be."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{self.certificate} and {self.key} are no certificate with its key: {error}"
            ) from None
        return made

    def client_context(self) -> ssl.SSLContext:
        """For a client of this very server on this machine: it trusts this certificate and no other."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = False  # it is asked by whatever address the settings name
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            made.load_verify_locations(self.certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.certificate} cannot be read: {error}") from None
        return made

    def fingerprint(self) -> str:
        """What other nodes pin."""
        try:
            text = self.certificate.read_text(encoding="ascii", errors="replace")
            end = "-----END CERTIFICATE-----"
            first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
            return key_fingerprint(ssl.PEM_cert_to_DER_cert(first))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.certificate} holds no certificate: {error}") from None


def certificate_files(settings: Settings, *, now_s: float, names: tuple[str, ...]) -> CertificateFiles:
    """The files of the settings, or this node's own, made or renewed if need be."""
    if settings.tls_certificate is not None and settings.tls_key is not None:
        return CertificateFiles(settings.tls_certificate, settings.tls_key)
    if settings.tls_certificate is not None or settings.tls_key is not None:
        raise ConfigError("tls_certificate and tls_key belong together; one of them is missing")
    if find_spec(_NEEDED) is None:
        raise ConfigError(
            f"making a certificate needs {_NEEDED} (pip install 'ringrift[tls]'); "
            "or name tls_certificate and tls_key"
        )
    make: Callable[..., CertificateFiles] = import_module(_MAKER).own_certificate
    return make(settings.data_dir / FOLDER, now_s=now_s, names=names)


def own_files(settings: Settings, runtime: Runtime) -> CertificateFiles:
    """The certificate of this node, for its page and its data server."""
    hosts = (runtime.hostname, settings.health_host, settings.data_host, *settings.http_names)
    return certificate_files(settings, now_s=runtime.now_s(), names=hosts)


def parse_pin(text: str) -> str:
    """A fingerprint as its 64 digits; colons and capitals are the other usual way to write it."""
    digits = text.replace(":", "").strip().lower()
    if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise ConfigError(f"{text[:80]!r} is no SHA-256 fingerprint of 64 hexadecimal digits")
    return digits


def wrap_pinned(sock: socket.socket, pin: str) -> ssl.SSLSocket:
    """Speak TLS with whoever has the key of *pin*; `WrongCertificate` for anybody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the pin is checked instead, before a byte is sent
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    wrapped = context.wrap_socket(sock)
    found = key_fingerprint(wrapped.getpeercert(binary_form=True) or b"")
    if not hmac.compare_digest(found, pin):
        wrapped.close()
        raise WrongCertificate(
            f"the key there has the fingerprint {found[:16]}…, not {pin[:16]}… as data_tls_sha256 says",
            retry_after_s=300.0,
        )
    return wrapped


def key_fingerprint(certificate: bytes) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo) of a certificate in DER."""
    try:
        outer, _ = _content(certificate, 0)
        at, _ = _content(certificate, outer)
        if certificate[at] == _VERSION:
            _, at = _content(certificate, at)
        for _ in range(_BEFORE_THE_KEY):
            _, at = _content(certificate, at)
        _, end = _content(certificate, at)
        if not certificate[0] == certificate[outer] == certificate[at] == _SEQUENCE:
            raise IndexError("of other elements")  # noqa: TRY301 - as for one that is cut off
    except IndexError:
        raise ConfigError("this is no certificate") from None
    return hashlib.sha256(certificate[at:end]).hexdigest()


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at *at* begins, and where the element ends."""
    length = der[at + 1]
    begin = at + 2
    if length >= 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    if begin + length > len(der):
        raise IndexError("cut off")
    return begin, begin + length
