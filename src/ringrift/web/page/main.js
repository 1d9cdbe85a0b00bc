// Joins the parts: what comes in by the stream is kept in the store, and what changed is drawn.
import { act, enter, refresh, rights } from "./access.js";
import { byId, say } from "./dom.js";
import { Detail } from "./detail.js";
import { drawDaemons, drawDecisions, drawEvents, drawFindings, drawQueue, drawWorkers } from "./lists.js";
import { drawHead, drawTiles, drawTotals } from "./overview.js";
import { Store } from "./store.js";
import { watch } from "./stream.js";

const UPTIME_EVERY_TICKS = 5;

const store = new Store();
const detail = new Detail();
let link = "connecting";
let wanted = asked();
let decisionsOf = "all";
let configsDrawn = 0;
let ticks = 0;

// What stands behind the number sign, which anybody may have written.
function asked() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

// The config that was asked for, or the first one there is.
function chosen() {
  const keys = store.configs().map((config) => config.key);
  return keys.includes(wanted) ? wanted : keys[0] ?? null;
}

function choose(key) {
  wanted = key;
  history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  drawAll();
}

function drawAll() {
  draw(new Set([...store.parts.keys(), "config/", "curve/", "losses/", "decisions", "findings", "queue", "daemons", "events"]));
}

function draw(changed) {
  const key = chosen();
  const any = (prefix) => [...changed].some((name) => name.startsWith(prefix));
  drawHead(store, link);
  drawTotals(store);
  drawTiles(store, key, choose);
  if (any("curve/") || any("config/") || key === null) detail.drawCurve(store, key);
  if (any("losses/")) detail.drawLoss(store, key);
  if (any("config/")) {
    detail.drawNumbers(store, key);
    drawWorkers(store);
  }
  byId("decisions-of").hidden = store.configs().length < 2;
  if (changed.has("decisions") || store.configs().length !== configsDrawn) drawDecisions(store, decisionsOf === "one" ? key : null);
  configsDrawn = store.configs().length;
  if (changed.has("findings")) drawFindings(store);
  if (changed.has("queue")) drawQueue(store);
  if (changed.has("daemons")) drawDaemons(store);
  if (changed.has("events")) drawEvents(store);
}

// Ages and countdowns go on between two messages.
function tick() {
  drawHead(store, link);
  detail.drawNumbers(store, chosen());
  ticks += 1;
  if (ticks % UPTIME_EVERY_TICKS === 0) drawDaemons(store);
}

function press(group, attribute, onChoice) {
  for (const button of group) {
    button.addEventListener("click", () => {
      for (const other of group) other.setAttribute("aria-pressed", String(other === button));
      onChoice(button.dataset[attribute]);
    });
  }
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("ringrift-theme", root.dataset.theme); } catch { /* storage is switched off: until the page is closed, then */ }
  detail.repaint();
}

function note(text) {
  byId("key-note").hidden = text === "";
  say(byId("key-note"), text);
}

async function comeIn() {
  try {
    note(await enter());
    await refresh();
  } catch {
    note("The server did not answer to the link; `ringrift link` prints another one when it runs.");
  }
  drawHead(store, link);
}

async function pressAct() {
  if (!rights.may_act) return note("Reading is open here; acting needs the key. Run `ringrift link` on this machine and open the link that it prints.");
  const why = await act(byId("act").dataset.path, {});
  note(why === "" ? "" : `Not done: ${why}`);
  await refresh();
}

byId("act").addEventListener("click", pressAct);
byId("theme").addEventListener("click", switchTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => detail.repaint());
press(document.querySelectorAll("[data-axis]"), "axis", (axis) => {
  detail.axis = axis;
  detail.drawCurve(store, chosen());
});
press(document.querySelectorAll("[data-of]"), "of", (of) => {
  decisionsOf = of;
  drawAll();
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#enter=")) return void comeIn();
  wanted = asked();
  drawAll();
});

drawAll();
if (location.hash.startsWith("#enter=")) await comeIn();
watch({
  onOpen: refresh,
  onPicture: (message) => draw(store.take(message)),
  onBeat: (message) => {
    store.hear(message);
    drawHead(store, link);
  },
  onLink: (now) => {
    link = now;
    drawHead(store, link);
  },
});
setInterval(tick, 1000);
