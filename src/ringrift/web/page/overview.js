// The head of the page, the totals, and one tile per config.
import { byId, el, keyed, say } from "./dom.js";
import { ago, clock, count, duration, interval, isNumber, money, rate } from "./format.js";
import { sparkline } from "./sparkline.js";
import { level, pauseText, stageTitle } from "./words.js";
import { rights } from "./access.js";

const LINKS = { connecting: "connecting…", live: "live", lost: "connection lost", locked: "locked", stopped: "stopped" };

export function drawHead(store, link) {
  const run = store.get("run");
  const state = link === "live" ? (store.well?.alive === false ? "not well" : run?.state ?? "starting") : run ? "unknown" : "connecting";
  const pill = byId("state");
  say(pill, state);
  pill.dataset.level = state === "not well" ? "bad" : level(state);
  say(byId("where"), run ? `on ${run.node}, for ${duration(store.nowS - run.started_s)}` : "");
  byId("link").dataset.link = link;
  say(byId("link-text"), LINKS[link]);
  const node = store.get("node");
  say(byId("version"), node ? `RingRift ${node.version}` : "");
  drawBanner(store, link);
  drawAct(run, link);
  document.body.classList.toggle("stale", link !== "live" && link !== "connecting");
}

// Whoever has no key sees the button, too, and is told on a click what it needs.
function drawAct(run, link) {
  const button = byId("act");
  button.hidden = link !== "live" || !["running", "paused"].includes(run?.state);
  button.dataset.locked = rights.may_act ? "no" : "yes";
  button.title = rights.may_act ? "" : "needs the key";
  button.dataset.path = run?.state === "paused" ? "/resume" : "/pause";
  say(button, run?.state === "paused" ? "Resume" : "Pause");
}

function drawBanner(store, link) {
  const banner = byId("banner");
  let text = "", calm = false;
  if (link === "locked") {
    text = "This page needs the key to show the run. Run `ringrift link` on its machine and open the link that it prints.";
  } else if (link === "lost" || link === "stopped") {
    const what = link === "stopped" ? "The run was stopped." : "Connection lost.";
    const seen = store.heardAt === null ? "Nothing was seen yet." : `Last seen ${clock(store.serverS)} (${ago((performance.now() - store.heardAt) / 1000)}).`;
    text = `${what} ${seen} This page comes back by itself when it runs again.`;
  } else if (store.well && !store.well.alive) {
    text = `The control process is not well: ${store.well.reason}.`;
  } else if (store.get("run")?.state === "paused") {
    const { paused } = store.get("run");
    text = `${paused ? pauseText(paused) : "The run is paused"}. \`ringrift resume\` lets it go on.`;
    calm = true;
  }
  const bad = link === "lost" || (store.well && !store.well.alive);
  banner.dataset.level = bad ? "bad" : calm ? "calm" : "warn";
  banner.hidden = text === "";
  say(banner, text);
}

export function drawTotals(store) {
  const configs = store.configs();
  const run = store.get("run");
  const sum = (field) => configs.reduce((total, config) => total + config[field], 0);
  const busy = configs.reduce((total, config) => total + config.running.length, 0);
  const cpuS = configs.reduce((total, config) => total + config.cost.cpu_s, 0);
  const gpuS = configs.reduce((total, config) => total + config.cost.gpu_s, 0);
  const priced = configs.filter((config) => isNumber(config.cost.money));
  const spent = priced.reduce((total, config) => total + config.cost.money, 0);
  const speed = sum("games_per_s");
  const boxes = !run ? [] : [
    { name: "games/s", value: rate(speed), note: `${count(speed * 3600)} an hour`, points: store.speeds },
    { name: "games", value: count(sum("games")), note: `${count(sum("rows"))} rows` },
    { name: "promotions", value: count(sum("promotions")), note: `${count(sum("rejections"))} refused, ${count(sum("rollbacks"))} taken back` },
    { name: "jobs running", value: count(busy), note: waiting(store.get("queue", {})) },
    { name: "CPU time", value: duration(cpuS), note: [gpuS > 0 ? `GPU ${duration(gpuS)}` : "", priced.length ? `cost ${money(spent)}` : ""].filter(Boolean).join(", ") || "no GPU used" },
  ];
  keyed(byId("totals"), boxes, {
    key: (box) => box.name,
    make: (box) => el("div", { class: "total" }, el("span", { class: "total-name" }, box.name), el("strong", {}), el("span", { class: "muted" }), el("span", { class: "total-plot" })),
    update: (node, box) => {
      if (box.points?.length > 1) node.children[3].replaceChildren(sparkline(box.points));
      say(node.children[1], box.value);
      say(node.children[2], box.note);
    },
  });
  document.title = run ? `${rate(speed)} games/s · RingRift` : "RingRift";
}

function waiting(queue) {
  const ready = Object.values(queue).reduce((total, states) => total + (states.ready ?? 0), 0);
  return ready === 1 ? "1 job waits" : `${count(ready)} jobs wait`;
}

export function drawTiles(store, chosen, choose) {
  const configs = store.configs();
  byId("configs-section").hidden = configs.length < 2;
  keyed(byId("configs"), configs.length < 2 ? [] : configs, {
    key: (config) => config.key,
    make: (config) => {
      const tile = el("button", { class: "tile", type: "button" }, ...["tile-name", "tile-rating", "tile-plot", "tile-note"].map((name) => el("span", { class: name })));
      tile.addEventListener("click", () => choose(config.key));
      return tile;
    },
    update: (tile, config) => {
      const [name, rating, plot, note] = tile.children;
      say(name, config.key);
      say(rating, isNumber(config.rating) ? String(Math.round(config.rating)) : "–");
      rating.title = config.rating_interval ? interval(...config.rating_interval) : "";
      rating.classList.toggle("muted", !isNumber(config.rating));
      const curve = store.get(`curve/${config.key}`, []);
      if (plot.curve !== curve) {
        plot.curve = curve;
        plot.replaceChildren(curve.length ? sparkline(curve) : el("span", { class: "muted" }, "no champion yet"));
      }
      say(note, `${stageTitle(config.stage)} · ${count(config.games)} games`);
      tile.dataset.level = level(config.stage);
      tile.setAttribute("aria-pressed", String(config.key === chosen));
    },
  });
}
