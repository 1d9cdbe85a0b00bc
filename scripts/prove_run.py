"""Start `ringrift run` in an empty folder, let it learn by itself, and show what came of it.

    python scripts/prove_run.py --out docs/learning/run_square8_2p

Measures when the first model was promoted, how many were, and how the last champion does against the first in
100 games with the same search. Writes `result.json` and the rating curve as a picture. Exit code 0 if the
first promotion came within 5 minutes, there were at least three, and the last champion won at least 75 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ringrift.jobs.plotting import line_plot
from ringrift.jobs.sealing import read_json, seal_json
from ringrift.runtime import SystemRuntime

FIRST_S_MAX, PROMOTIONS_MIN, SCORE_MIN, GAMES = 300.0, 3, 0.75, 100
LOOK_S = 5.0
CLOCK = SystemRuntime()
STOP_S_MAX = 120.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="square8_2p")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--data", type=Path, help="folder of the run; a temporary one if none")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch) / "data"
        seen = watch_run(options.config, data, minutes=options.minutes)
        result = {**seen, **last_against_first(options.config, data, Path(scratch))}
    result["machine"] = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    result["met"] = is_met(result)
    options.out.mkdir(parents=True, exist_ok=True)
    seal_json(options.out / "result.json", result)
    (options.out / "curve.svg").write_text(picture(result), encoding="utf8")
    say(json.dumps({key: value for key, value in result.items() if key != "curve"}, indent=2))
    return 0 if result["met"] else 1


def watch_run(config: str, data: Path, *, minutes: float) -> dict[str, Any]:
    """Run for so long; say when each promotion was seen."""
    command = [*ringrift("run"), "--configs", config, "--data", str(data), "--plain", "--no-open"]
    began_s = CLOCK.now_s()
    log = data.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        run = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            while CLOCK.now_s() - began_s < 60 * minutes and not has_ended(run, within_s=LOOK_S):
                if (status := look(config, data)) is not None:
                    tell(began_s, status)
        finally:
            run.send_signal(signal.SIGTERM)
            code = run.wait(STOP_S_MAX)
    if code != 0:
        raise SystemExit(f"the run ended with code {code}; see {log}")
    status = look(config, data)
    if status is None:
        raise SystemExit(f"the run left no status; see {log}")
    promotions = [event for event in models(config, data) if event["promoted_s"] is not None]
    first_s = min((each["promoted_s"] for each in promotions), default=None)
    return {
        "config": config,
        "minutes": minutes,
        "first_promotion_s": None if first_s is None else round(first_s - began_s, 1),
        "promotions": status["promotions"],
        "rejections": status["rejections"],
        "rollbacks": status["rollbacks"],
        "games": status["games"],
        "rows": status["rows"],
        "rating": status["rating"],
        "cost": status["cost"],
        "first": promotions[0]["digest"] if promotions else None,
        "last": status["champion"],
        "curve": [
            {
                "s": round(point["at_s"] - began_s, 1),
                **{k: point[k] for k in ("rating", "low", "high", "rows")},
            }
            for point in status["curve"]
        ],
    }


def look(config: str, data: Path) -> dict[str, Any] | None:
    asked = subprocess.run(
        [*ringrift("status"), "--json", "--data", str(data)], capture_output=True, timeout=60, check=False
    )
    if asked.returncode != 0:
        return None
    found: dict[str, Any] | None = json.loads(asked.stdout).get("configs", {}).get(config)
    return found


def models(config: str, data: Path) -> list[dict[str, Any]]:
    """The models of the run, oldest first, with when each was promoted."""
    command = [*ringrift("models"), config, "--json", "--data", str(data)]
    asked = subprocess.run(command, capture_output=True, timeout=60, check=True)
    found = json.loads(asked.stdout)[config]
    return [
        {
            "digest": model["model"],
            "card": model["card"],
            "promoted_s": next(
                (each["at_s"] for each in model["history"] if each["state"] == "production"), None
            ),
        }
        for model in found
    ]


def last_against_first(config: str, data: Path, scratch: Path) -> dict[str, Any]:
    """Play the last champion against the first promoted model."""
    promoted = [model for model in models(config, data) if model["promoted_s"] is not None]
    if len(promoted) < 2:
        return {"score": None}
    ends = sorted(promoted, key=lambda model: model["promoted_s"])
    for name, model in (("first", ends[0]), ("last", ends[-1])):
        for suffix, digest in ((".safetensors", model["digest"]), (".json", model["card"])):
            shutil.copy(data / "blobs" / digest[:2] / digest, scratch / f"{name}{suffix}")
    out = scratch / "match"
    subprocess.run(
        [
            *ringrift("job", "evaluate"),
            *("--config", config, "--test", "none", "--games", str(GAMES), "--seed", "77"),
            *("--candidate", f"model:{scratch / 'last.safetensors'}@32"),
            *("--opponents", f"model:{scratch / 'first.safetensors'}@32"),
            *("--out", str(out)),
        ],
        check=True,
        capture_output=True,
        timeout=1800,
    )
    match = read_json(next(out.glob("evaluation-*.json")))["matches"][0]
    return {"score": match["score"], "interval": match["interval"], "match_games": match["games"]}


def is_met(result: dict[str, Any]) -> bool:
    first_s, score = result["first_promotion_s"], result["score"]
    return (
        first_s is not None
        and first_s <= FIRST_S_MAX
        and result["promotions"] >= PROMOTIONS_MIN
        and score is not None
        and score >= SCORE_MIN
    )


def picture(result: dict[str, Any]) -> str:
    curve = [(point["s"] / 60, point["rating"], point["low"], point["high"]) for point in result["curve"]]
    title = f"{result['config']}: champions of an untended run on {result['machine']}"
    return line_plot(
        title,
        {"rating, 95 %": [(minutes, rating) for minutes, rating, _, _ in curve]},
        x_label="minutes",
        y_label="rating",
        bands={"rating, 95 %": [(minutes, low, high) for minutes, _, low, high in curve]},
    )


def tell(began_s: float, status: dict[str, Any]) -> None:
    say(
        f"{(CLOCK.now_s() - began_s) / 60:5.1f} min  {status['stage']:9} games {status['games']:6,}  "
        f"promotions {status['promotions']}  refused {status['rejections']}  rating {status['rating']}"
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def has_ended(run: subprocess.Popen[bytes], *, within_s: float) -> bool:
    try:
        run.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def ringrift(*words: str) -> list[str]:
    return [sys.executable, "-m", "ringrift.cli", *words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
