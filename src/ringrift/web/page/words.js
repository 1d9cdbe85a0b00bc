// The names of stages, and how each state is colored.
import { clock } from "./format.js";

export const STAGES = [
  { kind: "selfplay", title: "Self-play" },
  { kind: "validate", title: "Check" },
  { kind: "export", title: "Export" },
  { kind: "train", title: "Train" },
  { kind: "evaluate", title: "Evaluate" },
];
const TITLES = new Map([...STAGES.map(({ kind, title }) => [kind, title]), ["paused", "Paused"], ["blocked", "Blocked"]]);
export const stageTitle = (kind) => TITLES.get(kind) ?? kind;

const UNITS = { selfplay: "games", validate: "games", export: "rows", train: "rows", evaluate: "games" };
export const unit = (kind) => UNITS[kind] ?? "";

const LEVELS = {
  running: "good", fine: "good", promoted: "good", done: "good",
  paused: "calm", // on purpose: neither a warning nor a fault
  degraded: "warn", restarting: "warn", warning: "warn", warn: "warn", refused: "warn", recall: "warn", starting: "warn", stopping: "warn",
  blocked: "bad", problem: "bad", waits: "bad", failed: "bad", import_failed: "bad", error: "bad", critical: "bad", dead: "bad", "took back": "bad",
};
export const level = (word) => LEVELS[word] ?? "plain";

// "promoted 3f9c…" is a deed and its object; "train waits" is one the other way round.
const DEED_FIRST = /^(staged|promoted|refused|took back) (.+)$/;
const DEED_LAST = /^(.+) (waits|failed)$/;
export function deed(what) {
  const first = DEED_FIRST.exec(what);
  if (first) return { deed: first[1], object: first[2] };
  const last = DEED_LAST.exec(what);
  return last ? { deed: last[2], object: stageTitle(last[1]) } : { deed: stageTitle(what), object: "" };
}

export function pauseText({ by, at_s, reason }) {
  return `Paused by ${by || "a user"} at ${clock(at_s)}${reason ? `: ${reason}` : ""}`;
}
