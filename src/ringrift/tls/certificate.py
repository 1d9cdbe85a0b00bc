"""A certificate of this node's own, signed by itself; needs `cryptography` (the extra `tls`)."""

from __future__ import annotations

import ipaddress
import os
import secrets
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from ringrift.errors import ConfigError
from ringrift.files import (
    close_to_others,
    link_file,
    make_private_folder,
    open_private,
    remove_file,
    rename_file,
)
from ringrift.tls import CertificateFiles

VALID_FOR = timedelta(days=730)  # some browsers refuse more than 825 days
RENEWED_BEFORE = timedelta(days=60)  # a run may go on for weeks without a start that would renew it
_ALWAYS = ("localhost", "127.0.0.1", "::1")  # the command line asks by one of these


def own_certificate(folder: Path, *, now_s: float, names: tuple[str, ...]) -> CertificateFiles:
    """The certificate in *folder*: made the first time, and again, with the same key, before it runs out."""
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    now = datetime.fromtimestamp(now_s, UTC)
    try:
        make_private_folder(folder)
        close_to_others((folder, *folder.glob("*.pem")))
        key = _key(files.key)
        if not _is_good(files.certificate, key, now):
            _write(files.certificate, _signed(key, now, names), replace=True)
    except OSError as error:
        raise ConfigError(f"the certificate in {folder} cannot be made: {error.strerror}") from None
    return files


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        fresh = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        _write(path, fresh.private_bytes(serialization.Encoding.PEM, *form), replace=False)
    try:
        found = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is no key; remove it to get a fresh one ({error})") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is another kind of key than this node makes; name it as tls_key")
    return found


def _is_good(path: Path, key: ec.EllipticCurvePrivateKey, now: datetime) -> bool:
    try:
        with warnings.catch_warnings():
            # A damaged serial number is warned of and not refused; the signature tells.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            found = x509.load_pem_x509_certificate(path.read_bytes())
        found.verify_directly_issued_by(found)  # whatever was changed in it, its signature does not fit
        is_ours = found.public_key() == key.public_key()
        return is_ours and found.not_valid_before_utc <= now < found.not_valid_after_utc - RENEWED_BEFORE
    except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False


def _signed(key: ec.EllipticCurvePrivateKey, now: datetime, names: tuple[str, ...]) -> bytes:
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ringrift")])
    alternatives = [_general_name(name) for name in dict.fromkeys((*names, *_ALWAYS))]
    made = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of other nodes may be behind
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())  # certificates hold ASCII only


def _write(path: Path, content: bytes, *, replace: bool) -> None:
    making = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = open_private(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            rename_file(making, path)
        else:
            link_file(making, path)
    except FileExistsError:
        return  # another process was first, and its key counts
    finally:
        remove_file(making)
