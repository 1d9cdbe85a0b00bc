"""The documents' import paths: `app.coordination.event_router` and the rest lead to homes in `ringrift`.

There is no logic here: `app._table` says where each module's names live, and serves them.
"""

from app._table import install

install()
