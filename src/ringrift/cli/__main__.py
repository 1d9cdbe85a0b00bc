"""`python -m ringrift.cli`."""

from ringrift.cli.main import app

# Without the name, help and errors would call the program `__main__.py`.
app(prog_name="ringrift")
