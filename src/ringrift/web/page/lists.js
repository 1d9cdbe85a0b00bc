// Decisions, findings, workers, queue, daemons and events.
import { byId, el, empty, say, table } from "./dom.js";
import { clock, count, duration, rate } from "./format.js";
import { deed, level, stageTitle, unit } from "./words.js";

const badge = (word) => el("span", { class: "badge", data: { level: level(word) } }, word);

export function drawDecisions(store, only) {
  const all = store.get("decisions", []);
  const shown = only === null ? all : all.filter((decision) => decision.config === only);
  const several = store.configs().length > 1;
  const node = byId("decisions");
  if (!shown.length) {
    node.replaceChildren(el("li", {}, empty("Nothing has been decided yet.")));
    return;
  }
  node.replaceChildren(
    ...shown.map((decision) => {
      const words = deed(decision.what);
      return el(
        "li",
        {},
        el("time", { class: "muted", dateTime: new Date(decision.at_s * 1000).toISOString() }, clock(decision.at_s)),
        badge(words.deed),
        el(
          "span",
          { class: "reason" },
          several ? el("strong", {}, `${decision.config} `) : null,
          words.object ? el("span", { class: "object" }, `${words.object}: `) : null,
          decision.reason,
        ),
      );
    }),
  );
}

export function drawFindings(store) {
  const found = [...store.get("findings", [])].sort((a, b) => worry(b) - worry(a));
  const node = byId("findings");
  if (!found.length) {
    node.replaceChildren(el("li", {}, empty(store.get("run") ? "The doctor found nothing wrong." : "The doctor has not looked yet.")));
    return;
  }
  node.replaceChildren(
    ...found.map((finding) =>
      el(
        "li",
        { data: { level: level(finding.level) } },
        el("div", {}, badge(finding.level), ` ${String(finding.text ?? "")}`),
        finding.advice ? el("div", { class: "muted" }, String(finding.advice)) : null,
      ),
    ),
  );
}

const worry = (finding) => ({ bad: 2, warn: 1 })[level(finding.level)] ?? 0;

export function drawWorkers(store) {
  const run = store.get("run");
  const jobs = store.configs().flatMap((config) => config.running.map((job) => ({ ...job, config: config.key })));
  say(byId("workers-note"), run ? `${jobs.length} of ${run.workers} busy` : "");
  const columns = [{ title: "worker", class: "mono" }, { title: "job" }, { title: "config" }, { title: "speed", number: true }];
  const rows = jobs.map((job) => [job.worker, stageTitle(job.kind), job.config, `${rate(job.rate)} ${unit(job.kind)}/s`]);
  byId("workers").replaceChildren(rows.length ? table(columns, rows) : empty(run?.workers === 0 ? "No worker is here; without one nothing is played." : "No worker has a job at this moment."));
}

const QUEUE_STATES = [["ready", "wait"], ["claimed", "run"], ["blocked", "depend"], ["done", "done"], ["dead", "dead"]];

export function drawQueue(store) {
  const queue = Object.entries(store.get("queue", {}));
  const columns = [{ title: "kind" }, ...QUEUE_STATES.map(([, title]) => ({ title, number: true }))];
  const rows = queue.map(([kind, states]) => [stageTitle(kind), ...QUEUE_STATES.map(([state]) => (states[state] ? count(states[state]) : "·"))]);
  byId("queue").replaceChildren(rows.length ? table(columns, rows) : empty("The queue is empty."));
}

export function drawDaemons(store) {
  const daemons = store.get("daemons", []);
  const up = daemons.filter((daemon) => daemon.state === "running").length;
  say(byId("daemons-note"), daemons.length ? `${up} of ${daemons.length} run` : "");
  const columns = [{ title: "daemon", class: "daemon" }, { title: "state" }, { title: "up", number: true }];
  const sorted = [...daemons].sort((a, b) => (a.state === "running") - (b.state === "running"));
  const rows = sorted.map((daemon) => [
    el("span", {}, el("span", { class: "mono" }, daemon.name), trouble(daemon)),
    badge(daemon.state),
    daemon.since_s === null ? "–" : duration(store.nowS - daemon.since_s),
  ]);
  byId("daemons").replaceChildren(rows.length ? table(columns, rows) : empty("No daemon has reported yet."));
}

function trouble({ restarts, error }) {
  const again = restarts === 0 ? "" : restarts === 1 ? "1 restart" : `${restarts} restarts`;
  const text = [again, error].filter(Boolean).join(", ");
  return text ? el("span", { class: "trouble" }, text) : null;
}

export function drawEvents(store) {
  const events = store.get("events", []);
  const columns = [{ title: "when" }, { title: "event", class: "mono" }, { title: "from" }, { title: "about", class: "about" }];
  const rows = events.map((event) => [
    clock(event.at_s),
    event.times > 1 ? `${event.type} ×${event.times}` : event.type,
    event.source,
    el("span", { title: event.about }, event.about),
  ]);
  byId("events").replaceChildren(rows.length ? table(columns, rows) : empty("No event yet."));
}

