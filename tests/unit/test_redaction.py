"""Secrets do not stand in log lines, whatever put them there."""

import json
from pathlib import Path

import pytest
import structlog

from ringrift.cli.logs import log_to_file
from ringrift.data.config import read_nodes
from ringrift.data.transfer.http.wire import data_secret
from ringrift.errors import ConfigError
from ringrift.redaction import without_secrets
from ringrift.setting_kinds import Secret
from ringrift.settings import load_settings
from ringrift.web.server import http_token

PLANTED = "planted-7f3a9c"


@pytest.mark.parametrize(
    "text",
    [
        f"GET https://user:{PLANTED}@bucket.example/x failed",
        f"header Authorization: Bearer {PLANTED}",
        f"open http://127.0.0.1:8790/#enter={PLANTED}",
        f"https://b.example/k?X-Amz-Signature={PLANTED}&X-Amz-Date=1",
        f"{{'aws_secret_access_key': '{PLANTED}'}}",
        f"password={PLANTED}",
        f"RINGRIFT_DATA_SECRET={PLANTED}",
        f"the library says: key {PLANTED} is wrong",
    ],
)
def test_a_secret_is_taken_out_of_a_text(monkeypatch, text):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    assert PLANTED not in without_secrets(text)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    if "library" not in text:
        assert PLANTED not in without_secrets(text)


def from_config_file(folder):
    file = folder / "ringrift.toml"
    file.write_text(f'data_secret = "{PLANTED} of the config file"\n')
    return data_secret(load_settings({}, config_file=file).settings).decode()


def from_secret_file(folder):
    return data_secret(load_settings({"RINGRIFT_DATA_DIR": str(folder)}).settings).decode()


def from_token_file(folder):
    return http_token(load_settings({"RINGRIFT_DATA_DIR": str(folder)}).settings)


@pytest.mark.parametrize("load", [from_config_file, from_secret_file, from_token_file])
def test_whatever_secret_was_loaded_is_taken_out_wherever_it_came_from(tmp_path, load):
    secret = load(tmp_path)
    assert without_secrets(f"the peer says {secret!r} is wrong, and {secret}") == (
        "the peer says '(secret)' is wrong, and (secret)"
    )


def test_a_secret_that_is_refused_is_named_by_the_place_where_it_stands(tmp_path):
    file = tmp_path / "ringrift.toml"
    file.write_text(f'data_secret = "{PLANTED[:9]}"\n')
    with pytest.raises(ConfigError, match=f"data_secret in {file} must be a text of at least 16") as refused:
        load_settings({}, config_file=file)
    assert PLANTED[:9] not in str(refused.value)
    with pytest.raises(ConfigError, match="RINGRIFT_DATA_SECRET must be a text of at least 16"):
        load_settings({"RINGRIFT_DATA_SECRET": "short"})


def test_ordinary_text_stays_as_it_is():
    for text in (
        "token=17 of the lease; token: 123456789",
        "http://127.0.0.1:8790/livez at 12:30@node",
        "s3://bucket/prefix and user@host:/path",
        "the secret of data/data_secret is missing",
    ):
        assert without_secrets(text) == text


def test_log_lines_are_cleaned_at_any_depth_and_in_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_SECRET", PLANTED)
    before = structlog.get_config()
    file = log_to_file(tmp_path / "log")
    log = structlog.get_logger()
    try:
        log.warning(PLANTED, deep={"a": [("x", PLANTED)], PLANTED: 1}, kind=Secret(PLANTED), count=3)
        deeper = {"a": {"b": {"c": {"d": [PLANTED]}}}}
        log.warning(
            "objects", error=ValueError(PLANTED), path=Path(PLANTED), raw=PLANTED.encode(), far=deeper
        )
        try:
            raise ValueError(PLANTED)
        except ValueError:
            log.exception("failed")
    finally:
        file.close()
        structlog.configure(**before)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3
    assert not [line for line in lines if PLANTED in line]
    assert json.loads(lines[0])["count"] == 3


def test_no_message_about_settings_shows_a_secret():
    for value in (PLANTED, ""):
        with pytest.raises(ConfigError) as refused:
            load_settings({"RINGRIFT_DATA_SECRET": value})
        assert PLANTED not in str(refused.value)
    for field in ("s3_url", "s3_endpoint"):
        with pytest.raises(ConfigError, match="holds a key") as refused:
            read_nodes("me", {"archive": {field: f"https://user:{PLANTED}@store.example/x"}})
        assert PLANTED not in str(refused.value)
