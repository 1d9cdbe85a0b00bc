// Numbers and times in words that a person reads at a glance.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (value) => (!isNumber(value) ? "–" : Math.abs(value) < 100_000 ? whole.format(value) : short.format(value));
export const digits = (value, places) => (isNumber(value) ? value.toFixed(places) : "–");
export const clock = (seconds) => clockTime.format(new Date(seconds * 1000));
export const percent = (share) => (isNumber(share) ? `${Math.round(share * 100)} %` : "–");

export function rate(value) {
  if (!isNumber(value)) return "–";
  return value >= 1000 ? short.format(value) : value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2);
}

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

// A cost in one unit, exact enough for that of one game.
export function effort(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 6_000) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 360_000 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} d`;
}

// Two digits that say something, for the price of one game as for that of a week.
export function money(value) {
  if (!isNumber(value)) return "–";
  return value === 0 || value >= 1 ? value.toFixed(2) : value.toFixed(Math.min(8, 1 - Math.floor(Math.log10(value))));
}

export const ago = (seconds) => (seconds < 2 ? "now" : `${duration(seconds)} ago`);
export const brief = (digest) => (digest ? digest.slice(0, 10) : "–");

export function interval(low, high) {
  return isNumber(low) && isNumber(high) ? `${Math.round(low)} to ${Math.round(high)}` : "–";
}
