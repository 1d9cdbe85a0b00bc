// Everything that a page can do to another origin. Each attempt says what it got; "" is nothing.
async ([target, session]) => {
  const event = JSON.stringify({event_type: "HOST_ONLINE", payload: {node_id: "evil"}});
  const got = {};
  const attempt = async (name, act) => { try { got[name] = await act() ?? ""; } catch { got[name] = ""; } };
  const read = async (answer) => (await answer).text();
  const within = (ms, promise) => Promise.race([promise, new Promise((done) => setTimeout(() => done(""), ms))]);
  for (const path of ["/", "/status", "/metrics", "/livez", "/page/main.js", "/session"])
    await attempt(`read ${path}`, () => read(fetch(target + path)));
  await attempt("read with credentials", () => read(fetch(target + "/status", {credentials: "include"})));
  for (const type of ["application/json", "text/plain", "application/x-www-form-urlencoded"])
    for (const mode of ["cors", "no-cors"])
      for (const path of ["/event", "/pause", "/session"])
        await attempt(`${mode} ${type} ${path}`, () => read(fetch(target + path, {method: "POST", mode, headers: {"content-type": type}, body: event})));
  await attempt("with a stolen session", () => read(fetch(target + "/pause", {method: "POST", headers: {authorization: "Bearer " + session, "content-type": "application/json"}, body: "{}"})));
  await attempt("beacon", () => { navigator.sendBeacon(target + "/event", new Blob([event], {type: "text/plain"})); });
  await attempt("form", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = "sink";
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: target + "/pause", target: "sink", enctype: "text/plain"});
    form.innerHTML = `<input name='{"reason":"' value='"}'>`;
    document.body.append(frame, form);
    form.submit();
    setTimeout(() => { let text = ""; try { text = frame.contentDocument?.body.innerText ?? ""; } catch { /* another origin */ } done(text); }, 300);
  }));
  await attempt("stream", () => within(1000, new Promise((done) => {
    for (let i = 0; i < 6; i++) { const source = new EventSource(target + "/events/stream"); source.addEventListener("picture", (e) => done(e.data)); }
  })));
  await attempt("socket", () => within(1000, new Promise((done) => { const socket = new WebSocket(target.replace("http", "ws") + "/events/stream"); socket.onopen = () => done("open"); socket.onclose = () => done(""); })));
  for (const path of ["/events/stream", "/page/icon.svg", "/status"])
    await attempt(`image ${path}`, () => within(1000, new Promise((done) => { const image = new Image(); image.onload = () => done("loaded"); image.onerror = () => done(""); image.src = target + path; })));
  await attempt("script", () => within(1000, new Promise((done) => { const script = document.createElement("script"); script.onload = () => done("loaded"); script.onerror = () => done(""); script.src = target + "/page/theme.js"; document.head.append(script); })));
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = target + "/";
    document.body.append(frame);
    setTimeout(() => { let text = ""; try { text = frame.contentDocument?.body.innerText ?? ""; } catch { /* another origin */ } done(text); }, 300);
  }));
  return got;
}
