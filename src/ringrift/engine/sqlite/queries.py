"""Every query of the key-value store, the event log and the work queue."""

from __future__ import annotations

from enum import IntEnum

from ringrift.engine.ports import WorkState

# Every query of the key-value store. A row without a value is a deleted key.


NEXT_REVISION = "UPDATE counter SET value = value + 1 WHERE name = 'revision' RETURNING value"
REVISION = "SELECT value FROM counter WHERE name = 'revision'"
LAST_REVISION_OF = "SELECT revision FROM kv WHERE key = ?"

ALIVE = "value IS NOT NULL AND (expires_s IS NULL OR expires_s > ?)"
UNDER_PREFIX = "key >= ? AND key < ?"
_ENTRY = "key, value, revision, expires_s, checksum"
GET_ENTRY = f"SELECT {_ENTRY} FROM kv WHERE key = ? AND {ALIVE}"
GET_ENTRY_WITHOUT_CHECKSUM = f"SELECT value FROM kv WHERE key = ? AND {ALIVE}"
LIVE_REVISION_OF = f"SELECT revision FROM kv WHERE key = ? AND {ALIVE}"
KEYS = f"SELECT key FROM kv WHERE {UNDER_PREFIX} AND {ALIVE} ORDER BY key"
ENTRIES = f"SELECT {_ENTRY} FROM kv WHERE {UNDER_PREFIX} AND {ALIVE} ORDER BY key"
STORE_ENTRY = (
    "INSERT INTO kv(key, revision, expires_s, changed_s, value, checksum) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT(key) DO UPDATE SET revision = excluded.revision, expires_s = excluded.expires_s,"
    " changed_s = excluded.changed_s, value = excluded.value, checksum = excluded.checksum"
)
# Without the hint SQLite may walk all keys under the prefix to find the few that changed.
CHANGED_ENTRIES = (
    f"SELECT {_ENTRY} FROM kv INDEXED BY kv_revision"
    f" WHERE revision > ? AND {UNDER_PREFIX} ORDER BY revision LIMIT ?"
)

DUE_ENTRIES = "SELECT key FROM kv WHERE expires_s <= ? ORDER BY expires_s, key LIMIT ?"
NEXT_DUE_ENTRY = "SELECT min(expires_s) FROM kv WHERE expires_s IS NOT NULL"
DROP_TOMBSTONES = "DELETE FROM kv WHERE value IS NULL AND changed_s < ?"


# Every query of the event log.


# A conflict would use up a number of AUTOINCREMENT, and the numbers say how many events there are.
APPEND_EVENT = (
    "INSERT INTO event(id, type, appended_s, body, checksum) SELECT ?1, ?2, ?3, ?4, ?5"
    " WHERE NOT EXISTS (SELECT 1 FROM event WHERE id = ?1)"
)
SEQ_OF_ID = "SELECT seq FROM event WHERE id = ?"
LAST_STAMP = "SELECT appended_s FROM event ORDER BY seq DESC LIMIT 1"

READ_EVENTS = "SELECT seq, id, type, body, appended_s, checksum FROM event WHERE seq > ? ORDER BY seq LIMIT ?"
READ_EVENTS_OF_TYPES = (
    "SELECT seq, id, type, body, appended_s, checksum FROM event WHERE seq > :after"
    " AND type IN (SELECT value FROM json_each(:types)) ORDER BY seq LIMIT :limit"
)

FIRST_SEQ = "SELECT min(seq) FROM event"
# The counter behind AUTOINCREMENT still knows the last number when the log is empty.
LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
LAST_BY_TYPE = "SELECT type, max(appended_s) FROM event GROUP BY type"
STAMP_FROM = "SELECT seq, appended_s FROM event WHERE seq >= ? ORDER BY seq LIMIT 1"
TRIM_EVENTS = "DELETE FROM event WHERE seq <= ?"

POSITIONS = "SELECT consumer, floor, done_above FROM cursor WHERE instance = ?"
POSITION = "SELECT floor, done_above, moved_s FROM cursor WHERE instance = ? AND consumer = ?"
STORE_POSITION = (
    "INSERT INTO cursor(instance, consumer, floor, done_above, moved_s) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT(instance, consumer) DO UPDATE SET"
    " floor = excluded.floor, done_above = excluded.done_above, moved_s = excluded.moved_s"
)
TOUCH_POSITION = "UPDATE cursor SET moved_s = ? WHERE instance = ? AND consumer = ?"
# Who has seen least of those that were there lately, or that have missed nothing so far.
LIVE_FLOOR = (
    "SELECT floor, consumer, instance FROM cursor WHERE moved_s >= :since_s OR floor >= :missed_nothing"
    " ORDER BY floor, instance, consumer LIMIT 1"
)
FORGET_POSITION = "DELETE FROM cursor WHERE instance = ? AND consumer = ?"
FORGET_OLD_POSITIONS = "DELETE FROM cursor WHERE moved_s < ?"


