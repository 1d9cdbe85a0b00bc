"""The page about daemons shows the registry as it is. `python <this file>` writes its table anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringrift.coordination.auto_promotion_daemon import COOLDOWN_S
from ringrift.coordination.feedback_loop_controller import GAUNTLET_COOLDOWN_S
from ringrift.daemons.registry import HEAD, DaemonSpec, daemon_table, product_registry
from ringrift.daemons.types import DaemonType
from ringrift.data.config import AutoSyncConfig
from ringrift.data.protection.integrity import CleanupRules
from ringrift.data.protection.replication import ReplicationRules
from ringrift.learning.plan.training_data import TIERS_S
from ringrift.resources.disk import VACUUM_BYTES_MAX
from ringrift.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "daemons.md"


def test_the_page_lists_every_daemon_as_the_registry_has_it() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(daemon_table(product_registry()) + "\n")


# The numbers that descriptions of daemons state, from where they are in force.
NUMBERS = {
    DaemonType.AUTO_PROMOTION: [f"{COOLDOWN_S:.0f} s"],
    DaemonType.DATA_CLEANUP: [f"{CleanupRules().quarantine_below:.0%}", f"{CleanupRules().delete_below:.0%}"],
    DaemonType.DATA_SERVER: [f"port {Settings().data_port}"],
    DaemonType.GAUNTLET_FEEDBACK: [f"{GAUNTLET_COOLDOWN_S:.0f} s"],
    DaemonType.HEALTH_SERVER: [f"port {Settings().health_port}"],
    DaemonType.MAINTENANCE: [f"{VACUUM_BYTES_MAX >> 20} MB"],
    DaemonType.REPLICATION_REPAIR: [f"{ReplicationRules().cooldown_s:.0f} s"],
    DaemonType.STALE_FALLBACK: [f"{TIERS_S[0]:.0f} s"],
    DaemonType.SYNC_PUSH: [
        f"{AutoSyncConfig().push_percent:.0f} %",
        f"{AutoSyncConfig().push_urgent_percent:.0f} %",
    ],
    DaemonType.UNIFIED_PROMOTION: ["3600 s"],
}
NOT_THERE = ("torrent", "gpu", "cpu host", "elo target", "mesh", "over ssh")


@pytest.mark.parametrize(
    "spec", [spec for spec in product_registry() if not spec.unavailable_reason], ids=lambda s: s.daemon_type
)
def test_a_daemon_that_can_run_promises_only_what_is_there(spec: DaemonSpec) -> None:
    about = spec.about.replace("S3", "")
    stated = re.findall(r"(?:port )?\d+(?: (?:%|s|MB)\b|%)?", about.replace(" %", "%"))
    in_force = [text.replace(" %", "%") for text in NUMBERS.get(spec.daemon_type, [])]
    assert stated == in_force, "a number in a description comes from where it is in force"
    assert [word for word in NOT_THERE if word in about.lower()] == []
    if cooldown := spec.settings.get("cooldown_s"):
        assert f"{cooldown} s" in about


def write_table() -> None:
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD[0])
    PAGE.write_text(text + daemon_table(product_registry()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_table()
