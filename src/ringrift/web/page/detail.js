// Everything about the chosen config.
import { byId, el, empty, keyed, pairs, say, table } from "./dom.js";
import { brief, clock, count, digits, duration, effort, interval, isNumber, money, percent, rate } from "./format.js";
import { LOSSES, Plot, lossShape, ratingShape } from "./plots.js";
import { STAGES, pauseText, stageTitle, unit } from "./words.js";

const NO_CURVE = [];

export class Detail {
  constructor() {
    this.axis = "time";
    this.tabled = null; // the curve that the table shows; a long one is not built anew every second
    this.costed = null; // the cost that is shown
    this.rating = new Plot(byId("rating-plot"), ratingShape, { height: 300 });
    this.loss = new Plot(byId("loss-plot"), lossShape, { height: 272 });
  }

  repaint() {
    this.rating.repaint();
    this.loss.repaint();
  }

  drawCurve(store, key) {
    const config = store.get(`config/${key}`);
    const curve = store.get(`curve/${key}`, NO_CURVE);
    say(byId("rating-config"), key ?? "the champion");
    say(byId("rating-value"), isNumber(config?.rating) ? String(Math.round(config.rating)) : "");
    say(byId("rating-now"), ratingSentence(config, curve));
    if (curve.length) this.rating.show({ curve, axis: this.axis, startedS: store.get("run")?.started_s });
    else {
      this.rating.show(null);
      byId("rating-plot").replaceChildren(empty(whyNoCurve(store, config)));
    }
    if (curve !== this.tabled) {
      this.tabled = curve;
      byId("rating-table").replaceChildren(curveTable(curve));
    }
  }

  drawLoss(store, key) {
    const losses = store.get(`losses/${key}`, []);
    const shape = losses.length ? lossShape(losses) : null;
    this.loss.show(shape === null ? null : losses);
    if (shape === null) byId("loss-plot").replaceChildren(empty("No model has been trained yet."));
    const last = losses.at(-1);
    const lines = shape === null ? [] : LOSSES.filter(({ field }) => isNumber(last[field]));
    byId("loss-legend").replaceChildren(
      ...lines.map(({ field, title, color }) => el("span", { class: "key", data: { color } }, `${title} ${digits(last[field], 2)}`)),
    );
    say(byId("loss-text"), lines.map(({ field, title }) => `${title} ${digits(last[field], 3)}`).join(", "));
  }

  drawNumbers(store, key) {
    const config = store.get(`config/${key}`);
    drawStages(config, store.nowS);
    drawJobs(config);
    say(byId("next"), config ? config.next.replace(/^[a-z]+(?=: )/, stageTitle) : "");
    say(byId("who-plays"), [config?.who_plays, ...(config?.tuned ?? [])].filter(Boolean).join("; "));
    say(byId("held-back"), config?.held_back ?? "");
    pairs(byId("counts"), config ? countPairs(config) : []);
    if (config?.cost !== this.costed) {
      this.costed = config?.cost;
      byId("cost").replaceChildren(...(config ? costTable(config.cost) : [empty("Nothing yet.")]));
    }
  }
}

function ratingSentence(config, curve) {
  if (!config || !isNumber(config.rating)) return "";
  const within = config.rating_interval ? `, 95 % interval ${interval(...config.rating_interval)}` : "";
  const times = curve.length === 1 ? "1 champion" : `${curve.length} champions`;
  return `rating points${within} · ${times} so far, now ${brief(config.champion)}`;
}

function whyNoCurve(store, config) {
  if (!store.get("run")) return "The loop has not told anything yet. That takes a few seconds after the start.";
  if (!config) return "This run has no configs yet.";
  return "No champion yet. The curve begins with the first model that passes its test, usually within minutes.";
}

function curveTable(curve) {
  const columns = [{ title: "when" }, { title: "model", class: "mono" }, { title: "rows", number: true }, { title: "rating", number: true }, { title: "interval", number: true }];
  if (!curve.length) return empty("Nothing yet.");
  const rows = [...curve].reverse().map((p) => [clock(p.at_s), brief(p.model), count(p.rows), String(Math.round(p.rating)), interval(p.low, p.high)]);
  return table(columns, rows);
}

