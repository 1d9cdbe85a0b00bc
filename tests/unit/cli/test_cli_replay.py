"""`ringrift replay` on a data folder."""

import json

import pytest
from click.testing import CliRunner
from run_folder import in_engine, write_models

from ringrift.cli.main import app
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import system_runtime

CONFIG = "square8_2p"


def ringrift(*arguments, code):
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout


def test_decisions_that_follow_are_told_in_one_line():
    async def begin(engine):
        controller = Controller(engine, system_runtime(), LearningRules(), announcer=Silent())
        await controller.open([CONFIG])
        await controller.reconcile()

    in_engine(begin)
    assert "every decision follows" in ringrift("replay", CONFIG, code=0)
    shown = json.loads(ringrift("replay", CONFIG, "--at", "1", "--json", code=0))
    assert shown["champion"] is None
    assert "selfplay" in {each["kind"] for each in shown["wanted"]}


def test_facts_that_nobody_planned_are_listed_and_the_exit_code_says_so():
    write_models(CONFIG)
    told = json.loads(ringrift("replay", CONFIG, "--json", code=1))
    assert told["facts"] == 7
    assert told["divergences"][0]["what"] == "ordered export-10"
    assert "wants no export" in ringrift("replay", CONFIG, "--at", "0", code=1)


@pytest.mark.parametrize("arguments", [("hex8_2p",), (CONFIG, "--at", "99")])
def test_wrong_input_is_one_line(arguments):
    write_models(CONFIG)
    ringrift("replay", *arguments, code=2)
