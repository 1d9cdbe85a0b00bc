"""Where the control process of a data folder can be reached."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ringrift.decoding import decode_as
from ringrift.errors import Corrupt
from ringrift.files import make_folders, remove_file, replace_file
from ringrift.foreign_files.paths import read_regular
from ringrift.process_identity import is_alive, own_start_s

FILE = "probes.json"
ADDRESS_BYTES_MAX = 10_000


class Address(msgspec.Struct, frozen=True):
    """The probes' URL and the process that serves it. Its start tells it from a later one of its number."""

    url: str
    pid: int
    began_s: float = 0.0

    @classmethod
    def of_this_process(cls, url: str) -> Address:
        return cls(url=url, pid=os.getpid(), began_s=own_start_s())

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid, self.began_s)


def write_address(folder: Path, address: Address) -> None:
    """Tell others; replaces what an earlier process wrote."""
    make_folders(folder)
    replace_file(folder / FILE, msgspec.json.encode(address), durable=False)


def read_address(folder: Path) -> Address | None:
    """Return the address of a process that lives; None if there is none."""
    try:
        content = read_regular(folder / FILE, bytes_max=ADDRESS_BYTES_MAX)
        address = decode_as(content, Address)
    except (FileNotFoundError, Corrupt, msgspec.DecodeError, UnicodeDecodeError):
        return None  # one that is damaged reaches nobody either
    return address if address.is_alive else None


def forget_address(folder: Path, address: Address) -> None:
    """Take the address back, unless somebody else has written theirs."""
    if read_address(folder) == address:
        remove_file(folder / FILE)
