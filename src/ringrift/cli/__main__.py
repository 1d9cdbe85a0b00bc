"""`python -m ringrift.cli`."""

from ringrift.cli.main import app

app(prog_name="ringrift")
