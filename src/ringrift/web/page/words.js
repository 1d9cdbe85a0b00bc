// The names of stages, and how each state is coloured.
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
  running: "good", ok: "good", promote: "good", done: "good",
  paused: "warn", degraded: "warn", restarting: "warn", warning: "warn", warn: "warn", reject: "warn", starting: "warn", stopping: "warn",
  blocked: "bad", block: "bad", failed: "bad", import_failed: "bad", error: "bad", critical: "bad", dead: "bad", "roll back": "bad", rollback: "bad",
};
export const level = (word) => LEVELS[word] ?? "plain";
