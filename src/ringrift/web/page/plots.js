// The curves, on uPlot. Colors come from the style sheet, so a change of theme builds them anew.
import { clock, digits, isNumber } from "./format.js";

const FONT = "12px system-ui, sans-serif";
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Plot {
  // *describe* turns data into {data, series, bands, xIsTime, tip(index)}; null shows nothing.
  constructor(node, describe, { height }) {
    this.node = node;
    this.describe = describe;
    this.height = height;
    this.given = null;
    this.shape = "";
    this.plot = null;
    new ResizeObserver(() => this.fit()).observe(node);
  }

  show(given) {
    this.given = given;
    const wanted = given === null ? null : this.describe(given);
    if (wanted === null) {
      this.clear();
      return;
    }
    this.tip = wanted.tip;
    const shape = JSON.stringify([wanted.series.map((s) => s.label), wanted.xIsTime]);
    if (this.plot && shape === this.shape) {
      this.plot.setData(wanted.data);
      return;
    }
    this.clear();
    this.shape = shape;
    this.plot = new uPlot(this.options(wanted), wanted.data, this.node);
  }

  repaint() {
    this.clear();
    this.show(this.given);
  }

  clear() {
    this.plot?.destroy();
    this.plot = null;
    this.node.replaceChildren();
  }

  fit() {
    const width = this.node.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  options({ series, bands, xIsTime, xFormat }) {
    const axis = { stroke: color("--muted"), font: FONT, grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(120, this.node.clientWidth),
      height: this.height,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 9 } },
      scales: { x: { time: xIsTime, range: widened }, y: { range: roomy } },
      axes: [
        { ...axis, size: 30, space: 70, values: xFormat },
        { ...axis, size: 46, space: 34 },
      ],
      series: [{}, ...series],
      bands,
      plugins: [this.tipPlugin()],
    };
  }

  tipPlugin() {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    return {
      hooks: {
        init: (plot) => plot.over.append(tip),
        setCursor: (plot) => {
          const { idx, left } = plot.cursor;
          const lines = isNumber(idx) && left >= 0 ? this.tip(idx) : null;
          tip.hidden = lines === null;
          if (lines === null) return;
          tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
          const atX = plot.valToPos(plot.data[0][idx], "x");
          tip.style.left = `${Math.max(0, Math.min(atX + 12, plot.over.clientWidth - tip.offsetWidth))}px`;
          tip.style.top = "6px";
        },
      },
    };
  }
}

// One point, or none, still needs an axis with a length.
function widened(_, low, high) {
  if (!isNumber(low)) return [0, 1];
  const span = high - low;
  return span > 0 ? [low - span * 0.02, high + span * 0.02] : [low - 60, high + 60];
}

function roomy(_, low, high) {
  if (!isNumber(low)) return [0, 1];
  const room = Math.max((high - low) * 0.1, Math.abs(high) * 0.02, 0.02);
  return [low - room, high + room];
}

export function ratingShape({ curve, axis, startedS }) {
  if (!curve.length) return null;
  const byTime = axis === "time";
  const points = byTime ? curve : [...curve].sort((a, b) => a.rows - b.rows);
  const unseen = { points: { show: false }, width: 1, stroke: color("--band-edge") };
  return {
    data: [
      points.map((p) => (byTime ? p.at_s : p.rows)),
      points.map((p) => p.rating),
      points.map((p) => p.high),
      points.map((p) => p.low),
    ],
    series: [
      { label: "rating", stroke: color("--accent"), width: 2.5, points: { show: true, size: 9, width: 2, fill: color("--accent"), stroke: color("--card") } },
      { label: "high", ...unseen },
      { label: "low", ...unseen },
    ],
    bands: [{ series: [2, 3], fill: color("--band") }],
    xIsTime: byTime,
    xFormat: byTime ? clockTicks : compactTicks,
    tip: (i) => [
      `${Math.round(points[i].rating)} (${Math.round(points[i].low)} to ${Math.round(points[i].high)})`,
      `model ${points[i].model.slice(0, 10)}`,
      `${points[i].rows.toLocaleString("en")} rows, ${clock(points[i].at_s)}`,
      ...(isNumber(startedS) && points[i].at_s >= startedS ? [] : ["of an earlier run"]),
    ],
  };
}

export const LOSSES = [
  { field: "policy", title: "policy", color: "--plot-1" },
  { field: "value", title: "value", color: "--plot-2" },
  { field: "hold_out", title: "hold-out", color: "--plot-3", dash: [6, 4] },
];

export function lossShape(losses) {
  const shown = LOSSES.filter(({ field }) => losses.some((point) => isNumber(point[field])));
  if (!losses.length || !shown.length) return null;
  return {
    data: [losses.map((p) => p.rows_seen), ...shown.map(({ field }) => losses.map((p) => p[field]))],
    series: shown.map((line) => ({
      label: line.title,
      stroke: color(line.color),
      width: 2,
      dash: line.dash,
      spanGaps: true,
      points: { show: losses.length < 3, size: 6 },
    })),
    bands: [],
    xIsTime: false,
    xFormat: compactTicks,
    tip: (i) => [
      ...shown.map(({ field, title }) => `${title} ${digits(losses[i][field], 3)}`),
      `${losses[i].rows_seen.toLocaleString("en")} rows seen`,
    ],
  };
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const compactTicks = (_, ticks) => ticks.map((tick) => compact.format(tick));
function clockTicks(plot, ticks) {
  const spanS = plot.scales.x.max - plot.scales.x.min;
  const form = spanS > 172_800 ? { month: "short", day: "numeric" } : spanS > 600 ? { hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const format = new Intl.DateTimeFormat("en-GB", form);
  return ticks.map((tick) => format.format(new Date(tick * 1000)));
}
