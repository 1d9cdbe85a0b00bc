"""The transports to archives: buckets and drives. The S3 client is loaded only where a node has a bucket."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from ringrift.data.archive_format import PART_BYTES
from ringrift.data.archive_objects import ArchiveObjects, DriveObjects
from ringrift.data.nodes import DataNode
from ringrift.data.transfer.archive import ArchiveTransport
from ringrift.data.transfer.landing import Landing
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime

S3, DRIVE = "s3", "drive"
_FIRST_OVER_A_LINE = 1 << 18  # 20 s at 100 kbit/s; parts grow while the line brings them quickly
_S3_MODULE = "ringrift.data.transfer.s3"
_S3_CLIENT = "obstore"


def is_archive(node: DataNode) -> bool:
    """Whether the node only keeps files: a bucket or a drive."""
    return bool(node.s3_url or node.drive_path)


def open_archive(node: DataNode, runtime: Runtime) -> ArchiveObjects:
    """Return the objects of an archive node; `ConfigError` if it is none, or its client is not installed."""
    if node.s3_url:
        return _open_bucket(node)
    if node.drive_path:
        return DriveObjects(Path(node.drive_path).expanduser(), runtime.new_id)
    raise ConfigError(f"node {node.name!r} is no archive: it has neither s3_url nor drive_path")


def _open_bucket(node: DataNode) -> ArchiveObjects:
    try:
        module = importlib.import_module(_S3_MODULE)
    except ModuleNotFoundError as error:
        if error.name != _S3_CLIENT:
            raise
        raise ConfigError(
            f"node {node.name!r} has an s3_url, and no S3 client is installed: pip install 'ringrift[s3]'"
        ) from None
    open_bucket: Callable[[DataNode], ArchiveObjects] = module.open_s3
    return open_bucket(node)


def archive_transports(landing: Landing, runtime: Runtime) -> tuple[ArchiveTransport, ArchiveTransport]:
    """Return the transports to buckets and to drives."""

    def open_objects(node: DataNode) -> ArchiveObjects:
        return open_archive(node, runtime)

    def transport(name: str, reaches: Callable[[DataNode], bool], part_first: int) -> ArchiveTransport:
        return ArchiveTransport(
            name,
            reaches=reaches,
            open_objects=open_objects,
            landing=landing,
            runtime=runtime,
            part_first=part_first,
        )

    return (
        transport(S3, lambda node: bool(node.s3_url), _FIRST_OVER_A_LINE),
        transport(DRIVE, lambda node: bool(node.drive_path and not node.s3_url), PART_BYTES),
    )