# Every query of the work queue, and the numbers under which states are stored.


class Code(IntEnum):
    """States as stored. DELAYED is a READY item whose time has not come; it stays out of the index."""

    BLOCKED = 0
    READY = 1
    CLAIMED = 2
    DELAYED = 3
    DONE = 4
    DEAD = 5
    CANCELLED = 6


STATE_OF = {code: WorkState.READY if code is Code.DELAYED else WorkState[code.name] for code in Code}
ENDED_CODES = f"({Code.DONE:d}, {Code.DEAD:d}, {Code.CANCELLED:d})"

_MANY = "(SELECT value FROM json_each(?))"

# --- lanes
FIND_LANE = "SELECT id FROM lane WHERE kind = ? AND node = ? AND requires = ? AND work_group = ?"
ADD_LANE = "INSERT INTO lane(kind, node, requires, work_group) VALUES (?, ?, ?, ?)"
LANES_AFTER = "SELECT id, kind, node, requires, work_group FROM lane WHERE id > ?"
COUNT_LANES = "SELECT count(*) FROM lane"
DROP_EMPTY_LANES = "DELETE FROM lane WHERE id NOT IN (SELECT lane FROM work_count WHERE items > 0)"
DROP_EMPTY_COUNTS = "DELETE FROM work_count WHERE items = 0"

# --- adding
# Each of :rows is [id, priority, attempts_max, delay_s, trace, payload, checksum].
ADD_WORK = (
    "INSERT INTO work(id, lane, state, priority, attempts_max, due_s, not_before_s, added_s, changed_s,"
    " trace, payload, checksum)"
    f" SELECT value->>0, :lane, iif(value->>3 > 0, {Code.DELAYED:d}, {Code.READY:d}), value->>1,"
    " value->>2, iif(value->>3 > 0, :now_s + (value->>3), NULL), :now_s + (value->>3), :now_s, :now_s,"
    " CAST(value->>4 AS BLOB), CAST(value->>5 AS BLOB), value->>6 FROM json_each(:rows)"
)
LINK = "UPDATE work SET state = ?, due_s = ?, blockers = ?, idempotency_key = ?, error = ? WHERE seq = ?"
ID_OF_KEY = "SELECT id FROM work WHERE idempotency_key = ?"
SEQ_AND_STATE = "SELECT seq, state FROM work WHERE id = ?"
ADD_NEED = "INSERT OR IGNORE INTO work_need(needs, item) VALUES (?, ?)"

# --- claiming
HELD = f"SELECT key, expires_s FROM kv WHERE {UNDER_PREFIX} AND {ALIVE}"
READY_IN_LANE = (
    f"SELECT -priority, seq FROM work WHERE lane = ? AND state = {Code.READY:d}"
    " ORDER BY priority DESC, seq LIMIT ?"
)
NEXT_TOKEN = "UPDATE counter SET value = value + 1 WHERE name = 'token' RETURNING value"
CLAIM = (
    f"UPDATE work SET state = {Code.CLAIMED:d}, holder = ?, token = ?, due_s = ?, changed_s = ?,"
    f" attempts = attempts + 1 WHERE seq IN {_MANY}"
    " RETURNING seq, id, lane, payload, attempts, trace, checksum"
)
NEXT_DUE_WORK = "SELECT min(due_s) FROM work WHERE due_s IS NOT NULL"
IS_DUE = "SELECT 1 FROM work WHERE due_s <= ? LIMIT 1"
DUE_WORK = (
    "SELECT seq, id, state, attempts, attempts_max FROM work WHERE due_s <= ? ORDER BY due_s, seq LIMIT ?"
)

# --- a claim's life; each names the state and token it expects, so that a stale claimant changes nothing
_HELD = f"id = ? AND token = ? AND state = {Code.CLAIMED:d} AND due_s > ?"
RENEW = f"UPDATE work SET due_s = ? WHERE {_HELD} RETURNING seq"
COMPLETE = (
    f"UPDATE work SET state = {Code.DONE:d}, due_s = NULL, holder = NULL, error = NULL, changed_s = ?,"
    f" result = ?, result_checksum = ? WHERE id IN {_MANY} AND token = ?"
    f" AND state = {Code.CLAIMED:d} AND due_s > ? RETURNING id, seq"
)
NOTE_ENDS = "INSERT OR REPLACE INTO work_end(item) SELECT value FROM json_each(?)"
FORGET_END = "DELETE FROM work_end WHERE item = ?"
RELEASE = (
    f"UPDATE work SET state = {Code.READY:d}, due_s = NULL, holder = NULL, changed_s = ?,"
    f" attempts = attempts - 1 WHERE {_HELD} RETURNING seq"
)
HELD_ATTEMPTS = f"SELECT seq, attempts, attempts_max FROM work WHERE {_HELD}"
MOVE = "UPDATE work SET state = ?, due_s = ?, holder = NULL, error = ?, changed_s = ? WHERE seq = ?"
SET_NOT_BEFORE = "UPDATE work SET not_before_s = ? WHERE seq = ?"
MAKE_READY = f"UPDATE work SET state = {Code.READY:d}, due_s = NULL WHERE seq IN {_MANY}"
STATE_AND_TOKEN = "SELECT state, token FROM work WHERE id = ?"
CANCELLABLE = f"SELECT seq FROM work WHERE id = ? AND state NOT IN {ENDED_CODES}"
REVIVE = (
    "UPDATE work SET state = ?, attempts = 0, error = NULL, changed_s = ?, not_before_s = ?, blockers = ?"
    " WHERE seq = ?"
)

