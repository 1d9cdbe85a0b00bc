"""The documents' import paths: `app.coordination.event_router` and the rest lead to homes in `ringrift`.

There is no logic here: `app._table` has the rule and its exceptions, and serves the names.
"""

from app._table import install

install()