function drawStages(config, nowS) {
  const running = new Map();
  for (const job of config?.running ?? []) running.set(job.kind, (running.get(job.kind) ?? 0) + 1);
  keyed(byId("stages"), STAGES, {
    key: (stage) => stage.kind,
    make: (stage) => el("li", {}, el("span", { class: "stage-dot", "aria-hidden": "true" }), el("span", {}, stage.title), el("span", { class: "hidden" })),
    update: (node, { kind }) => {
      const jobs = running.get(kind) ?? 0;
      const waits = config?.paused ? "paused" : "idle";
      const state = config?.blocked[kind] ? "blocked" : jobs || config?.stage === kind ? "active" : waits;
      node.dataset.state = state;
      say(node.lastChild, { blocked: " is blocked", active: " is under way", paused: " is paused", idle: "" }[state]);
    },
  });
  const pause = byId("pause");
  pause.hidden = !config?.paused;
  if (config?.paused) say(pause, pauseText(config.paused));
  keyed(byId("blocks"), together(config?.blocked ?? {}), {
    key: (block) => block.reason,
    make: () => el("p", { class: "block" }),
    update: (node, { stages, reason, until_s }) => {
      const who = stages.length === STAGES.length ? "Everything" : stages.map(stageTitle).join(", ");
      const left = isNumber(until_s) ? `, for ${duration(until_s - nowS)} more` : "";
      say(node, `${who} ${stages.length > 1 && stages.length < STAGES.length ? "wait" : "waits"}: ${reason}${left}`);
    },
  });
}

// Stages that wait for the same reason are told in one sentence.
function together(blocked) {
  const found = new Map();
  for (const [stage, { reason, until_s }] of Object.entries(blocked)) {
    if (!found.has(reason)) found.set(reason, { reason, until_s, stages: [] });
    found.get(reason).stages.push(stage);
  }
  return [...found.values()];
}

function drawJobs(config) {
  const jobs = config?.running ?? [];
  const parent = byId("jobs");
  parent.querySelector(".empty")?.remove();
  keyed(parent, jobs, {
    key: (job) => job.job_id,
    make: (job) =>
      el("div", { class: "job" }, el("div", { class: "job-head" }, el("strong", {}), el("span", { class: "muted" })), el("progress", { max: 1, "aria-label": stageTitle(job.kind) }), el("div", { class: "job-note muted" })),
    update: (node, job) => {
      const [head, bar, note] = node.children;
      say(head.firstChild, stageTitle(job.kind));
      say(head.lastChild, isNumber(job.total) ? `${count(job.done)} of ${count(job.total)} ${unit(job.kind)}` : `${count(job.done)} ${unit(job.kind)}`);
      if (isNumber(job.total) && job.total > 0) bar.value = Math.min(1, job.done / job.total);
      else bar.removeAttribute("value");
      const left = isNumber(job.eta_s) ? `${duration(job.eta_s)} left` : "";
      say(note, [job.worker, `${rate(job.rate)} ${unit(job.kind)}/s`, left, job.text].filter(Boolean).join(" · "));
    },
  });
  if (!jobs.length) parent.append(empty(config?.stage === "paused" ? "Paused: no job runs." : "No job of this config runs at this moment."));
}

function countPairs(config) {
  return [
    ["Games accepted", count(config.games)],
    ["Games to be checked", count(config.games_unchecked)],
    ["Games refused", count(config.games_refused), "They did not agree with the rules and are set aside."],
    ["Rows", count(config.rows)],
    ["Rows trained on", count(config.trained_rows)],
    ["Rows seen in training", count(config.sample_steps), "Repeats included."],
    ["Games a second", rate(config.games_per_s)],
    ["Share of self-play", percent(config.share)],
    ["Promotions", count(config.promotions)],
    ["Refused candidates", count(config.rejections)],
    ["Promotions taken back", count(config.rollbacks)],
  ];
}

const COSTS = [
  { title: "in all", field: "" },
  { title: "a game", field: "_per_game" },
  { title: "a promotion", field: "_per_promotion" },
  { title: "a rating point", field: "_per_rating_point" },
];

function costTable(cost) {
  const columns = [{ title: "" }, ...["CPU", "GPU", "money"].map((title) => ({ title, number: true }))];
  const rows = COSTS.map(({ title, field }) => [title, effort(cost[`cpu_s${field}`]), effort(cost[`gpu_s${field}`]), money(cost[`money${field}`])]);
  const note = isNumber(cost.money) ? "" : "Money is counted where [prices] in ringrift.toml says what an hour of each node costs.";
  return [table(columns, rows), note ? el("p", { class: "muted note" }, note) : ""];
}
