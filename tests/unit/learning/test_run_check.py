"""The high-water mark on disk: whose it is."""

import stat

from ringrift.learning.facts.high_water import ConfigMark, HighWaterMark, read_mark, write_mark

MARK = HighWaterMark(
    identity="one", revision=3, written_s=1.0, configs={"a": ConfigMark(facts=2, last_hash="h", games=1)}
)


def test_the_mark_is_its_owners_and_in_a_shared_folder_that_of_the_group(tmp_path):
    for mode, wanted in ((0o700, 0o600), (0o2770, 0o660)):
        tmp_path.chmod(mode)
        write_mark(tmp_path, MARK)
        assert read_mark(tmp_path) == MARK
        (path,) = tmp_path.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == wanted
