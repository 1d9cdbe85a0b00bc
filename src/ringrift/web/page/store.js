// What the page knows: the newest part of each name, and what time it is at the server.
const SPEEDS_MAX = 300; // one a second

export class Store {
  constructor() {
    this.parts = new Map();
    this.well = null; // {alive, ready, reason} of the last message
    this.heardAt = null; // performance.now() of it
    this.serverS = 0;
    this.speeds = []; // games a second since the page was opened, as points of a small curve
  }

  // Returns the names of the parts that changed.
  take(message) {
    this.hear(message);
    const gone = message.full ? [...this.parts.keys()].filter((name) => !(name in message.parts)) : [];
    for (const name of gone) this.parts.delete(name);
    for (const [name, value] of Object.entries(message.parts)) {
      if (value === null) this.parts.delete(name);
      else this.parts.set(name, value);
    }
    this.noteSpeed();
    return new Set([...gone, ...Object.keys(message.parts)]);
  }

  noteSpeed() {
    const run = this.get("run");
    if (!run || this.speeds.at(-1)?.at_s === run.at_s) return;
    const speed = this.configs().reduce((total, config) => total + config.games_per_s, 0);
    this.speeds.push({ at_s: run.at_s, rating: speed, low: 0, high: speed });
    if (this.speeds.length > SPEEDS_MAX) this.speeds.shift();
  }

  hear({ now_s, alive, ready, reason }) {
    this.well = { alive, ready, reason };
    this.serverS = now_s;
    this.heardAt = performance.now();
  }

  get nowS() {
    return this.heardAt === null ? Date.now() / 1000 : this.serverS + (performance.now() - this.heardAt) / 1000;
  }

  get(name, otherwise = null) {
    return this.parts.get(name) ?? otherwise;
  }

  configs() {
    const found = [];
    for (const [name, config] of this.parts) if (name.startsWith("config/")) found.push({ key: name.slice("config/".length), ...config });
    return found;
  }
}
