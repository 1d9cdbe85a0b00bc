"""The documents' import paths: `app.coordination.event_router` and the rest lead to homes in `ringrift`.

There is no logic here: `app._table` says where each module's names live, `app._hook` serves them.
"""

from app._hook import install

install()
