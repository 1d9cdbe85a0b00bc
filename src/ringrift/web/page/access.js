// The key to act. A link brings a code behind the number sign; it is exchanged, once, for a session that this
// page keeps and sends as a header. A cookie would go to every port of this machine, also to other people's.
const STORED = "ringrift-session";
let session = stored();
export const rights = { may_read: true, may_act: false };

function stored() {
  try { return localStorage.getItem(STORED); } catch { return null; /* storage is switched off */ }
}

function keep(key) {
  session = key;
  try {
    if (key === null) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, key);
  } catch { /* until the page is closed, then */ }
}

export function withKey(headers = {}) {
  return session === null ? headers : { ...headers, authorization: `Bearer ${session}` };
}

function post(path, body) {
  return fetch(path, { method: "POST", headers: withKey({ "content-type": "application/json" }), body: JSON.stringify(body), cache: "no-store" });
}

async function reason(answer) {
  try { return (await answer.json()).error; } catch { return `the server answered ${answer.status}`; }
}

// Exchanges the code of a link, if the page was opened by one. Returns why it was refused, or nothing.
export async function enter() {
  const [, code] = /^#enter=([\w-]+)$/.exec(location.hash) ?? [];
  if (!code) return "";
  history.replaceState(null, "", location.pathname); // the code is worth nothing now, and nobody should keep it
  session = null;
  const answer = await post("/session", { code });
  if (!answer.ok) return reason(answer);
  keep((await answer.json()).session);
  return "";
}

// Asks what this page may do; a session ends with the process that gave it.
export async function refresh() {
  const answer = await fetch("/session", { headers: withKey(), cache: "no-store" });
  if (answer.ok) Object.assign(rights, await answer.json());
  if (!rights.may_act && session !== null) keep(null);
}

// Returns why it was not done, or nothing.
export async function act(path, body) {
  try {
    const answer = await post(path, body);
    return answer.ok ? "" : await reason(answer);
  } catch {
    return "the server does not answer";
  }
}
