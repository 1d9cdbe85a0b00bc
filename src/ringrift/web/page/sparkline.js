// A rating curve the size of a word, with its interval.
import { svg } from "./dom.js";

const WIDTH = 160;
const HEIGHT = 36;

export function sparkline(curve) {
  const box = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (!curve.length) return box;
  const from = curve[0].at_s;
  const span = curve.at(-1).at_s - from || 1;
  const low = Math.min(...curve.map((p) => p.low));
  const height = Math.max(...curve.map((p) => p.high)) - low || 1;
  const x = (p) => (curve.length === 1 ? WIDTH / 2 : 3 + ((p.at_s - from) / span) * (WIDTH - 6)).toFixed(1);
  const y = (value) => (HEIGHT - 3 - ((value - low) / height) * (HEIGHT - 6)).toFixed(1);
  const above = curve.map((p) => `${x(p)},${y(p.high)}`);
  const below = [...curve].reverse().map((p) => `${x(p)},${y(p.low)}`);
  const last = curve.at(-1);
  box.append(
    svg("polygon", { points: [...above, ...below].join(" "), class: "spark-band" }),
    svg("polyline", { points: curve.map((p) => `${x(p)},${y(p.rating)}`).join(" "), class: "spark-line" }),
    svg("circle", { cx: x(last), cy: y(last.rating), r: 2.6, class: "spark-end" }),
  );
  return box;
}
