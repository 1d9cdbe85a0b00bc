"""What the package costs by itself: import time, and the processes of a run that neither play nor train.

Limits: `import ringrift` under 150 ms; the control process under 80 MB. Beside them stands a bare Python
process, measured in the same run, as the floor. Of workers and their hosts only the time after their start
counts, as of the control process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmark import command

IMPORT_MS_MAX = 150.0
RESIDENT_MB_MAX = 80.0
IMPORTS = {
    "nothing": "pass",
    "ringrift": "import ringrift",
    "quick start": "from ringrift import initialize_all_coordinators, get_system_health",
    "documents' path": "from app.coordination.event_router import get_router",
}


def import_ms(statement: str, *, times: int) -> float:
    """Median time of a statement in fresh processes, without the start of Python itself."""
    program = f"import time; t = time.perf_counter()\n{statement}\nprint((time.perf_counter() - t) * 1000)"
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(times)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def control_process_of_a_run(*, settle_s: float, watch_s: float) -> dict[str, float]:
    """Start `ringrift run`, let it settle, and look at its memory and processor time while workers play."""
    with tempfile.TemporaryDirectory() as data:
        environment = {**os.environ, "RINGRIFT_DATA_DIR": data, "RINGRIFT_HEALTH_PORT": "0"}
        process = subprocess.Popen(
            [sys.executable, "-m", "ringrift.cli", "run", "--plain"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = Path(data) / "coordination" / "probes.json"
            started_s = time.perf_counter()
            while not address.exists():
                assert process.poll() is None, "the control process ended by itself"
                assert time.perf_counter() - started_s < 30, "the control process did not come up"
                time.sleep(0.01)
            up_s = time.perf_counter() - started_s
            time.sleep(settle_s)
            watched = psutil.Process(process.pid)
            before = cpu_s_by_part(watched)
            time.sleep(watch_s)
            after = cpu_s_by_part(watched)
            resident_mb = watched.memory_info().rss / 1e6
        finally:
            process.terminate()
            process.wait(30)
    used = {f"{part}_cpu_percent": 100 * (after[part] - before[part]) / watch_s for part in before}
    return {"up_s": up_s, "resident_mb": resident_mb, **used}


def cpu_s_by_part(control: psutil.Process) -> dict[str, float]:
    """Processor seconds of the control process, its workers, and the hosts from which jobs are forked."""
    workers = [each for each in control.children() if "ringrift.work.worker.main" in each.cmdline()]
    hosts = [
        each for worker in workers for each in worker.children() if "ringrift.jobs.host" in each.cmdline()
    ]
    return {
        part: sum(sum(each.cpu_times()[:2]) for each in processes)
        for part, processes in (("control", [control]), ("workers", workers), ("hosts", hosts))
    }


def bare_python_mb() -> float:
    program = "import time; print('up', flush=True); time.sleep(5)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        resident_mb = psutil.Process(process.pid).memory_info().rss / 1e6
        process.kill()
    process.wait(10)
    return resident_mb


def run(quick: bool) -> dict[str, Any]:
    times = {name: import_ms(statement, times=3 if quick else 11) for name, statement in IMPORTS.items()}
    rest = control_process_of_a_run(settle_s=1 if quick else 40, watch_s=2 if quick else 60)
    return {
        "import_ms": times,
        **rest,
        "bare_python_mb": bare_python_mb(),
        "met": times["ringrift"] < IMPORT_MS_MAX and rest["resident_mb"] < RESIDENT_MB_MAX,
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"import, {name:<18} {ms:8.1f} ms" for name, ms in result["import_ms"].items()]
    return "\n".join(
        [
            *lines,
            f"control process up in    {result['up_s']:8.2f} s",
            f"control process of a run {result['resident_mb']:8.1f} MB, limit {RESIDENT_MB_MAX:g}",
            f"bare Python              {result['bare_python_mb']:8.1f} MB",
            f"control process of a run {result['control_cpu_percent']:8.2f} % of a core",
            f"its workers              {result['workers_cpu_percent']:8.2f} % of a core",
            f"hosts of their jobs      {result['hosts_cpu_percent']:8.2f} % of a core",
        ]
    )


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
