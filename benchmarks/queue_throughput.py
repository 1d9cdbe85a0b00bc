"""Durable work queue: 20,000 small jobs, one producer and two worker processes, beside its peers.

Every contender counts a finished job the same way, by one byte in a file; the clock runs from the
producer's first job to the last byte. Python start-up is not counted: each contender first does one job
per worker.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from benchmark import command

HERE = Path(__file__).parent
JOBS = 20_000
QUICK_JOBS = 3_000
WORKERS = 2
WARM_UP_JOBS = 20
TARGETS = {"dramatiq": 1.5, "huey": 5.0, "bare": 0.5}


@contextmanager
def running(commands, env):
    children = [
        subprocess.Popen(
            command,
            env=env,
            cwd=HERE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        yield
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for_bytes(path, count, *, timeout_s):
    """Return the time at which the file had *count* bytes."""
    deadline = time.time() + timeout_s
    while time.time() < deadline:
        if path.exists() and path.stat().st_size >= count:
            return time.time()
        time.sleep(0.002)
    raise TimeoutError(f"{path.stat().st_size if path.exists() else 0} of {count} jobs in {timeout_s} s")


def measure(worker_commands, produce_command, env, done, jobs):
    with running(worker_commands, env):
        subprocess.run(
            [*produce_command, str(WARM_UP_JOBS)], env=env, cwd=HERE, check=True, capture_output=True
        )
        wait_for_bytes(done, WARM_UP_JOBS, timeout_s=60)
        producer = subprocess.Popen([*produce_command, str(jobs)], env=env, cwd=HERE, stdout=subprocess.PIPE)
        started_s = float(producer.stdout.readline())
        ended_s = wait_for_bytes(done, WARM_UP_JOBS + jobs, timeout_s=300)
        producer.wait()
        producer.stdout.close()
    return {"jobs": jobs, "seconds": ended_s - started_s, "jobs_per_s": jobs / (ended_s - started_s)}


def run_ringrift(folder, jobs):
    env = {**os.environ, "BENCH_ENGINE_DIR": str(folder / "engine"), "BENCH_DONE": str(folder / "done")}
    member = [sys.executable, "queue_member.py"]
    return measure([[*member, "worker"]] * WORKERS, [*member, "producer"], env, folder / "done", jobs)


def run_bare(folder, jobs):
    env = {**os.environ, "BENCH_BARE_DB": str(folder / "bare.db"), "BENCH_DONE": str(folder / "done")}
    member = [sys.executable, "queue_peer_bare.py"]
    return measure([[*member, "worker"]] * WORKERS, [*member, "producer"], env, folder / "done", jobs)


def producing(module):
    # Imported by name, because a task is known by the module that it is in.
    return [sys.executable, "-c", f"import sys, {module} as peer; peer.produce(int(sys.argv[1]))"]


def run_huey(folder, jobs):
    env = {**os.environ, "BENCH_HUEY_DB": str(folder / "huey.db"), "BENCH_DONE": str(folder / "done")}
    env["PYTHONPATH"] = str(HERE)
    consumer = [str(Path(sys.executable).parent / "huey_consumer"), "queue_peer_huey.huey", "-w", "4", "-q"]
    if not Path(consumer[0]).exists():
        return {"missing": "peer not available: huey is not installed"}
    return measure([consumer] * WORKERS, producing("queue_peer_huey"), env, folder / "done", jobs)


def run_dramatiq(folder, jobs):
    redis = shutil.which("redis-server")
    program = Path(sys.executable).parent / "dramatiq"
    if redis is None or not program.exists():
        return {"missing": "peer not available: redis-server or dramatiq is not installed"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = [redis, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    env = {**os.environ, "BENCH_REDIS_URL": f"redis://127.0.0.1:{port}/0", "BENCH_DONE": str(folder / "done")}
    env["PYTHONPATH"] = str(HERE)
    with running([[*server, "--dir", str(folder)]], env):
        wait_for_port(port)
        workers = [[str(program), "queue_peer_dramatiq", "--processes", str(WORKERS)]]
        return measure(workers, producing("queue_peer_dramatiq"), env, folder / "done", jobs)


def wait_for_port(port):
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise TimeoutError("redis-server did not start")


CONTENDERS = {"ringrift": run_ringrift, "bare": run_bare, "dramatiq": run_dramatiq, "huey": run_huey}


def run(quick: bool) -> dict:
    jobs = QUICK_JOBS if quick else JOBS
    results = {}
    for name, contender in CONTENDERS.items():
        with tempfile.TemporaryDirectory(prefix="ringrift-bench-") as folder:
            results[name] = contender(Path(folder), jobs)
    ours = results["ringrift"]["jobs_per_s"]
    ratios = {
        name: {"ratio": ours / found["jobs_per_s"], "target": TARGETS[name]}
        for name, found in results.items()
        if name in TARGETS and "jobs_per_s" in found
    }
    met = all(ratio["ratio"] >= ratio["target"] for ratio in ratios.values())
    return {"jobs": jobs, "results": results, "ratios": ratios, "met": met}


def table(result: dict) -> str:
    lines = [f"{result['jobs']} small jobs, 1 producer and {WORKERS} worker processes"]
    for name, found in result["results"].items():
        if "missing" in found:
            lines.append(f"  {name:<10} {found['missing']}")
            continue
        ratio = result["ratios"].get(name)
        beside = "" if ratio is None else f"   ours is {ratio['ratio']:.2f} x (target {ratio['target']:g} x)"
        lines.append(f"  {name:<10} {found['jobs_per_s']:>9,.0f} jobs/s{beside}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
