"""All five kinds of jobs in one small program that keeps the contract and starts in a blink.

Games are lists of numbers that follow from the seed, files are JSON, and a candidate wins by a draw of lots
that follows from the seed too. Like the real ones it goes on where a killed run of it ended, and every file
under its final name is whole. It imports nothing that takes time, so that a loop of it is mostly the loop.
While a file named `hold-KIND` lies beside the data folder, jobs of that kind stand still. They are not told
where that is, but a job folder lies in it.
"""

import fcntl
import hashlib
import json
import os
import random
import signal
import sys
import time

DONE, STOPPED, UNAVAILABLE = 0, 3, 5
GAME_S = 0.02
STEP_S = 0.02
MOVES = 12

asked_to_stop = []


def main():
    kind, params = os.environ["RINGRIFT_JOB_KIND"], json.load(sys.stdin)
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_stop.append(number))
    folder = os.environ["RINGRIFT_JOB_OUT"]
    say("started", kind, pid=os.getpid())
    # Two processes in one folder would spoil each other's files: whoever comes second has to see that.
    with open(os.path.join(folder, ".lock"), "a+") as lock:
        if not take(lock):
            say("result", kind, status="unavailable", exit_code=UNAVAILABLE, error="somebody works here")
            return UNAVAILABLE
        while os.path.exists(f"{folder}/../../../../hold-{kind}") and not asked_to_stop:
            time.sleep(STEP_S)
        return {"selfplay": selfplay, "validate": validate, "export": export, "train": train}.get(
            kind, evaluate
        )(kind, params, folder)


def take(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def say(event, kind, **fields):
    sys.stdout.write(json.dumps({"event": event, "kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def seal(path, content):
    """Whole, or not there."""
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
    with open(f"{path}.part", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest()}


def read(path):
    with open(path, "rb") as file:
        return json.loads(file.read())


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def finish(kind, artifacts, **fields):
    say("result", kind, status="done", exit_code=DONE, artifacts=artifacts, **fields)
    return DONE


def stopped(kind):
    say("result", kind, status="stopped", exit_code=STOPPED)
    return STOPPED


# --- games --------------------------------------------------------------------------------------------------


def selfplay(kind, params, folder):
    """Each finished game is kept at once; those that an earlier run kept are not played again."""
    model = digest_of(params["model"]) if params.get("model") else None
    run_id = hashlib.sha256(f"{params['seed']} {params['games']} {model}".encode()).hexdigest()[:12]
    path, journal = os.path.join(folder, f"{run_id}.shard.json"), os.path.join(folder, "games.jsonl")
    games = whole_lines(journal)
    if not os.path.exists(path):
        with open(journal, "ab") as file:
            while len(games) < params["games"]:
                if asked_to_stop:
                    return stopped(kind)
                time.sleep(GAME_S)
                games.append(play(run_id, params["seed"], len(games)))
                file.write(json.dumps(games[-1]).encode() + b"\n")
                file.flush()
                say("progress", kind, stage="playing", done=len(games), total=params["games"])
    shard = seal(path, {"games": games, "model": model})
    counts = {"games": len(games), "rows": MOVES * len(games), "moves": MOVES * len(games)}
    return finish(
        kind,
        [{**shard, "artifact": "shard", "counts": counts}],
        games=len(games),
        rows=MOVES * len(games),
        generator_sha256=model,
    )


def whole_lines(path):
    """What a killed run wrote last may be half a line; it goes, so that the next line is whole again."""
    if not os.path.exists(path):
        return []
    with open(path, "rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        file.truncate(end)
    return [json.loads(line) for line in content[:end].splitlines()]


def play(run_id, seed, number):
    lots = random.Random(f"{seed} {number}")
    return {"id": f"{run_id}-{number:05d}", "moves": [lots.randrange(7) for _ in range(MOVES)]}


def validate(kind, params, folder):
    artifacts = []
    for path in params["shards"]:
        games, digest = read(path)["games"], digest_of(path)
        rows = sum(len(game["moves"]) for game in games)
        counts = {"shard": digest, "games": len(games), "accepted": len(games), "refused": 0, "rows": rows}
        time.sleep(STEP_S)
        report = seal(os.path.join(folder, f"{digest[:16]}.report.json"), counts)
        artifacts.append({**report, "artifact": "report", "counts": {**counts, "quality": 0.9}})
    return finish(kind, artifacts)


# --- learning -----------------------------------------------------------------------------------------------


def export(kind, params, folder):
    ids = []
    for path in params["shards"]:
        ids += [game["id"] for game in read(path)["games"]]
        time.sleep(STEP_S)
    samples = seal(params["out"], {"games": ids})
    counts = {"games": len(ids), "rows": MOVES * len(ids)}
    return finish(kind, [{**samples, "artifact": "samples", "counts": counts}], **counts)


def train(kind, params, folder):
    """The step reached is kept, so a killed training goes on and ends with the same bytes."""
    at = os.path.join(folder, "step")
    step = read(at) if os.path.exists(at) else 0
    while step < params["steps"]:
        if asked_to_stop:
            return stopped(kind)
        time.sleep(STEP_S)
        step += 1
        seal(at, step)
        say("progress", kind, stage="training", done=step, total=params["steps"])
    parent = digest_of(params["parent"]) if params.get("parent") else None
    weights = {"seed": params["seed"], "samples": digest_of(params["samples"][0]), "parent": parent}
    model = seal(params["out"], {**weights, "steps": step})
    card = seal(os.path.join(folder, "model.json"), {"sha256": model["sha256"]})
    artifacts = [
        {**model, "artifact": "model", "counts": {"rows_seen": step * params["batch"]}},
        {**card, "artifact": "card"},
    ]
    return finish(kind, artifacts, steps=step, model_sha256=model["sha256"])


def evaluate(kind, params, folder):
    """Every game of every gate until one is lost, whatever its test says."""
    matches = []
    earlier = [{"opponent": text, "games": params["games"]} for text in params.get("opponents", ())]
    for number, gate in enumerate(params.get("gates", earlier)):
        opponent, games = gate["opponent"], gate["games"] - gate.get("prior", {}).get("games", 0)
        # One luck for all games of a candidate against an opponent, so that some win and some lose clearly.
        candidate = params["candidate"].removeprefix("model:").rpartition("@")[0]
        lots = random.Random(f"{digest_of(candidate)} {opponent.rpartition('/')[0]}")
        wins_pairs = lots.random() < 0.7 or not opponent.startswith("model:")
        pairs = [0, 0, 0, 0, 0]
        for game in range(games // 2):
            if asked_to_stop:
                return stopped(kind)
            time.sleep(STEP_S)
            pairs[4 if wins_pairs and game % 4 else 0 if not wins_pairs and game % 4 else 2] += 1
            say("progress", kind, stage="playing", done=2 * game + 2, total=games)
        wins, losses = 2 * pairs[4] + pairs[2], 2 * pairs[0] + pairs[2]
        matches.append(
            {
                "opponent": opponent,
                "games": wins + losses,
                "wins": wins,
                "draws": 0,
                "losses": losses,
                "score": wins / max(1, wins + losses),
                "players": 2,
                "pairs": pairs,
                "number": number,
            }
        )
        if not wins_pairs:
            break
    told = seal(os.path.join(folder, "evaluation.json"), matches)
    return finish(kind, [{**told, "artifact": "evaluation", "counts": {}}], matches=matches)


if __name__ == "__main__":
    sys.exit(main())