# --- dependencies
BLOCKED_BY = (
    "SELECT work.seq, work.id, work.blockers, work.not_before_s FROM work_need JOIN work"
    f" ON work.seq = work_need.item WHERE work_need.needs = ? AND work.state = {Code.BLOCKED:d}"
)
ANY_NEEDS = "SELECT 1 FROM work_need LIMIT 1"
HAS_DEPENDENTS = (
    f"SELECT DISTINCT needs FROM work_need JOIN work ON work.seq = work_need.needs WHERE work.id IN {_MANY}"
)
SET_BLOCKERS = "UPDATE work SET blockers = ?, state = ?, due_s = ?, changed_s = ? WHERE seq = ?"
NEEDS_OF = (
    "SELECT needed.id, needed.state FROM work_need JOIN work AS needed ON needed.seq = work_need.needs"
    " WHERE work_need.item = ? ORDER BY needed.seq"
)

# --- looking
_UNDONE_NEEDS = (
    "SELECT json_group_array(needed.id) FROM work_need JOIN work AS needed ON needed.seq = work_need.needs"
    f" WHERE work_need.item = work.seq AND needed.state <> {Code.DONE:d}"
)
_COLUMNS = (
    "work.id, lane.kind, payload, state, priority, attempts, attempts_max, holder, token, due_s,"
    " result, error, added_s, changed_s, trace, checksum, result_checksum, work_group, requires, node,"
    f" iif(state = {Code.BLOCKED:d}, ({_UNDONE_NEEDS}), NULL)"
)
_VIEW = f"SELECT {_COLUMNS} FROM work JOIN lane ON lane.id = work.lane"
GET_WORK = f"{_VIEW} WHERE work.id = ?"
READY = f"{_VIEW} WHERE state = {Code.READY:d} ORDER BY priority DESC, seq LIMIT ?"
WAITING = f"{_VIEW} WHERE due_s IS NOT NULL AND state = {Code.DELAYED:d} ORDER BY due_s, seq LIMIT ?"
BLOCKED = (
    f"{_VIEW} WHERE seq IN (SELECT item FROM work_need) AND state = {Code.BLOCKED:d} ORDER BY seq LIMIT ?"
)
CLAIMED = f"{_VIEW} WHERE due_s IS NOT NULL AND state = {Code.CLAIMED:d} ORDER BY due_s, seq LIMIT ?"
# One statement, so that an item on its way from one state to the next is in one of them.
UNENDED = (
    f"SELECT seq, {_COLUMNS} FROM work JOIN lane ON lane.id = work.lane WHERE seq IN ("
    f"SELECT seq FROM work WHERE state = {Code.READY:d}"
    " UNION SELECT seq FROM work WHERE due_s IS NOT NULL UNION SELECT item FROM work_need)"
    f" AND seq > ? AND state NOT IN {ENDED_CODES} ORDER BY seq LIMIT ?"
)
DEAD = f"{_VIEW} WHERE state = {Code.DEAD:d} ORDER BY changed_s DESC, seq DESC LIMIT ?"
ENDED = (
    f"SELECT number, {_COLUMNS} FROM work_end JOIN work ON work.seq = work_end.item"
    " JOIN lane ON lane.id = work.lane WHERE number > ? ORDER BY number LIMIT ?"
)
COUNTS = (
    "SELECT lane.kind, state, sum(items) FROM work_count JOIN lane ON lane.id = work_count.lane"
    " WHERE items > 0 GROUP BY lane.kind, state"
)

# --- retention
SWEEP = "SELECT seq, state, changed_s FROM work WHERE seq > ? ORDER BY seq LIMIT ?"
COUNT_WORK = "SELECT ifnull(sum(items), 0) FROM work_count"
OLDEST_ENDED = f"SELECT seq FROM work WHERE state IN {ENDED_CODES} ORDER BY seq LIMIT ?"
DROP_WORK = f"DELETE FROM work WHERE seq IN {_MANY}"
DROP_ENDS = f"DELETE FROM work_end WHERE item IN {_MANY}"
DROP_NEEDS = f"DELETE FROM work_need WHERE needs IN {_MANY} OR item IN {_MANY}"
