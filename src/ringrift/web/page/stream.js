// The line to the server. It comes back by itself, and goes on where it was by naming the last mark it has.
// Read by fetch and not by EventSource, which cannot send the key.
import { withKey } from "./access.js";

const QUIET_MS = 15_000; // the server says something every five seconds
const RETRY_MS = 1_000;
const RETRY_MS_MAX = 8_000;

export function watch({ onPicture, onBeat, onLink, onOpen }) {
  let current = null;
  let mark = "";
  let retryMs = RETRY_MS;
  let quiet = 0;
  let retry = 0;
  const handlers = { picture: onPicture, beat: onBeat };

  function listen(line) {
    clearTimeout(quiet);
    quiet = setTimeout(() => lose(line, "lost"), QUIET_MS);
  }

  function hear(line, { event, data, id }) {
    if (line !== current) return;
    if (event === "bye") return lose(line, "stopped");
    listen(line);
    retryMs = RETRY_MS;
    if (id) mark = id;
    onLink("live");
    handlers[event]?.(JSON.parse(data));
  }

  function lose(line, how) {
    if (line !== current) return;
    current = null;
    line.abort();
    clearTimeout(quiet);
    clearTimeout(retry);
    onLink(how);
    retry = setTimeout(open, retryMs);
    retryMs = Math.min(retryMs * 1.6, RETRY_MS_MAX);
  }

  async function open() {
    const line = new AbortController();
    current = line;
    listen(line);
    try {
      await onOpen();
      const answer = await fetch(`/events/stream?mark=${encodeURIComponent(mark)}`, { headers: withKey(), cache: "no-store", signal: line.signal });
      if (!answer.ok) return lose(line, answer.status === 401 ? "locked" : "lost");
      for await (const message of messages(answer.body)) hear(line, message);
      lose(line, "lost");
    } catch {
      lose(line, "lost"); // it was cut, or ended by ourselves, which is known then
    }
  }

  open();
}

// Server-sent events: fields on lines, an empty line after each message.
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let message = {};
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const at = line.indexOf(": ");
      if (at > 0) message[line.slice(0, at)] = line.slice(at + 2);
      else if (line === "") {
        if (message.event) yield message;
        message = {};
      }
    }
  }
}
