"""The product's source files, read and parsed once for all tests that look at them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
GENERATED = "# Generated from "


def modules():
    return sorted(SOURCE.rglob("*.py"))


@cache
def text_of(path):
    return path.read_text(encoding="utf8")


@cache
def parsed(text):
    return ast.parse(text)


def is_generated(text):
    return GENERATED in text[:400]
