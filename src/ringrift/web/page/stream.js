// The line to the server. It comes back by itself, and goes on where it was by naming the last mark it has.
const QUIET_MS = 15_000; // the server says something every five seconds
const RETRY_MS = 1_000;
const RETRY_MS_MAX = 8_000;

export function watch({ onPicture, onBeat, onLink }) {
  let source = null;
  let mark = "";
  let retryMs = RETRY_MS;
  let quiet = 0;
  let retry = 0;

  function heard(handle) {
    return (event) => {
      clearTimeout(quiet);
      quiet = setTimeout(() => lose("lost"), QUIET_MS);
      retryMs = RETRY_MS;
      if (event.lastEventId) mark = event.lastEventId;
      onLink("live");
      handle(JSON.parse(event.data));
    };
  }

  function lose(how) {
    source?.close();
    clearTimeout(quiet);
    clearTimeout(retry);
    onLink(how);
    retry = setTimeout(open, retryMs);
    retryMs = Math.min(retryMs * 1.6, RETRY_MS_MAX);
  }

  function open() {
    source = new EventSource(`/events/stream?mark=${encodeURIComponent(mark)}`);
    quiet = setTimeout(() => lose("lost"), QUIET_MS);
    source.addEventListener("picture", heard(onPicture));
    source.addEventListener("beat", heard(onBeat));
    source.addEventListener("bye", () => lose("stopped"));
    source.addEventListener("error", () => lose("lost"));
  }

  open();
}
